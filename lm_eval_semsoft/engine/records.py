"""What a readouts directory holds, as rows of Parquet: documents, readouts, generated answers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lm_eval_semsoft.core.uncertainty import NUCLEUS_LEVELS, TOP_KS

from .parts import encodable, fixed_column, ragged_column
from .plan import Prompt, Tokens
from .readout import Readout
from .trace import Trace

_KEY = pa.binary(16)
_FIXED = ("topk_ids", "topk_logprobs", "nucleus_sizes", "nucleus_entropies")  # fields of `Readout`
_SINGLE = ("entropy", "lead_logprob")
_RAGGED = ("label_logprobs", "label_greedy", "label_first")
# Fields of `Trace`: what an entry is, and how many there are for every token.
_TRACED: dict[str, tuple[pa.DataType, int]] = {
    "tokens": (pa.int32(), 1),
    "logprobs": (pa.float32(), 1),
    "top_logprobs": (pa.float32(), 1),
    "entropy": (pa.float32(), 1),
    "topk_entropies": (pa.float32(), len(TOP_KS)),
    "nucleus_sizes": (pa.int32(), len(NUCLEUS_LEVELS)),
    "nucleus_entropies": (pa.float32(), len(NUCLEUS_LEVELS)),
    "ends": (pa.int32(), 1),
}
HIDDEN = "hidden"  # the column of captured activations, in parts of runs that captured them

HiddenShape = tuple[int, int]  # layers, d

Asked = tuple[str, int, bytes]  # task, number, context


def prompt_key(prompt: Prompt) -> bytes:
    """16 bytes that stand for the tokens of a prompt and of its labels."""
    lengths = [len(prompt.tokens), *map(len, prompt.labels)]
    if prompt.lead:
        lengths.append(-prompt.lead)
    flat = [*prompt.tokens, *(token for label in prompt.labels for token in label)]
    digest = hashlib.sha256(np.array([len(lengths), *lengths, *flat], dtype="<i8").tobytes())
    return digest.digest()[:16]


def answer_key(prompt: Tokens, how: str) -> bytes:
    """16 bytes that stand for a prompt's tokens and for how its answer is generated."""
    tokens = np.array([len(prompt), *prompt], dtype="<i8").tobytes()
    return hashlib.sha256(tokens + how.encode("utf-8", "surrogatepass")).digest()[:16]


