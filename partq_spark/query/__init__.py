"""The flow behind a streaming query: how it joins its group, what each micro-batch delivers, and when that is
acknowledged.

No pyspark: the thin source above calls `consumer`, which owns the flow; the rest are parts of what it decides.
"""
