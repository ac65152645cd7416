"""`semsoft compare`: methods, models and prompts side by side, with intervals, from readouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lm_eval_semsoft.cli.output import AsJson, Output, check_form, check_output, write
from lm_eval_semsoft.cli.rescore import (
    Anchors,
    KernelName,
    Preset,
    RivalVotes,
    ScoringName,
    Space,
    Task,
    Tau,
    TopK,
    describe,
    read,
    scoring_of,
    short,
)
from lm_eval_semsoft.cli.shared import fail, keep_memory, make_console, one_sentence

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table as Grid
    from rich.text import Text

    from lm_eval_semsoft.reports.compare import Pair
    from lm_eval_semsoft.reports.compare_data import Comparison, Difference, Figure, Row, Table
    from lm_eval_semsoft.reports.measures import Measure
    from lm_eval_semsoft.reports.readings import Readings

CLEAR = 0.975  # of the resamples: then a row is marked as better (or worse) than the reference
HEADINGS = {"mean_confidence": "mean conf."}  # where a name is too long for a column
SHORT = {"accuracy": "acc.", "macro_f1": "macro F1", "ece_sweep": "ECE sweep"}  # for few columns

EXAMPLES = """
**Examples**

`semsoft compare readouts/gemma`

`semsoft compare readouts/gemma --dev readouts/gemma-dev`

`semsoft compare ro/base ro/instruct --dev ro/base-dev --dev ro/instruct-dev`

`semsoft compare readouts/gemma --against constrained+prior`

`semsoft compare readouts/gemma --tau q0.99 --markdown > table.md`

