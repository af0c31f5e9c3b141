# What a type checker sees of `partq`: the names of the client's list, and two of its own.

from partq_spark import __version__ as __version__
from partq_spark import register as register
from partq_spark.client import *  # noqa: F403
