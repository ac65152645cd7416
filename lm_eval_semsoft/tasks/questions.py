"""Open questions with gold answers: documents, prompts, and what the loaders have in common.

The tasks on HotpotQA, TriviaQA, NQ-Open and MS MARCO share these columns, so that metrics and
reports need not know which data set they look at. The rules are in the README of each
(``task_configs/hotpotqa/README.md`` and so on).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np

from lm_eval_semsoft.core.errors import check_choice
from lm_eval_semsoft.tasks.data import (
    BrokenData,
    DatasetSpec,
    DataUnavailable,
    HubFiles,
    Row,
    RowReader,
    broken_row,
    load_rows,
    read_jsonl,
    warn_of_typos,
)
from lm_eval_semsoft.tasks.people import distinct

logger = logging.getLogger(__name__)

SPLIT = "validation"
N_QUESTIONS = 1000
QUESTION_SEED = 1234
CONTEXTS = ("none", "gold")
BATCH_ROWS = 4096  # of a parquet file in memory
OPTIONS = ("n_questions", "question_seed", "context")

FEATURES = datasets.Features(
    {
        "id": datasets.Value("string"),
        "question": datasets.Value("string"),  # ends with "?"
        "answers": [datasets.Value("string")],  # gold answers and aliases; [] where there is none
        "context": datasets.Value("string"),  # "": closed book
        "published_data": datasets.Value("int64"),
    }
)

INSTRUCTION = (
    "You will be asked questions. Reply to each one with nothing but the answer, in a few words."
)
# Question, answer, and a text that holds it: a name, a number, yes or no, a short phrase.
EXAMPLES = (
    (
        "Which English composer wrote the opera Dido and Aeneas?",
        "Henry Purcell",
        "Dido and Aeneas is an opera by the English composer Henry Purcell, written in the 1680s.",
    ),
    (
        "How many squares are there on an ordinary chessboard?",
        "64",
        "A chessboard has eight rows of eight squares, 64 in all, alternately light and dark.",
    ),
    (
        "Do the Loire and the Rhône both rise in France?",
        "no",
        "The Loire rises in the Massif Central in France. The Rhône rises from a glacier in the "
        "Swiss canton of Valais.",
    ),
    (
        "Why do ice cubes float in a glass of water?",
        "ice is less dense than water",
        "Water expands when it freezes, so ice is less dense than water and floats on it.",
    ),
)

ParsedRow = Callable[[Path, int, Row], Row]


# --- prompts -------------------------------------------------------------------------------------


def doc_to_text(doc: Mapping[str, Any]) -> str:
    """The prompt of one document: the context if it has one, the question, ``Answer:``."""
    context = f"Context: {doc['context']}\n" if doc["context"] else ""
    return f"{context}Question: {doc['question']}\nAnswer:"


def chat_text(doc: Mapping[str, Any]) -> str:
    """What a chat model is asked: the context, if there is one, and the question."""
    return "\n\n".join(filter(None, (doc.get("context"), doc["question"])))


def chat_stops(until: str | Sequence[str]) -> list[str]:
    """Stop strings for a chat model: it ends its turn, and may begin it with an empty line."""
    given = [until] if isinstance(until, str) else list(until)
    return [] if given == ["\n"] else given


def doc_to_target(doc: Mapping[str, Any]) -> str:
    """The first gold answer; "" if there is none."""
    return str(doc["answers"][0]) if doc["answers"] else ""


def examples(context: str = "none") -> list[dict[str, Any]]:
    """The solved questions in front of every document, in every task the same.

    Args:
        context: ``none``, or ``gold`` for examples that have a text with the answer, too.
    """
    check_choice("context", context, CONTEXTS)
    return [
        {"question": question, "answers": [answer], "context": text if context == "gold" else ""}
        for question, answer, text in EXAMPLES
    ]


# --- documents -----------------------------------------------------------------------------------


def load(
    spec: DatasetSpec, n_questions: int | None, question_seed: int, context: str
) -> datasets.DatasetDict:
    """Documents of the validation split; the loaders of the data sets call this.

    Args:
        spec: the data set, with a reader as `reader` makes it.
        n_questions: how many random questions; None, or more than there are: all.
        question_seed: of the random order. The first questions of a seed are the same for every
            `n_questions`.
        context: ``none`` or ``gold`` (`check_options` has looked whether there is any).

    Returns:
        ``test``: the questions in their random order, columns as in `FEATURES`.

    Raises:
        ValueError: no question is left.
        DataUnavailable: ``gold``, and the file has no paragraphs; or see `load_rows`.
        BrokenData: see `load_rows`.
    """
    loaded = load_rows(spec, SPLIT)
    if context == "gold" and any(row["context"] is None for row in loaded.rows):
        raise DataUnavailable(
            f"context='gold' needs paragraphs, and {loaded.path} has none: use a file with the "
            "hub's columns, or context='none'."
        )
    usable, dropped = usable_rows(loaded.rows)
    if not usable:
        raise ValueError(f"{spec.name}: none of the rows of {loaded.path} has a question.")
    drawn = [usable[i] for i in random_order(len(usable), question_seed)[:n_questions]]
    told = ", ".join(f"{n} {why}" for why, n in dropped.items()) or "none"
    logger.info(
        "%s: %d of %d questions (question_seed=%d), %d of them without a gold answer; left out: %s",
        spec.name,
        len(drawn),
        len(usable),
        question_seed,
        sum(not row["answers"] for row in drawn),
        told,
    )
    if context == "gold" and (bare := sum(not row["context"] for row in drawn)):
        logger.info("%s: %d questions have no gold paragraph, and get no context", spec.name, bare)
    if context == "none":  # a local file may have brought paragraphs along
        drawn = [{**row, "context": ""} for row in drawn]
    rows = [{**row, "published_data": loaded.published} for row in drawn]
    columns = {name: [row[name] for row in rows] for name in FEATURES}
    return datasets.DatasetDict(test=datasets.Dataset.from_dict(columns, features=FEATURES))


def usable_rows(rows: Iterable[Row]) -> tuple[list[Row], Counter[str]]:
    """Rows with a question that has not come before, ids made distinct; and why others went."""
    kept: list[Row] = []
    dropped: Counter[str] = Counter()
    seen: set[str] = set()
    for row in rows:
        text = row["question"].casefold()
        if not text:
            dropped["without a question"] += 1
        elif text in seen:
            dropped["whose question has come before"] += 1
        else:
            seen.add(text)
            kept.append(row)
    return list(distinct(kept)), dropped


def random_order(n: int, seed: int) -> list[int]:
    """The numbers below `n` in a seeded random order."""
    order: list[int] = np.random.default_rng(seed).permutation(n).tolist()
    return order


def check_options(
    task: str,
    n_questions: Any,
    question_seed: Any,
    context: Any,
    other: Iterable[str],
    *,
    paragraphs: bool = False,
    options: Sequence[str] = OPTIONS,
) -> None:
    """The options of a loader, checked; near misses among `other` names are warned of.

    Args:
        task: the data set, for messages.
        n_questions, question_seed, context: as in `load`.
        other: names of what else the harness passes.
        paragraphs: does the data set say which paragraphs hold the answer?
        options: names that the loader knows.

    Raises:
        ValueError: an option has a value that is not allowed.
    """
    if n_questions is not None and not _is_whole(n_questions, 1):
        raise ValueError(
            f"n_questions={n_questions!r} is not known: use a whole number from 1, or null for all."
        )
    if not _is_whole(question_seed, 0):
        raise ValueError(f"question_seed={question_seed!r} is not known: use a number from 0.")
    check_choice("context", context, CONTEXTS)
    if context == "gold" and not paragraphs:
        raise ValueError(
            f"context='gold' is not possible with {task}: the data has no paragraphs; "
            "use context='none'."
        )
    warn_of_typos(task, other, options)


def _is_whole(value: Any, low: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= low


# --- reading -------------------------------------------------------------------------------------


def question_spec(
    name: str, read: RowReader, repo_id: str, revision: str, file: str, rows: int
) -> DatasetSpec:
    """The validation split of a data set, as `load_rows` wants it."""
    return DatasetSpec(
        name=name,
        files={SPLIT: "validation.jsonl"},
        other_suffixes=(".parquet",),
        read=read,
        hub=HubFiles(repo_id, revision, {SPLIT: file}, read),
        published_rows={SPLIT: rows},
    )


def reader(prefix: str, columns: Sequence[str], parse: ParsedRow) -> RowReader:
    """A reader of JSON lines, and of parquet with the same columns.

    Args:
        prefix: of the ids of rows that have none: `prefix` and their place in the file, from 0.
        columns: what to read of a parquet file; those that it lacks are passed over.
        parse: file, line, raw row -> ``id`` (or None), ``question``, ``answers``, ``context``
            (None: the file has no paragraphs); raises `BrokenData`.
    """

    def read(path: Path) -> list[Row]:
        rows = _parquet(path, columns) if path.suffix == ".parquet" else read_jsonl(path)
        found = []
        for place, (number, raw) in enumerate(rows):
            row = parse(path, number, raw)
            key = "" if row["id"] is None else str(row["id"]).strip()
            question = ended(row["question"])
            found.append({**row, "id": key or f"{prefix}{place:04}", "question": question})
        return found

    return read


def _parquet(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, Row]]:
    """Numbered rows, in batches: a file with passages is larger than the questions by far."""
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            batches = file.iter_batches(BATCH_ROWS, columns=list(columns))
            rows = (row for batch in batches for row in batch.to_pylist())
            yield from enumerate(rows, start=1)
    except (pyarrow.ArrowException, OSError) as error:
        raise BrokenData(
            f"{path}: expected parquet with {', '.join(columns)} ({error})."
        ) from error


def check_columns(path: Path, number: int, row: Row, *names: str) -> None:
    """Raise `BrokenData` if one of the columns is missing."""
    if any(name not in row for name in names):
        raise broken_row(path, number, f"a row with {', '.join(names)}", sorted(row))


def one_text(path: Path, number: int, name: str, value: Any) -> str:
    """A text with single spaces, none at its edges (may be empty).

    Raises:
        BrokenData: it is no text, or holds half a character (JSON can), which no tokenizer takes.
    """
    if not isinstance(value, str) or any("\ud800" <= c <= "\udfff" for c in value):
        raise broken_row(path, number, f"{name} to be a text", value)
    return " ".join(value.replace("\u200b", " ").split())


def texts(path: Path, number: int, name: str, value: Any) -> list[str]:
    """Texts as in `one_text`: each once, in their order, without empty ones.

    Raises:
        BrokenData: it is no list of texts.
    """
    if not isinstance(value, (list, tuple)):
        raise broken_row(path, number, f"{name} to be a list of texts", value)
    found = dict.fromkeys(one_text(path, number, name, text) for text in value)
    return [text for text in found if text]


def ended(text: str) -> str:
    """The question with a question mark at its end; a stop or comma there gives way to it.

    Punctuation alone is no question: "".

    >>> ended("who was it."), ended("what is the meaning of e.g.")
    ('who was it?', 'what is the meaning of e.g.?')
    """
    if not any(character.isalnum() for character in text):
        return ""
    last_word = text.rpartition(" ")[2]
    bare = text if last_word.count(".") > 1 else text.rstrip(" .,;:/")
    return bare if bare.endswith("?") else f"{bare}?"
