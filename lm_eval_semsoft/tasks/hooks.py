"""Our metrics for any multiple choice task: ``class: !function …hooks.MeasuredTask`` in its YAML.

A ``metric_list`` may then name the harness's metrics and these; each of ours comes with its
bootstrap standard error, and needs no ``aggregation``:

- ``accuracy``, ``ece``, ``ece_sweep``, ``brier``, ``nll``, ``mean_confidence``;
- ``{metric: spearman, field: F, measure: M}``: rank correlation of the model's doubt with the
  number in field F of the document; M is ``option`` (the default), ``full`` or ``top1`` as in
  `lm_eval_semsoft.tasks.alignment_metrics`. In the results it is ``spearman_F``, or
  ``spearman_F_M`` where a measure is named;
- ``{metric: probe_r, field: F}`` and ``{metric: probe_layer, field: F}``: how well a linear map
  finds that number in the activations of a run that captures them, and in which layer
  (`lm_eval_semsoft.tasks.probe_metrics`).

docs/tasks.md has examples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lm_eval.api.task import ConfigurableTask

from lm_eval_semsoft.core.errors import check_choice
from lm_eval_semsoft.tasks import alignment_metrics, metrics, probe_metrics
from lm_eval_semsoft.tasks.listing import Aggregation, Metric, list_metrics
from lm_eval_semsoft.tasks.metrics import DocRecord, Payload

Entry = Mapping[str, Any]  # of a metric_list


@dataclass(frozen=True)
class Scored:
    """One document and what the model said: what a payload is made of.

    Attributes:
        key: of the document.
        doc: its fields.
        results: per choice (log score, is_greedy).
        labels: numbers of the right choices.
        probes: probe payloads by field, so that metrics of one probe share one object.
    """

    key: str
    doc: Mapping[str, Any]
    results: Sequence[Any]
    labels: Sequence[int]
    probes: dict[str, Payload] = field(default_factory=dict)


@dataclass(frozen=True)
class Hook:
    """One metric that a YAML may name.

    Attributes:
        payload: of one document, given the metric's entry in the YAML.
        aggregation, stderr: payloads -> value and standard error (None: it has none).
        higher_is_better: for the table's arrow.
        options: what the entry may hold besides ``metric`` and ``higher_is_better``.
    """

    payload: Callable[[Scored, Entry], Payload]
    aggregation: Aggregation
    stderr: Aggregation | None
    higher_is_better: bool | None
    options: tuple[str, ...] = ()


class MeasuredTask(ConfigurableTask):
    """A multiple choice task from a YAML whose ``metric_list`` may name `HOOKS`."""

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        given = {k: v for k, v in (config or {}).items() if k != "class"}
        if given.get("output_type") != "multiple_choice":
            raise ValueError(
                f"output_type={given.get('output_type')!r} is not known: {type(self).__name__} "
                "measures multiple_choice tasks."
            )
        entries = given.get("metric_list") or []
        self._hooked = {_name(e): e for e in entries if e.get("metric") in HOOKS}
        given["metric_list"] = [e for e in entries if e.get("metric") not in HOOKS]
        super().__init__(config=given)
        self.config.metric_list = list(entries)  # what the harness writes into the results
        for name, entry in self._hooked.items():
            hook = HOOKS[entry["metric"]]
            _check(self.config.task, entry, hook, self.features)
            better = entry.get("higher_is_better", hook.higher_is_better)
            list_metrics(self, {name: Metric(hook.aggregation, hook.stderr, better)})

    def process_results(self, doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, Any]:
        """What the task's own metrics make of a document, and the payloads of ours."""
        choices = self.doc_to_choice(doc)
        scored = Scored(
            key=str(doc.get("id") or self.doc_to_text(doc)),
            doc=doc,
            results=results[: len(choices)],
            labels=_labels(self.doc_to_target(doc), choices),
        )
        payloads: dict[str, Payload] = {}
        for name, entry in self._hooked.items():
            hook = HOOKS[entry["metric"]]
            own = {name: hook.payload(scored, entry)}
            payloads |= own if hook.stderr is None else metrics.twice(own)
        return {**super().process_results(doc, results), **payloads}


