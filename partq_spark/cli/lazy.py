"""Groups of commands that know their commands by name and summary, and import one only when it is called. So `partq
--version` and `--help` cost no more than click itself.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import click


class Lazy(NamedTuple):
    """Where a command is found, `module:attribute`, and its line in the group's help."""

    target: str
    summary: str


class LazyGroup(click.Group):
    """A group whose commands are in a table."""

    def __init__(self, *args: Any, lazy: Mapping[str, Lazy], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return None
        module, _, attribute = self.lazy[cmd_name].target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.lazy and not name.startswith("-"):
            near = difflib.get_close_matches(name, self.lazy, n=1)
            raise click.UsageError(f"No such command '{name}'." + (f" Did you mean '{near[0]}'?" if near else ""), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.summary) for name, command in self.lazy.items()])