The readouts come from `lm_eval --model semsoft-hf --model_args …,readouts=DIR`. Development
documents are others of the same task: temperatures are fitted on them, and on nothing else.
"""


@one_sentence
def compare(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR", help="Readouts directories to evaluate.")
    ],
    dev: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DEVDIR",
            help="Readouts of development documents, for temperatures; once per DIR in their "
            "order, or once per model.",
        ),
    ] = None,
    task: Task = None,
    samples: Annotated[
        list[Path] | None,
        typer.Option(
            help="`samples_<task>_….jsonl` of the run (`lm_eval --log_samples`), where the "
            "documents do not say which label is right; once per DIR, or once for all."
        ),
    ] = None,
    dev_samples: Annotated[
        list[Path] | None,
        typer.Option("--dev-samples", help="The same for the development documents."),
    ] = None,
    scoring: ScoringName = None,
    space: Space = None,
    tau: Tau = None,
    top_k: TopK = None,
    anchors: Anchors = None,
    rival_votes: RivalVotes = None,
    preset: Preset = None,
    kernel: KernelName = None,
    alpha: Annotated[
        float | None,
        typer.Option(min=0, help="How much surprise counts in the surprise row; 0: not at all."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="ROW",
            help="The row that all others are compared with, such as `constrained+prior`; also "
            "shows how far they are from it.  [default: constrained]",
        ),
    ] = None,
    resamples: Annotated[
        int, typer.Option(min=2, help="Bootstrap resamples behind every interval.")
    ] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Of the resamples.")] = 0,
    as_json: AsJson = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="A Markdown table.")] = False,
    output: Output = None,
) -> None:
    """Compare scorings, corrections and models on the same documents."""
    keep_memory()
    check_output(output)
    check_form(as_json, markdown)
    with make_console(stderr=True).status("Reading …"):
        from lm_eval_semsoft.reports import compare as reports
        from lm_eval_semsoft.reports.development import match_dev
        from lm_eval_semsoft.reports.methods import ALPHA

        readings = _read_all(directories, task, samples or [], "--samples")
        others = _read_all(dev or [], task, dev_samples or [], "--dev-samples")
        pairs = [
            reports.Pair(
                own,
                development,
                scoring_of(
                    own, preset,
                    # A run that was scored as usual still asks how it compares.
                    scoring=scoring or "semantic", space=space, tau=tau, top_k=top_k,
                    anchors=anchors, rival_votes=rival_votes,
                ),
                kernel,
            )
            for own, development in zip(readings, match_dev(readings, others), strict=True)
        ]  # fmt: skip
    row = reports.REFERENCE if against is None else against
    found = _with_progress(pairs, ALPHA if alpha is None else alpha, resamples, seed, row)
    apart = against is not None
    write(
        output, as_json, found.record, lambda: page(found, apart),
        markdown, lambda: as_markdown(found, apart),
    )  # fmt: skip


def _read_all(
    folders: Sequence[Path], task: str | None, samples: Sequence[Path], option: str
) -> list[Readings]:
    if len(samples) not in (0, 1, len(folders)):
        fail(f"{option} was given {len(samples)} times for {len(folders)} directories.")
    given: list[Path | None] = [*samples] if len(samples) == len(folders) else []
    alone = samples[0] if samples else None
    files = given or [alone] * len(folders)
    return [read(folder, task, file) for folder, file in zip(folders, files, strict=True)]


def _with_progress(
    pairs: list[Pair], alpha: float, resamples: int, seed: int, against: str
) -> Comparison:
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from lm_eval_semsoft.reports import compare as reports

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=make_console(stderr=True), transient=True) as bar:
        own = bar.add_task("Scoring …", total=reports.steps_of(pairs, resamples))
        return reports.compare(
            pairs, alpha, resamples, seed,
            progress=lambda steps, name: bar.update(
                own, advance=steps, description=f"Resampling {name} …"
            ),
            against=against,
        )  # fmt: skip


# ------------------------------------------------------------------ numbers


def number(value: float | None, digits: int = 3) -> str:
    """In at most five characters, such as .982, 1.049, 12.3 or 493."""
    if value is None or value != value:
        return "–"
    if abs(value) >= 9.9995:
        return f"{value:.1f}" if abs(value) < 99.95 else f"{value:.0f}"
    text = f"{value:.{digits}f}"
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def interval(figure: Figure) -> str:
    """Both ends, such as `.979–.985`; "" if there are none."""
    low, high = figure.low, figure.high
    if low != low:
        return ""
    return "–".join(number(x, 3 if abs(x) < 0.9995 else 2) for x in (low, high))


def signed(value: float | None) -> str:
    """A difference, such as +.012 or −.003; – if there is none."""
    text = number(value)
    if text == "–":
        return text
    return text.replace("-", "−") if text.startswith("-") else f"+{text}"


def distance(figure: Figure) -> str:
    """Both ends of the difference from the reference, such as `−.003…+.027`; "" without any."""
    low, high = figure.difference_low, figure.difference_high
    return "" if low is None or low != low else f"{signed(low)}…{signed(high)}"


def mark(probability: float | None) -> str:
    """+ for better than the reference, − for worse, a space for neither."""
    if probability is None:
        return " "
    return "+" if probability >= CLEAR else "−" if probability <= 1 - CLEAR else " "


def best_of(table: Table, measure: Measure) -> float:
    """The best value of a column, the guess aside; NaN where no value is better than another."""
    values = [row.figures[measure.key].value for row in table.rows if row.method != "uniform"]
    known = [v for v in values if v == v]
    if not known or measure.higher is None:
        return float("nan")
    return max(known) if measure.higher else min(known)


def title(table: Table) -> str:
    return (
        f"{table.name}: {short(table.model)}, {table.task}, {table.n:,} documents, "
        f"{table.labels} labels"
    )


def dev_line(table: Table) -> Iterator[str]:
    fitted = [row for row in table.rows if row.temperature is not None]
    if table.dev is not None and fitted:
        values = ", ".join(
            f"{row.method.removesuffix('+temperature')} {row.temperature:.3g}" for row in fitted
        )
        yield f"T, fitted on {table.n_dev:,} documents of {table.dev}: {values}"


# ------------------------------------------------------------------ the page


def page(found: Comparison, distances: bool = False) -> Iterator[Any]:
    from rich.text import Text

    for table in found.tables:
        yield Text(title(table), style="bold")
        yield describe(table.scoring, table.kernel)
        yield from dev_line(table)
        yield ""
        yield Fitting([wide(table), medium(table), narrow(table), halved(table)])
        yield ""
        if distances:
            yield Text(f"minus {found.reference}, on the same resamples", style="bold")
            yield Fitting([apart(table, found.reference), *apart_in_parts(table, found.reference)])
            yield ""
    for difference in found.differences:
        yield _difference(difference)
        yield ""
    for line in legend(found):
        yield Text(line, style="dim")
    for table in found.tables:
        for note in table.notes:
            yield f"! {note}"


def legend(found: Comparison) -> Iterator[str]:
    from lm_eval_semsoft.reports.compare_data import MEASURES, draws_of

    slow = [m for m in MEASURES if m.slow]
    names, fewer = " and ".join(m.name for m in slow), draws_of(slow[0], found.resamples)
    yield (
        f"Intervals: {found.level:.0%} percentile bootstrap, {found.resamples:,} resamples of the "
        f"documents ({names}: the first {fewer:,}), seed {found.seed}, the same for all rows. "
        f"+ or − behind a value: better or worse than {found.reference} in at least {CLEAR:.1%} "
        "of them. Bold: best of the column, the uniform guess aside."
    )
    yield from found.notes


class Fitting:
    """The first of several tables that fits the console, or the last one."""

    def __init__(self, tables: Sequence[Grid | Group]) -> None:
        self.tables = tables

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.measure import Measurement

        roomy = options.update(width=1000)
        for i, table in enumerate(self.tables):
            last = i == len(self.tables) - 1
            if last or Measurement.get(console, roomy, table).maximum <= options.max_width:
                yield table
                return


def wide(table: Table) -> Grid:
    """Interval behind every value."""

    def cell(figure: Figure, style: str) -> Text:
        from rich.text import Text

        own = interval(figure)
        tail = f"[{own}]" if own else ""
        return Text.assemble((number(figure.value), style), mark(figure.beats), (tail, "dim"))

    return _grid(table, lambda row: row.method, cell)


def medium(table: Table) -> Grid:
    """Interval below every value; for 100 columns without that of the mean confidence."""

    def cell(figure: Figure, style: str) -> Text:
        from rich.text import Text

        top = (number(figure.value), style)
        return Text.assemble(top, mark(figure.beats), "\n", (interval(figure), "dim"))

    grid = _grid(table, _two_lines, cell, bare=("mean_confidence",))
    grid.caption = "The interval of the mean confidence is left out: see --json or --markdown."
    grid.caption_justify = "left"
    return grid


def narrow(table: Table, start: int = 0, end: int | None = None) -> Grid:
    """Values alone, of some of the columns."""

    def cell(figure: Figure, style: str) -> Text:
        from rich.text import Text

        return Text.assemble((number(figure.value), style), mark(figure.beats))

    grid = _grid(
        table, lambda row: _two_lines(row).strip(), cell, columns=slice(start, end), short=True
    )
    grid.caption = "Intervals are left out: they need 100 columns, --json or --markdown."
    grid.caption_justify = "left"
    return grid


def halved(table: Table) -> Group:
    """Values alone, half of the columns below the other half."""
    from rich.console import Group

    first = narrow(table, 0, 5)
    first.caption = None
    return Group(first, "", narrow(table, 5))


PARTS = (3, 2, 1)  # columns a table, where not all of them fit


def apart(table: Table, reference: str, start: int = 0, end: int | None = None) -> Grid:
    """How far every other row is from the reference, and the interval of that below."""

    def cell(figure: Figure, style: str) -> Text:
        from rich.text import Text

        top = signed(figure.difference)
        return Text.assemble(top, mark(figure.beats), "\n", (distance(figure), "dim"))

    others = replace(table, rows=tuple(r for r in table.rows if r.method != reference))
    return _grid(others, _two_lines, cell, columns=slice(start, end), plain=True)


def apart_in_parts(table: Table, reference: str) -> Iterator[Group]:
    """The same in several tables, one below the other."""
    from rich.console import Group

    from lm_eval_semsoft.reports.compare_data import MEASURES

    for size in PARTS:
        starts = range(0, len(MEASURES), size)
        tables = [apart(table, reference, start, start + size) for start in starts]
        yield Group(*(part for grid in tables for part in (grid, "")))


def _two_lines(row: Row) -> str:
    """`constrained` above `+prior +T`."""
    base, *corrections = row.method.replace("temperature", "T").split("+")
    return base + "\n" + " ".join(f"+{c}" for c in corrections)


def _grid(
    table: Table,
    name: Callable[[Row], str],
    cell: Callable[[Figure, str], Text],
    bare: Sequence[str] = (),
    columns: slice = slice(None),
    short: bool = False,
    plain: bool = False,
) -> Grid:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as Grid

    from lm_eval_semsoft.reports.compare_data import MEASURES

    grid = Grid(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=0)  # the box has spaces
    grid.add_column("method", no_wrap=True)
    measures = MEASURES[columns]
    for measure in measures:
        grid.add_column(_heading(measure, short), justify="right", no_wrap=True)
    best = {m.key: best_of(table, m) for m in measures}
    for row in table.rows:
        cells = []
        for key in best:
            figure = row.figures[key]
            shown = replace(figure, low=nan, high=nan) if key in bare else figure
            is_best = figure.value == best[key] and row.method != "uniform" and not plain
            cells.append(cell(shown, "bold" if is_best else ""))
        grid.add_row(name(row), *cells)
    return grid


def _heading(measure: Measure, short: bool = False) -> str:
    """Two lines, the second with an arrow to where it is better; a space where marks are."""
    name = HEADINGS.get(measure.key, measure.name)
    first, _, second = (SHORT.get(measure.key, name) if short else name).partition(" ")
    return f"{first}\n{second} {_arrow(measure)}".replace("\n ", "\n") + " "


def _one_line(measure: Measure) -> str:
    return f"{HEADINGS.get(measure.key, measure.name)} {_arrow(measure)}".strip()


def _arrow(measure: Measure) -> str:
    return "" if measure.higher is None else "↑" if measure.higher else "↓"


def _difference(difference: Difference) -> Grid:
    """A row per metric: how much more the second directory has than the first."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as Grid

    from lm_eval_semsoft.reports.compare_data import MEASURES

    heading = (
        f"{difference.second} − {difference.first}, {difference.method}, "
        f"{difference.n:,} shared documents"
    )
    grid = Grid(
        box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0), title=heading,
        title_justify="left", title_style="bold",
    )  # fmt: skip
    for name in ("metric", "difference", f"{0.95:.0%} interval", "better in"):
        grid.add_column(name, justify="left" if name == "metric" else "right", no_wrap=True)
    for measure in MEASURES:
        own = difference.figures[measure.key]
        ends = f"{own.low:+.4f} … {own.high:+.4f}" if own.low == own.low else ""
        share = "" if own.probability != own.probability else f"{own.probability:.1%}"
        value = "–" if own.difference != own.difference else f"{own.difference:+.4f}"
        grid.add_row(_one_line(measure), value, ends, share)
    return grid


