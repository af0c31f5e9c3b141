"""A real one-node Kafka broker (KRaft) to compare with, and Spark's connector to it.

Broker, producer and consumer keep Kafka's default settings, except for what one node needs (replication factors of 1).
The broker listens on free ports of 127.0.0.1 and has a log directory of its own, which is removed with it.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final, Self

from pyspark.sql import DataFrame, SparkSession

from benchmarks.jars import SPARK_BEFORE, SPARK_VERSION, Jars, had
from benchmarks.parts import PARTITIONS
from tools.servers import Server, free_port

KAFKA_VERSION: Final = "4.3.1"
BROKER_MEMORY: Final = "1g"  # as Kafka's own start script has it

_CLUSTER_ID: Final = "cGFydHEtYmVuY2htYXJrcw"  # any 16 bytes in base64
_FORMAT_LIMIT_S: Final = 60
_ADMIN_LIMIT_S: Final = 30


# --- jars -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Connector:
    """Spark's Kafka connector: versions of what has to come beside the jars that Spark has itself."""

    connector: str
    token_provider: str
    clients: str = "3.9.2"
    pool: str = "2.13.1"

    @property
    def jars(self) -> Jars:
        return Jars(
            name=f"kafka/connector-{self.connector}-{self.token_provider}",
            artifacts=(
                f"org.apache.spark:spark-sql-kafka-0-10_2.13:{self.connector}",
                f"org.apache.spark:spark-token-provider-kafka-0-10_2.13:{self.token_provider}",
                f"org.apache.kafka:kafka-clients:{self.clients}",
                f"org.apache.commons:commons-pool2:{self.pool}",
            ),
        )


# The token provider is only asked for secrets, which a local broker does not need.
CONNECTORS: Final = (
    Connector(connector=SPARK_VERSION, token_provider=SPARK_VERSION),
    Connector(connector=SPARK_BEFORE, token_provider=SPARK_BEFORE),
    Connector(connector=SPARK_BEFORE, token_provider="4.0.0"),  # noqa: S106 - a version
)


def connector() -> Connector:
    """The connector in use."""
    found = had([each.jars for each in CONNECTORS])
    return next(each for each in CONNECTORS if each.jars == found)


def broker_jars() -> Path:
    """The folder with everything that a broker needs."""
    wanted = (f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", "org.slf4j:slf4j-simple:1.7.36")
    return had([Jars(name=f"kafka/broker-{KAFKA_VERSION}", artifacts=wanted, transitive=True)]).folder


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
    """Topics of 8 partitions and Spark's connector to them. The driver has the jars of `connector()`."""

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

    def stream(self, topic: str, **options: str) -> DataFrame:
        """All of a topic, as a stream; `options` of Spark's connector."""
        source = self._spark.readStream.format("kafka").option("kafka.bootstrap.servers", self._address)
        return source.options(**{"subscribe": topic, "startingOffsets": "earliest", **options}).load()

    @contextmanager
    def producer(self, topic: str) -> Iterator[Callable[[bytes], None]]:
        """A producer in the driver's JVM, with Kafka's default settings: call it to publish one value, it returns when
        the broker has it.
        """
        jvm = self._jvm()
        properties = jvm.java.util.Properties()
        properties.put("bootstrap.servers", self._address)
        for part in ("key", "value"):
            properties.put(f"{part}.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer")
        producer = jvm.org.apache.kafka.clients.producer.KafkaProducer(properties)

        def publish(value: bytes) -> None:
            record = jvm.org.apache.kafka.clients.producer.ProducerRecord(topic, value)
            producer.send(record).get(_ADMIN_LIMIT_S, jvm.java.util.concurrent.TimeUnit.SECONDS)

        try:
            yield publish
        finally:
            producer.close()

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
