"""A real one-node Kafka broker (KRaft) to compare with, and Spark's connector to it.

The jars come from Maven Central by `mvn` and are kept in .venv/bench/kafka. Broker, producer and consumer keep Kafka's
default settings, except for what one node needs (replication factors of 1). The broker listens on free ports of
127.0.0.1 and has a log directory of its own, which is removed with it.
"""

from __future__ import annotations

import logging
import shutil
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any, Final, Self

from pyspark.sql import DataFrame, SparkSession

from benchmarks.settings import KEPT, PARTITIONS
from tests.support.servers import Server, free_port

KAFKA_VERSION: Final = "4.3.1"
BROKER_MEMORY: Final = "1g"  # as Kafka's own start script has it
JARS: Final = KEPT / "kafka"

_COPY: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_CLUSTER_ID: Final = "cGFydHEtYmVuY2htYXJrcw"  # any 16 bytes in base64
_MVN_LIMIT_S: Final = 900
_FORMAT_LIMIT_S: Final = 60
_ADMIN_LIMIT_S: Final = 30
logger = logging.getLogger(__name__)


# --- jars -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Connector:
    """Spark's Kafka connector: versions of what has to come beside the jars that Spark has itself."""

    connector: str
    token_provider: str
    clients: str = "3.9.2"
    pool: str = "2.13.1"

    @property
    def folder(self) -> Path:
        return JARS / f"connector-{self.connector}-{self.token_provider}"

    @property
    def artifacts(self) -> tuple[str, ...]:
        return (
            f"org.apache.spark:spark-sql-kafka-0-10_2.13:{self.connector}",
            f"org.apache.spark:spark-token-provider-kafka-0-10_2.13:{self.token_provider}",
            f"org.apache.kafka:kafka-clients:{self.clients}",
            f"org.apache.commons:commons-pool2:{self.pool}",
        )


# The driver's own version is wanted. Where Central, or the mirror in use, does not have it yet, the newest that it has
# and that runs with this Spark; the token provider is only asked for secrets, which a local broker does not need.
CONNECTORS: Final = (
    Connector(connector=version("pyspark"), token_provider=version("pyspark")),
    Connector(connector="4.2.0", token_provider="4.2.0"),  # noqa: S106 - a version
    Connector(connector="4.2.0", token_provider="4.0.0"),  # noqa: S106 - a version
)


def connector() -> Connector:
    """The connector in use: the one that was fetched before, else the first that can be fetched now."""
    for candidate in CONNECTORS:
        if candidate.folder.exists():
            return candidate
    failures = []
    for candidate in CONNECTORS:
        try:
            _fetch(candidate.folder, candidate.artifacts, transitive=False)
        except RuntimeError as error:
            logger.info("%s", error)
            failures.append(str(error))
        else:
            return candidate
    raise RuntimeError("no version of Spark's Kafka connector can be had: " + "; ".join(failures))


def connector_jars() -> tuple[Path, ...]:
    """What goes on the driver's class path."""
    return tuple(sorted(connector().folder.glob("*.jar")))


def broker_jars() -> Path:
    """The folder with everything that a broker needs."""
    folder = JARS / f"broker-{KAFKA_VERSION}"
    if not folder.exists():
        wanted = (f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", "org.slf4j:slf4j-simple:1.7.36")
        _fetch(folder, wanted, transitive=True)
    return folder


def _fetch(folder: Path, artifacts: tuple[str, ...], *, transitive: bool) -> None:
    """Put the jars of `artifacts` (`group:name:version`) into `folder`, all of them or none.

    Without `transitive` nothing else is resolved: Spark's pom names repositories that may be out of reach.
    """
    if shutil.which("mvn") is None:
        raise RuntimeError("mvn is not on PATH, Kafka's jars come by it: install maven, or run without --peer kafka")
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    alone = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{number}</version>"
        f"{'' if transitive else alone}</dependency>\n"
        for group, name, number in (artifact.split(":") for artifact in artifacts)
    )
    pom = partial / "pom.xml"
    pom.write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>\n'
        "<groupId>partq.benchmarks</groupId><artifactId>jars</artifactId><version>1</version>"
        f"<packaging>pom</packaging>\n<dependencies>\n{dependencies}</dependencies></project>\n",
        encoding="utf-8",
    )
    logger.info("fetching %s", ", ".join(artifacts))
    done = subprocess.run(
        ("mvn", "-B", "-q", "-f", str(pom), _COPY, f"-DoutputDirectory={partial}", "-DincludeScope=runtime"),
        capture_output=True,
        text=True,
        timeout=_MVN_LIMIT_S,
        check=False,
    )
    if done.returncode != 0:
        reasons = [line for line in done.stdout.splitlines() if "ERROR" in line] or ["no message"]
        shutil.rmtree(partial)
        raise RuntimeError(f"mvn could not fetch {', '.join(artifacts)} ({reasons[0][:400]})")
    partial.rename(folder)


