"""Runs whose answers are free text: what `lm_eval --log_samples --output_path OUT` leaves behind.

    runs = read("results/gemma")     # or …/results_<date>.json, or …/samples_<task>_<date>.jsonl

Two kinds of tasks are read: those that sample several answers to each question and put them into
clusters (`…_se`), and those in which one answer comes with a confidence (`…_verbal`, `…_ptrue`).
A row of a samples file is one question under one filter; the harness writes what a filter returned
as text, so that is JSON or a Python literal. Nothing is computed here.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lm_eval_semsoft.core.errors import listed

SAMPLED, TOLD = "sampled", "told"

_FILE = re.compile(r"samples_(?P<task>.+)_(?P<date>[^_]+)\.jsonl")
_LEVELS = ("", "*/", "*/*/")  # a directory, or one above it: OUT/<model>/samples_…
_KINDS = "tasks …_se, …_verbal, …_ptrue"
_HOW = "lm_eval --tasks … --log_samples --output_path DIR"
_READOUTS = (
    "of other tasks a report takes readouts: run the evaluation with --model_args …,readouts=DIR, "
    "then `semsoft report DIR`."
)


@dataclass(frozen=True)
class Samples:
    """The N sampled answers to one question.

    Attributes:
        answers: [N] texts, "" where the model said nothing.
        clusters: [N] which of them mean the same.
        mean_logprobs: [N] mean log-probability of the tokens, nats; NaN where unknown.
        n_tokens: [N] NaN where unknown.
        greedy: the most probable answer, token by token.
        greedy_right: 1, 0, or NaN where nobody knows.
    """

    answers: tuple[str, ...]
    clusters: tuple[int, ...]
    mean_logprobs: tuple[float, ...]
    n_tokens: tuple[float, ...]
    greedy: str
    greedy_right: float


@dataclass(frozen=True)
class Answer:
    """What one question was answered with.

    Attributes:
        text: the answer.
        confidence: 0..1, NaN where the model told none.
        right: 1, 0, or NaN where nobody knows.
        samples: None where the task has only one answer.
    """

    text: str
    confidence: float
    right: float
    samples: Samples | None = None


@dataclass(frozen=True)
class Run:
    """One task of one run.

    Attributes:
        file: the samples file.
        model: as the run named it; the folder's name if no results lie beside the samples.
        task: its name.
        date: when the run ended, as in the file's name.
        keys: [n] the questions' own ids, or their numbers.
        docs: [n] the task's documents.
        filters: name -> [n] answers; of sampled answers by N, fewest first.
        options: the task's `metadata`.
        table: the task's own row of the results, `metric,filter` -> value; {} if unknown.
    """

    file: Path
    model: str
    task: str
    date: str
    keys: tuple[str, ...]
    docs: tuple[Mapping[str, Any], ...]
    filters: Mapping[str, tuple[Answer, ...]]
    options: Mapping[str, Any] = field(default_factory=dict)
    table: Mapping[str, Any] = field(default_factory=dict)

    @property
    def n(self) -> int:
        return len(self.docs)

    @property
    def kind(self) -> str:
        """`sampled` or `told`."""
        first = next(iter(self.filters.values()))[0]
        return TOLD if first.samples is None else SAMPLED


class _ForeignRowError(Exception):
    """A line that no task of ours wrote; its text is the reason."""


# --------------------------------------------------------------------------------------------
# which files
# --------------------------------------------------------------------------------------------


def read(path: str | Path, task: str | None = None) -> list[Run]:
    """Every run of a directory (the newest of each model and task), or those of a named file.

    Args:
        path: a results directory, a results JSON, or a samples file.
        task: only this one.

    Raises:
        FileNotFoundError: there is nothing.
        ValueError: nothing of ours in it, no samples beside the results, no such task, or a line
            that cannot be read (it is named).
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such file or directory.")
    files = _in_folder(path) if path.is_dir() else _of_file(path)
    ours = [file for file in files if _is_ours(file)]
    if not ours and (empty := [file for file in files if not file.stat().st_size]):
        raise ValueError(
            f"{empty[0]} is empty: the harness could not write the samples, and its log says why "
            "(a full disk, perhaps); run the evaluation again."
        )
    if not ours:
        others = sorted({match["task"] for file in files if (match := _FILE.fullmatch(file.name))})
        raise ValueError(
            f"{path} holds no sampled answers and no answers with a confidence ({_KINDS})"
            f"{f', only samples of {listed(others)}' if others else ''}; {_READOUTS}"
        )
    runs = [_read_run(file) for file in _newest(ours)]
    if task is not None:
        names = list(dict.fromkeys(run.task for run in runs))
        if task not in names:
            raise ValueError(
                f"{path} holds the tasks {', '.join(names)}: {task!r} is not among them."
            )
        runs = [run for run in runs if run.task == task]
    return runs


