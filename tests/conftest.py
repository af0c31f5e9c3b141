"""The servers and the Spark session that every suite may ask for by name, how property tests run, and that what tests
start hears SIGINT. Nothing else.
"""

import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.support.spark import lab, spark, spark_azurite, spark_s3
from tools.servers import Azurite, RedisServer, S3Server, running

__all__ = ["lab", "spark", "spark_azurite", "spark_s3"]

# The same examples in every run, and no deadline: a busy machine is no failure. `--hypothesis-profile=explore` looks
# further, with other examples every time; `quick` is for the tests that run after every change.
settings.register_profile("partq", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=5000)
settings.register_profile("quick", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("partq")

# A shell lets what it starts in the background ignore SIGINT, and the programs that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    """An Azurite for the whole session. Tests that kill or freeze a server start their own."""
    with running(Azurite()) as server:
        yield server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A server that speaks S3, for the whole session, as `azurite`."""
    with running(S3Server()) as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A redis-server for the whole session; use keys of your own, or start your own server to flush or kill it."""
    with running(RedisServer()) as server:
        yield server
