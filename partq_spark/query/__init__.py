"""What stands behind a query, and behind a consumer in Python: one loop, `consumer.ConsumerLoop`. No pyspark.

Spark keeps a query's progress in offsets, a group keeps ownership outside every query; here the two meet. The rules:

1. An offset says by itself what its batch reads: of each partition the epoch, the range, and below which offset
   messages are marked (`offsets`). So a replay needs no other knowledge.
2. What is about to be delivered is announced before its offset is given away, on condition that the group's state has
   not changed since it was looked at. The lease is the last thing that is looked at.
3. With `ackMode=auto` the offset that Spark starts from is the acknowledgement, of exactly those partitions whose epoch
   in it is the one held now. With `ackMode=manual` only the application acknowledges, and only what this process gave
   out at the epoch that is held now.
4. Ownership alone never changes the offset: only messages do.
5. The first offset of a query has its flow's name and no messages. So the group never knows a name that a crash could
   make the query forget (`participant`).

The states of a batch, what brings it there, and what follows:

    planned     Made of the membership's view, the head, and        Nothing is promised yet.
                the offset before it (`planning`, `limits`).
    announced   The membership took it (`deliver`). If the          Its end is given to Spark.
                state has changed, it is planned again.
    given out   Spark asked for its partitions, and they are        Tasks read it. Left out is what has moved on: the
                still held at the epoch in its end.                 checkpoint has a higher epoch, and the new owner
                                                                    began at or before that point. In doubt it waits.
    missed      A batch is repeated without a partition that        Written down before it is given out, so that the
                moved on, and there are no checkpoints.             partition is not taken for read
                                                                    (`group.left_out`).
    complete    Spark starts from its end, or the listener          Acknowledged in the group; the checkpoint is written
                says so (`acknowledgements`).                       at its interval, or at once where a handoff waits.

A query without a group follows the same rules: its membership grants every partition at epoch 0 (`group.solo`).

A store that does not answer is asked again for `retryTimeout`, and then the query fails (`waiting`). A process may die
after any of these steps. In a group, what may have been delivered before comes again, marked as redelivered.
"""
