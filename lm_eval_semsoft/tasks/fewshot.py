"""Few-shot examples of label-set tasks: which rows may be examples, and in which order.

A row is a dict with ``id``, ``text`` and ``labels`` (numbers of its right labels); only rows with
one label become examples.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from lm_eval.api.samplers import ContextSampler

from lm_eval_semsoft.tasks.data import DatasetSpec, DataUnavailable, LoadedRows, Row, load_rows

logger = logging.getLogger(__name__)

# Examples come from the train split, except when that is what is evaluated.
FEWSHOT_SPLIT = {"test": "train", "validation": "train", "train": "validation"}
FEWSHOT_PER_LABEL = 10  # candidates kept: far more than fit into a prompt, few enough to be quick
FEWSHOT_SEED = 1234  # the harness's own default


def fewshot_rows(
    spec: DatasetSpec,
    evaluated: str,
    loaded: LoadedRows,
    keep: Callable[[Row], bool] = lambda row: True,
) -> list[Row]:
    """Candidates from the source of the evaluated rows: never published ones beside our sample.

    Args:
        spec: the dataset.
        evaluated: the split that is evaluated, `loaded` its rows.
        keep: which rows may be examples.

    Returns:
        As `fewshot_candidates`; empty when the source has no such split (zero-shot needs none).
    """
    try:
        pool = load_rows(spec, FEWSHOT_SPLIT[evaluated], source=loaded.source)
    except DataUnavailable:
        folder = loaded.path.parent
        logger.info("%s: no few-shot examples, %s holds no such split", spec.name, folder)
        return []
    evaluated_texts = {row["text"].strip() for row in loaded.rows}
    return fewshot_candidates([row for row in pool.rows if keep(row)], evaluated_texts)


def fewshot_candidates(rows: Sequence[Row], evaluated_texts: set[str]) -> list[Row]:
    """Rows with one label, some text, each text once, and no text that is evaluated.

    Returns:
        At most `FEWSHOT_PER_LABEL` rows of each label, in the order of `label_diverse`.
    """
    taken = {"", *evaluated_texts}
    fresh: list[Row] = []
    for row in rows:
        if len(row["labels"]) == 1 and row["text"].strip() not in taken:
            taken.add(row["text"].strip())
            fresh.append(row)
    ordered = label_diverse(fresh, FEWSHOT_SEED)
    kept: Counter[int] = Counter()
    return [row for row in ordered if _count(kept, row["labels"][0]) <= FEWSHOT_PER_LABEL]


def label_diverse(rows: Iterable[Row], seed: int | None) -> list[Row]:
    """A seeded order in which every label comes once before any label comes twice, and so on.

    It depends on the rows and the seed, not on the order of the rows.
    """
    shuffled = sorted(rows, key=lambda row: (row["id"], row["text"]))
    random.Random(seed).shuffle(shuffled)
    seen: Counter[int] = Counter()
    rounds = [_count(seen, row["labels"][0]) for row in shuffled]
    return [shuffled[i] for i in sorted(range(len(shuffled)), key=rounds.__getitem__)]


def _count(counter: Counter[int], label: int) -> int:
    counter[label] += 1
    return counter[label]


class LabelDiverseSampler(ContextSampler):
    """Few-shot examples: the same for every document, as many different labels as possible.

    The same examples make one shared prompt prefix: comparable and fast. The harness's few-shot
    seed (4th value of ``--seed``) chooses the order. A task derives from it and names its dataset.
    """

    spec: ClassVar[DatasetSpec]
    df: Sequence[dict[str, Any]]
    _seed: int | None = FEWSHOT_SEED
    _ordered: list[Row] | None = None

    def set_rnd(self, rnd: int | None) -> LabelDiverseSampler:
        """Order the candidates by a seed (None: at random, as in the harness)."""
        super().set_rnd(rnd)
        self._seed, self._ordered = rnd, None
        return self

    def candidates(self) -> Sequence[Row]:
        """All rows that may be examples: what the task's few-shot split holds."""
        return self.df

    def sample(
        self, n: int, eval_doc: Any = None, df: Any = None, **kwargs: Any
    ) -> Sequence[dict[str, Any]]:
        """The first ``n`` candidates.

        Raises:
            DataUnavailable: there are fewer, e.g. because the data source has no train split.
        """
        if self._ordered is None:
            self._ordered = label_diverse(self.candidates(), self._seed)
        if n > len(self._ordered):
            files = " or ".join(self.spec.local_names("train"))
            raise DataUnavailable(
                f"num_fewshot={n}: the data source of {self.spec.name} offers "
                f"{len(self._ordered)} examples besides the evaluated texts; use a smaller number, "
                "or put the train split beside the evaluated one "
                f"(SEMSOFT_DATA_DIR/{self.spec.name}/{files})."
            )
        return self._ordered[:n]
