"""What may be set in the sidecar's configuration: every key, its variable, default, unit and range. Values only.

`settings` reads and checks them; `conf/coordinator.toml` and docs/coordinator.md say the same to people.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from coordinator.logs import FORMATS, LEVELS

Raw = str | int | float | bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """One setting. `key` is section and name in the file; `choices` or a range says what is allowed."""

    key: str
    env: str
    default: Raw
    unit: str
    about: str
    low: float = 0.0
    high: float = 0.0
    choices: tuple[str, ...] = ()

    @property
    def allowed(self) -> str:
        """In words."""
        if isinstance(self.default, bool):
            return "true or false"
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if isinstance(self.default, str):
            return "text"
        what = "a whole number" if isinstance(self.default, int) else "seconds"
        return f"{what} from {self.low:g} to {self.high:g}"


def _seconds(key: str, env: str, default: float, low: float, high: float, about: str) -> Field:
    return Field(key=key, env=env, default=default, unit="s", about=about, low=low, high=high)


FIELDS: Final = (
    Field(
        key="store.url",
        env="PARTQ_STORE",
        default="",
        unit="url",
        about="where the queues are: file:///absolute/dir or azure://container/prefix; empty: file://$HOME/.partq",
    ),
    Field(
        key="store.namespace",
        env="PARTQ_COORDINATOR_NAMESPACE",
        default="default",
        unit="name",
        about="the namespace whose groups are coordinated; one process serves one",
    ),
    Field(
        key="store.ownership",
        env="PARTQ_OWNERSHIP",
        default="",
        unit="url",
        about="where flows and coordinators meet: redis://host:port/db, rediss://…, or store; it must be given",
    ),
    Field(
        key="leader.name",
        env="PARTQ_COORDINATOR_NAME",
        default="",
        unit="text",
        about="what people see as the leader; empty: host and process id",
    ),
    _seconds(
        "leader.lease_timeout_s",
        "PARTQ_COORDINATOR_LEASE_TIMEOUT_S",
        5.0,
        0.5,
        600,
        "another coordinator takes over when it saw the leader's lease stand still for so long",
    ),
    _seconds(
        "leader.renewal_s",
        "PARTQ_COORDINATOR_RENEWAL_S",
        1.0,
        0.05,
        60,
        "how often the lease is renewed and every group is looked at in quiet times",
    ),
    _seconds(
        "leader.frozen_after_s",
        "PARTQ_COORDINATOR_FROZEN_AFTER_S",
        3.0,
        0.2,
        600,
        "of a time so long in which a leader did not look, a second counts towards flows' session timeouts",
    ),
    _seconds(
        "looks.handoff_s",
        "PARTQ_COORDINATOR_HANDOFF_S",
        0.05,
        0.005,
        10,
        "how often a group is looked at while one of its partitions changes hands",
    ),
    _seconds(
        "looks.heads_s",
        "PARTQ_COORDINATOR_HEADS_S",
        0.0,
        0,
        600,
        "how often the queues' heads are looked at for new groups and changed settings; 0: 1 s on file:, 5 s on azure:",
    ),
    _seconds(
        "looks.assumed_session_timeout_s",
        "PARTQ_COORDINATOR_ASSUMED_SESSION_TIMEOUT_S",
        10.0,
        5,
        3600,
        "the session timeout of flows of which only the checkpoints know, after the ownership store lost everything",
    ),
    Field(
        key="threads.groups",
        env="PARTQ_COORDINATOR_GROUP_THREADS",
        default=4,
        unit="count",
        low=1,
        high=64,
        about="groups that are worked on at once",
    ),
    Field(
        key="threads.fences",
        env="PARTQ_COORDINATOR_FENCE_THREADS",
        default=16,
        unit="count",
        low=1,
        high=256,
        about="checkpoints that are fenced at once, in all groups together",
    ),
    Field(
        key="housekeeping.enabled",
        env="PARTQ_COORDINATOR_HOUSEKEEPING",
        default=True,
        unit="flag",
        about="whether this process trims, compacts and collects when it is the namespace's housekeeper",
    ),
    _seconds(
        "housekeeping.look_s",
        "PARTQ_COORDINATOR_HOUSEKEEPING_LOOK_S",
        5.0,
        0.1,
        3600,
        "how often it is looked which queue something is due for, and the housekeeper's lease is renewed",
    ),
    _seconds(
        "housekeeping.collection_grace_s",
        "PARTQ_COORDINATOR_COLLECTION_GRACE_S",
        86400.0,
        1,
        604800,
        "for so long a slow publish or a reader with an old plan may still need an object",
    ),
    _seconds(
        "housekeeping.compaction_min_age_s",
        "PARTQ_COORDINATOR_COMPACTION_MIN_AGE_S",
        300.0,
        0,
        604800,
        "what was published more lately is not compacted yet",
    ),
    _seconds(
        "retry.most_s",
        "PARTQ_COORDINATOR_RETRY_MOST_S",
        5.0,
        0.1,
        300,
        "the longest pause before something that failed is tried again; it begins at 0.1 s and doubles",
    ),
    Field(
        key="logs.format",
        env="PARTQ_COORDINATOR_LOG_FORMAT",
        default="text",
        unit="word",
        choices=FORMATS,
        about="text: key=value; json: one object per line",
    ),
    Field(
        key="logs.level",
        env="PARTQ_COORDINATOR_LOG_LEVEL",
        default="info",
        unit="word",
        choices=LEVELS,
        about="info has one line for each decision",
    ),
    Field(
        key="health.host",
        env="PARTQ_COORDINATOR_HEALTH_HOST",
        default="127.0.0.1",
        unit="address",
        about="where /healthz and /readyz are served; there is no authentication",
    ),
    Field(
        key="health.port",
        env="PARTQ_COORDINATOR_HEALTH_PORT",
        default=8095,
        unit="port",
        low=0,
        high=65535,
        about="0: no health server",
    ),
)
BY_KEY: Final = {field.key: field for field in FIELDS}
