"""`semsoft align`: does the model doubt where people doubt, measure by measure, from readouts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lm_eval_semsoft.cli.compare import Fitting, number
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
from lm_eval_semsoft.cli.shared import fail, make_console, one_sentence

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table as Grid

    from lm_eval_semsoft.reports.align import (
        Aligned,
        Alignments,
        PairDifference,
    )
    from lm_eval_semsoft.reports.align_subjects import Estimate, Subject, TimeRule

CALIBRATION = {"accuracy": "accuracy", "ece": "ECE", "ece_sweep": "ECE-sweep"}

EXAMPLES = """
**Examples**

`semsoft align readouts/gemma`

`semsoft align readouts/base readouts/instruct --png alignment.png`

`semsoft align ro/* --pair base:instruct --task coane_mc --json -o alignment.json`

`semsoft align readouts/gemma --target response_time_wrong --trim-times 0.01,0.99`

The readouts come from `lm_eval --model semsoft-hf --tasks human_alignment --model_args
…,readouts=DIR`. Two directories are a pair: base, then instruct. Exit code 1: no measure could be
related to anything.
"""


@one_sentence
def align(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR", help="Readouts directories.")],
    task: Annotated[
        str | None, typer.Option(help="Only this task; else all that know about people.")
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD",
            help="A numeric field of the documents, once per field; else human_entropy, "
            "response_time_correct, response_time and human_accuracy.",
        ),
    ] = None,
    pair: Annotated[
        list[str] | None,
        typer.Option(
            metavar="BASE:INSTRUCT",
            help="Names of two of the directories to compare; two directories are a pair anyway.",
        ),
    ] = None,
    log_times: Annotated[
        bool,
        typer.Option(
            "--log-times",
            help="Logarithms of response times: ranks stay the same, times of 0 drop out.",
        ),
    ] = False,
    trim_times: Annotated[
        str | None,
        typer.Option(
            metavar="LO,HI",
            help="Drop response times outside: ms, or quantiles if both are at most 1.",
        ),
    ] = None,
    resamples: Annotated[
        int, typer.Option(min=2, help="Bootstrap resamples behind every interval.")
    ] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Of the resamples.")] = 0,
    as_json: AsJson = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Markdown tables.")] = False,
    output: Output = None,
    png: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also draw a heat map, as PNG.")
    ] = None,
) -> None:
    """Relate doubt to people's entropy, times and accuracy."""
    check_output(output)
    check_picture(png)
    check_form(as_json, markdown)
    with make_console(stderr=True).status("Reading …") as status:
        from lm_eval_semsoft.reports import align as reports
        from lm_eval_semsoft.reports import align_subjects

        rule = _time_rule(log_times, trim_times)
        subjects = align_subjects.named(
            [
                s
                for folder in directories
                for s in align_subjects.subjects_of(folder, task, resamples, seed)
            ]
        )
        found = reports.align(
            subjects, _pairs(pair or [], subjects), target or (), rule, resamples, seed,
            progress=lambda what: status.update(f"Resampling {what} …"),
        )  # fmt: skip
    write(output, as_json, found.record, lambda: page(found), markdown, lambda: as_markdown(found))
    if png is not None:
        if found.empty:
            fail(f"There is nothing to draw: {png} was not written.")
        from lm_eval_semsoft.reports.align_figure import heat_map

        draw(heat_map(found), png)
    if found.empty:
        raise typer.Exit(1)


def _time_rule(log: bool, trim: str | None) -> TimeRule:
    from lm_eval_semsoft.reports.align_subjects import TimeRule

    if trim is None:
        return TimeRule(log)
    try:
        low, high = (float(part) for part in trim.split(","))
    except ValueError:
        fail(f"--trim-times {trim!r}: expected two numbers such as 500,60000 or 0.01,0.99.")
    if not 0 <= low < high:
        fail(f"--trim-times {trim!r}: the first number must be at least 0 and below the second.")
    return TimeRule(log, (low, high))


def _pairs(given: Sequence[str], subjects: Sequence[Subject]) -> list[tuple[str, str]]:
    names = list(dict.fromkeys(s.name for s in subjects))
    if not given:
        tasks = [{s.task for s in subjects if s.name == name} for name in names]
        return [(names[0], names[1])] if len(names) == 2 and tasks[0] & tasks[1] else []
    pairs = []
    for text in given:
        base, colon, instruct = text.rpartition(":")
        if not colon or not base or not instruct:
            fail(f"--pair {text!r}: expected two names of directories, such as base:instruct.")
        pairs.append((base, instruct))
    return pairs


# ------------------------------------------------------------------ numbers


def interval(low: float, high: float) -> str:
    return "" if low != low else f"[{_signed(low)} {_signed(high)}]"


def _signed(value: float) -> str:
    from lm_eval_semsoft.reports.align import signed

    return signed(value)


def p_text(p: float) -> str:
    return "–" if p != p else "<.001" if p < 0.001 else f"{p:.3f}".replace("0.", ".", 1)


