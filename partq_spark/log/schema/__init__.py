"""What a typed queue's messages look like: columns with names and types, and how these change while the queue lives.

Pure: nothing here reads or writes a store, and only values of Arrow go in and out. A type is a type of Arrow in one
normal form (`types`), said to people and kept in the head as Spark's DDL (`ddl`).
"""