def _in_folder(folder: Path) -> list[Path]:
    files = sorted(f for level in _LEVELS for f in folder.glob(f"{level}samples_*.jsonl"))
    if files:
        return files
    if any(any(folder.glob(f"{level}results_*.json")) for level in _LEVELS):
        raise ValueError(_no_samples(folder))
    raise ValueError(
        f"{folder} holds neither readouts (lm_eval --model semsoft-hf --model_args "
        f"…,readouts=DIR) nor results with samples ({_HOW})."
    )


def _of_file(path: Path) -> list[Path]:
    if path.suffix == ".jsonl":
        return [path]
    _results(path, strict=True)
    date = path.stem.rpartition("_")[2]
    files = sorted(path.parent.glob(f"samples_*_{date}.jsonl"))
    if not files:
        raise ValueError(_no_samples(path))
    return files


def _no_samples(path: Path) -> str:
    return (
        f"{path} has results but no samples: run the evaluation again with --log_samples ({_HOW})."
    )


def _newest(files: Sequence[Path]) -> list[Path]:
    """Of each folder, model and task the file of the latest run; the order is that of names."""
    latest: dict[tuple[Path, str, str], tuple[str, Path]] = {}
    for file in files:
        task, date = _named(file)
        key = (file.parent, str(_beside(file, date).get("model_name")), task)
        latest[key] = max(latest.get(key, ("", file)), (date, file))
    return [file for _, file in latest.values()]


def _named(file: Path) -> tuple[str, str]:
    """Task and date in a file's name; of another name the task is all of it."""
    match = _FILE.fullmatch(file.name)
    return (match["task"], match["date"]) if match else (file.stem, "")


def _beside(file: Path, date: str) -> dict[str, Any]:
    """The results of the run that wrote a samples file; {} if they are not there."""
    found = sorted(file.parent.glob(f"*_{date}.json")) if date else []
    return next(filter(None, (_results(path) for path in found)), {})


def _results(path: Path, strict: bool = False) -> dict[str, Any]:
    """A results JSON; what is none gives {}, or an error where it was named."""
    try:
        found = json.loads(path.read_bytes())
    except ValueError:
        found = None
    if isinstance(found, dict) and isinstance(found.get("results"), dict):
        return found
    if strict:
        raise ValueError(f"{path} is no results file of lm_eval and no samples file; {_READOUTS}")
    return {}


# --------------------------------------------------------------------------------------------
# one file
# --------------------------------------------------------------------------------------------


def _is_ours(file: Path) -> bool:
    """Does its first row hold answers of ours?"""
    for number, line in _lines(file):
        return _payloads(_parsed(file, number, line)) is not None
    return False


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are not empty; only a line feed ends one, since answers may hold other ends."""
    with file.open("rb") as opened:
        for number, line in enumerate(opened, start=1):
            if line.strip():
                yield number, line


def _parsed(file: Path, number: int, line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise ValueError(f"{file}, line {number}: this is no JSON ({error}).") from error


def _read_run(file: Path) -> Run:
    docs: dict[int, Mapping[str, Any]] = {}
    filters: dict[str, dict[int, Answer]] = {}
    for number, line in _lines(file):
        record = _parsed(file, number, line)
        try:
            doc_id, name, answer = _row(record)
            own = filters.setdefault(name, {})
            if doc_id in own:
                raise _ForeignRowError(f"document {doc_id} comes twice under the filter {name}")
            _check_alike(own, answer)
        except _ForeignRowError as reason:
            raise ValueError(f"{file}, line {number}: {reason}.") from reason
        own[doc_id] = answer
        doc = record.get("doc")
        docs.setdefault(doc_id, doc if isinstance(doc, dict) else {})
    for name, own in filters.items():
        if missing := len(docs) - len(own):
            raise ValueError(f"{file}: {missing} of {len(docs)} questions have no row {name}.")
    task, date = _named(file)
    results = _beside(file, date)
    return Run(
        file=file,
        model=str(results.get("model_name") or file.resolve().parent.name),
        task=task,
        date=date,
        keys=tuple(str(doc.get("id", doc_id)) for doc_id, doc in docs.items()),
        docs=tuple(docs.values()),
        filters=_in_order({k: tuple(own[i] for i in docs) for k, own in filters.items()}),
        options=_mapping(_mapping(_mapping(results.get("configs")).get(task)).get("metadata")),
        table=_mapping(_mapping(results.get("results")).get(task)),
    )


def _check_alike(others: Mapping[int, Answer], answer: Answer) -> None:
    """All rows of a filter have the same number of samples."""
    first = next(iter(others.values()), answer)
    sizes = [None if a.samples is None else len(a.samples.answers) for a in (first, answer)]
    if sizes[0] != sizes[1]:
        raise _ForeignRowError(
            f"it has {sizes[1]} sampled answers where the rows before have {sizes[0]}"
        )


def _in_order(filters: dict[str, tuple[Answer, ...]]) -> dict[str, tuple[Answer, ...]]:
    def samples(item: tuple[str, tuple[Answer, ...]]) -> int:
        own = item[1][0].samples
        return 0 if own is None else len(own.answers)

    return dict(sorted(filters.items(), key=samples))


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


# --------------------------------------------------------------------------------------------
# one row
# --------------------------------------------------------------------------------------------


def _row(record: Any) -> tuple[int, str, Answer]:
    payloads = _payloads(record)
    if payloads is None:
        raise _ForeignRowError(
            f"expected a row of sampled answers or of an answer with a confidence ({_KINDS})"
        )
    doc_id = record.get("doc_id")
    if type(doc_id) is not int:
        raise _ForeignRowError(f"doc_id is {doc_id!r}; it must be a whole number")
    first, *others = payloads
    if "answers" in first:
        return doc_id, str(record.get("filter")), _sampled(first, others[0] if others else {})
    answer = Answer(
        _text(first, "answer"), _number(first, "confidence"), _number(first, "right", (0, 1))
    )
    return doc_id, str(record.get("filter")), _checked(answer)


def _payloads(record: Any) -> list[dict[str, Any]] | None:
    """What our filters returned, the answers first; None if this is another task's row."""
    given = record.get("filtered_resps") if isinstance(record, dict) else None
    found = [own for own in map(_unpacked, given if isinstance(given, list) else []) if own]
    for i, own in enumerate(found):
        if {"answers", "clusters"} <= own.keys() or {"answer", "confidence"} <= own.keys():
            return [own, *found[i + 1 :]]
    return None


