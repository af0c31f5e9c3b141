"""Jars that a comparison needs and Spark does not bring: from Maven Central by `mvn`, kept in .venv/bench.

Of those that belong to Spark the driver's own version is wanted. Where Central, or the mirror in use, does not have it
yet, the newest is taken that it has and that runs with this Spark.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

from benchmarks.parts import KEPT

SPARK_VERSION: Final = version("pyspark")
SPARK_BEFORE: Final = "4.2.0"
"""Of Kafka's connector there is one of this version, and it runs with the driver's."""

_AVRO_BEFORE: Final = "4.1.1"

_COPY: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_MVN_LIMIT_S: Final = 900
logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Jars:
    """`artifacts` are `group:name:version`; `name` is that of their folder. Without `transitive` nothing else is
    resolved: Spark's pom names repositories that may be out of reach.
    """

    name: str
    artifacts: tuple[str, ...]
    transitive: bool = False

    @property
    def folder(self) -> Path:
        return KEPT / self.name

    @property
    def paths(self) -> tuple[Path, ...]:
        """What goes on a class path."""
        return tuple(sorted(self.folder.glob("*.jar")))


def had(candidates: Sequence[Jars]) -> Jars:
    """The jars in use: those that were fetched before, else the first that can be fetched now."""
    for candidate in candidates:
        if candidate.folder.exists():
            return candidate
    failures = []
    for candidate in candidates:
        try:
            _fetch(candidate)
        except RuntimeError as error:
            logger.info("%s", error)
            failures.append(str(error))
        else:
            return candidate
    raise RuntimeError("; ".join(failures))


def avro() -> Jars:
    """Spark's functions `to_avro` and `from_avro`. Avro itself comes with Spark."""
    return had(
        [
            Jars(name=f"avro/spark-avro-{each}", artifacts=(f"org.apache.spark:spark-avro_2.13:{each}",))
            for each in (SPARK_VERSION, SPARK_BEFORE, _AVRO_BEFORE)
        ]
    )


def _fetch(jars: Jars) -> None:
    """Put the jars into their folder, all of them or none."""
    wanted = ", ".join(jars.artifacts)
    if shutil.which("mvn") is None:
        raise RuntimeError(f"mvn is not on PATH, and {wanted} come by it: install maven, or run without --peer kafka")
    partial = jars.folder.with_name(f"{jars.folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    alone = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{number}</version>"
        f"{'' if jars.transitive else alone}</dependency>\n"
        for group, name, number in (artifact.split(":") for artifact in jars.artifacts)
    )
    pom = partial / "pom.xml"
    pom.write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>\n'
        "<groupId>partq.benchmarks</groupId><artifactId>jars</artifactId><version>1</version>"
        f"<packaging>pom</packaging>\n<dependencies>\n{dependencies}</dependencies></project>\n",
        encoding="utf-8",
    )
    logger.info("fetching %s", wanted)
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
        raise RuntimeError(f"mvn could not fetch {wanted} ({reasons[0][:400]})")
    partial.rename(jars.folder)
