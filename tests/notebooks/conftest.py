"""Notebooks start Spark themselves: here it starts quickly."""

from __future__ import annotations

import pytest

from tests.support import jvm


@pytest.fixture(autouse=True)
def quick_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the kernels, which inherit this process' environment."""
    for name, value in jvm.environment().items():
        monkeypatch.setenv(name, value)
