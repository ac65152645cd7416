"""`semsoft report`: readouts as a page to read, figures to print and numbers to compute with."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lm_eval_semsoft.cli.shared import fail, make_console, one_sentence, print_json

if TYPE_CHECKING:
    from lm_eval_semsoft.reports.report import Section

EXAMPLES = """
**Examples**

`semsoft report readouts/gemma`

`semsoft report readouts/* -o models.html --png figures`

`semsoft report readouts/gemma --tune tune.json --documents 30`

`semsoft report readouts/gemma --json > numbers.json`

The readouts come from a run with `--model_args …,readouts=DIR`.
"""


@one_sentence
def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR…", help="Readouts of a run each (`readouts=DIR`)."),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The page, one HTML file that needs no network.")
    ] = Path("report.html"),
    png: Annotated[
        Path | None,
        typer.Option("--png", help="Also write the figures here, as PNG (200 dpi) and PDF."),
    ] = None,
    tune: Annotated[
        Path | None,
        typer.Option(
            "--tune", help="A file of `semsoft tune`; by default `tune.json` in each DIR, if there."
        ),
    ] = None,
    documents: Annotated[
        int,
        typer.Option("--documents", min=0, help="Documents that changed most, shown per task."),
    ] = 10,
    as_json: Annotated[
        bool, typer.Option("--json", help="Also print the numbers, as JSON.")
    ] = False,
) -> None:
    """Draw a page: metrics, reliability, labels, and the documents that changed most."""
    for folder in folders:
        _check(folder)
    if output.is_dir():
        fail(f"-o {output} is a directory: name a file, such as {output / 'report.html'}.")

    from lm_eval_semsoft.reports import report as pages

    with make_console(stderr=True).status("Computing …"):
        sections = [section for folder in folders for section in _sections(folder, tune, documents)]
        if tune is not None and all(section.surface is None for section in sections):
            fail(f"--tune {tune} is of none of the tasks {_list(s.task for s in sections)}.")
        page = pages.Report(tuple(sections), _command(folders, output, png, tune, documents))
        try:
            pages.write_text(output, pages.render(page))
            figures = [] if png is None else pages.write_figures(page, png)
        except OSError as error:
            fail(f"{error.filename or output} cannot be written ({error.strerror or error}).")
    if as_json:
        print_json(pages.numbers(page))
    note = f", {len(figures)} figures in {png}" if figures else ""
    typer.echo(f"{output}: {len(sections)} section{'s' * (len(sections) != 1)}{note}.", err=True)


def _check(folder: Path) -> None:
    """Say what to do with a path that is no readouts directory."""
    if folder.is_file():
        fail(
            f"{folder} is a file; a report needs readouts, which hold more than results do: run "
            "the evaluation with --model_args …,readouts=DIR, then `semsoft report DIR`."
        )


def _sections(folder: Path, tune: Path | None, documents: int) -> list[Section]:
    from lm_eval_semsoft.reports import readings, report

    sections = []
    for task in readings.load_all(folder):
        beside = folder / report.TUNE_FILE
        file = tune or (beside if beside.is_file() else None)
        surface = None if file is None else report.read_surface(file, task)
        sections.append(report.build(task, documents, surface))
    return sections


def _command(
    folders: Sequence[Path], output: Path, png: Path | None, tune: Path | None, documents: int
) -> str:
    words = ["semsoft", "report", *map(str, folders), "-o", str(output)]
    words += [] if png is None else ["--png", str(png)]
    words += [] if tune is None else ["--tune", str(tune)]
    words += [] if documents == 10 else ["--documents", str(documents)]
    return shlex.join(words)


def _list(names: object) -> str:
    return ", ".join(dict.fromkeys(names))  # type: ignore[call-overload]
