"""What the commands share: types of options, progress, JSON output, groups that help."""

from __future__ import annotations

import difflib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from stack.cli.interrupts import raise_lost_interrupt


class _Folder(click.Path):
    """A path that has a name: what is written stands beside it first, under names made of its own."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        return path if path.name not in ("", "..") else Path(os.path.abspath(path))


FOLDER = _Folder(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)


class OwnProcess:
    """The context object of a run that has its process to itself, as one inside a test has not."""


class Commands(click.Group):
    """A group that names the closest command for one that it does not know."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise click.UsageError(f"no such command '{args[0]}'{hint}", ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Whole first sentences; click would cut them off in the middle."""
        with formatter.section("Commands"):
            formatter.write_dl([(n, c.get_short_help_str(limit=400)) for n, c in self.commands.items()])

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # in the order of a project's life, not of the alphabet


def log(line: str) -> None:
    """A line of progress; an interrupt that was lost on the way is raised here."""
    raise_lost_interrupt()
    click.echo(f"{time.strftime('%H:%M:%S')} {line}", err=True)


def show_json(value: Any, to: str | None) -> None:
    if to == "-":
        click.echo(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False))
    elif to is not None:
        from stack.files import write_json

        write_json(Path(to), value)


def manifest_options(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option(
        "--set", "overrides", multiple=True, metavar="A.B=C", help="Override a value of the manifest."
    )(command)
    return click.option(
        "--allow-outside", is_flag=True, help="Let the manifest name paths outside its root."
    )(command)
