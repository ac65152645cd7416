"""The parts of a section: rows, diagrams, changed documents and notes, from readings and draws."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lm_eval_semsoft.core import classification
from lm_eval_semsoft.core.semantic_softmax import Kernel

from . import figures
from .figures import Reliability
from .measures import MEASURES, Bools, Floats, Measure, silent_share
from .readings import Readings
from .report_data import (
    CONSTRAINED,
    SEMANTIC,
    TITLES,
    Answer,
    Change,
    Data,
    Estimate,
    LabelRow,
    LabelScores,
    MetricRow,
    Neighbourhood,
    Voter,
)
from .report_statistics import BINS, Draws, Side, estimate_of
from .report_text import cut, interval

_WORDS = 5  # voters that are named for a label or a document …
_AUDIBLE = 0.01  # … if their vote is at least this share of the loudest
_TOP_LABELS = 3  # labels of a document that are shown with their probability
_LONGEST_TEXT = 600  # characters of a document


def metric_rows(
    draws: Mapping[tuple[str, str], Draws], readings: Readings, semantic: bool
) -> tuple[MetricRow, ...]:
    uniform = _uniform(readings)
    rows = []
    for metric in MEASURES:
        standard = draws.get((CONSTRAINED, metric.key))
        ours = draws.get((SEMANTIC, metric.key))
        if standard is None and ours is None:
            continue
        difference = None
        if standard is not None and ours is not None:
            with np.errstate(invalid="ignore"):  # infinite - infinite
                difference = estimate_of(ours.values - standard.values)
        rows.append(
            MetricRow(
                metric,
                None if standard is None else standard.estimate(),
                None if ours is None else ours.estimate(),
                difference,
                uniform.get(metric.key, math.nan),
                _verdict(metric, difference) if semantic else "",
                next((d.why for d in (standard, ours) if d is not None and d.why), ""),
            )
        )
    return tuple(rows)


def _verdict(metric: Measure, difference: Estimate | None) -> str:
    """Only an interval that leaves zero out says anything."""
    if metric.higher is None or difference is None or math.isnan(difference.low):
        return ""
    if difference.low <= 0 <= difference.high:
        return "unclear"
    return "better" if (difference.value > 0) == metric.higher else "worse"


def _uniform(readings: Readings) -> dict[str, float]:
    """What a guess that gives every label the same probability is expected to get."""
    size = len(readings.labels)
    own = {"mean_confidence": 1 / size}
    if readings.target is not None and readings.n:
        accuracy = float(readings.target.mean())
        gap = abs(accuracy - 1 / size)
        own.update(accuracy=accuracy, auroc=0.5, brier=1 - 1 / size, nll=math.log(size))
        own.update(ece=gap, ece_mass=gap, ece_sweep=gap, smooth_ece=gap)
        own.update(confidence_auroc=0.5, auarc=accuracy)
    return own


def diagram(side: Side, draws: Mapping[tuple[str, str], Draws], has_target: bool) -> Reliability:
    own = draws[side.kind, "bins"]
    values = own.values if own.values.ndim == 2 else np.full((1, 3 * BINS), np.nan)
    count, confidence, accuracy = np.split(values[0], 3)
    count = np.nan_to_num(count).astype(np.int64)
    if not has_target:
        return Reliability(TITLES[side.kind], side.kind, count, confidence)
    bands = own.estimates()[2 * BINS :]
    enough = count >= figures.MIN_IN_BIN
    return Reliability(
        title=TITLES[side.kind],
        side=side.kind,
        count=count,
        confidence=confidence,
        accuracy=accuracy,
        low=np.where(enough, [b.low for b in bands], np.nan),
        high=np.where(enough, [b.high for b in bands], np.nan),
        note=f"ECE {interval(draws[side.kind, 'ece'].estimate())}",
    )


def label_rows(
    readings: Readings,
    sides: Sequence[Side],
    kernel: Kernel | None,
    top_k: int,
    draws: Mapping[tuple[str, str], Draws],
) -> tuple[LabelRow, ...]:
    of_sides = [_scores_by_label(side, draws, len(readings.labels)) for side in sides]
    around: Sequence[Neighbourhood | None] = [None] * len(readings.labels)
    if kernel is not None:
        around = _neighbourhoods(readings, sides[1], kernel, top_k)
    support = None if readings.target is None else readings.target.sum(axis=0)
    rows = [
        LabelRow(
            label,
            None if support is None else int(support[i]),
            of_sides[0][i],
            of_sides[1][i] if len(sides) > 1 else None,
            around[i],
        )
        for i, label in enumerate(readings.labels)
    ]
    return tuple(sorted(rows, key=lambda r: -(r.support or r.constrained.predicted)))


def _scores_by_label(
    side: Side, draws: Mapping[tuple[str, str], Draws], n_labels: int
) -> list[LabelScores]:
    nothing = [Estimate(math.nan)] * n_labels
    f1, auroc = (
        draws[side.kind, what].estimates()
        if (side.kind, what) in draws and draws[side.kind, what].values.ndim == 2
        else nothing
        for what in ("label_f1", "label_auroc")
    )
    known = side.probs[np.isfinite(side.confidence)]
    mean = known.mean(axis=0) if len(known) else np.full(n_labels, np.nan)
    predicted = np.bincount(side.predicted[np.isfinite(side.confidence)], minlength=n_labels)
    return [
        LabelScores(f1[i], auroc[i], float(mean[i]), int(predicted[i])) for i in range(n_labels)
    ]


def _neighbourhoods(
    readings: Readings, semantic: Side, kernel: Kernel, top_k: int
) -> list[Neighbourhood]:
    ids = readings.topk_ids[:, :top_k].ravel()
    p = np.exp(readings.topk_logprobs[:, :top_k].ravel(), dtype=np.float64)
    size = len(kernel.weights)
    mean_p = np.bincount(ids, np.nan_to_num(p), size) / max(1, readings.n)
    heard = np.bincount(ids, minlength=size) > 0
    share = silent_share(semantic.log_scores, readings.label_logprobs)
    out = []
    for label in range(len(readings.labels)):
        weights = kernel.weights[:, label]
        known = share[:, label][np.isfinite(share[:, label])]
        out.append(
            Neighbourhood(
                size=int(np.count_nonzero(weights)),
                heard=int(np.count_nonzero(weights[heard])),
                voters=_loudest(readings, np.arange(size), mean_p, weights),
                silent_share=float(known.mean()) if known.size else math.nan,
            )
        )
    return out


def _loudest(
    readings: Readings, ids: NDArray[np.integer], p: Floats, weights: NDArray[np.floating]
) -> tuple[Voter, ...]:
    votes = p * weights
    best = np.argsort(-votes, kind="stable")[:_WORDS]
    return tuple(
        Voter(_word(readings, int(ids[i])), float(p[i]), float(weights[i]), float(votes[i]))
        for i in best
        if votes[i] > 0 and votes[i] >= _AUDIBLE * votes[best[0]]
    )


def _word(readings: Readings, token: int) -> str:
    texts = readings.source.token_texts()
    return texts[token] if token < len(texts) and texts[token] else f"token {token}"


def flips_of(constrained: Side, semantic: Side, target: Bools) -> dict[str, int]:
    before = classification.correctness(constrained.probs, target)
    after = classification.correctness(semantic.probs, target)
    return {
        "both": int((before & after).sum()),
        "only_constrained": int((before & ~after).sum()),
        "only_semantic": int((~before & after).sum()),
        "neither": int((~before & ~after).sum()),
    }


def largest_changes(
    readings: Readings, constrained: Side, semantic: Side, kernel: Kernel, top_k: int, most: int
) -> tuple[Change, ...]:
    """The documents with the largest total variation distance between the two distributions."""
    moved = np.abs(semantic.probs - constrained.probs).sum(axis=1) / 2
    order = np.argsort(-np.nan_to_num(moved, nan=-1.0), kind="stable")[: max(0, most)]
    return tuple(
        _change(readings, int(i), constrained, semantic, kernel, top_k, float(moved[i]))
        for i in order
        if moved[i] > 0
    )


def _change(
    readings: Readings,
    i: int,
    constrained: Side,
    semantic: Side,
    kernel: Kernel,
    top_k: int,
    moved: float,
) -> Change:
    ids = readings.topk_ids[i, :top_k]
    p = np.exp(readings.topk_logprobs[i, :top_k], dtype=np.float64)
    share = silent_share(semantic.log_scores[i], readings.label_logprobs[i])
    shown = dict.fromkeys([int(semantic.predicted[i]), int(constrained.predicted[i])])
    target = None if readings.target is None else readings.target[i]
    names = readings.labels
    return Change(
        key=readings.keys[i],
        text=_text(readings.docs[i]),
        truth=() if target is None else tuple(names[j] for j in np.flatnonzero(target)),
        moved=moved,
        constrained=_answer(constrained.probs[i], names, target),
        semantic=_answer(semantic.probs[i], names, target),
        voters={
            names[j]: _loudest(readings, ids, p, kernel.weights[ids, j].astype(np.float64))
            for j in shown
        },
        silent={names[j]: float(share[j]) for j in shown},
    )


def _answer(probs: Floats, names: Sequence[str], target: Bools | None) -> Answer:
    best = np.argsort(-probs, kind="stable")[:_TOP_LABELS]
    right = None if target is None else bool(target[best[0]])
    return Answer(tuple((names[j], float(probs[j])) for j in best), right)


def _text(doc: object) -> str:
    """What a reader would call the document's text."""
    if isinstance(doc, dict):
        for name in ("text", "question", "query", "sentence", "ctx", "goal", "premise", "prompt"):
            if isinstance(doc.get(name), str) and doc[name].strip():
                return cut(doc[name], _LONGEST_TEXT)
    return cut(json.dumps(doc, ensure_ascii=False, default=str), _LONGEST_TEXT)


