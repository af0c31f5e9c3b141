"""Lines for the end of the run: what a storm came to."""

from tests.support.reporting import reporting

report, pytest_terminal_summary = reporting("ownership with real processes")
