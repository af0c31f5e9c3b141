"""What `--ownership` may say; a secret in it is refused and never repeated."""

from __future__ import annotations

import subprocess
import sys

import pytest

from partq_spark.base.errors import Invalid
from partq_spark.group.documents.urls import parse_ownership
from partq_spark.group.ownership import open_ownership


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("redis://localhost", "redis://localhost:6379/0"),
        ("  REDIS://redis.example.com:7000/3/ ", "redis://redis.example.com:7000/3"),
        ("rediss://10.0.0.1:6380/15", "rediss://10.0.0.1:6380/15"),
        ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
        ("rediss://h:1/0?ssl_ca_certs=/etc/ca%20x.pem", "rediss://h:1/0?ssl_ca_certs=/etc/ca%20x.pem"),
        (
            "rediss://h?ssl_keyfile=/k.pem&ssl_ca_certs=/ca.pem&ssl_certfile=/c.pem",
            "rediss://h:6379/0?ssl_ca_certs=/ca.pem&ssl_certfile=/c.pem&ssl_keyfile=/k.pem",
        ),
    ],
)
def test_a_redis_has_one_way_to_be_written(given: str, canonical: str) -> None:
    parsed = parse_ownership(given)
    assert str(parsed) == canonical
    assert parse_ownership(canonical) == parsed


@pytest.mark.parametrize("given", ["store", "Store", " store "])
def test_store_is_the_other_one(given: str) -> None:
    assert parse_ownership(given) is None


@pytest.mark.parametrize(
    "given",
    [
        *("", "none", "redis", "redis:", "redis:///0", "redis://", "redis://h:0/0", "redis://h:65536/0"),
        *("redis://h:x/0", "redis://h:1/x", "redis://h:1/0/1", "redis://h:1/-1", "redis://h h:1/0", "http://h:1/0"),
        *("unix:///tmp/redis.sock", "file:///tmp", "memory:", "localhost:6379", "redis://h:1/0#x", "redis://h,g:1/0"),
        *("redis://h:1/0?ssl_ca_certs=/ca.pem", "rediss://h:1/0?ssl_ca_certs=ca.pem", "rediss://h:1/0?ssl_ca_certs="),
        *("rediss://h:1/0?ssl_cert_reqs=none", "rediss://h:1/0?ssl_check_hostname=false", "rediss://h:1/0?x"),
        "rediss://h:1/0?ssl_ca_certs=/a&ssl_ca_certs=/b",
    ],
)
def test_anything_else_is_refused_with_what_is_allowed(given: str) -> None:
    with pytest.raises(Invalid, match=r"^ownership .*(redis://host:port/db|host:port/0|PEM file|write it in full)"):
        parse_ownership(given)


@pytest.mark.parametrize(
    "given",
    [
        "redis://hunter2@h:1/0",
        "redis://:hunter2@h:1/0",
        "rediss://user:hunter2@h:1/0",
        "redis://h:1/0?password=hunter2",
        "rediss://h:1/0?password=hunter2",
        "rediss://h:1/0?ssl_ca_certs=hunter2",
        "redis://h:1/hunter2",
        "redis://h:hunter2/0",
        "redis:hunter2@h",
        "hunter2",
        "redis://h:1/0#hunter2",
    ],
)
def test_a_secret_is_not_repeated(given: str) -> None:
    with pytest.raises(Invalid) as caught:
        open_ownership(given)
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(caught.value.__cause__)
    if "@" in given and "//" in given:
        assert "PARTQ_REDIS_PASSWORD" in str(caught.value)


def test_ownership_beside_the_queue_needs_a_store() -> None:
    with pytest.raises(Invalid, match="--store"):
        open_ownership("store")


def test_a_user_without_a_password_is_refused() -> None:
    with pytest.raises(Invalid, match="PARTQ_REDIS_PASSWORD is not"):
        open_ownership("redis://h", environ={"PARTQ_REDIS_USERNAME": "billing"})


def test_without_the_package_the_extra_is_named() -> None:
    code = """
import sys
sys.modules["redis"] = None
from partq_spark.base.errors import Invalid
from partq_spark.group.ownership import open_ownership
try:
    open_ownership("redis://localhost:6379/0")
except Invalid as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "needs the package redis" in done.stdout
    assert "pip install partq[redis]" in done.stdout


def test_the_package_is_imported_only_when_it_is_needed() -> None:
    code = "import sys, partq_spark.group.ownership as _, partq_spark.group.documents.objects;"
    code += "print([name for name in sys.modules if name.split('.')[0] in ('redis', 'azure', 'pyspark', 'asyncio')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


def test_what_cannot_be_imported_ahead_is_left_to_who_opens_it() -> None:
    code = """
import sys
from partq_spark.group.ownership import import_client
for url in ("none", "store", "redis:/wrong"):
    import_client(url)
print("redis" in sys.modules)
sys.modules["redis"] = None
import_client("redis://localhost:6379/0")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == ("False\n", "")
