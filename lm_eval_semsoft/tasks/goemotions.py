"""GoEmotions (Demszky et al. 2020): Reddit comments, 28 labels. Loader of ``goemotions_zs``.

The rules (which rows, which few-shot examples) are in ``task_configs/goemotions/README.md``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets

from lm_eval_semsoft.core.errors import check_choice
from lm_eval_semsoft.tasks import fewshot
from lm_eval_semsoft.tasks.data import (
    BrokenData,
    DatasetSpec,
    HubFiles,
    LoadedRows,
    Row,
    broken_row,
    load_rows,
    read_tsv,
    warn_of_typos,
)

logger = logging.getLogger(__name__)

# The order is that of the hub's ClassLabel and of the ids in the original TSV files.
LABELS = (
    *("admiration", "amusement", "anger", "annoyance", "approval", "caring", "confusion"),
    *("curiosity", "desire", "disappointment", "disapproval", "disgust", "embarrassment"),
    *("excitement", "fear", "gratitude", "grief", "joy", "love", "nervousness", "optimism"),
    *("pride", "realization", "relief", "remorse", "sadness", "surprise", "neutral"),
)

SPLITS = {"test": "test", "validation": "validation", "dev": "validation", "train": "train"}
MULTILABEL = ("drop", "any")

FEATURES = datasets.Features(
    {
        "id": datasets.Value("string"),
        "text": datasets.Value("string"),
        "label": datasets.Value("int64"),
        "labels": [datasets.Value("int64")],
        "source": datasets.Value("string"),
        "published_data": datasets.Value("int64"),
    }
)


def load(split: str = "test", multilabel: str = "drop", **other: Any) -> datasets.DatasetDict:
    """The ``custom_dataset`` of the YAML; options come from ``--metadata``.

    Args:
        split: what is evaluated: ``test``, ``validation`` (or ``dev``), ``train``.
        multilabel: ``drop`` keeps only rows with one label; ``any`` keeps all rows, and any of a
            row's labels counts as right.
        other: what else the harness passes (model arguments, version, …); ignored.

    Returns:
        ``test``: the evaluated rows, whatever their split; ``train``: few-shot candidates (may be
        empty, see `LabelDiverseSampler`). Columns as in `FEATURES`; ``labels`` ascend and
        ``label`` is their first.

    Raises:
        ValueError: an option is unknown, or no row is left.
        DataUnavailable, BrokenData: see `lm_eval_semsoft.tasks.data.load_rows`.
    """
    chosen = SPLITS[check_choice("split", split, tuple(SPLITS))]
    check_choice("multilabel", multilabel, MULTILABEL)
    warn_of_typos("goemotions", other, ("split", "multilabel"))
    loaded = load_rows(SPEC, chosen)
    return datasets.DatasetDict(
        test=_dataset(evaluation_rows(loaded, multilabel), loaded),
        train=_dataset(fewshot.fewshot_rows(SPEC, chosen, loaded), loaded),
    )


def doc_to_text(doc: Mapping[str, Any]) -> str:
    """The prompt of one document, its text verbatim.

    A function, because the harness compiles a template anew for every document and example (1 ms
    each, a tenth of the time of a whole run here), and evaluates a text of digits as a number.
    """
    return f"Comment: {doc['text']}\nEmotion:"


def evaluation_rows(loaded: LoadedRows, multilabel: str) -> list[Row]:
    """The rows that are scored; duplicates stay, as published."""
    rows = [row for row in loaded.rows if multilabel == "any" or len(row["labels"]) == 1]
    if not rows:
        raise ValueError(
            f"multilabel={multilabel!r} leaves none of the {len(loaded.rows)} rows of "
            f"{loaded.path}: every row has several labels (multilabel='any' keeps them)."
        )
    n = len(loaded.rows)
    logger.info("goemotions: %d of %d rows are scored (multilabel=%s)", len(rows), n, multilabel)
    return rows


# --- reading -------------------------------------------------------------------------------------


def read_tsv_file(path: Path) -> list[Row]:
    """Rows of a file in the original layout: text, comma-separated label ids, comment id.

    Raises:
        BrokenData: a row has another shape, an unknown label id, or no comment id.
    """
    lines = read_tsv(path, ("text", "label ids", "comment id"))
    return [_row(path, n, text, ids.split(","), key) for n, (text, ids, key) in lines]


def read_parquet_file(path: Path) -> list[Row]:
    """Rows of the hub's ``simplified`` parquet: text, labels (list of ids), id.

    Raises:
        BrokenData: not such a file, or a bad row.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path, columns=["text", "labels", "id"])
    except (pyarrow.ArrowException, OSError) as error:
        raise BrokenData(f"{path}: expected parquet with text, labels, id ({error}).") from error
    columns = zip(*(table[name].to_pylist() for name in ("text", "labels", "id")), strict=True)
    return [_row(path, n, *values) for n, values in enumerate(columns, start=1)]


def _row(path: Path, number: int, text: Any, ids: Sequence[Any], key: Any) -> Row:
    """One checked row, its labels in ascending order; ``ids`` may be strings."""
    if not isinstance(text, str):
        raise broken_row(path, number, "a text", text)
    if not isinstance(key, str) or not key.strip():
        raise broken_row(path, number, "a comment id", key)
    try:
        labels = [int(i) for i in ids]
    except (TypeError, ValueError):
        labels = []
    if not labels or len(set(labels)) < len(labels) or not set(labels) <= set(range(len(LABELS))):
        expected = f"distinct comma-separated label ids from 0 to {len(LABELS) - 1}"
        raise broken_row(path, number, expected, ids)
    return {"id": key.strip(), "text": text, "labels": sorted(labels)}


def _dataset(rows: Sequence[Row], loaded: LoadedRows) -> datasets.Dataset:
    columns = {name: [row[name] for row in rows] for name in ("id", "text", "labels")}
    columns["label"] = [row["labels"][0] for row in rows]
    columns["source"] = [loaded.source] * len(rows)
    columns["published_data"] = [loaded.published] * len(rows)
    return datasets.Dataset.from_dict(columns, features=FEATURES)


_HUB_FILE = "simplified/{}-00000-of-00001.parquet"
SPEC = DatasetSpec(
    name="goemotions",
    files={"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"},
    read=read_tsv_file,
    hub=HubFiles(
        repo_id="google-research-datasets/go_emotions",
        revision="add492243ff905527e67aeb8b80c082af02207c3",
        files={name: _HUB_FILE.format(name) for name in ("train", "validation", "test")},
        read=read_parquet_file,
    ),
    published_rows={"train": 43410, "validation": 5426, "test": 5427},
)


class LabelDiverseSampler(fewshot.LabelDiverseSampler):
    """As the base class says, of GoEmotions."""

    spec = SPEC
