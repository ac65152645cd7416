"""`semsoft rescore`: the task's table under another scoring, from readouts, without the model."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lm_eval_semsoft.cli.output import AsJson, Output, check_output, write
from lm_eval_semsoft.cli.shared import make_console, one_sentence

if TYPE_CHECKING:
    from rich.table import Table

    from lm_eval_semsoft.core.semantic_softmax import Scoring
    from lm_eval_semsoft.reports.readings import Readings
    from lm_eval_semsoft.reports.rescore import Rescored

EXAMPLES = """
**Examples**

`semsoft rescore readouts/gemma`

`semsoft rescore readouts/gemma --tau q0.99 --rival-votes on`

`semsoft rescore readouts/gemma --preset paper --json -o paper.json`

The readouts come from `lm_eval --model semsoft-hf --model_args …,readouts=DIR`. Names and values
are those of a fresh run.
"""

# Options that other commands take as well.
Task = Annotated[str | None, typer.Option(help="Needed where a directory holds several tasks.")]
ScoringName = Annotated[
    str | None, typer.Option("--scoring", help="`semantic`, or `constrained` (standard softmax).")
]
Space = Annotated[str | None, typer.Option(help="`raw`, `centered`, `pc:N` or `whitened`.")]
Tau = Annotated[str | None, typer.Option(help="A number, or a quantile such as `q0.95`.")]
TopK = Annotated[int | None, typer.Option("--top-k", help="How many tokens may vote.")]
Anchors = Annotated[str | None, typer.Option(help="`variants` or `spelled`.")]
RivalVotes = Annotated[str | None, typer.Option("--rival-votes", help="`on` or `off`.")]
Preset = Annotated[
    str | None,
    typer.Option(help="`default`, or `paper` for the published formula; else the run's own."),
]
KernelName = Annotated[
    str | None, typer.Option("--kernel", help="`auto`, `cosine` or `identity`; else the run's own.")
]


@one_sentence
def rescore(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A readouts directory.")],
    task: Task = None,
    samples: Annotated[
        Path | None,
        typer.Option(
            help="`samples_<task>_….jsonl` of the run (`lm_eval --log_samples`), where the "
            "documents do not say which label is right."
        ),
    ] = None,
    scoring: ScoringName = None,
    space: Space = None,
    tau: Tau = None,
    top_k: TopK = None,
    anchors: Anchors = None,
    rival_votes: RivalVotes = None,
    preset: Preset = None,
    kernel: KernelName = None,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Compute a run's table again, with other scoring arguments."""
    check_output(output)
    with make_console(stderr=True).status(f"Scoring {directory} …"):
        from lm_eval_semsoft.reports import rescore as reports

        readings = read(directory, task, samples)
        wanted = scoring_of(
            readings, preset,
            scoring=scoring, space=space, tau=tau, top_k=top_k, anchors=anchors,
            rival_votes=rival_votes,
        )  # fmt: skip
        result = reports.rescore(readings, wanted, kernel)
    write(output, as_json, result.record, lambda: page(result))


# ------------------------------------------------------------------ what was asked


def read(directory: Path, task: str | None, samples: Path | None) -> Readings:
    from lm_eval_semsoft.reports import readings

    right = None if samples is None else readings.read_samples(samples)
    return readings.load(directory, task, right)


def scoring_of(readings: Readings, preset: str | None, **given: Any) -> Scoring:
    from lm_eval_semsoft.reports import rescore

    tau = given.get("tau")
    if isinstance(tau, str) and not tau.startswith("q"):
        with suppress(ValueError):  # `Scoring` says what is allowed
            given["tau"] = float(tau)
    return rescore.scoring_of(readings, preset, **given)


# ------------------------------------------------------------------ the page


def page(result: Rescored) -> list[Any]:
    return [
        f"{result.directory}: {short(result.model)}, {result.task}, {result.n:,} documents",
        describe(result.scoring, result.kernel),
        _table(result),
        *[f"! {note}" for note in result.notes],
    ]


def short(model: str) -> str:
    """A model's name; of one that is a folder, the folder's."""
    return Path(model).name if Path(model).is_absolute() else model


def describe(scoring: Scoring, kernel: str) -> str:
    """One line about a scoring."""
    s = scoring
    if s.scoring == "constrained" or kernel == "identity":
        return "scoring: constrained softmax"
    own = "" if s.own_vote == "exact" else f", own vote {s.own_vote}"
    return (
        f"scoring: space {s.space}, tau {s.tau}, K {s.top_k}, anchors {s.anchors}, "
        f"rival votes {s.rival_votes}{own}, kernel {kernel}"
    )


def _table(result: Rescored) -> Table:
    """A row per metric: this scoring, and the standard softmax of the same pass where there is."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("metric")
    table.add_column("value ± stderr", justify="right", no_wrap=True)
    table.add_column("constrained", justify="right", no_wrap=True)
    for name in result.results:
        if name.endswith("_stderr") or name.startswith("constrained_"):
            continue
        table.add_row(name, _cell(result, name), _cell(result, f"constrained_{name}"))
    return table


def _cell(result: Rescored, name: str) -> str:
    if name not in result.results:
        return ""
    value, error = result.results[name], result.results.get(f"{name}_stderr")
    if value != value:
        return "–"
    return f"{value:.4f}" if error is None or error != error else f"{value:.4f} ± {error:.4f}"