def _unpacked(value: Any) -> dict[str, Any] | None:
    """A dictionary, or the text of one as the harness writes it: JSON or Python."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, str) and value.startswith("{"):
        try:
            value = json.loads(value)
        except ValueError:
            value = _literal(value)
    return value if isinstance(value, dict) else None


class _Plain(ast.NodeTransformer):
    """What Python and numpy write and `ast.literal_eval` does not read: nan, np.float64(0.5)."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        numbers = {"nan": math.nan, "inf": math.inf}
        return ast.Constant(numbers[node.id]) if node.id in numbers else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        values = {"True_": True, "False_": False}
        return ast.Constant(values[node.attr]) if node.attr in values else node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        scalar = isinstance(node.func, ast.Attribute) and ast.unparse(node.func).startswith("np.")
        return self.visit(node.args[0]) if scalar and len(node.args) == 1 else node


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(_Plain().visit(ast.parse(text, mode="eval")).body)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def _sampled(given: Mapping[str, Any], greedy: Mapping[str, Any]) -> Answer:
    answers, clusters = given["answers"], given["clusters"]
    if not (isinstance(answers, list) and answers and all(isinstance(a, str) for a in answers)):
        raise _ForeignRowError("answers must be a list of at least one text")
    n = len(answers)
    if not (isinstance(clusters, list) and all(type(c) is int for c in clusters)):
        raise _ForeignRowError("clusters must be a list of whole numbers")
    if len(clusters) != n:
        raise _ForeignRowError(f"there are {n} answers but {len(clusters)} clusters")
    samples = Samples(
        answers=tuple(answers),
        clusters=tuple(clusters),
        mean_logprobs=_numbers(given, "mean_logprobs", n),
        n_tokens=_numbers(given, "n_tokens", n),
        greedy=_text(greedy, "answer") if "answer" in greedy else "",
        greedy_right=_number(greedy, "right", (0, 1)),
    )
    return _checked(
        Answer(
            _text(given, "prediction"),
            _number(given, "confidence"),
            _number(given, "right", (0, 1)),
            samples,
        )
    )


def _checked(answer: Answer) -> Answer:
    if not (math.isnan(answer.confidence) or 0 <= answer.confidence <= 1):
        raise _ForeignRowError(f"confidence is {answer.confidence:g}; it must be from 0 to 1")
    return answer


def _text(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name)
    if value is None:  # nothing could be read from what the model said
        return ""
    if not isinstance(value, str):
        raise _ForeignRowError(f"{name} is {value!r}; it must be a text")
    return value


def _number(given: Mapping[str, Any], name: str, allowed: Sequence[float] = ()) -> float:
    """A number; None and absent are NaN."""
    value = given.get(name)
    if value is None:
        return math.nan
    if not isinstance(value, (bool, int, float)):
        raise _ForeignRowError(f"{name} is {value!r}; it must be a number")
    if allowed and not math.isnan(value) and value not in allowed:
        raise _ForeignRowError(f"{name} is {value!r}; it must be true, false or null")
    return float(value)


def _numbers(given: Mapping[str, Any], name: str, n: int) -> tuple[float, ...]:
    values = given.get(name)
    if values is None:
        return (math.nan,) * n
    if not isinstance(values, list) or len(values) != n:
        raise _ForeignRowError(f"{name} must be a list of {n} numbers, one for each answer")
    return tuple(_number({name: value}, name) for value in values)