def text_key(text: str) -> bytes:
    """16 bytes that stand for a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16]


_EMPTY = text_key("")


@dataclass(frozen=True)
class StoredDocument:
    """A task's document and where its labels' scores are found.

    Attributes:
        task, doc_id: as the harness numbers them.
        context: `text_key` of the prompt.
        doc: the task's document as JSON.
        label_set: key of `Manifest.label_sets`, None where neighbours do not vote.
        labels: [L] the label texts, in the order of the task's choices.
        prompts: `prompt_key` of each prompt that was read for it (several only where a context had
            to be cut for long labels).
        places: [L] where each label stands among the labels of all those prompts, in order.
    """

    task: str
    doc_id: int
    context: bytes
    doc: str
    label_set: str | None
    labels: tuple[str, ...]
    prompts: tuple[bytes, ...]
    places: tuple[int, ...]


DOCUMENT_SCHEMA = pa.schema(
    {
        "task": pa.string(),
        "doc_id": pa.int64(),
        "context": _KEY,
        "doc": pa.string(),
        "label_set": pa.string(),
        "labels": pa.list_(pa.string()),
        "prompts": pa.list_(_KEY),
        "places": pa.list_(pa.int32()),
    }
)


def readout_schema(top_k: int) -> pa.Schema:
    """Columns of a part of readouts; where activations were captured, `HIDDEN` comes to them."""
    n = len(NUCLEUS_LEVELS)
    return pa.schema(
        {
            "prompt": _KEY,
            "topk_ids": pa.list_(pa.int32(), top_k),
            "topk_logprobs": pa.list_(pa.float32(), top_k),
            "label_logprobs": pa.list_(pa.float32()),
            "label_greedy": pa.list_(pa.bool_()),
            "label_first": pa.list_(pa.int32()),
            "entropy": pa.float64(),
            "nucleus_sizes": pa.list_(pa.int32(), n),
            "nucleus_entropies": pa.list_(pa.float32(), n),
            "lead_logprob": pa.float64(),
        }
    )


def documents_in(table: pa.Table) -> Iterator[tuple[Asked, StoredDocument]]:
    for row in table.to_pylist():
        for name in ("labels", "prompts", "places"):
            row[name] = tuple(row[name])
        document = StoredDocument(**row)
        yield (document.task, document.doc_id, document.context), document


def table_of_documents(documents: Sequence[StoredDocument]) -> pa.Table:
    rows = [vars(d) for d in documents]
    try:
        return pa.Table.from_pylist(rows, schema=DOCUMENT_SCHEMA)
    except UnicodeEncodeError:
        for row in (rows := [dict(row) for row in rows]):
            row["task"] = encodable(row["task"])
            row["labels"] = tuple(map(encodable, row["labels"]))
        return pa.Table.from_pylist(rows, schema=DOCUMENT_SCHEMA)


def table_of_readouts(pending: Sequence[tuple[bytes, Readout]], top_k: int) -> pa.Table:
    """Rows of a part; all of the readouts have captured activations, or none has."""
    readouts = [readout for _, readout in pending]
    schema = readout_schema(top_k)
    columns: dict[str, Any] = {"prompt": [key for key, _ in pending]}
    for name in _FIXED:
        columns[name] = _fixed([getattr(r, name) for r in readouts])
    for name in _RAGGED:
        columns[name] = _ragged([getattr(r, name) for r in readouts])
    for name in _SINGLE:
        columns[name] = [getattr(r, name) for r in readouts]
    table = pa.table(columns, schema=schema)
    captured = [r.hidden.ravel() for r in readouts if r.hidden is not None]
    return table.append_column(HIDDEN, _fixed(captured)) if captured else table


def _fixed(rows: Sequence[NDArray[Any]]) -> pa.Array:
    """A column of lists of one length."""
    stacked = np.stack(rows)
    return pa.FixedSizeListArray.from_arrays(stacked.ravel(), stacked.shape[1])


def _ragged(rows: Sequence[NDArray[Any]]) -> pa.Array:
    """A column of lists."""
    offsets = np.cumsum([0, *map(len, rows)]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, pa.array(np.concatenate(rows)))


def holds_hidden(table: pa.Table, shape: HiddenShape) -> bool:
    """Are captured activations of this shape among its columns?"""
    if HIDDEN not in table.column_names:
        return False
    return bool(table[HIDDEN].type == pa.list_(pa.float16(), shape[0] * shape[1]))


class ReadoutRows:
    """Rows of a part as readouts, which do not keep the part in memory.

    Args:
        table: the part.
        shape: of captured activations, to be read with the rest; None = without them.
    """

    def __init__(self, table: pa.Table, shape: HiddenShape | None = None) -> None:
        self._fixed = {name: fixed_column(table, name) for name in _FIXED}
        self._ragged = {name: ragged_column(table, name) for name in _RAGGED}
        self._single = {name: table[name].to_numpy() for name in _SINGLE}
        self._hidden = None if shape is None else hidden_column(table, shape)

    def __getitem__(self, i: int) -> Readout:
        own: dict[str, Any] = {name: column[i].copy() for name, column in self._fixed.items()}
        for name, column in self._ragged.items():
            own[name] = _row(column, i)
        for name, values in self._single.items():
            own[name] = float(values[i])
        if self._hidden is not None:
            own[HIDDEN] = self._hidden[i].copy()
        return Readout(**own)


def hidden_column(table: pa.Table, shape: HiddenShape) -> NDArray[np.float16]:
    """Captured activations: [rows, layers, d]."""
    return fixed_column(table, HIDDEN).reshape(-1, *shape)


# --------------------------------------------------------------------------------------------
# generated answers
# --------------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """A generated text and what its tokens tell.

    Attributes:
        text: what is shown.
        trace: of its tokens; None for sampled answers.
        logprobs: float32 of all tokens that were generated, with what ended the answer; None in
            parts that were written before they were kept.
    """

    text: str
    trace: Trace | None
    logprobs: NDArray[np.float32] | None = None


ANSWER_SCHEMA = pa.schema(
    {
        "prompt": _KEY,
        "text": pa.string(),
        "vocabulary": pa.int32(),
        **{name: pa.list_(kind) for name, (kind, _) in _TRACED.items()},
    }
)


GENERATED = "generated_logprobs"  # the column of `Answer.logprobs`
_NOTHING = np.zeros(0, np.float32)


def table_of_answers(pending: Sequence[tuple[bytes, Answer]]) -> pa.Table:
    """Rows of a part; what a token has several of stands one after the other.

    A vocabulary of 0 says that there is no trace. All of the answers know the log-probabilities of
    their tokens, or none does.
    """
    answers = [answer for _, answer in pending]
    columns: dict[str, Any] = {
        "prompt": [key for key, _ in pending],
        "text": [encodable(answer.text) for answer in answers],
        "vocabulary": [0 if a.trace is None else a.trace.vocabulary for a in answers],
    }
    for name, (kind, _) in _TRACED.items():
        nothing = _NOTHING.astype(kind.to_pandas_dtype())
        columns[name] = _ragged(
            [nothing if a.trace is None else getattr(a.trace, name).ravel() for a in answers]
        )
    table = pa.table(columns, schema=ANSWER_SCHEMA)
    known = [answer.logprobs for answer in answers if answer.logprobs is not None]
    return table.append_column(GENERATED, _ragged(known)) if known else table


def answers_in(table: pa.Table) -> Iterator[tuple[bytes, Answer]]:
    """The rows of a part of answers, whose arrays do not keep the part in memory."""
    columns = {name: ragged_column(table, name) for name in _TRACED}
    totals = ragged_column(table, GENERATED) if GENERATED in table.column_names else None
    rows = zip(*(table[name].to_pylist() for name in ("prompt", "text", "vocabulary")), strict=True)
    for i, (key, text, vocabulary) in enumerate(rows):
        logprobs = None if totals is None else _row(totals, i)
        if not vocabulary:
            yield key, Answer(text, None, logprobs)
            continue
        own = {}
        for name, column in columns.items():
            flat = _row(column, i)
            width = _TRACED[name][1]
            own[name] = flat if width == 1 else flat.reshape(-1, width)
        yield key, Answer(text, Trace(**own, vocabulary=vocabulary), logprobs)


def _row(column: tuple[NDArray[Any], NDArray[np.int64]], i: int) -> NDArray[Any]:
    values, offsets = column
    return values[offsets[i] : offsets[i + 1]].copy()
