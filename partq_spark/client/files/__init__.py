"""What `partq publish` and `Publication.add_file` read: CSV, JSON lines and Parquet as messages, in bounded memory.

Formats only: which queue gets the messages, and when they become visible, is decided above.
"""
