"""Where in the model can a linear map find it: probes of captured activations, layer by layer.

The statistics are those of `core.probes`; here they meet the readouts of a run that captured
activations (`--model_args …,capture=hidden`) and what is known about its documents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lm_eval_semsoft.core import probes
from lm_eval_semsoft.core.probes import Probe

from .align_subjects import TimeRule, column_of, no_such_field
from .readings import Readings, check_task, distinct_names, load_all, load_hidden, take

Floats = NDArray[np.float64]

CORRECT = "correct"  # the one target that no field of the documents holds
TARGETS = ("human_entropy", "response_time", "response_time_correct", CORRECT)
_TIME = "response_time"


@dataclass(frozen=True)
class Settings:
    """How all directories are probed; as the arguments of `core.probes.probe`."""

    folds: int = 10
    seed: int = 42
    permutations: int = 100
    draws: int = 1000
    level: float = 0.95
    log_times: bool = False


@dataclass(frozen=True, eq=False)
class Probed:
    """One task of one directory.

    Attributes:
        directory, name, model, task, target: of what.
        probe: the result.
        untimed: times that have no logarithm.
        missing: documents of the run that have not been read yet.
    """

    directory: str
    name: str
    model: str
    task: str
    target: str
    probe: Probe
    untimed: int = 0
    missing: int = 0

    @property
    def notes(self) -> list[str]:
        """What a reader must know beside the numbers."""
        p, out = self.probe, []
        if p.dropped:
            out.append(f"{p.dropped} documents have no {self.target}")
        if self.untimed:
            out.append(f"of these, {self.untimed} have times of 0, which have no logarithm")
        if p.dropped_activations:
            out.append(f"{p.dropped_activations} documents have no finite activations")
        if self.missing:
            out.append(f"{self.missing} documents have not been read yet")
        out += [p.flaw] if p.flaw else []
        own = {} if p.flaw else {i: layer.flaw for i, layer in enumerate(p.layers) if layer.flaw}
        out += [f"layer {layer}: {flaw}" for layer, flaw in own.items()]
        return [f"{self.name}, {self.task}: {note}." for note in out]


@dataclass(frozen=True, eq=False)
class Probes:
    """What `probe_all` returns."""

    target: str
    settings: Settings
    tables: tuple[Probed, ...]

    @property
    def empty(self) -> bool:
        """Was there nothing that could be probed?"""
        return all(table.probe.layer is None for table in self.tables)

    def record(self) -> dict[str, Any]:
        """JSON-ready once `cli.shared.plain` has seen it."""
        tables = [{**vars(t), "notes": t.notes} for t in self.tables]
        return {"target": self.target, **vars(self.settings), "probes": tables}


def probe_all(
    folders: Sequence[str | Path],
    target: str,
    task: str | None = None,
    settings: Settings | None = None,
    progress: Callable[[str, int], None] | None = None,
) -> Probes:
    """Probe the tasks of readouts directories for one target.

    Args:
        folders: directories of runs that captured activations.
        target: a numeric field of the documents, or `correct`: is the model's most probable option
            right (1 or 0)?
        task: only this one; else all that have the target.
        settings: of the probes.
        progress: called after every layer with what is probed and how many layers that has.

    Raises:
        FileNotFoundError, engine.ForeignReadouts: as `readings.load_all`.
        ValueError: a directory without this task, this target or activations.
    """
    settings = settings or Settings()
    chosen = [(str(f), r) for f in folders for r in _with_target(f, load_all(f), target, task)]
    names = distinct_names([(r.name, directory) for directory, r in chosen])
    tables = [
        _probed(directory, name, readings, target, settings, progress)
        for name, (directory, readings) in zip(names, chosen, strict=True)
    ]
    return Probes(target, settings, tuple(tables))


def target_of(readings: Readings, target: str) -> Floats | None:
    """The target of each document [n], NaN where it is unknown; None if there is no such thing.

    Raises:
        ValueError: `correct`, and the documents do not say which option is right.
    """
    if target == CORRECT:
        best = readings.label_logprobs.argmax(axis=1)
        return readings.gold()[np.arange(readings.n), best].astype(np.float64)
    column = column_of(readings.docs, target)
    return None if column is None or np.isnan(column).all() else column


def _with_target(
    folder: str | Path, found: Sequence[Readings], target: str, task: str | None
) -> list[Readings]:
    check_task(folder, [r.task for r in found], task)
    own = [r for r in found if task in (None, r.task)]
    if target == CORRECT:  # tasks that have no right answers are no reason to stop the others
        chosen = [r for r in own if r.target is not None] or own
    else:
        chosen = [r for r in own if target_of(r, target) is not None]
    if not chosen:
        raise _unknown(folder, own, target)
    return chosen


def _unknown(folder: str | Path, found: Sequence[Readings], target: str) -> ValueError:
    fields = sorted({name for r in found for doc in r.docs for name in doc})
    known = [f for f in fields if any(target_of(r, f) is not None for r in found)] + [CORRECT]
    return no_such_field(target, known, folder)


def _probed(
    directory: str,
    name: str,
    readings: Readings,
    target: str,
    settings: Settings,
    progress: Callable[[str, int], None] | None,
) -> Probed:
    # In the order of their keys, so that folds do not depend on how documents were spread.
    readings = take(readings, sorted(range(readings.n), key=readings.keys.__getitem__))
    raw = target_of(readings, target)
    assert raw is not None
    is_time = target.startswith(_TIME)
    y = TimeRule(log=settings.log_times).apply(raw) if is_time else raw
    hidden = load_hidden(readings)
    layers = hidden.shape[1]
    result = probes.probe(
        hidden, y, settings.folds, settings.seed, settings.permutations, settings.draws,
        settings.level,
        progress=None if progress is None else lambda: progress(f"{name}, {readings.task}", layers),
    )  # fmt: skip
    return Probed(
        directory, name, readings.source.model, readings.task, target, result,
        untimed=int((np.isnan(y) & ~np.isnan(raw)).sum()), missing=readings.missing,
    )  # fmt: skip


def depth(layer: int, layers: int) -> float:
    """How deep in the model the activations after a block are: 1 after the last one."""
    return (layer + 1) / layers


def share(chosen: Sequence[int], layer: int) -> str:
    """Such as `7 of 10 folds`."""
    return f"{sum(own == layer for own in chosen)} of {len(chosen)} folds"