def _name(entry: Entry) -> str:
    parts = [entry["metric"], *(entry[k] for k in ("field", "measure") if k in entry)]
    return "_".join(map(str, parts))


def _check(task: str, entry: Entry, hook: Hook, columns: Sequence[str]) -> None:
    """One sentence about an entry of the YAML that cannot work, before the model runs."""
    for option in set(entry) - {"metric", "higher_is_better"}:
        allowed = hook.options or ("higher_is_better",)
        check_choice(f"{task}, metric {entry['metric']}: option", option, allowed)
    if "field" in hook.options:
        check_choice(f"{task}, metric {entry['metric']}: field", entry.get("field"), columns)
    if "measure" in entry:
        measures = alignment_metrics.MEASURES
        check_choice(f"{task}, metric {entry['metric']}: measure", entry["measure"], measures)


def _labels(target: Any, choices: Sequence[str]) -> list[int]:
    """A target of the harness (number, text of a choice, or a list of those) as numbers."""
    targets = target if isinstance(target, (list, tuple)) else [target]
    return [choices.index(t) if isinstance(t, str) else int(t) for t in targets]


# --- payloads ------------------------------------------------------------------------------------


def _calibration(name: str) -> Callable[[Scored, Entry], Payload]:
    def payload(scored: Scored, entry: Entry) -> Payload:
        scores, _ = metrics.log_scores(scored.results)
        targets = metrics.right_choices(scored.key, scored.labels, len(scored.results))
        return metrics.measures(scored.key, scores, targets)[name]

    return payload


def _spearman(scored: Scored, entry: Entry) -> Payload:
    doubt = alignment_metrics.doubts(scored.results)[entry.get("measure", "option")]
    return DocRecord((doubt, _field_value(scored, entry)), scored.key)


def _probe(scored: Scored, entry: Entry) -> Payload:
    name = entry["field"]
    if name not in scored.probes:
        doc = {"id": scored.key}
        found = probe_metrics.payloads(doc, scored.results, _field_value(scored, entry))
        scored.probes[name] = found["probe_r"]
    return scored.probes[name]


def _field_value(scored: Scored, entry: Entry) -> float:
    """The number in the entry's ``field``; NaN where the document has none.

    Raises:
        ValueError: something else is there.
    """
    value = scored.doc[entry["field"]]
    if value is None:
        return math.nan
    if isinstance(value, (int, float)):
        return float(value)
    raise ValueError(
        f"document {scored.key!r}: {entry['metric']} needs a number in the field "
        f"{entry['field']!r}, not {value!r}."
    )


_MEAN = (metrics.mean, metrics.mean_stderr)

HOOKS: dict[str, Hook] = {
    "accuracy": Hook(_calibration("accuracy"), *_MEAN, True),
    "ece": Hook(_calibration("ece"), metrics.ece, metrics.ece_stderr, False),
    "ece_sweep": Hook(
        _calibration("ece_sweep"), metrics.ece_sweep, metrics.ece_sweep_stderr, False
    ),
    "brier": Hook(_calibration("brier"), *_MEAN, False),
    "nll": Hook(_calibration("nll"), *_MEAN, False),
    "mean_confidence": Hook(_calibration("mean_confidence"), *_MEAN, None),
    "spearman": Hook(
        _spearman,
        alignment_metrics.spearman,
        alignment_metrics.spearman_stderr,
        True,
        ("field", "measure"),
    ),
    "probe_r": Hook(_probe, probe_metrics.r, probe_metrics.r_stderr, True, ("field",)),
    "probe_layer": Hook(_probe, probe_metrics.layer, None, None, ("field",)),
}
