"""What programs, the command line and the demo use to reach queues, groups and messages. No pyspark."""
