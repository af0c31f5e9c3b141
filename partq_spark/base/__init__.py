"""What every other package of partq may use: the five errors, clocks and chance, retries, points in time,
documents, private folders, printable text.

Nothing here knows of stores, queues, groups or Spark.
"""
