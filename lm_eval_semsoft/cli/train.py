"""`semsoft train`: the command line of csr_trainer."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand


class TrainerCommand(TyperCommand):
    """A subcommand whose arguments belong to the trainer: kept as typed, `--help` too."""

    # `Any`: click's own context or, in newer versions of typer, that of the copy inside typer.
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.args = list(args)
        return []


def train(ctx: typer.Context) -> None:
    """Train a model so that its agreement with itself means that it is right (CSR)."""
    from csr_trainer.__main__ import main

    raise typer.Exit(main(ctx.args, prog="semsoft train"))