def data_of(docs: Sequence[Any]) -> Data:
    says = [doc.get("published_data") if isinstance(doc, dict) else None for doc in docs]
    sources = dict.fromkeys(
        str(doc["source"]) for doc in docs if isinstance(doc, dict) and doc.get("source")
    )
    published = sum(1 for said in says if said is not None and bool(said))
    ours = sum(1 for said in says if said is not None and not said)
    return Data(published, ours, len(says) - published - ours, tuple(sources)[:5])


def notes_of(readings: Readings, sides: Sequence[Side]) -> tuple[str, ...]:
    notes = []
    if readings.missing:
        notes.append(
            f"{readings.missing:,} documents of the run have no readout yet and are not counted. "
            "Running the evaluation again on the same directory completes it."
        )
    if readings.target is None:
        notes.append(
            "The documents do not say which label is right, so there is no accuracy, no "
            "reliability and no proper score here: only what the model believes."
        )
    unknown = {side.kind: int((~np.isfinite(side.confidence)).sum()) for side in sides}
    notes += [
        f"{count:,} of {readings.n:,} documents have no probabilities under the {TITLES[kind]} "
        "(NaN scores), so its metrics cannot be computed."
        for kind, count in unknown.items()
        if count
    ]
    if readings.run_scoring.scoring == CONSTRAINED and len(sides) > 1:
        notes.append(
            "The run itself was scored with the standard softmax. Semantic Softmax is computed "
            "here from the same readouts."
        )
    return tuple(notes)


def provenance_of(readings: Readings) -> dict[str, Any]:
    manifest = readings.source.manifest
    about = {k: v for k, v in manifest["about"].items() if k not in ("scoring", "versions")}
    versions = manifest["about"].get("versions", {})
    return {
        "directory": readings.name,
        **about,
        "fingerprint": manifest["fingerprint"],
        "versions": ", ".join(f"{k} {v}" for k, v in versions.items()),
    }
