"""The time of the service that stamps blobs, as each of its answers states it. It costs no request of its own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from partq_spark.base.effects import boot_time_s


class ServiceClock:
    """The service's clock, as its last answer said, and the time since then."""

    def __init__(self) -> None:
        self._heard: tuple[datetime, float] | None = None  # the service's time, and when it was heard

    def hear(self, response: Any) -> None:
        """Take note of an answer; a proxy may have taken the header away."""
        try:
            said = parsedate_to_datetime(response.http_response.headers["Date"])
        except (KeyError, TypeError, ValueError):
            return
        self._heard = (said if said.tzinfo is not None else said.replace(tzinfo=UTC), boot_time_s())

    def now(self) -> datetime:
        """The service's time; this process's own before the first answer."""
        heard = self._heard  # once: other threads hear too
        return datetime.now(UTC) if heard is None else heard[0] + timedelta(seconds=boot_time_s() - heard[1])

    def time_us(self) -> int | None:
        """Unix time in microseconds; None before the first answer."""
        return None if self._heard is None else int(self.now().timestamp() * 1e6)
