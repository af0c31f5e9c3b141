"""How a test of the simulation reports numbers that are worth seeing even when it passes."""

from tests.support.reporting import reporting

report, pytest_terminal_summary = reporting("the simulation of ownership")
