"""How many examples a property is tried with: a number of its own, in proportion to what the run's profile has.

The profiles are in `tests/conftest.py`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from hypothesis import HealthCheck, settings

WHOLE: Final = 100
"""Examples of a property without a number of its own in a whole run: hypothesis' default."""


def examples(number: int, *, steps: int | None = None, suppress_health_check: Collection[HealthCheck] = ()) -> settings:
    """`number` examples in a whole run, a quarter of them in a quick one; a state machine takes `steps` at most."""
    profile = settings.default
    assert profile is not None
    tried = max(1, number * profile.max_examples // WHOLE)
    return settings(
        max_examples=tried,
        stateful_step_count=profile.stateful_step_count if steps is None else steps,
        suppress_health_check=suppress_health_check,
    )
