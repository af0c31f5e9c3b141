"""Executors in processes of their own, with their own environment, folder and credentials, through a real Azurite;
the stream shares a group in a Redis that wants a password.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import partq
from tests.cast.sidecars import Sidecar
from tests.group.ownership.redis_servers import SpecialRedis
from tests.spark.cluster.standalone import EXECUTORS, cluster, java_options
from tests.support.messages import assert_published, numbered_rows
from tests.support.processes import Program, spark_environment
from tests.support.servers import Azurite, running

pytestmark = [pytest.mark.spark, pytest.mark.azurite, pytest.mark.redis, pytest.mark.timeout(500)]

HERE = Path(__file__).parent
ROWS = 300
CREDENTIALS = "AZURE_STORAGE_CONNECTION_STRING"


class TwoKeyAzurite(Azurite):
    """An account with two keys, as Azure's have: one is for the driver, the other for the executors."""

    def __init__(self) -> None:
        super().__init__()
        self.second_key = base64.b64encode(secrets.token_bytes(48)).decode()

    def environment(self) -> dict[str, str]:
        environment = super().environment()
        return {**environment, "AZURITE_ACCOUNTS": f"{environment['AZURITE_ACCOUNTS']}:{self.second_key}"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A job that has run, and where everything is that it left."""

    azurite: TwoKeyAzurite
    password: str
    url: str
    driver: Path
    executors: Path
    witness: Path
    report: dict[str, Any]
    log: str

    @property
    def keys(self) -> dict[str, str]:
        return {"driver": self.azurite.key, "executors": self.azurite.second_key, "Redis": self.password}

    def pickles(self) -> dict[str, bytes]:
        """What each executor's Python workers were sent."""
        sent: dict[str, bytes] = {}
        for path in sorted((self.witness / "pickles").iterdir()):
            executor = path.name.partition("-")[0]
            sent[executor] = sent.get(executor, b"") + path.read_bytes()
        return sent


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("cluster")
    driver, executors, witness = (folder / name for name in ("driver", "executors", "witness"))
    password = f"hunter-{secrets.token_hex(8)}"
    redis = running(SpecialRedis("--requirepass", password))
    with running(TwoKeyAzurite()) as azurite, redis as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv(CREDENTIALS, azurite.connection_string)
        url = azurite.fresh_url()
        for queue, partitions in (("written", 3), ("copied", 4)):
            partq.create_queue(queue, partitions=partitions, store=url)
        theirs = spark_environment(
            executors,
            {
                CREDENTIALS: azurite.connection_string_with(azurite.second_key),
                "PYTHONPATH": str(HERE / "witness"),
                "PARTQ_TEST_WITNESS": str(witness),
                "PARTQ_TEST_FORBIDDEN": str(driver),
            },
        )
        beside = {CREDENTIALS: azurite.connection_string, "PARTQ_STORE": url, "PARTQ_REDIS_PASSWORD": password}
        ours = spark_environment(driver, beside)
        coordinator = Sidecar(driver, "coordinator", {**beside, "PARTQ_OWNERSHIP": server.url})
        with cluster(executors, theirs) as standalone, coordinator:
            settings = {
                "spark.driver.memory": "1g",
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
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
            plan: dict[str, object] = {
                "master": standalone.url,
                "written": "written",
                "copied": "copied",
                "ownership": server.url,
            }
            plan |= {"rows": ROWS, "settings": settings}
            with Program.script(HERE / "job.py", plan, name="driver", folder=driver, environment=ours) as job:
                assert job.wait_end() == 0, job.tail()
                yield Run(
                    azurite=azurite,
                    password=password,
                    url=url,
                    driver=driver,
                    executors=executors,
                    witness=witness,
                    report=json.loads((driver / "report.json").read_text()),
                    log=job.text(),
                )


def test_batch_and_stream_through_executors(run: Run) -> None:
    rows = numbered_rows(0, ROWS)
    assert_published(run.url, "written", rows)
    copied = assert_published(run.url, "copied", rows, order="key")
    assert [read for read in run.report["batches"] if read] == [ROWS // 2, ROWS // 2]
    read = sorted(run.report["found"], key=lambda row: (row[2], row[3]))
    assert read == [[each.key, each.value.decode(), each.partition, each.offset] for each in copied]


def test_executors_share_nothing_with_the_driver_and_see_nothing_of_its_disk(run: Run) -> None:
    """What the others rest on: the trap does catch."""
    driver, others = run.report["driver"], run.report["executors"]
    assert driver["trap"] == "the driver's"
    assert driver["store"] == run.url
    assert driver["credentials"] == digest(run.azurite.connection_string)
    assert len({each["folder"] for each in others}) == EXECUTORS
    for each in others:
        assert each["trap"].startswith("PermissionError")
        assert Path(each["folder"]).is_relative_to(run.executors / "work")
        assert each["home"] == str(run.executors / "home")
        assert each["store"] == f"file://{run.executors}/trap"
        assert each["credentials"] == digest(run.azurite.connection_string_with(run.azurite.second_key))

    trap = run.driver / "of-the-driver.txt"
    assert (run.witness / "trespasses").read_text().splitlines() == [f"open {trap}"] * EXECUTORS
    for executor, sent in run.pickles().items():
        about_queues = sent.replace(str(trap).encode(), b"")
        assert str(run.driver).encode() not in about_queues, executor
    # And neither side has made a store by default, or left anything where a task ran.
    assert not any((run.driver / "home").iterdir())
    assert not any((run.executors / "home").iterdir())
    assert not (run.executors / "trap").exists()
    left = {path.name for path in (run.executors / "work").rglob("*") if path.is_file()}
    assert left <= {"stdout", "stderr"}


def test_no_secret_in_plans_logs_and_closures(run: Run) -> None:
    pickles = run.pickles()
    assert set(pickles) == {"0", "1"}
    assert all(b"partq_spark" in sent for sent in pickles.values())
    places = {f"what executor {executor} was sent": sent for executor, sent in pickles.items()}
    places["plans, progress and the driver's log"] = run.log.encode()
    for path in (*run.driver.rglob("*"), *run.executors.rglob("*")):
        if path.is_file():
            places[str(path)] = path.read_bytes()
    events = b"".join(content for place, content in places.items() if "/events_" in place)
    # What is searched is what was meant to be searched.
    assert b"SparkListenerJobEnd" in events
    assert b"WriteToDataSourceV2" in events
    assert {str(run.driver / name) for name in ("checkpoint/offsets/0", "coordinator.log")} <= set(places)
    assert "== Physical Plan ==" in run.log
    assert sum(place.endswith("stderr") for place in places) == EXECUTORS
    for place, content in places.items():
        for whose, key in run.keys.items():
            assert key.encode() not in content, f"the secret of the {whose} is in {place}"
            assert b"AccountKey=" not in content, place


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
