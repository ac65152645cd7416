"""`semsoft tune`: which space, threshold, K … is best, from readouts of development documents."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lm_eval_semsoft.cli.shared import (
    fail,
    keep_memory,
    make_console,
    one_sentence,
    plain,
    print_json,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from lm_eval_semsoft.core.bootstrap import Paired
    from lm_eval_semsoft.core.semantic_softmax import Scoring
    from lm_eval_semsoft.reports.readings import Readings
    from lm_eval_semsoft.reports.tune import Cell, Objective, Tuned

TOP = 10  # cells in the table
COLUMNS = (
    "brier",
    "ece",
    "auroc",
    "accuracy",
    "nll",
)  # metrics in the table beside the objective …
BESIDE = 3  # … at most so many

EXAMPLES = """
**Examples**

`semsoft tune readouts/gemma-dev`

`semsoft tune readouts/gemma-dev --objective rank:brier,auroc -o tuned`

`semsoft tune readouts/gemma-dev --space pc:1,pc:3,pc:10 --tau q0.9,q0.95,q0.98 --rival-votes off`

Readouts come from `lm_eval --model semsoft-hf --model_args …,readouts=DIR`. Tune on documents that
no result will be reported on. Cells of equal value: the one with fewer arguments that differ from
the package's default comes first, then the one with fewer directions removed, then the smaller K.
"""


@one_sentence
def tune(
    directory: Annotated[Path, typer.Argument(metavar="DEVDIR", help="A readouts directory.")],
    objective: Annotated[
        str,
        typer.Option(
            "--objective",
            help="brier, nll, ece, ece_sweep, smooth_ece, auroc, accuracy or macro_f1; "
            "`rank:brier,auroc` is the best mean rank over several.",
        ),
    ] = "brier",
    prior: Annotated[
        bool, typer.Option("--prior", help="Correct every cell's label prior before it is judged.")
    ] = False,
    space: Annotated[
        str | None, typer.Option(help="Spaces, e.g. `raw,centered,pc:3,whitened` (the default).")
    ] = None,
    tau: Annotated[
        str | None,
        typer.Option(
            help="Thresholds and quantiles; the default is "
            "`0.3,0.5,0.8,q0.95,q0.98,q0.99,q0.995,q0.999`."
        ),
    ] = None,
    top_k: Annotated[
        str | None, typer.Option("--top-k", help="How many tokens may vote; `50,200,1000`.")
    ] = None,
    anchors: Annotated[str | None, typer.Option(help="`variants,spelled`.")] = None,
    rival_votes: Annotated[str | None, typer.Option("--rival-votes", help="`on,off`.")] = None,
    task: Annotated[
        str | None, typer.Option(help="Needed where the directory holds several tasks.")
    ] = None,
    samples: Annotated[
        Path | None,
        typer.Option(
            help="`samples_<task>_….jsonl` of the run (`lm_eval --log_samples`), where the "
            "documents do not say which label is right."
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=2, help="So many documents at random, for a quick look.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Write tune.json and tune.png there."),
    ] = None,
    png: Annotated[
        Path | None, typer.Option("--png", metavar="FILE", help="Draw the heat map there.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Find the kernel that serves development documents best."""
    keep_memory()
    from lm_eval_semsoft.reports import tune as grids

    goal = grids.parse_objective(objective)
    picture = _pictures(png, output)
    readings = _read(directory, task, samples)
    if limit is not None:
        readings = grids.subset(readings, limit)
    grid = grids.make_grid(
        readings,
        space=_listed("--space", space),
        tau=_listed("--tau", tau),
        top_k=_whole("--top-k", top_k),
        anchors=_listed("--anchors", anchors),
        rival_votes=_listed("--rival-votes", rival_votes),
    )
    started = time.monotonic()
    tuned = _with_progress(readings, grid, goal, prior)
    seconds = time.monotonic() - started

    written = _write(grids.record(tuned), output, picture)
    if as_json:
        print_json(grids.record(tuned))
        return
    Page(make_console(), tuned).show()
    make_console().print(
        f"{len(grid):,} cells in {seconds:.0f} s.{written}", style="dim", soft_wrap=True
    )


# ------------------------------------------------------------------ what was asked


def _listed(option: str, given: str | None) -> list[str] | None:
    """The values of a comma list.

    Raises:
        ValueError: an empty one.
    """
    if given is None:
        return None
    values = [value.strip() for value in given.split(",")]
    if not all(values):
        raise ValueError(
            f"{option} {given!r} has an empty value: separate values by single commas."
        )
    return values