# --- the broker -------------------------------------------------------------------------------------------------------


class Kafka(Server):
    """Broker and controller in one process; `running(Kafka())` starts it and stops it, and removes its data."""

    def __init__(self) -> None:
        super().__init__()
        self._controller_port = free_port()
        self._jars = broker_jars()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> Self:
        """Format the log directory, then start the broker and wait until it answers."""
        self._format()
        return super().start()

    def _format(self) -> None:
        (self.folder / "server.properties").write_text(
            "\n".join(
                (
                    "process.roles=broker,controller",
                    "node.id=1",
                    f"listeners=PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{self._controller_port}",
                    f"advertised.listeners=PLAINTEXT://{self.address}",
                    "controller.listener.names=CONTROLLER",
                    f"controller.quorum.voters=1@127.0.0.1:{self._controller_port}",
                    f"log.dirs={self.folder}/logs",
                    # One node has one replica.
                    "offsets.topic.replication.factor=1",
                    "transaction.state.log.replication.factor=1",
                    "transaction.state.log.min.isr=1",
                    "share.coordinator.state.topic.replication.factor=1",
                    "share.coordinator.state.topic.min.isr=1",
                )
            )
            + "\n",
            encoding="utf-8",
        )
        command = (
            *self._java("256m"),
            "kafka.tools.StorageTool",
            "format",
            "-t",
            _CLUSTER_ID,
            "-c",
            "server.properties",
        )
        done = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, timeout=_FORMAT_LIMIT_S, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"Kafka's log directory could not be formatted: {(done.stdout + done.stderr)[-1000:]}")

    def command(self) -> list[str]:
        return [*self._java(BROKER_MEMORY), "kafka.Kafka", "server.properties"]

    def answers(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True

    def _java(self, memory: str) -> tuple[str, ...]:
        return "java", f"-Xmx{memory}", f"-Xms{memory}", "-cp", f"{self._jars}/*"


# --- topics, through the driver ---------------------------------------------------------------------------------------


class Topics:
    """Topics of 8 partitions and Spark's connector to them. The driver needs `connector_jars()` on its class path."""

    def __init__(self, spark: SparkSession, address: str) -> None:
        self._spark = spark
        self._address = address
        self._numbers = count()

    def fresh(self) -> str:
        """A new, empty topic's name."""
        name = f"topic-{next(self._numbers)}"
        jvm = self._jvm()
        optional = jvm.java.util.Optional
        topic = jvm.org.apache.kafka.clients.admin.NewTopic(name, optional.of(PARTITIONS), optional.empty())
        self._administer(lambda admin: admin.createTopics(jvm.java.util.List.of(topic)))
        return name

    def delete(self, name: str) -> None:
        """The broker removes the topic's files a minute later."""
        self._administer(lambda admin: admin.deleteTopics(self._jvm().java.util.List.of(name)))

    def sink(self, topic: str) -> dict[str, str]:
        """Options of `format("kafka")` for writing."""
        return {"kafka.bootstrap.servers": self._address, "topic": topic}

    def stream(self, topic: str) -> DataFrame:
        """All of a topic, as a stream."""
        source = self._spark.readStream.format("kafka").option("kafka.bootstrap.servers", self._address)
        return source.option("subscribe", topic).option("startingOffsets", "earliest").load()

    def _jvm(self) -> Any:
        return self._spark.sparkContext._jvm  # noqa: SLF001 - PySpark has no public name for it

    def _administer(self, call: Callable[[Any], Any]) -> None:
        jvm = self._jvm()
        properties = jvm.java.util.Properties()
        properties.put("bootstrap.servers", self._address)
        admin = jvm.org.apache.kafka.clients.admin.Admin.create(properties)
        try:
            call(admin).all().get(_ADMIN_LIMIT_S, jvm.java.util.concurrent.TimeUnit.SECONDS)
        finally:
            admin.close()


def note() -> str:
    """What was compared with, in words."""
    used = connector()
    return (
        f"Kafka {KAFKA_VERSION}: one broker (KRaft, -Xmx{BROKER_MEMORY}), topics of {PARTITIONS} partitions, default "
        "settings of broker, producer (acks=all, idempotent, no compression) and consumer, and of Spark's connector "
        f"({used.connector}, token provider {used.token_provider}, kafka-clients {used.clients})."
    )
