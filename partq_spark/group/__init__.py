"""Consumer groups: who has which partition, how far it is acknowledged, and how a process takes part as a flow.

Nothing here imports pyspark, and only `documents` talks to Redis. The rules:

1. The checkpoint decides. A flow delivers a partition once it has read its own name, instance and epoch in it; a fence
   rewrites it for another owner, and from then on whatever the former one writes fails, however late it comes. So the
   ownership store, where all of the rest is, may be lost or set back at any time: it can stop a flow, never make two.
2. An epoch belongs to one flow. It grows with each change of owner, and is never used again. A new instance of the same
   flow goes on at it.
3. The state says who should have what, and one leader writes it. Before a flow delivers, it announces in its record how
   far, and then looks whether the state has changed. So a leader that swaps in a state and reads the records afterwards
   has seen everything that is delivered by the former one.
4. What was announced counts as delivered, and comes marked if it comes again. Where nobody can know how much that is,
   everything up to the log's end counts as delivered.
5. A flow delivers nothing once its lease has ended: a session timeout, by its own clock, since it sent the last
   heartbeat of which it knows that it arrived. Nobody compares clocks: others watch whether its heartbeat moves.
6. Each document is changed by compare-and-swap. Nothing is promised about two of them together, so their order counts:
   record, heartbeat, then a look at the state; checkpoint, then the record that repeats it.

The documents of a group, who writes them, and on which condition. The checkpoint lies beside the queue, `missed` too,
the others where ownership is kept (`documents`: Redis, or objects beside the queue):

    checkpoint        its owner, forward            Queue, group (`since`), flow, instance and epoch are its own.
    (`checkpoints`)   the leader, by a fence        The epoch is higher, or it is the same flow's new instance.
                      a flow that is alone, by      The same (`solo`).
                      a fence
                      a person, by a rewind         It goes back at a new epoch, without an owner (`rewinding`).
                      a person, `--ownership none`  The owner's name stays; from then on it may have delivered all that
                                                    there is (`lifecycle.share`).
    state             the leader                    The token is the one that it wrote last. A new leader reads, and
    (`ownership`)                                   swaps in a token of its own before it does anything.
    leader            the leader, with each look    Its own token, and a lower beat.
                      another coordinator           Token and beat stood still for a lease timeout, by its own clock.
    beats/<flow>      its flow, with each heartbeat The instance is its own, and bound.
                      a new instance, by a bind     The former one has unbound, was given up by the leader, stood still
                                                    for its session timeout, or its record is gone.
                      the leader, to forget it      No partition names the instance, or its record is gone; and the
                                                    state is still the leader's.
    flows/<flow>/     this instance alone           The token is the one that it wrote last. It counts once a heartbeat
    <instance>                                      names the instance; the token there tells that it has changed.
                      a later bind, the leader      They remove it when no heartbeat names the instance.
    ownership/<n>     the leader, for people        The version is the one that was read. Nobody decides by it (OWN-02).
    missed/<flow>     its flow (`checkpoints=none`) It is the one that was read (`missed_partitions`).

What an unknown outcome means, when the answer to a write is lost:

    checkpoint        It is read: its owner or epoch says whether the write took place. Then it is decided again.
    state             The leader takes nothing for granted: it reads everything and adopts the group anew.
    leader            It is read again; if token and beat are not as they should be, somebody else leads.
    heartbeat         It is read before the next one, and the lease is not renewed by one that was not answered.
    record            The instance ends, and its flow binds anew with what it knows: the record may say more, or less.
    bind              The next try reads, and is a new instance: the former one may be bound, and is its own.
    ownership/<n>     It counts as not claimed.

A store that lives anew (`Reincarnated`) has forgotten who lives: flows bind anew and say what they know, the leader
waits for them, and reports of flows that do not come back count as lost (rule 4).
"""
