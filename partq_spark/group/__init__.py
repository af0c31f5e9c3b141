"""Consumer groups: who has which partition, how far it is acknowledged, and how a process takes part as a flow.

Nothing here imports pyspark, and only `documents` talks to Redis. The rules:

1. The checkpoint decides. A flow delivers a partition once it has read its own name, instance and epoch in it; a fence
   rewrites it for another owner, and from then on whatever the former one writes fails, however late it comes. So the
   ownership store, where all of the rest is, may be lost or set back at any time: it can stop a flow, never make two.
2. An epoch belongs to one flow. It grows with each change of owner, and is never used again. A new instance of the same
   flow goes on at it.
3. The checkpoint says how far its owner may have delivered (`may_reach`), and the owner raises that before it
   delivers more. So whoever fences it knows what has to be marked: every message that was ever delivered is below the
   highest of `offset`, `redelivered_below` and `may_reach`. It is *open* while the owner may have something in hand,
   else *closed*.
4. The state says who should have what, and one leader writes it. A flow raises first and looks at the state then, and
   delivers only if it has not changed. So a leader that has written a pause, and then finds the checkpoint closed,
   knows that nothing is in hand; one that is raised in between is closed again by its owner, whom the state refused.
5. A flow delivers nothing once its lease has ended: a session timeout, by its own clock, since it sent the last
   heartbeat of which it knows that it arrived. Nobody compares clocks: others watch whether its heartbeat moves.
6. Each document is changed by compare-and-swap. Nothing is promised about two of them together, so their order counts:
   checkpoint, then a look at the state; one's own name, then the log's end.

The documents of a group, who writes them, and on which condition. The checkpoint lies beside the queue, `missed` too,
the others where ownership is kept (`documents`: Redis, or objects beside the queue):

    checkpoint        its owner (`membership`)        Queue, flow, instance and epoch are its own. It raises, saves and
    (`checkpoints`)                                   closes; the offset only grows.
                      the leader, by a fence          The epoch is higher, or it is the same flow's new instance. What
                      a flow that is alone, by a      is drained is fenced only while it is closed. What its owner may
                      fence                           have delivered is marked.
                      a person, by a rewind           It goes back at a new epoch, without an owner, and what its owner
                                                      may have delivered is marked (`rewinding`).
    state             the leader                      The token is the one that it wrote last. A new leader reads, and
    (`ownership`)                                     swaps in a token of its own before it does anything.
    leader            the leader, with each look      Its own token, and a lower beat.
                      another coordinator             Token and beat stood still for a lease timeout, by its own clock.
    beats/<flow>      its flow, with each heartbeat   The instance is its own, and bound.
                      a new instance, by a bind       The former one has unbound, was given up by the leader, or stood
                                                      still for its session timeout.
                      the leader, to forget it        No partition names the instance, and the state is still the
                                                      leader's.
    ownership/<n>     the leader, for people          The version is the one that was read. Nobody decides by it
                                                      (OWN-02).
    missed/<flow>     its flow (`checkpoints=none`)   It is the one that was read (`left_out`).

What an unknown outcome means, when the answer to a write is lost:

    checkpoint        It is read: its owner or epoch says whether it is still one's own. If so, nothing is delivered by
                      what was known before, and the next write is a swap, whatever it says: one on its way fails then.
    state             The leader takes nothing for granted: it reads everything and adopts the group anew.
    leader            It is read again; if token and beat are not as they should be, somebody else leads.
    heartbeat         It is read before the next one, and the lease is not renewed by one that was not answered.
    bind              The next try reads, and is a new instance: the former one may be bound, and is its own.
    ownership/<n>     It counts as not claimed.

A store that lives anew (`Reincarnated`) has forgotten who lives: flows bind anew with what they had, and the leader
waits for them. What was delivered stands in the checkpoints.
"""