def _whole(option: str, given: str | None) -> list[int] | None:
    values = _listed(option, given)
    if values is None:
        return None
    if odd := [v for v in values if not v.isdecimal() or int(v) < 1]:
        raise ValueError(f"{option} {odd[0]!r} is not a whole number of at least 1.")
    return [int(v) for v in values]


def _read(directory: Path, task: str | None, samples: Path | None) -> Readings:
    from lm_eval_semsoft.reports import readings

    right = None if samples is None else readings.read_samples(samples)
    return readings.load(directory, task, right)


def _pictures(png: Path | None, output: Path | None) -> Path | None:
    """Where the heat map goes, if it can be drawn; asked before the work begins."""
    from importlib.util import find_spec

    if find_spec("matplotlib") is not None:
        return png or (output / "tune.png" if output else None)
    if png:
        fail("--png needs matplotlib: install it with `pip install matplotlib`.")
    return None


# ------------------------------------------------------------------ the work


def _with_progress(readings: Readings, grid: list[Scoring], goal: Objective, prior: bool) -> Tuned:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    from lm_eval_semsoft.reports.tune import tune as search

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("cells"),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=make_console(stderr=True), transient=True) as bar:
        own = bar.add_task("Cosines and cells", total=None)
        return search(
            readings, grid, goal, prior,
            progress=lambda done, cells: bar.update(own, completed=done, total=cells),
        )  # fmt: skip


def _write(record: dict[str, object], output: Path | None, picture: Path | None) -> str:
    """Write the files that are wanted; says which."""
    import json

    written = []
    try:
        if output is not None:
            output.mkdir(parents=True, exist_ok=True)
            path = output / "tune.json"
            path.write_text(json.dumps(plain(record), indent=1) + "\n", encoding="utf-8")
            written.append(path)
        if picture is not None:
            from lm_eval_semsoft.reports.surface import draw_tuned

            picture.parent.mkdir(parents=True, exist_ok=True)
            draw_tuned(record).savefig(picture, dpi=200, format="png")
            written.append(picture)
    except OSError as error:
        fail(f"Cannot write to {error.filename or output or picture}: {error.strerror or error}.")
    return f" Written: {', '.join(map(str, written))}." if written else ""


# ------------------------------------------------------------------ the page


