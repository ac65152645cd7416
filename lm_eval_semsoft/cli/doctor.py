"""`semsoft doctor`: what this installation can do."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import typer

from lm_eval_semsoft import __version__, plugin
from lm_eval_semsoft.cli.shared import make_console


def doctor() -> None:
    """Say what is installed and whether `lm_eval` finds it."""
    from rich.table import Table

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
        table.add_row(name, text)
    console = make_console()
    console.print(table)
    for finding in findings:
        console.print(f"! {finding}", style="bold red")
    if findings:
        raise typer.Exit(1)
    console.print("`lm_eval` finds our models and tasks.")


def _versions() -> str:
    names = ("lm_eval", "torch", "transformers", "datasets")
    python = sys.version.split()[0]
    rest = ", ".join(f"{name} {_installed_version(name) or 'not installed'}" for name in names)
    return f"lm-eval-semsoft {__version__}, Python {python}, {rest}"


def _installed_version(distribution: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

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
    from lm_eval_semsoft.models.demo_packages import DEMO_MODELS, PREFIX

    found = [PREFIX + name for name, model in DEMO_MODELS.items() if model.gguf_parts()]
    first = next(iter(DEMO_MODELS.values()))
    return ", ".join(found) or f"none (`{first.install}`)"


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
