"""What every other package of partq may use: the five errors, points in time, documents, private folders, printable
text.

Nothing here knows of stores, queues, groups or Spark.
"""
