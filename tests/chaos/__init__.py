"""Spark drivers that are killed and frozen while they share a queue, and the judge of what their sinks have."""
