"""Where ownership is kept: one contract (`api`), kept in Redis, as objects beside the queue, or in memory."""
