"""Part `cost`: the requests that each thing asks an Azure store for, and what they cost by the table of prices.

Requests are counted by a proxy before Azurite, Azure's emulator. What is stored, and what leaves a region, is paid for
as well, and is not partq's doing; neither is Redis.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from benchmarks import deeds, idle
from benchmarks.meter import Meter, counting_here, metered
from benchmarks.prices import Prices, load_prices
from benchmarks.report import Goal, Measure, Series
from benchmarks.requests import Counted, Counts
from benchmarks.settings import Settings
from tests.support.servers import Azurite, RedisServer, running

PUBLISH: Final = "publish a batch of less than 8 MiB"
PUBLISH_SPARK: Final = f"publish a micro-batch of {deeds.TASKS} tasks from Spark"
READ: Final = f"read a batch that lies in {deeds.PARTITIONS} partitions, without a group"
READ_ALONE: Final = "the same, by a query that has its group to itself"
READ_REDIS: Final = "the same, by a flow of a group shared by Redis"
READ_OBJECTS: Final = f"the same, by a flow of a group shared with `{idle.STORE}`"
CHECKPOINT: Final = "write the checkpoint of a partition"
LOOK: Final = "an idle look, with or without a group"
BEAT: Final = f"a heartbeat with `{idle.STORE}`"

ROWS: Final = (100, 10_000, 1_000_000)
MILLION: Final = 1_000_000
CHECKPOINT_S: Final = 10.0
BATCH_S: Final = 1.0
"""How often the batches of the tables come, which says how many of them share a checkpoint."""

IDLE_S: Final = 60.0
MILLION_GOAL: Final = 0.003
IDLE_GOAL: Final = 3.0
logger = logging.getLogger(__name__)


def measure(settings: Settings) -> tuple[list[Measure], list[str], list[Counted]]:
    """Count everything; the measures are the two goals'."""
    prices = load_prices(settings.prices) if settings.prices is not None else load_prices()
    with (
        running(Azurite()) as azurite,
        running(RedisServer()) as redis,
        metered(azurite) as here,
        metered(azurite) as there,
        counting_here(here),
    ):
        each = exact(azurite, redis, here, there, settings)
        million = [Counted(table="million", what=what, counts=counts) for what, counts in millions(azurite, here, each)]
        logger.info("counting for %.0f s what is asked for while nothing happens", _idle_s(settings))
        quiet = idle.idle(azurite, redis, here, there, settings.work, _idle_s(settings))
    month = [Counted(table="month", what=what, counts=counts.times(idle.MONTH_S)) for what, counts in quiet.items()]
    counted = [*(Counted(table="each", what=what, counts=counts) for what, counts in each.items()), *million, *month]
    return goals(counted, prices), [f"Idle: counted over {_idle_s(settings):.0f} s."], counted


def _idle_s(settings: Settings) -> float:
    return IDLE_S / 6 if settings.quick else IDLE_S


def exact(azurite: Azurite, redis: RedisServer, here: Meter, there: Meter, settings: Settings) -> dict[str, Counts]:
    """What each deed asks for, in whole requests."""
    shared: dict[str, str] = {}
    found = {
        PUBLISH: deeds.publishing(here, made(azurite), 10_000, 3),
        PUBLISH_SPARK: deeds.publishing_from_spark(here, made(azurite)),
        READ: deeds.reading(here, made(azurite), 1000),
        READ_ALONE: deeds.reading(here, made(azurite), 1000, group=deeds.GROUP, ownership="none"),
    }
    for what, ownership in ((READ_REDIS, redis.url), (READ_OBJECTS, "store")):
        shared[what] = made(azurite)
        with deeds.coordinated(settings.work, shared[what], ownership, there):
            found[what] = deeds.reading(here, shared[what], 1000, group=deeds.GROUP, ownership=ownership)
            if ownership == "store":
                found[BEAT] = deeds.beating(here, shared[what])
    found[CHECKPOINT] = deeds.checkpointing(here, made(azurite))
    found[LOOK] = deeds.looking(here, made(azurite))
    order = (PUBLISH, PUBLISH_SPARK, READ, READ_ALONE, READ_REDIS, READ_OBJECTS, CHECKPOINT, LOOK, BEAT)
    return {what: found[what].rounded() for what in order}


def made(azurite: Azurite) -> str:
    """The URL of a store with the queue of the deeds."""
    url = azurite.fresh_url()
    deeds.create(url)
    return url


def millions(azurite: Azurite, here: Meter, each: Mapping[str, Counts]) -> list[tuple[str, Counts]]:
    """What a million messages ask for at each size of a batch: publishing, reading by one group, its checkpoints."""
    lines: list[tuple[str, Counts]] = []
    for rows in ROWS:
        batches = MILLION / rows
        published = deeds.publishing(here, made(azurite), rows, 3 if rows < MILLION else 1).rounded().times(batches)
        read = deeds.reading(here, made(azurite), rows, 3 if rows < MILLION else 1).rounded().times(batches)
        rounds = max(1.0, batches * BATCH_S / CHECKPOINT_S)
        checkpoints = each[CHECKPOINT].times(rounds * deeds.PARTITIONS)
        size = f"{rows:,} a batch"
        lines += [(f"{size}: publish", published), (f"{size}: read", read), (f"{size}: checkpoints", checkpoints)]
        lines.append((f"{size}: together", published + read + checkpoints))
    return lines


def goals(counted: list[Counted], prices: Prices) -> list[Measure]:
    """What the goals are about."""
    by_name = {line.what: line.counts for line in counted}
    size = f"{ROWS[1]:,} a batch"
    wanted = {f"a million messages, {size}: publish, read, checkpoints": (f"{size}: together", MILLION_GOAL)}
    names = (idle.NO_GROUP, idle.ALONE, idle.REDIS, idle.OBJECTS)
    wanted |= {f"{name}, idle for a month": (name, IDLE_GOAL) for name in names}
    return [
        Measure(
            what=what,
            subject=Series(name="partq", unit="$", samples=(prices.dollars(by_name[name]),)),
            goal=Goal(sign="<=", limit=limit, unit="$"),
        )
        for what, (name, limit) in wanted.items()
    ]