class Page:
    """What people read."""

    def __init__(self, console: Console, tuned: Tuned) -> None:
        self._console = console
        self._tuned = tuned
        self._ranked = tuned.objective.ranked

    def show(self) -> None:
        tuned = self._tuned
        corrected = ", label prior corrected" if tuned.prior else ""
        self._say(
            f"{self._goal()}{corrected}; {tuned.n:,} documents of {tuned.task}, "
            f"{Path(tuned.model).name}\n"
        )
        self._say(f"Best of {len(tuned.cells):,} cells: {_named(tuned.best.scoring)}", "bold")
        self._console.print(self._comparison())
        self._cautions()
        self._console.print(self._table())
        self._say(f"\n{self._advice()}", "bold")

    def _say(self, text: str, style: str | None = None) -> None:
        self._console.print(text, style=style, soft_wrap=True)

    def _goal(self) -> str:
        better = "higher" if self._tuned.objective.higher else "lower"
        if self._ranked:
            metrics = " and ".join(self._tuned.objective.metrics)
            return f"Mean rank by {metrics} ({better} is better)"
        return f"{self._tuned.objective.text} ({better} is better)"

    def _comparison(self) -> Table:
        table = _table("", "value", "95 % interval", "")
        for name in self._tuned.objective.metrics:
            low, high = self._tuned.intervals[name]
            value = self._tuned.best.metrics[name]
            table.add_row(f"  {name}", _number(value), f"{_number(low)} … {_number(high)}", "")
            for other, pairs in (
                ("constrained", self._tuned.over_constrained),
                ("package default", self._tuned.over_default),
            ):
                if pairs:
                    table.add_row(f"  − {other}", *_paired(pairs[name]))
        return table

    def _cautions(self) -> None:
        """Why not to trust the best cell too much."""
        tuned = self._tuned
        self._say("")
        for name in self._idle():
            self._say(
                f"By {name} it is no better than a uniform guess ({_number(tuned.uniform[name])}): "
                "look at auroc and accuracy, too."
            )
        others = len(tuned.cells) - 1
        if not others:
            return
        text = f"{tuned.alike:,} of the other {others:,} cells cannot be told from it"
        if tuned.default.alike and tuned.best.scoring != tuned.default.scoring:
            text += ", nor can the package's default"
        self._say(
            f"{text} (paired, 95 %). The best of many cells is partly the luckiest: its value is "
            "optimistic."
        )
        if tuned.halves is None:
            self._say("There are too few documents to check that on halves.\n")
            return
        self._say("What one half of the documents chooses, on the other half:")
        for half in tuned.halves:
            numbers = (half.there, half.here, half.constrained, half.default)
            there, here, constrained, default = map(self._objective_number, numbers)
            self._say(
                f"  {_arguments(half.chosen) or 'package default'}: {there} on its half, {here} on "
                f"the other (constrained {constrained}, default {default})"
            )
        self._say("")

    def _idle(self) -> list[str]:
        """Metrics of the objective by which the best cell is worth no more than a uniform guess."""
        from lm_eval_semsoft.reports.measures import BY_KEY

        tuned = self._tuned
        found = []
        for name in tuned.objective.metrics:
            gain = tuned.uniform.get(name, float("nan")) - tuned.best.metrics[name]
            if (-gain if BY_KEY[name].higher else gain) <= 0:
                found.append(name)
        return found

    def _table(self) -> Table:
        tuned = self._tuned
        own = tuned.objective.metrics
        beside = [m for m in COLUMNS if m not in own][: BESIDE - len(own) * self._ranked]
        metrics = [*own, *beside] if self._ranked else beside
        value = "rank" if self._ranked else own[0]
        names = ["acc." if m == "accuracy" else m for m in metrics]
        table = _table("space", "tau", "K", "anchors", "rivals", value, "− best", *names)
        for cell in tuned.cells[:TOP]:
            s = cell.scoring
            place = (s.space, str(s.tau), str(s.top_k), s.anchors, s.rival_votes)
            table.add_row(*place, *self._values(cell, metrics))
        blank = ("",) * 4
        table.add_row("default", *blank, *self._values(tuned.default, metrics))
        table.add_row("constrained", *blank, *self._values(tuned.constrained, metrics))
        guess = [_number(tuned.uniform.get(m, float("nan"))) for m in metrics]
        worth = float("nan") if self._ranked else tuned.uniform.get(own[0], float("nan"))
        table.add_row("uniform", *blank, _number(worth), "", *guess)
        return table

    def _values(self, cell: Cell, metrics: list[str]) -> list[str]:
        is_best = cell.scoring == self._tuned.best.scoring
        shown = f"{cell.behind:+.1f}" if self._ranked else f"{cell.behind:+.4f}"
        behind = "" if is_best else f"≈ {shown}" if cell.alike else shown
        numbers = [_number(cell.metrics[m]) for m in metrics]
        return [self._objective_number(cell.value), behind, *numbers]

    def _objective_number(self, value: float) -> str:
        return f"{value:.1f}" if self._ranked else _number(value)

    def _advice(self) -> str:
        tuned = self._tuned
        added = _arguments(tuned.recommended)
        if not tuned.beats_constrained:
            return f"No cell beats the constrained softmax here: --model_args …,{added}"
        if added:
            return f"--model_args …,{added}"
        return "The best cell is the package's default: nothing to add to --model_args."


def _arguments(scoring: Scoring) -> str:
    from lm_eval_semsoft.reports.tune import model_args

    return model_args(scoring)


def _named(scoring: Scoring) -> str:
    s = scoring
    return (
        f"space={s.space} tau={s.tau} top_k={s.top_k} anchors={s.anchors} "
        f"rival_votes={s.rival_votes}"
    )


def _paired(pair: Paired) -> tuple[str, str, str]:
    clear = pair.low > 0 or pair.high < 0
    verdict = f"better in {pair.probability:.1%} of resamples" if clear else "≈ within the noise"
    return f"{pair.difference:+.4f}", f"{pair.low:+.4f} … {pair.high:+.4f}", verdict


def _table(*headings: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in headings:
        text = heading in ("", "space", "tau", "anchors", "rivals")
        table.add_column(heading, justify="left" if text else "right", no_wrap=True)
    return table


def _number(value: float) -> str:
    return "–" if value != value else f"{value:.4f}" if abs(value) < 10 else f"{value:.1f}"
