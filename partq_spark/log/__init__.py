"""The message log: what a queue contains, as one head document and immutable blobs (docs/formats.md).

Nothing here knows of Spark, Redis or consumers. Of a consumer group the log knows what its entry in the head says
(`groups`): where it begins, and how it is shared, in one word. The rules:

1. A queue contains what its head names, and nothing else. It changes only when a new head, with the next sequence
   number, is swapped in for the one that was read. Everything else is created once, under a name of its own.
2. What a new head names exists before the swap. A writer that dies before the swap leaves unnamed objects, which
   collection deletes. A writer that dies after it has published.
3. A writer that decided by an old head fails at the swap, reads again and decides again. So a change is a function
   from head to head that may be repeated (`queue.QueueLog.change`).

Objects, who writes them, and when they go:

    head      every change, by swap (`queue`)                      with the queue (`admin`)
    segment   a task that stages (`segment`), compaction           when collection finds it unnamed (`housekeeping`)
    chunk     a publish whose head grew too large (`tree`),        the same
              compaction
    page      a publish with too many writers (`writers`)          the same
    marks     collection, by swap: what it found unnamed           with the queue

Fields of the head, who changes them, and on which condition:

    entries, next       publish        Nothing was staged below the floor or placed for another layout. The quota is not
    writers,                           reached. Neither this writer's batch nor this publish's token is in the log yet.
    writer_pages                       Entry and writer's record come with one swap, as do chunks and pages.
    tree                publish,       The oldest entries of the head move into a chunk; they are still the oldest.
                        compaction
                        compaction     One reference replaces a run of them: same messages, same offsets.
                        trim           References to nothing above `earliest` are dropped.
    earliest,           trim           No group needs what lies below: by its start, or by its checkpoints, if they
    trimmed_sequence                   are of this very group and were read since its last rewind.
    layouts             alter          The new layout begins where each partition ends.
                        trim           A layout of which no message is left is dropped.
    resolutions         operators      The writer has used the number.
    columns             alter          Every version of them stays what it was: columns are added, and types widened.
    floor               collection     It was in force one grace ago: nothing staged below it can still be published.
    config,             operators      The values are allowed.
    subscriptions
    groups              operators      It is still the group that was looked at (`since_sequence`).
                        first flow     There is none of this name, or it is not yet said how it is shared.
                        rewind         There is one of this name.

An outcome is unknown when the answer to a swap is lost, or contradicts itself. It is settled by reading. A change is
decided again from the present head. A publish looks for its own token and its writer's record before it places the same
messages again; where trimming may have taken the token, it says that nobody can tell (`publish.Unsettled`). An object
that is gone though a head named it is looked for once more from the present head before it is called a loss.
"""