def mark(p: float, p_holm: float) -> str:
    """* for a clear relation, ' for one that is clear only before the correction."""
    from lm_eval_semsoft.reports.align import ALPHA

    return "*" if p_holm < ALPHA else "'" if p < ALPHA else " "


def estimate(own: Estimate | None) -> str:
    if own is None or own.value != own.value:
        return "–"
    return number(own.value) + (f" ± {number(own.stderr)}" if own.stderr == own.stderr else "")


# ------------------------------------------------------------------ the page


def page(found: Alignments) -> Iterator[Any]:
    from rich.text import Text

    for task, tables in by_task(found).items():
        yield Text(task, style="bold")
        yield _calibration(tables)
        yield ""
        grids = [_grid(tables, interval_after=mark) for mark in (" ", "\n", None)]
        yield Fitting([*grids, _one_by_one(tables)])
        yield ""
    for difference in found.differences:
        yield Fitting([_differences(difference, mark) for mark in (" ", "\n", None)])
        yield from wilcoxon_lines(difference)
        yield ""
    for line in legend(found) if found.tables else ():
        yield Text(line, style="dim")
    for note in found.notes:
        yield f"! {note}"


def by_task(found: Alignments) -> dict[str, list[Aligned]]:
    tasks: dict[str, list[Aligned]] = {}
    for table in found.tables:
        tasks.setdefault(table.subject.task, []).append(table)
    return tasks


def calibration_rows(tables: Sequence[Aligned]) -> Iterator[list[str]]:
    """Who, documents, accuracy, ECE, ECE-sweep: a row per model and one for people."""
    for table in tables:
        s = table.subject
        who = f"{s.name} ({short(s.model)})" if s.name != s.model else s.name
        yield [who, f"{len(s.keys):,}", *(estimate(s.calibration.get(k)) for k in CALIBRATION)]
    for table in tables:
        own = table.subject.calibration
        if "human_accuracy" in own:
            people = [estimate(own.get(f"human_{key}")) for key in CALIBRATION]
            yield ["people, as one classifier", "", *people]
            return


def _calibration(tables: Sequence[Aligned]) -> Grid:
    from rich.table import Table as Grid

    grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    spoken = not any(t.subject.calibration for t in tables)
    heads = ["", "documents", *([] if spoken else CALIBRATION.values())]
    for head in heads:
        grid.add_column(head, justify="right" if head else "left", header_style="dim")
    for row in calibration_rows(tables):
        grid.add_row(*row[: len(heads)])
    return grid


def columns_of(tables: Sequence[Aligned]) -> list[tuple[str, Aligned]]:
    """Target by target, the models next to each other."""
    targets = dict.fromkeys(name for table in tables for name in table.targets)
    return [(name, table) for name in targets for table in tables if name in table.targets]


def _grid(
    tables: Sequence[Aligned],
    columns: Sequence[tuple[str, Aligned]] | None = None,
    interval_after: str | None = None,
) -> Grid:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as Grid
    from rich.text import Text

    from lm_eval_semsoft.reports.align import rows_of

    chosen = columns_of(tables) if columns is None else columns
    grid = Grid(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=0)
    grid.add_column("more doubt by", no_wrap=True)
    for target, table in chosen:
        grid.add_column(_heading(target, table, len(tables) > 1), justify="right", no_wrap=True)
    for name in rows_of(tables):
        cells = []
        for target, table in chosen:
            if name not in table.measures:
                cells.append(Text(""))
                continue
            i, j, m = table.measures.index(name), table.targets.index(target), table.matrix
            sign = mark(m.p[i, j], table.p_holm[i, j])
            value = (_signed(m.r[i, j]), "bold" if sign == "*" else "")
            tail = _tail(m.low[i, j], m.high[i, j], interval_after)
            cells.append(Text.assemble(value, sign, (tail, "dim")))
        grid.add_row(name, *cells)
    return grid


def _one_by_one(tables: Sequence[Aligned]) -> Group:
    """For narrow windows: a table per target."""
    from rich.console import Group

    columns = columns_of(tables)
    targets = dict.fromkeys(name for name, _ in columns)
    grids = [_grid(tables, [c for c in columns if c[0] == name]) for name in targets]
    return Group(*[part for grid in grids for part in (grid, "")][:-1])


def _heading(target: str, table: Aligned, several: bool) -> str:
    words = target.split("_")
    lines = [" ".join(words[:2]), " ".join(words[2:])] if len(words) > 2 else [*words, ""][:2]
    n = table.matrix.n[:, table.targets.index(target)].max(initial=0)
    return "\n".join([*lines, *([table.subject.name] if several else []), f"n={n} "])


def _tail(low: float, high: float, after: str | None) -> str:
    own = interval(low, high)
    return "" if after is None or not own else f"{after}{own}"


