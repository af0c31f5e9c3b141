"""The command line, `partq …`: every command in a module of its own that is imported only when it is called.

Commands read arguments, call the client (`partq_spark.client`), and print; they decide nothing about queues. Only here
are click and rich imported.
"""
