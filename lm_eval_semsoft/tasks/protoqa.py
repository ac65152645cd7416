"""Survey questions and how many people gave which answer (ProtoQA, Boratko et al. 2020).

Loader of ``protoqa_mc``: the options are the clusters of answers. The rules are in
``task_configs/protoqa_mc/README.md``.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets

from lm_eval_semsoft.core.errors import check_choice
from lm_eval_semsoft.tasks import people
from lm_eval_semsoft.tasks.data import (
    BrokenData,
    DatasetSpec,
    HubFiles,
    Row,
    broken_row,
    load_rows,
    read_jsonl,
    warn_of_typos,
)

SURVEYS = ("scraped", "crowdsourced")
ORDERS = ("shuffled", "count")
ZERO_COUNTS = ("drop", "keep")
OPTIONS = ("survey", "order", "zero_counts")
CLUSTERS = range(2, 10)  # a question with one has no alternatives; with more, few people per option
# The column's name in the two configurations of the hub's data set.
HUB_CLUSTERS = ("answer-clusters", "answers-cleaned")


def load(
    survey: str = "scraped", order: str = "shuffled", zero_counts: str = "drop", **other: Any
) -> datasets.DatasetDict:
    """The ``custom_dataset`` of the YAML; options come from ``--metadata``.

    Args:
        survey: ``scraped`` or ``crowdsourced``, the two development sets.
        order: of a question's options: ``shuffled`` (seeded by its id), or by ``count`` as in the
            study, where A is always the most popular answer.
        zero_counts: ``drop`` leaves questions out of which a cluster has the count 0; ``keep``
            takes it for an answer that nobody gave.
        other: what else the harness passes; ignored.

    Returns:
        ``test``: columns as in `people.FEATURES`; the most popular answers count as right.

    Raises:
        ValueError: an option is unknown.
        DataUnavailable, BrokenData: see `lm_eval_semsoft.tasks.data.load_rows`.
    """
    check_choice("survey", survey, SURVEYS)
    check_choice("order", order, ORDERS)
    check_choice("zero_counts", zero_counts, ZERO_COUNTS)
    warn_of_typos("protoqa_mc", other, OPTIONS)
    loaded = load_rows(SPEC, survey)
    dropped: Counter[str] = Counter()
    kept = []
    for row in loaded.rows:
        if why := _unusable(row["clusters"], zero_counts):
            dropped[why] += 1
        else:
            kept.append(_document(row, order))
    return people.finish("protoqa_mc", kept, loaded, dropped)


def _unusable(clusters: Sequence[tuple[str, int]], zero_counts: str) -> str | None:
    """Why a question is left out, or None. Clusters are (name, count)."""
    counts = [count for _, count in clusters]
    if len(counts) not in CLUSTERS:
        return f"without {CLUSTERS[0]} to {CLUSTERS[-1]} clusters"
    if zero_counts == "drop" and 0 in counts:
        return "with a cluster whose count is 0"
    return None if sum(counts) else "without any counted answer"


def _document(row: Row, order: str) -> Row:
    # Ties keep the order of the file.
    clusters = sorted(row["clusters"], key=lambda cluster: -cluster[1])
    if order == "shuffled":
        random.Random(row["id"]).shuffle(clusters)
    counts = [count for _, count in clusters]
    shares = people.normalised(counts)
    labels = [i for i, count in enumerate(counts) if count == max(counts)]
    return people.document(
        row["id"],
        row["question"],
        options=[name for name, _ in clusters],
        labels=labels,
        human_shares=shares,
        human_accuracy=sum(shares[i] for i in labels),
    )


# --- reading -------------------------------------------------------------------------------------


def read_file(path: Path) -> list[Row]:
    """Rows of a file in the published layout: one JSON object per line.

    Raises:
        BrokenData: a row has another shape.
    """
    found = []
    for n, row in read_jsonl(path):
        question = _field(row, "question", "original") or _field(row, "question", "normalized")
        clusters = _field(row, "answers", "clusters")
        found.append(_row(path, n, _field(row, "metadata", "id"), question, clusters))
    return found


def read_parquet_file(path: Path) -> list[Row]:
    """Rows of the hub's parquet: id, question, and clusters as a list or as a dict of lists.

    Raises:
        BrokenData: not such a file, or a bad row.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        rows = pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        wanted = "id, question, answer clusters"
        raise BrokenData(f"{path}: expected parquet with {wanted} ({error}).") from error
    found = []
    for n, row in enumerate(rows, start=1):
        given = next((row[name] for name in HUB_CLUSTERS if name in row), None)
        if isinstance(given, Mapping) and {"count", "answers"} <= set(given):
            pairs = zip(given["count"], given["answers"], strict=True)
            given = [{"count": count, "answers": answers} for count, answers in pairs]
        found.append(_row(path, n, row.get("id"), row.get("question"), given))
    return found


def _field(row: Any, *names: str) -> Any:
    """A nested field; None if there is none."""
    for name in names:
        row = row.get(name) if isinstance(row, Mapping) else None
    return row


def _row(path: Path, number: int, key: Any, question: Any, clusters: Any) -> Row:
    if not isinstance(key, str) or not key.strip():
        raise broken_row(path, number, "an id", key)
    if not isinstance(question, str) or not question.strip():
        raise broken_row(path, number, "a question", question)
    given = list(clusters.values()) if isinstance(clusters, Mapping) else clusters
    if not isinstance(given, Sequence) or not all(map(_is_cluster, given)):
        raise broken_row(path, number, "clusters with a count and answers", clusters)
    # A cluster has no name of its own: its first answer stands for it, as in the study.
    named = [(cluster["answers"][0].strip(), int(cluster["count"])) for cluster in given]
    return {"id": key.strip(), "question": question.strip(), "clusters": named}


def _is_cluster(cluster: Any) -> bool:
    answers, count = _field(cluster, "answers"), _field(cluster, "count")
    texts = isinstance(answers, Sequence) and not isinstance(answers, str) and len(answers) > 0
    number = isinstance(count, int) and not isinstance(count, bool) and count >= 0
    return texts and number and isinstance(answers[0], str) and bool(answers[0].strip())


SPEC = DatasetSpec(
    name="protoqa",
    files={survey: f"dev.{survey}.jsonl" for survey in SURVEYS},
    read=read_file,
    hub=HubFiles(
        repo_id="community-datasets/proto_qa",
        # Nobody here could look up a commit; the log has the file's SHA-256.
        revision="main",
        files={
            "scraped": "proto_qa/validation-00000-of-00001.parquet",
            "crowdsourced": "proto_qa_cs/validation-00000-of-00001.parquet",
        },
        read=read_parquet_file,
    ),
    published_rows={"scraped": 980, "crowdsourced": 52},
    origin="https://github.com/iesl/protoqa-data/tree/master/data/dev",
)
