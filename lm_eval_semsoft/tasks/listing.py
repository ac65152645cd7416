"""Metrics that a task lists in Python: a YAML with forty of them would hide what the task is.

The harness prints "±" beside metric ``x`` if ``x_stderr``, with its own aggregation, comes right
after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lm_eval.api.task import ConfigurableTask

from lm_eval_semsoft.tasks.metrics import Payload

Aggregation = Callable[[Sequence[Payload]], float]


@dataclass(frozen=True)
class Metric:
    """How a metric's payloads become a number.

    Attributes:
        aggregation, stderr: payloads -> value and standard error (None: it has none).
        higher_is_better: for the table's arrow; None: neither is.
    """

    aggregation: Aggregation
    stderr: Aggregation | None
    higher_is_better: bool | None


def list_metrics(task: ConfigurableTask, listed: Mapping[str, Metric]) -> None:
    """Have a task aggregate these metrics, beside those of its YAML."""
    for name, metric in listed.items():
        _list(task, name, metric.aggregation, metric.higher_is_better)
        if metric.stderr is not None:
            _list(task, f"{name}_stderr", metric.stderr, False)


def _list(
    task: ConfigurableTask, name: str, aggregation: Aggregation, higher_is_better: bool | None
) -> None:
    task._metric_fn_list[name] = None
    task._metric_fn_kwargs[name] = {}
    task._aggregation_list[name] = aggregation
    task._higher_is_better[name] = higher_is_better
