"""What every other package of partq may use: the five errors, points in time, folders, what may reach a terminal.

Nothing in here knows of stores, queues, groups or Spark.
"""
