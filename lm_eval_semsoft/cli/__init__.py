"""The `semsoft` command.

Every subcommand is a module here that imports what it needs when it is called, so that `semsoft`
itself starts at once. Exit codes: 0 all is well, 1 a finding, 2 the command was not understood or
cannot run.
"""

from __future__ import annotations

from typing import Annotated

import typer

from lm_eval_semsoft import __version__
from lm_eval_semsoft.cli import (
    align,
    compare,
    doctor,
    explain,
    harness,
    probe,
    report,
    rescore,
    train,
    tune,
)

EXAMPLES = """
**Examples**

`semsoft run --model semsoft-hf --tasks goemotions_zs --limit 100`

`semsoft ls tasks`

`semsoft explain "What a day!" --labels joy,anger,surprise`

`semsoft doctor`

`run`, `ls` and `validate` are `lm_eval …` word for word, without need of the start-up hook.
Exit codes: 0 all is well, 1 a finding, 2 the command was not understood or cannot run.
"""

app = typer.Typer(
    name="semsoft",
    help="Semantic Softmax, calibration and human alignment for lm-evaluation-harness.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

# One line a command, in the order of `semsoft --help`.
EVALUATE, READ, TRAIN = "Evaluate", "Read the scores", "Train"
INSTALLATION = "Installation"
app.command(cls=harness.HarnessCommand, rich_help_panel=EVALUATE)(harness.run)
app.command(cls=harness.HarnessCommand, rich_help_panel=EVALUATE)(harness.ls)
app.command(cls=harness.HarnessCommand, rich_help_panel=EVALUATE)(harness.validate)
app.command(rich_help_panel=READ, epilog=explain.EXAMPLES)(explain.explain)
app.command(rich_help_panel=READ, epilog=rescore.EXAMPLES)(rescore.rescore)
app.command(rich_help_panel=READ, epilog=compare.EXAMPLES)(compare.compare)
app.command(rich_help_panel=READ, epilog=tune.EXAMPLES)(tune.tune)
app.command(rich_help_panel=READ, epilog=align.EXAMPLES)(align.align)
app.command(rich_help_panel=READ, epilog=probe.EXAMPLES)(probe.probe)
app.command(rich_help_panel=READ, epilog=report.EXAMPLES)(report.report)
app.command(cls=train.TrainerCommand, rich_help_panel=TRAIN)(train.train)
app.command(rich_help_panel=INSTALLATION)(doctor.doctor)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lm-eval-semsoft {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Options of `semsoft` itself."""


def main() -> None:
    """Entry point of the `semsoft` script and of `python -m lm_eval_semsoft`."""
    app(prog_name="semsoft")
