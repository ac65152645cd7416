"""Probes of captured activations as metrics of any task: ``probe_r`` and ``probe_layer``.

Where a run captures activations (``--model_args …,capture=hidden``), the first score of every
document carries them. `payloads` puts them beside a number of the document, and the aggregations
say how well a linear map finds that number (`core.probes`): the nested headline, the layer chosen
in most folds. `semsoft probe` gives the same figures with their curve over depth.

In the YAML, after a `process_results` that returns `payloads(doc, results, doc["human_entropy"])`::

    - {metric: probe_r, aggregation: !function lm_eval_semsoft.tasks.probe_metrics.r}
    - {metric: probe_r_stderr, aggregation: !function lm_eval_semsoft.tasks.probe_metrics.r_stderr}
    - {metric: probe_layer, aggregation: !function lm_eval_semsoft.tasks.probe_metrics.layer}

All are NaN, without a warning, where nothing was captured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from lm_eval_semsoft.core import probes
from lm_eval_semsoft.core.probes import Probe
from lm_eval_semsoft.tasks.metrics import DocRecord, Payload

# r and layer do not depend on it; the standard error needs no more.
PERMUTATIONS = 40


class Activations:
    """One document's activations [layers, d], float16.

    The harness writes payloads into its samples files, and what JSON does not know as text: this
    is one short line there, not a megabyte.
    """

    def __init__(self, values: NDArray[np.float16]) -> None:
        self.values = values

    def __repr__(self) -> str:
        return f"activations {' x '.join(map(str, self.values.shape))}"


# Three metrics of one run are one probe. It is forgotten with the activations themselves.
_DONE: WeakKeyDictionary[Activations, dict[tuple[Any, ...], Probe]] = WeakKeyDictionary()


def payloads(
    doc: Mapping[str, Any], results: Sequence[Any], target: float, name: str = "probe"
) -> dict[str, Payload]:
    """Payloads of one document, the same object for all three metrics.

    Args:
        doc: the document, with its key in ``id``.
        results: of `process_results`; the first may have a ``.readout`` with ``.hidden``.
        target: what to look for in the activations; NaN where it is unknown.
        name: what the metrics' names begin with.
    """
    hidden = getattr(getattr(results[0], "readout", None), "hidden", None)
    own = None if hidden is None else Activations(hidden)
    payload = DocRecord((own, float(target)), str(doc["id"]))
    return {f"{name}_{metric}": payload for metric in ("r", "r_stderr", "layer")}


def r(items: Sequence[Payload]) -> float:
    """Aggregation: out-of-fold correlation, with the layer chosen in the training folds."""
    found = _probe(items)
    return math.nan if found is None else found.pearson.r


def r_stderr(items: Sequence[Payload]) -> float:
    """Aggregation: standard error of `r`."""
    found = _probe(items)
    return math.nan if found is None else found.stderr


def layer(items: Sequence[Payload]) -> float:
    """Aggregation: number of the layer chosen in most folds, 0 after the first block."""
    found = _probe(items)
    return math.nan if found is None or found.layer is None else float(found.layer)


def _probe(items: Sequence[Payload]) -> Probe | None:
    """The probe of all documents in the order of their keys; None if nothing was captured."""
    records = sorted((i for i in items if isinstance(i, DocRecord)), key=lambda item: item.doc)
    captured = [own for own, _ in records if own is not None]
    if not captured:
        return None
    done = _DONE.setdefault(captured[0], {})
    key = tuple((id(own), target) for own, target in records)
    if key not in done:
        nothing = np.full_like(captured[0].values, np.nan)
        hidden = np.stack([nothing if own is None else own.values for own, _ in records])
        targets = [target for _, target in records]
        done[key] = probes.probe(hidden, targets, permutations=PERMUTATIONS)
    return done[key]
