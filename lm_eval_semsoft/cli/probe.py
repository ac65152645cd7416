"""`semsoft probe`: can a linear map read it off the activations, and in which layer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lm_eval_semsoft.cli.output import (
    AsJson,
    Output,
    check_form,
    check_output,
    check_picture,
    draw,
    write,
)
from lm_eval_semsoft.cli.rescore import short
from lm_eval_semsoft.cli.shared import make_console, one_sentence

if TYPE_CHECKING:
    from rich.table import Table as Grid

    from lm_eval_semsoft.core.probes import Estimate
    from lm_eval_semsoft.reports.probe import Probed, Probes, Settings

EXAMPLES = """
**Examples**

`semsoft probe readouts/gemma`

`semsoft probe readouts/gemma readouts/smollm2 --task coane_mc --png probe.png`

`semsoft probe readouts/gemma --target response_time_correct --log-times`

`semsoft probe readouts/gemma --target correct --json -o probe.json`

The readouts come from `lm_eval --model semsoft-hf --tasks human_alignment --model_args
…,readouts=DIR,capture=hidden`. Exit code 1: nothing could be probed.
"""


@one_sentence
def probe(
    directories: Annotated[
        list[Path],
        typer.Argument(metavar="DIR", help="Readouts directories with captured activations."),
    ],
    target: Annotated[
        str,
        typer.Option(
            metavar="FIELD",
            help="What to look for: human_entropy, response_time, response_time_correct or any "
            "numeric field of the documents; or `correct`: is the most probable option right?",
        ),
    ] = "human_entropy",
    task: Annotated[
        str | None, typer.Option(help="Only this task; else all that have the target.")
    ] = None,
    folds: Annotated[int, typer.Option(min=2, help="Folds of the cross-validation.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Of folds, shuffles and resamples.")] = 42,
    permutations: Annotated[
        int,
        typer.Option(min=20, help="Shuffles of the target: control, p-value and intervals."),
    ] = 100,
    resamples: Annotated[
        int, typer.Option(min=2, help="Bootstrap resamples behind every interval.")
    ] = 1000,
    log_times: Annotated[
        bool,
        typer.Option("--log-times", help="Logarithms of response times; times of 0 drop out."),
    ] = False,
    as_json: AsJson = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Markdown tables.")] = False,
    output: Output = None,
    png: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also draw the curves over depth, as PNG.")
    ] = None,
) -> None:
    """Probe every layer's activations for people's entropy, response times or correctness."""
    check_output(output)
    check_picture(png)
    check_form(as_json, markdown)
    from lm_eval_semsoft.reports.probe import Settings

    settings = Settings(folds, seed, permutations, resamples, log_times=log_times)
    found = _with_progress(directories, target, task, settings)
    write(output, as_json, found.record, lambda: page(found), markdown, lambda: as_markdown(found))
    if png is not None and not found.empty:
        from lm_eval_semsoft.reports.probe_figure import curves

        draw(curves(found), png)
    if found.empty:
        raise typer.Exit(1)


def _with_progress(
    directories: list[Path], target: str, task: str | None, settings: Settings
) -> Probes:
    import warnings

    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from lm_eval_semsoft.core.bootstrap import UndefinedMetricWarning
    from lm_eval_semsoft.reports import probe as reports

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    console = make_console(stderr=True)
    # Where it cannot draw, it would leave an empty line.
    shown = console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not shown) as bar:
        bars: dict[str, Any] = {}

        def step(what: str, layers: int) -> None:
            if what not in bars:
                bars[what] = bar.add_task(what, total=layers)
            bar.advance(bars[what])

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UndefinedMetricWarning)  # the page says the same
            return reports.probe_all(directories, target, task, settings, progress=step)


# ------------------------------------------------------------------ numbers


def signed(value: float) -> str:
    from lm_eval_semsoft.reports.align import signed as one

    return one(value)


def estimate(own: Estimate) -> str:
    """Such as `+.31 [+.20 +.41]`."""
    tail = f" [{signed(own.low)} {signed(own.high)}]" if own.low == own.low else ""
    return signed(own.r) + tail


def title(table: Probed) -> str:
    return (
        f"{table.name}: {short(table.model)}, {table.task}, {table.target}, "
        f"{table.probe.n:,} documents, {len(table.probe.layers)} layers"
    )


SUMMARY = ("", "layer", "r", "p", "Spearman")


def summary(table: Probed) -> Iterator[list[str]]:
    """A row per `SUMMARY`: the headline, then what has looked at all layers."""
    p = table.probe
    if p.layer is None:
        return
    folds = f"{p.layer} ({p.layer_of_fold.count(p.layer)} of {len(p.layer_of_fold)})"
    yield ["nested", folds, estimate(p.pearson), _p(p.p), estimate(p.spearman)]
    if p.max_over_layers is not None:
        best = p.layers[p.max_over_layers]
        own = estimate(best.pearson), "", estimate(best.spearman)
        yield ["max_over_layers", str(p.max_over_layers), *own]
    if p.ols_layer is not None:
        r = signed(p.layers[p.ols_layer].ols_r)
        yield ["  of least squares", str(p.ols_layer), r, "", ""]


def _p(p: float) -> str:
    return "–" if p != p else f"{p:.3f}".replace("0.", ".", 1)


def layer_rows(table: Probed) -> Iterator[list[str]]:
    for number, own in enumerate(table.probe.layers):
        control = f"{signed(own.control_low)} {signed(own.control_high)}"
        yield [
            str(number), estimate(own.pearson), estimate(own.spearman), signed(own.ols_r),
            "–" if own.flaw else control,
        ]  # fmt: skip


COLUMNS = ("layer", "ridge, r", "ridge, Spearman", "least squares", "shuffled, 95 %")


# ------------------------------------------------------------------ the page


def page(found: Probes) -> Iterator[Any]:
    from rich.text import Text

    for table in found.tables:
        yield Text(title(table), style="bold")
        if table.probe.layer is None:  # a note below says why
            yield "no probe"
        else:
            yield _summary(table)
            yield ""
            yield _layers(table)
        yield ""
    for line in legend(found):
        yield Text(line, style="dim")
    for table in found.tables:
        for note in table.notes:
            yield f"! {note}"


def _summary(table: Probed) -> Grid:
    from rich.table import Table as Grid

    grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for name in SUMMARY:
        grid.add_column(name, header_style="dim", no_wrap=True)
    for i, row in enumerate(summary(table)):
        grid.add_row(*row, style="" if i else "bold")
    return grid


def _layers(table: Probed) -> Grid:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as Grid

    grid = Grid(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for name in COLUMNS:
        grid.add_column(name, justify="right", no_wrap=True)
    for number, row in enumerate(layer_rows(table)):
        grid.add_row(*row, style="bold" if number == table.probe.layer else "")
    return grid


def legend(found: Probes) -> Iterator[str]:
    s = found.settings
    yield (
        "Correlations of out-of-fold predictions with the target, both about their mean in the "
        f"fold; {s.folds} folds, seed {s.seed}. Nested: each fold's training documents choose "
        "layer and penalty (in brackets: how many chose this one). max_over_layers is optimistic: "
        "it has looked at all results, so it is too high even where there is nothing to find."
    )
    stretches = [t.probe.stretch[0] for t in found.tables if t.probe.layer is not None]
    ends = dict.fromkeys(f"{x:.1f}" for x in (min(stretches), max(stretches))) if stretches else ()
    wider = f" (the nested {' to '.join(ends)} times)" if stretches else ""
    yield (
        f"Intervals: {s.level:.0%} percentile bootstrap, {s.draws:,} resamples, made wider{wider} "
        f"until {s.level:.0%} of those of {s.permutations} shuffled targets contain 0. p: "
        "one-sided, share of the shuffles that do as well. Least squares is the published study's "
        "figure, the mean of r over folds."
    )


# ------------------------------------------------------------------ Markdown


def as_markdown(found: Probes) -> str:
    lines: list[str] = []
    for table in found.tables:
        lines += [f"**{title(table)}**", "", f"| {' | '.join(SUMMARY)} |"]
        lines += ["|" + "---|" * len(SUMMARY)]
        lines += [f"| {' | '.join(row).strip()} |" for row in summary(table)]
        lines += ["", f"| {' | '.join(COLUMNS)} |", "|" + "---:|" * len(COLUMNS)]
        lines += [f"| {' | '.join(row)} |" for row in layer_rows(table)]
        lines.append("")
    lines += [f"- {line}" for line in legend(found)]
    lines += [f"- {note}" for table in found.tables for note in table.notes]
    return "\n".join(lines) + "\n"
