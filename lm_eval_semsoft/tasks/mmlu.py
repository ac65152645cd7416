"""MMLU (Hendrycks et al. 2021): is a model as often right as it says.

Loader of ``mmlu_calibration``: all subjects, no human data. The rules are in
``task_configs/mmlu_calibration/README.md``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets

from lm_eval_semsoft.core.errors import check_choice
from lm_eval_semsoft.tasks import multiple_choice, people
from lm_eval_semsoft.tasks.data import (
    BrokenData,
    DatasetSpec,
    DataUnavailable,
    HubFiles,
    Row,
    broken_row,
    load_rows,
    read_jsonl,
    warn_of_typos,
)
from lm_eval_semsoft.tasks.prompts import FixedExamples

SPLITS = {"validation": 1531, "test": 14042, "dev": 285}
N_OPTIONS = 4


def load(split: str = "validation", **other: Any) -> datasets.DatasetDict:
    """The ``custom_dataset`` of the YAML; options come from ``--metadata``.

    Args:
        split: ``validation`` (1,531 questions), ``test`` (14,042) or ``dev`` (285).
        other: what else the harness passes; ignored.

    Returns:
        ``test``: columns as in `people.FEATURES`, without anything of people's.

    Raises:
        ValueError: an option is unknown.
        DataUnavailable, BrokenData: see `lm_eval_semsoft.tasks.data.load_rows`.
    """
    check_choice("split", split, tuple(SPLITS))
    warn_of_typos("mmlu_calibration", other, ("split",))
    loaded = load_rows(spec(split), split)
    return people.finish("mmlu_calibration", map(_document, loaded.rows), loaded)


def _document(row: Row) -> Row:
    return people.document(
        row["id"],
        row["question"],
        options=row["choices"],
        labels=people.right_options(row["choices"], row["answer"]),
        subject=row["subject"],
    )


class Task(multiple_choice.Task):
    """Examples of the document's own subject where more are asked for than the fixed two."""

    def fewshot_context(self, doc: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """The prompt of a document; the sampler learns which one it is for."""
        self.sampler.doc = doc
        return super().fewshot_context(doc, *args, **kwargs)


class SubjectExamples(FixedExamples):
    """Up to two examples are the fixed ones; more come from the subject's dev questions."""

    doc: Mapping[str, Any] | None = None
    _by_subject: dict[str, list[Row]] | None = None

    def sample(
        self, n: int, eval_doc: Any = None, df: Any = None, **kwargs: Any
    ) -> Sequence[Mapping[str, Any]]:
        """The examples for the document that `Task` has named, in the order of the dev split.

        Raises:
            ValueError: the subject has fewer.
            DataUnavailable: the data source has no dev split.
        """
        if n <= len(self.df) or self.doc is None:
            return super().sample(n)
        if self._by_subject is None:
            self._by_subject = _dev_questions(self.doc["source"])
        subject = self.doc["subject"]
        pool = self._by_subject.get(subject, [])
        others = [row for row in pool if row["question"] != self.doc["question"]]
        if n > len(others):
            raise ValueError(
                f"num_fewshot={n} is too large: the dev split has {len(others)} other questions "
                f"of the subject {subject!r}."
            )
        return others[:n]


def _dev_questions(source: str) -> dict[str, list[Row]]:
    """The questions that MMLU provides as examples, by subject, from one source."""
    try:
        rows = load_rows(spec("dev"), "dev", source=source).rows
    except DataUnavailable as error:
        raise DataUnavailable(
            f"num_fewshot above {len(multiple_choice.EXAMPLES)} needs MMLU's dev split. {error}"
        ) from None
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["subject"], []).append(_document(row))
    return found


# --- reading -------------------------------------------------------------------------------------


def read_file(path: Path, split: str) -> list[Row]:
    """Rows of one split of a local file: JSON lines with question, choices, answer, subject.

    Rows whose ``split`` names another one are passed over; without that field all are taken.

    Raises:
        BrokenData: a row has another shape.
    """
    rows = ((n, row) for n, row in read_jsonl(path) if row.get("split", split) == split)
    return _rows(path, split, rows)


def read_parquet_file(path: Path, split: str) -> list[Row]:
    """Rows of the hub's parquet.

    Raises:
        BrokenData: not such a file, or a bad row.
    """
    import pyarrow
    import pyarrow.parquet

    columns = ["question", "subject", "choices", "answer"]
    try:
        rows = pyarrow.parquet.read_table(path, columns=columns).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise BrokenData(
            f"{path}: expected parquet with {', '.join(columns)} ({error})."
        ) from error
    return _rows(path, split, enumerate(rows, start=1))


def _rows(path: Path, split: str, rows: Iterable[tuple[int, Row]]) -> list[Row]:
    """Checked rows; ids count within the split, so that they are the same from every source."""
    return [_row(path, n, f"mmlu-{split}-{i:05}", row) for i, (n, row) in enumerate(rows)]


def _row(path: Path, number: int, key: str, row: Row) -> Row:
    question, choices, answer = row.get("question"), row.get("choices"), row.get("answer")
    if not isinstance(question, str) or not question.strip():
        raise broken_row(path, number, "a question", question)
    texts = list(choices) if isinstance(choices, (list, tuple)) else []
    if len(texts) != N_OPTIONS or not all(isinstance(t, str) and t.strip() for t in texts):
        raise broken_row(path, number, f"{N_OPTIONS} choices with a text", choices)
    if not isinstance(answer, int) or isinstance(answer, bool) or answer not in range(N_OPTIONS):
        raise broken_row(path, number, f"answer to be 0 to {N_OPTIONS - 1}", answer)
    return {
        "id": key,
        "question": question.strip(),
        "choices": [text.strip() for text in texts],
        "answer": answer,
        "subject": str(row.get("subject") or ""),
    }


def spec(split: str) -> DatasetSpec:
    """MMLU as `load_rows` wants it: a local file may hold several splits."""
    return DatasetSpec(
        name="mmlu",
        files={
            "test": "test.jsonl",
            **dict.fromkeys(("validation", "dev"), "dev_validation.jsonl"),
        },
        read=functools.partial(read_file, split=split),
        hub=HubFiles(
            repo_id="cais/mmlu",
            revision="c30699e8356da336a370243923dbaf21066bb9fe",
            files={name: f"all/{name}-00000-of-00001.parquet" for name in SPLITS},
            read=functools.partial(read_parquet_file, split=split),
        ),
        published_rows=SPLITS,
    )
