"""Executors in processes of their own, with their own environment, folder and credentials, through a real Azurite;
the stream shares a group in a Redis that wants a password.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import secrets
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

import partq
from tests.cast.sidecars import Sidecar
from tests.group.ownership.redis_servers import SpecialRedis
from tests.support import jvm
from tests.support.jvm import spark_environment
from tests.support.messages import assert_published, numbered_rows
from tools.processes import Program
from tools.servers import Azurite, free_port, running

HERE = Path(__file__).parent
ROWS = 300
EXECUTORS: Final = 2
CREDENTIALS = "AZURE_STORAGE_CONNECTION_STRING"
TO_ITSELF = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


class TwoKeyAzurite(Azurite):
    """An account with two keys, as Azure's have: one is for the driver, the other for the executors."""

    def __init__(self) -> None:
        super().__init__()
        self.second_key = base64.b64encode(secrets.token_bytes(48)).decode()

    def environment(self) -> dict[str, str]:
        environment = super().environment()
        return {**environment, "AZURITE_ACCOUNTS": f"{environment['AZURITE_ACCOUNTS']}:{self.second_key}"}


def java_options(environment: Mapping[str, str]) -> str:
    """For a JVM that lives shortly and leaves nothing outside its own folder for temporary files."""
    return f"-Djava.io.tmpdir={environment['TMPDIR']} {jvm.options()}"


@contextlib.contextmanager
def cluster(folder: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """The URL of a standalone cluster of Spark's: a master, and a worker that runs executors in processes of their own,
    in `folder` with `environment`. Memory is bounded: 256 MB each for both, 1 GB for each executor.
    """
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    settings = {**environment, "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": java_options(environment)}

    def daemon(name: str, *arguments: str) -> Program:
        program = f"org.apache.spark.deploy.{name}.{name.capitalize()}"
        command = [str(jvm.home() / "bin/spark-class"), program, "--host", "127.0.0.1", "--webui-port", "0"]
        return Program([*command, *arguments], name=name, folder=folder, environment=settings)

    def listening() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        return False

    with daemon("master", "--port", str(port)) as master:
        master.wait_until(listening, "the master's port")
        size = ("--cores", str(EXECUTORS), "--memory", f"{EXECUTORS}g", "--work-dir", str(folder / "work"))
        with daemon("worker", *size, url) as worker:
            worker.wait_until(lambda: "Successfully registered with master" in worker.text(), "the worker's place")
            yield url


@pytest.mark.spark
@pytest.mark.azurite
@pytest.mark.redis
@pytest.mark.timeout(500)
def test_executors_share_nothing_with_the_driver_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, executors, witness = (tmp_path / name for name in ("driver", "executors", "witness"))
    password = f"hunter-{secrets.token_hex(8)}"
    with running(TwoKeyAzurite()) as azurite, running(SpecialRedis("--requirepass", password)) as redis:
        monkeypatch.setenv(CREDENTIALS, azurite.connection_string)
        url, secrets_of = azurite.fresh_url(), {"driver": azurite.key, "executors": azurite.second_key}
        for queue, partitions in (("written", 3), ("copied", 4)):
            partq.create_queue(queue, partitions=partitions, store=url)
        watched = {"PARTQ_TEST_WITNESS": str(witness), "PARTQ_TEST_FORBIDDEN": str(driver)}
        theirs = {**watched, "PYTHONPATH": str(HERE / "witness")}
        theirs = spark_environment(
            executors, {**theirs, CREDENTIALS: azurite.connection_string_with(azurite.second_key)}
        )
        beside = {CREDENTIALS: azurite.connection_string, "PARTQ_STORE": url, "PARTQ_REDIS_PASSWORD": password}
        ours = spark_environment(driver, beside)
        coordinator = Sidecar(driver, "coordinator", {**beside, "PARTQ_OWNERSHIP": redis.url})
        with cluster(executors, theirs) as master, coordinator:
            settings = {
                **TO_ITSELF,
                "spark.master": master,
                "spark.driver.memory": "1g",
                "spark.executor.memory": "1g",
                "spark.executor.cores": "1",
                "spark.executor.extraJavaOptions": java_options(theirs),
                # A task that looked for its store in its environment would look there.
                "spark.executorEnv.PARTQ_STORE": f"file://{executors}/trap",
                "spark.eventLog.enabled": "true",
                "spark.eventLog.compress": "false",
                "spark.eventLog.dir": f"file://{driver}",
                "spark.sql.warehouse.dir": f"{driver}/warehouse",
                "spark.ui.enabled": "false",
                "spark.ui.showConsoleProgress": "false",
            }
            plan = {"settings": settings, "ownership": redis.url, "count": ROWS}
            with Program.script(HERE / "job.py", plan, name="driver", folder=driver, environment=ours) as job:
                assert job.wait_end() == 0, job.tail()
                log = job.text()
        report = json.loads((driver / "report.json").read_text())

        # What went through them by batch and by stream.
        rows = numbered_rows(0, ROWS)
        assert_published(url, "written", rows)
        copied = assert_published(url, "copied", rows, order="key")
        assert [read for read in report["batches"] if read] == [ROWS // 2, ROWS // 2]
        read = sorted(report["found"], key=lambda row: (row[2], row[3]))
        assert read == [[each.key, each.value.decode(), each.partition, each.offset] for each in copied]
        digests = {whose: digest(azurite.connection_string_with(key)) for whose, key in secrets_of.items()}

    # They share nothing with the driver and see nothing of its disk; the trap does catch.
    trap = driver / "of-the-driver.txt"
    facts = [report["driver"][fact] for fact in ("trap", "store", "credentials")]
    assert facts == ["the driver's", url, digests["driver"]]
    assert len({each["folder"] for each in report["executors"]}) == EXECUTORS
    for each in report["executors"]:
        assert each["trap"].startswith("PermissionError")
        assert Path(each["folder"]).is_relative_to(executors / "work")
        facts = [each[fact] for fact in ("home", "store", "credentials")]
        assert facts == [str(executors / "home"), f"file://{executors}/trap", digests["executors"]]
    assert (witness / "trespasses").read_text().splitlines() == [f"open {trap}"] * EXECUTORS
    # And neither side has made a store by default, or left anything where a task ran.
    assert not any([*(driver / "home").iterdir(), *(executors / "home").iterdir(), *executors.glob("trap")])
    assert {path.name for path in (executors / "work").rglob("*") if path.is_file()} <= {"stdout", "stderr"}

    # No secret is in plans and logs, and what is searched is what was meant to be searched. That none is in what tasks
    # are sent is shown without a cluster, in `test_workers`.
    places = {"plans, progress and the driver's log": log.encode()}
    assert "== Physical Plan ==" in log
    files = [path for path in (*driver.rglob("*"), *executors.rglob("*")) if path.is_file()]
    places |= {str(path): path.read_bytes() for path in files}
    events = b"".join(content for place, content in places.items() if "/events_" in place)
    assert b"SparkListenerJobEnd" in events
    assert b"WriteToDataSourceV2" in events
    assert {str(driver / name) for name in ("checkpoint/offsets/0", "coordinator.log")} <= set(places)
    assert sum(place.endswith("stderr") for place in places) == EXECUTORS
    for place, content in places.items():
        for whose, key in {**secrets_of, "Redis": password}.items():
            assert key.encode() not in content, f"the secret of the {whose} is in {place}"
        assert b"AccountKey=" not in content, place


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