def _differences(own: PairDifference, interval_after: str | None) -> Grid:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as Grid
    from rich.text import Text

    title = f"{own.task}: r of {own.instruct} − r of {own.base}, {own.n:,} shared documents"
    grid = Grid(
        box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=0, title=title,
        title_justify="left", title_style="bold",
    )  # fmt: skip
    grid.add_column("more doubt by", no_wrap=True)
    for target in own.targets:
        grid.add_column(target.replace("_", "\n", 1).replace("_", " "), justify="right")
    d = own.differences
    for i, name in enumerate(own.measures):
        cells = []
        for j in range(len(own.targets)):
            clear = d.low[i, j] > 0 or d.high[i, j] < 0
            tail = _tail(d.low[i, j], d.high[i, j], interval_after)
            value = (_signed(d.difference[i, j]), "bold" if clear else "")
            cells.append(Text.assemble(value, "*" if clear else " ", (tail, "dim")))
        grid.add_row(name, *cells)
    return grid


def wilcoxon_lines(own: PairDifference) -> Iterator[str]:
    for target, test, p in zip(own.targets, own.signed_rank, own.p_holm, strict=True):
        if test.p != test.p:
            yield f"{target}: no Wilcoxon test of {test.n} measures."
            continue
        yield (
            f"{target}: median difference {_signed(test.median)} over {test.n} measures, Wilcoxon "
            f"p {p_text(test.p)}, after Holm {p_text(p)}."
        )


def legend(found: Alignments) -> Iterator[str]:
    from lm_eval_semsoft.reports.align import ALPHA

    yield (
        "r: Spearman's rank correlation of a measure of doubt (more is more doubt) with a field of "
        "the documents; human accuracy falls where people doubt. Intervals: "
        f"{found.level:.0%} percentile bootstrap, {found.resamples:,} resamples of the documents, "
        f"seed {found.seed}. *: p < {ALPHA} after Holm's correction over all cells of one task and "
        "model; ': only before it."
    )
    if found.differences:
        yield (
            "Differences: paired bootstrap; *: the interval excludes 0 (not corrected). Wilcoxon "
            "over measures describes this set of measures: they are no independent samples."
        )
    if any("human_ece" in t.subject.calibration for t in found.tables):
        yield (
            "People as one classifier: the answer most people chose, its share as confidence. "
            "± is a bootstrap standard error."
        )
    yield from twins_line(found)


def twins_line(found: Alignments) -> Iterator[str]:
    """Which rows are left out because another one has the same ranks."""
    twins = dict.fromkeys(pair for table in found.tables for pair in table.twins())
    norms = [name for name, same in twins if name == f"{same}_norm"]
    if norms:
        yield (
            f"÷ a constant changes no rank, so these are not repeated: {', '.join(norms[:4])}"
            f"{' …' if len(norms) > 4 else ''}"
        )
    others = [f"{name} = {same}" for name, same in twins if name != f"{same}_norm"]
    if others:
        more = f" and {len(others) - 6} more (see --json)" if len(others) > 6 else ""
        yield f"Same ranks, so one row: {', '.join(others[:6])}{more}."


# ------------------------------------------------------------------ Markdown


def as_markdown(found: Alignments) -> str:
    lines: list[str] = []
    for task, tables in by_task(found).items():
        lines += [f"**{task}**", "", f"| | documents | {' | '.join(CALIBRATION.values())} |"]
        lines += ["|---|---:|---:|---:|---:|"]
        lines += [f"| {' | '.join(row)} |" for row in calibration_rows(tables)]
        for target in dict.fromkeys(name for name, _ in columns_of(tables)):
            own = [table for table in tables if target in table.targets]
            lines += ["", *_markdown_table(target, own)]
        lines.append("")
    for difference in found.differences:
        lines += [*_markdown_differences(difference), ""]
    lines += [f"- {line}" for line in (*legend(found), *found.notes)]
    return "\n".join(lines) + "\n"


def _markdown_table(target: str, tables: Sequence[Aligned]) -> Iterator[str]:
    from lm_eval_semsoft.reports.align import rows_of

    heads = " | ".join(f"{t.subject.name}: r | n | p | p (Holm)" for t in tables)
    yield f"| {target} | {heads} |"
    yield f"|---|{'---:|' * 4 * len(tables)}"
    for name in rows_of(tables):
        cells = []
        for table in tables:
            if name not in table.measures:
                cells += [""] * 4
                continue
            i, j, m = table.measures.index(name), table.targets.index(target), table.matrix
            r = f"{_signed(m.r[i, j])} {interval(m.low[i, j], m.high[i, j])}".strip()
            cells += [r, str(m.n[i, j]), p_text(m.p[i, j]), p_text(table.p_holm[i, j])]
        yield f"| {name} | {' | '.join(cells)} |"


def _markdown_differences(own: PairDifference) -> Iterator[str]:
    yield f"**{own.task}: r of {own.instruct} − r of {own.base}, {own.n:,} shared documents**"
    yield ""
    yield f"| measure | {' | '.join(own.targets)} |"
    yield f"|---|{'---:|' * len(own.targets)}"
    d = own.differences
    for i, name in enumerate(own.measures):
        cells = [
            f"{_signed(d.difference[i, j])} {interval(d.low[i, j], d.high[i, j])}".strip()
            for j in range(len(own.targets))
        ]
        yield f"| {name} | {' | '.join(cells)} |"
    yield ""
    yield from (f"- {line}" for line in wilcoxon_lines(own))
