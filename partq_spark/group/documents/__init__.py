"""Where a group's documents are kept: one contract (`api`), kept in Redis, as objects beside the queue, or in memory.

What they mean is `group.ownership`'s business, and so is opening them. Importing this package imports nothing.
"""
