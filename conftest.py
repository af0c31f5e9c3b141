"""Loads the tests' own pytest plugins, which pytest accepts only in the topmost conftest."""

pytest_plugins = ["tests.support.parallel", "tests.support.conformance", "tests.support.reporting"]
