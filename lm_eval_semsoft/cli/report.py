"""`semsoft report`: runs as a page to read, figures to print and numbers to compute with."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lm_eval_semsoft.cli.rescore import (
    Anchors,
    KernelName,
    Preset,
    RivalVotes,
    Space,
    Tau,
    TopK,
    scoring_of,
)
from lm_eval_semsoft.cli.shared import fail, keep_memory, make_console, one_sentence, print_json

if TYPE_CHECKING:
    from lm_eval_semsoft.reports.readings import Readings
    from lm_eval_semsoft.reports.report import SampledSection, Section

SHOWN = 10  # documents per task

EXAMPLES = """
**Examples**

`semsoft report readouts/gemma`

`semsoft report readouts/* -o models.html --png figures`

`semsoft report readouts/gemma --tau q0.99 --tune tune.json`

`semsoft report readouts/gemma --json > numbers.json`

`semsoft report results/gemma results/smollm2/…/samples_triviaqa_se_….jsonl`

Readouts come from `lm_eval --model semsoft-hf --model_args …,readouts=DIR`. Scoring arguments
change what Semantic Softmax is on the page; without them it is that of the run. Of tasks whose
answers are free text (`…_se`, `…_verbal`, `…_ptrue`) give what `lm_eval --log_samples
--output_path DIR` wrote: DIR, its results JSON or a samples file. Both kinds go on one page.
"""


@one_sentence
def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH",
            help="Readouts directories, and results of free-text tasks.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FILE", help="The page: one HTML file, no network needed."
        ),
    ] = Path("report.html"),
    png: Annotated[
        Path | None,
        typer.Option(
            "--png", metavar="DIR", help="Also write the figures there, as PNG (200 dpi) and PDF."
        ),
    ] = None,
    tune: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What `semsoft tune -o` wrote; else `tune.json` in each readouts DIR, if any.",
        ),
    ] = None,
    task: Annotated[str | None, typer.Option(help="Only this task.")] = None,
    samples: Annotated[
        list[Path] | None,
        typer.Option(
            help="`samples_<task>_….jsonl` of the run (`lm_eval --log_samples`), where the "
            "documents do not say which label is right; once per readouts DIR, or once for all."
        ),
    ] = None,
    documents: Annotated[
        int,
        typer.Option(
            min=0,
            help="How many documents are shown: those that changed most; of free-text answers the "
            "most confident wrong ones.",
        ),
    ] = SHOWN,
    space: Space = None,
    tau: Tau = None,
    top_k: TopK = None,
    anchors: Anchors = None,
    rival_votes: RivalVotes = None,
    preset: Preset = None,
    kernel: KernelName = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Also print the numbers, as JSON.")
    ] = False,
) -> None:
    """Draw a page: metrics, reliability, and the documents that tell most."""
    given = {
        "space": space, "tau": tau, "top_k": top_k, "anchors": anchors, "rival_votes": rival_votes,
    }  # fmt: skip
    directories, results = _sorted_out(paths, output)
    for_readouts = {"tune": tune, "samples": samples, **given, "preset": preset, "kernel": kernel}
    options = {"output": output, "png": png, "task": task, "documents": documents, **for_readouts}
    if not directories and (used := [k for k, v in for_readouts.items() if v]):
        fail(f"--{used[0].replace('_', '-')} is for readouts, and none are among the PATHs.")

    keep_memory()
    from lm_eval_semsoft.reports import report as pages
    from lm_eval_semsoft.reports.rescore import check_stored, run_kernel

    with make_console(stderr=True).status("Computing …"):
        answers = _read_answers(results, task, documents)
        sections: list[Section] = []
        for readings, file in _read_all(directories, task, samples or [], tune):
            scoring = scoring_of(readings, preset, scoring="semantic", **given)
            check_stored(readings, scoring, kernel or run_kernel(readings))
            surface = None if file is None else pages.read_surface(file, readings, scoring)
            sections.append(pages.build(readings, documents, surface, scoring, kernel))
        if tune is not None and all(section.surface is None for section in sections):
            tasks = ", ".join(dict.fromkeys(section.task for section in sections))
            fail(f"--tune {tune} is of another task than {tasks}.")
        page = pages.Report(tuple(sections), _command(paths, options), sampled=tuple(answers))
        try:
            pages.write_text(output, pages.render(page))
            figures = [] if png is None else pages.write_figures(page, png)
        except OSError as error:
            fail(f"Cannot write to {error.filename or output}: {error.strerror or error}.")
    if as_json:
        print_json(pages.numbers(page))
    more = f" {len(figures)} files of figures in {png}." if figures else ""
    typer.echo(f"Written: {output}.{more}", err=True)


def _sorted_out(paths: Sequence[Path], output: Path) -> tuple[list[Path], list[Path]]:
    """Readouts directories, and everything else; fails before any work is done."""
    from lm_eval_semsoft.engine.manifest import MANIFEST

    if output.is_dir():
        fail(f"-o {output} is a directory: name a file, such as {output / 'report.html'}.")
    directories = [path for path in paths if (path.expanduser() / MANIFEST).is_file()]
    return directories, [path for path in paths if path not in directories]


def _read_answers(paths: Sequence[Path], task: str | None, documents: int) -> list[SampledSection]:
    """A section for every task and model of every path."""
    from lm_eval_semsoft.reports import sampled_section, samples

    runs = [run for path in paths for run in samples.read(path, task)]
    return [sampled_section.build(run, documents) for run in runs]


def _read_all(
    directories: Sequence[Path], task: str | None, samples: Sequence[Path], tune: Path | None
) -> list[tuple[Readings, Path | None]]:
    """Every task of every directory, with the file that holds its grid."""
    from lm_eval_semsoft.reports import readings
    from lm_eval_semsoft.reports.report import TUNE_FILE

    if len(samples) not in (0, 1, len(directories)):
        fail(f"--samples was given {len(samples)} times for {len(directories)} directories.")
    found = []
    for number, folder in enumerate(directories):
        right = None
        if samples:
            right = readings.read_samples(samples[number if len(samples) > 1 else 0])
        beside = folder / TUNE_FILE
        file = tune or (beside if beside.is_file() else None)
        own = (
            readings.load_all(folder, right)
            if task is None
            else [readings.load(folder, task, right)]
        )
        found += [(one, file) for one in own]
    return found


def _command(paths: Sequence[Path], options: Mapping[str, Any]) -> str:
    """What to type to get this page again."""
    words = ["semsoft", "report", *map(str, paths)]
    for name, value in options.items():
        if value is None or (name == "documents" and value == SHOWN):
            continue
        for one in value if isinstance(value, list) else [value]:
            words += [f"--{name.replace('_', '-')}", str(one)]
    return shlex.join(words)
