"""Spark drivers and consumers that are killed and frozen while they share a queue; the world's judge judges them."""
