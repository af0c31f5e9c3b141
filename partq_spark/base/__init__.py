"""What every other package of partq may use: the five errors, clocks and chance, retries, points in time, documents,
private folders, printable text and the words for numbers, the description of metrics, spans and their context.

Nothing here knows of stores or Spark, or what a queue or a group does; spans carry the names of both (`tracing.Where`).
"""
