"""The flows' records as a leader last read them, and when they have to be read again. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from partq_spark.group.model import FlowRecord
from partq_spark.group.ownership import Pulse


@dataclass(frozen=True, slots=True)
class Records:
    """The flows' records. `token`: of the state that was in the store before they were asked for; `version`: of the
    look before that.
    """

    flows: dict[str, FlowRecord]
    token: str
    version: str
    read_s: float

    def are_stale(self, pulse: Pulse, token: str, *, in_handoff: bool, old: bool) -> bool:
        """Whether reading them again may tell something new.

        Acknowledgements move the version all the time, and in quiet times only who comes and goes is of interest: then
        they are read again once they are `old`. In a handoff they count only if they were read after the state was
        written.
        """
        if in_handoff and self.token != token:
            return True
        if self.version == pulse.records_version:
            return False
        if in_handoff or old:
            return True
        return any(
            name not in self.flows or self.flows[name].instance != beat.instance for name, beat in pulse.beats.items()
        )
