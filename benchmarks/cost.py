"""Part `cost`: the requests that each thing asks an Azure store for, and one on S3, and what they cost by the table of
prices.

Requests are counted by a proxy before Azurite, Azure's emulator, and before a server that speaks S3. What is stored and
what leaves a region is paid for as well, and is not partq's doing; neither is Redis.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from benchmarks.parts import Settings
from tools.cost import deeds, idle
from tools.cost.meter import Meter, counting_here, metered
from tools.cost.prices import IDLE_GOAL, MILLION_GOAL, Prices, load_prices
from tools.cost.requests import ON_S3, Counted, Counts
from tools.report import Measure, figure
from tools.servers import Azurite, RedisServer, S3Server, running

ROWS: Final = (100, 10_000, 1_000_000)
MILLION: Final = 1_000_000
CHECKPOINT_S: Final = 10.0
BATCH_S: Final = 1.0
"""How often the batches of the tables come, which says how many of them share a checkpoint."""

IDLE_S: Final = 60.0
logger = logging.getLogger(__name__)


def measure(settings: Settings) -> tuple[list[Measure], list[str], list[Counted]]:
    """Count everything; the measures are the two goals'."""
    prices = load_prices(settings.prices) if settings.prices is not None else load_prices()
    with running(RedisServer()) as redis:
        on_s3 = _counted(S3Server(), redis, settings)
        counted = _counted(Azurite(), redis, settings)
    counted += [replace(line, table=line.table + ON_S3) for line in on_s3]
    return goals(counted, prices), [f"Idle: counted over {_idle_s(settings):.0f} s."], counted


def _counted(of: Azurite | S3Server, redis: RedisServer, settings: Settings) -> list[Counted]:
    """All lines, in the order of the tables."""
    with running(of) as server, metered(server) as here, metered(server) as there, counting_here(here):
        each = exact(server, redis, here, there, settings)
        million = [Counted(table="million", what=what, counts=counts) for what, counts in millions(server, here, each)]
        logger.info("counting for %.0f s what is asked for while nothing happens", _idle_s(settings))
        quiet = idle.idle(server, redis, here, there, settings.work, _idle_s(settings))
    month = [Counted(table="month", what=what, counts=counts.times(idle.MONTH_S)) for what, counts in quiet.items()]
    return [*(Counted(table="each", what=what, counts=counts) for what, counts in each.items()), *million, *month]


def _idle_s(settings: Settings) -> float:
    return IDLE_S / 6 if settings.quick else IDLE_S


def exact(
    server: Azurite | S3Server, redis: RedisServer, here: Meter, there: Meter, settings: Settings
) -> dict[str, Counts]:
    """What each deed asks for, in whole requests."""
    found = {
        deeds.PUBLISH: deeds.publishing(here, deeds.made(server), 10_000, 3),
        deeds.PUBLISH_SPARK: deeds.publishing_from_spark(here, deeds.made(server)),
        deeds.READ: deeds.reading(here, deeds.made(server), 1000),
        deeds.READ_ALONE: deeds.reading(here, deeds.made(server), 1000, group=deeds.GROUP, ownership="none"),
    }
    beats = Counts()
    for what, ownership in ((deeds.READ_REDIS, redis.url), (deeds.READ_OBJECTS, "store")):
        url = deeds.made(server)
        with deeds.coordinated(settings.work, url, ownership, there):
            found[what] = deeds.reading(here, url, 1000, group=deeds.GROUP, ownership=ownership)
            if ownership == "store":
                beats = deeds.beating(here, url)
    found[deeds.CHECKPOINT] = deeds.checkpointing(here, deeds.made(server))
    found[deeds.LOOK] = deeds.looking(here, deeds.made(server))
    found[deeds.BEAT] = beats
    return {what: counts.rounded() for what, counts in found.items()}


def millions(server: Azurite | S3Server, here: Meter, each: Mapping[str, Counts]) -> list[tuple[str, Counts]]:
    """What a million messages ask for at each size of a batch: publishing, reading by one group, its checkpoints."""
    lines: list[tuple[str, Counts]] = []
    for rows in ROWS:
        batches = MILLION / rows
        repeated = 3 if rows < MILLION else 1
        published = deeds.publishing(here, deeds.made(server), rows, repeated).rounded().times(batches)
        read = deeds.reading(here, deeds.made(server), rows, repeated).rounded().times(batches)
        rounds = max(1.0, batches * BATCH_S / CHECKPOINT_S)
        checkpoints = each[deeds.CHECKPOINT].times(rounds * deeds.PARTITIONS)
        size = f"{rows:,} a batch"
        lines += [(f"{size}: publish", published), (f"{size}: read", read), (f"{size}: checkpoints", checkpoints)]
        lines.append((f"{size}: together", published + read + checkpoints))
    return lines


def goals(counted: list[Counted], prices: Prices) -> list[Measure]:
    """What the goals are about."""
    by_name = {line.what: line.counts for line in counted if ON_S3 not in line.table}
    size = f"{ROWS[1]:,} a batch"
    wanted = {f"a million messages, {size}: publish, read, checkpoints": (f"{size}: together", MILLION_GOAL)}
    names = (idle.NO_GROUP, idle.ALONE, idle.REDIS, idle.OBJECTS)
    wanted |= {f"{name}, idle for a month": (name, IDLE_GOAL) for name in names}
    return [figure(what, [prices.dollars(by_name[name])], "$", most=limit) for what, (name, limit) in wanted.items()]
