# What a type checker sees of `partq`: the names of the client's list, and those that `partq.py` adds.

from partq_spark import __version__ as __version__
from partq_spark import register as register
from partq_spark.client import *  # noqa: F403
from partq_spark.spark.supervision import supervise as supervise
from partq_spark.spark.tracing import processing as processing
