"""Where what a command found goes: JSON, Markdown or a page, printed or in a file; pictures."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lm_eval_semsoft.cli.shared import fail, make_console, plain, print_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILE_WIDTH = 200  # characters of a line in a text file

# Options of several commands.
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Write there instead of printing (.json means --json).",
    ),
]


# ------------------------------------------------------------------ before any work


def check_output(output: Path | None, option: str = "-o") -> None:
    """Fail before any work is done; `option` is how the user named the file."""
    if output is None:
        return
    if output.is_dir():
        fail(f"{option} {output} is a directory: name a file.")
    if not output.parent.is_dir():
        fail(f"{option} {output}: there is no directory {output.parent}.")


def check_picture(path: Path | None) -> None:
    """The same for `--png FILE`, and can pictures be drawn at all?"""
    check_output(path, "--png")
    if path is not None and find_spec("matplotlib") is None:
        fail("--png needs matplotlib: install it with `pip install matplotlib`.")


def check_form(as_json: bool, markdown: bool) -> None:
    if as_json and markdown:
        fail("--json and --markdown exclude each other: give one of them.")


# ------------------------------------------------------------------ when it is done


def write(
    output: Path | None,
    as_json: bool,
    record: Callable[[], object],
    page: Callable[[], Iterable[Any]],
    markdown: bool = False,
    as_markdown: Callable[[], str] | None = None,
) -> None:
    """Print what was found, or write it to a file, in the form that was asked for.

    Args:
        output: the file; its ending asks for a form where no option does.
        as_json, markdown: the options.
        record, page, as_markdown: the forms; of a command that has no Markdown the last is None.
    """
    ending = "" if output is None else output.suffix.lower()
    if as_json or (ending == ".json" and not markdown):
        _write_json(record(), output)
    elif as_markdown is not None and (markdown or ending == ".md"):
        text = as_markdown()
        if output is None:
            typer.echo(text, nl=False)
        else:
            _save(output, text)
    else:
        _write_text(output, page())


def draw(figure: Figure, path: Path) -> None:
    """Write a picture, and say so."""
    from lm_eval_semsoft.reports import figures

    try:
        figures.save_png(figure, path)
    except OSError as error:
        fail(f"Cannot write to {path}: {error.strerror or error}.")
    typer.echo(f"Written: {path}.", err=True)


def _write_json(record: object, output: Path | None) -> None:
    if output is None:
        print_json(record)
    else:
        _save(output, json.dumps(plain(record), indent=2, allow_nan=False) + "\n")


def _write_text(output: Path | None, parts: Iterable[Any]) -> None:
    """Print tables and sentences, or write them as plain text."""
    if output is None:
        console = make_console()
        for part in parts:
            console.print(part)
        return
    _save(output, as_text(parts))


def as_text(parts: Iterable[Any]) -> str:
    """Tables and sentences without colours, for a file."""
    from rich.console import Console

    console = Console(
        file=io.StringIO(), width=FILE_WIDTH, color_system=None, markup=False, emoji=False,
        highlight=False,
    )  # fmt: skip
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def _save(output: Path, text: str) -> None:
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"Cannot write to {output}: {error.strerror or error}.")
    typer.echo(f"Written: {output}.", err=True)