# ------------------------------------------------------------------ Markdown


def as_markdown(found: Comparison, distances: bool = False) -> str:
    lines: list[str] = []
    for table in found.tables:
        lines += [f"**{title(table)}**", "", f"{describe(table.scoring, table.kernel)}", ""]
        lines += [*_markdown_table(table), ""]
        if distances:
            lines += [f"minus {found.reference}, on the same resamples:", ""]
            lines += [*_markdown_distances(table, found.reference), ""]
    for difference in found.differences:
        lines += [*_markdown_difference(difference), ""]
    lines += [f"- {line}" for line in legend(found)]
    lines += [f"- {line}" for table in found.tables for line in (*dev_line(table), *table.notes)]
    return "\n".join(lines) + "\n"


def _markdown_table(table: Table) -> Iterator[str]:
    from lm_eval_semsoft.reports.compare_data import MEASURES

    headings = [_one_line(m) for m in MEASURES]
    yield f"| method | {' | '.join(headings)} |"
    yield f"|---|{'---:|' * len(MEASURES)}"
    best = {m.key: best_of(table, m) for m in MEASURES}
    for row in table.rows:
        cells = []
        for key, figure in row.figures.items():
            value, own = number(figure.value), interval(figure)
            if figure.value == best[key] and row.method != "uniform":
                value = f"**{value}**"
            cells.append(f"{value}{mark(figure.beats)}{f' [{own}]' if own else ''}".strip())
        yield f"| {row.method} | {' | '.join(cells)} |"


def _markdown_distances(table: Table, reference: str) -> Iterator[str]:
    from lm_eval_semsoft.reports.compare_data import MEASURES

    yield f"| method | {' | '.join(_one_line(m) for m in MEASURES)} |"
    yield f"|---|{'---:|' * len(MEASURES)}"
    for row in table.rows:
        if row.method != reference:
            cells = [
                f"{signed(f.difference)}{mark(f.beats).strip()} [{distance(f)}]".replace(" []", "")
                for f in row.figures.values()
            ]
            yield f"| {row.method} | {' | '.join(cells)} |"


def _markdown_difference(difference: Difference) -> Iterator[str]:
    from lm_eval_semsoft.reports.compare_data import MEASURES

    yield f"**{difference.second} − {difference.first}, {difference.method}, "
    yield f"{difference.n:,} shared documents**"
    yield ""
    yield "| metric | difference | interval | better in |"
    yield "|---|---:|---:|---:|"
    for measure in MEASURES:
        own = difference.figures[measure.key]
        share = "" if own.probability != own.probability else f"{own.probability:.1%}"
        name = _one_line(measure)
        yield f"| {name} | {own.difference:+.4f} | {own.low:+.4f} … {own.high:+.4f} | {share} |"
