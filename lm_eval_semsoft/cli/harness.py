"""`semsoft run`, `ls`, `validate`: the harness's own command line, with our plugin armed."""

from __future__ import annotations

import sys
from typing import Any

import typer
from typer.core import TyperCommand

from lm_eval_semsoft import plugin
from lm_eval_semsoft.cli.shared import fail


class HarnessCommand(TyperCommand):
    """A subcommand whose arguments belong to the harness: kept as typed, `--help` and `--` too."""

    # `Any`: click's own context or, in newer versions of typer, that of the copy inside typer.
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.args = list(args)
        return []


def run(ctx: typer.Context) -> None:
    """Evaluate a model: `lm_eval run …`, same arguments."""
    _hand_over("run", ctx.args)


def ls(ctx: typer.Context) -> None:
    """List tasks, groups or tags, ours included: `lm_eval ls …`."""
    _hand_over("ls", ctx.args)


def validate(ctx: typer.Context) -> None:
    """Check that tasks exist: `lm_eval validate …`."""
    _hand_over("validate", ctx.args)


def _hand_over(command: str, arguments: list[str]) -> None:
    """Run the harness's command line in this process, with our models and tasks known to it."""
    plugin.arm()
    try:
        from lm_eval.__main__ import cli_evaluate
    except ModuleNotFoundError as missing:
        fail(
            f"semsoft {command} needs lm_eval 0.4.13 or newer, but there is no module named "
            f"{missing.name!r}: install it with `pip install lm_eval`."
        )
    sys.argv[1:] = [command, *arguments]
    cli_evaluate()
