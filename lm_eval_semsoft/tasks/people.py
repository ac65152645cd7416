"""What people did with a question, as columns of a document: shares, entropy, response times.

Every task of the group ``human_alignment`` has these columns, so that metrics and reports need not
know which data set they look at.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import datasets
from scipy.special import entr

from lm_eval_semsoft.tasks.data import LoadedRows, Row

logger = logging.getLogger(__name__)

TIMES = ("response_time_correct", "response_time_wrong", "response_time")
NAN = math.nan
_TEXT, _NUMBER, _COUNT = (datasets.Value(kind) for kind in ("string", "float64", "int64"))

# Times in ms (or their logarithms); NaN where nothing is known.
FEATURES = datasets.Features(
    {
        "id": _TEXT,
        "question": _TEXT,
        "options": [_TEXT],
        "label": _COUNT,  # the first right option; -1 in free response
        "labels": [_COUNT],  # all right options
        "human_shares": [_NUMBER],
        "human_entropy": _NUMBER,
        "human_accuracy": _NUMBER,
        **dict.fromkeys(TIMES, _NUMBER),
        "answers": [_TEXT],  # right answers of free response
        "subject": _TEXT,
        "source": _TEXT,
        "published_data": _COUNT,
        "dropped_documents": _COUNT,  # of the whole task: the same in every row
        "dropped_times": _COUNT,
    }
)


@dataclass(frozen=True)
class TimeRule:
    """What becomes of response times.

    Attributes:
        log: take the natural logarithm; a time of 0 has none and becomes NaN.
        low, high: times (ms) outside become NaN; the bounds are inside.
    """

    log: bool = False
    low: float = 0.0
    high: float = math.inf

    def apply(self, ms: float) -> tuple[float, bool]:
        """The time to use, and whether this rule took one away."""
        if math.isnan(ms):
            return ms, False
        if not self.low <= ms <= self.high or (self.log and ms == 0):
            return NAN, True
        return (math.log(ms) if self.log else ms), False


def time_rule(log_times: Any, trim_times: Any) -> TimeRule:
    """The parameters ``log_times`` and ``trim_times``, checked.

    Raises:
        ValueError: ``log_times`` is no truth value, ``trim_times`` no [low, high] in ms.
    """
    if not isinstance(log_times, bool):
        raise ValueError(f"log_times={log_times!r} is not known: use true or false.")
    if trim_times is None:
        return TimeRule(log_times)
    pair = list(trim_times) if isinstance(trim_times, (list, tuple)) else []
    if len(pair) == 2 and all(end is None or _is_time(end) for end in pair):
        low = 0.0 if pair[0] is None else float(pair[0])
        high = math.inf if pair[1] is None else float(pair[1])
        if low < high:
            return TimeRule(log_times, low, high)
    raise ValueError(
        f"trim_times={trim_times!r} is not known: use [low, high] in milliseconds with low < high, "
        "null for an open end, such as [1000, null]."
    )


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0


def normalised(shares: Sequence[float]) -> list[float]:
    """Shares that sum to 1; published ones are rounded, and do not.

    Raises:
        ValueError: one is negative or not finite, or all are 0.
    """
    total = math.fsum(shares)
    if not (math.isfinite(total) and total > 0 and min(shares) >= 0):
        raise ValueError(f"shares={list(shares)!r} must be numbers from 0, at least one above.")
    return [share / total for share in shares]


def entropy(shares: Sequence[float]) -> float:
    """Entropy of people's answers ÷ ln(number of options), 0..1: are they of one mind.

    Args:
        shares: share of people per option, sum 1.

    Returns:
        NaN without shares, 0 with one option.
    """
    if len(shares) < 2:
        return 0.0 if len(shares) else NAN
    return math.fsum(float(entr(share)) for share in shares) / math.log(len(shares))


def right_options(options: Sequence[str], right: int) -> list[int]:
    """Numbers of the options that read like the right one, itself first."""
    same = [i for i, option in enumerate(options) if option == options[right] and i != right]
    return [right, *same]


def document(key: str, question: str, **known: Any) -> Row:
    """A document with everything that is known of it; the rest is empty or NaN."""
    row: Row = {
        "id": key,
        "question": question,
        "options": [],
        "labels": [],
        "human_shares": [],
        "human_accuracy": NAN,
        **dict.fromkeys(TIMES, NAN),
        "answers": [],
        "subject": "",
        **known,
    }
    row["label"] = row["labels"][0] if row["labels"] else -1
    row.setdefault("human_entropy", entropy(row["human_shares"]))
    return row


def distinct(rows: Iterable[Row]) -> Iterator[Row]:
    """The rows; an id that has come before gets a number."""
    seen: set[str] = set()
    for row in rows:
        key, n = row["id"], 1
        while key in seen:
            n += 1
            key = f"{row['id']}-{n}"
        seen.add(key)
        yield {**row, "id": key}


def finish(
    task: str,
    rows: Iterable[Row],
    loaded: LoadedRows,
    dropped: Mapping[str, int] | None = None,
    times: TimeRule | None = None,
) -> datasets.DatasetDict:
    """The ``test`` split of a task: documents with their source, and what was left out.

    Args:
        task: for messages.
        rows: as `document` makes them.
        loaded: where they come from.
        dropped: reason -> number of documents that were left out; logged, and counted in the
            column ``dropped_documents``.
        times: what becomes of response times; taken away ones are counted in ``dropped_times``.

    Raises:
        ValueError: no row is left.
    """
    reasons = Counter(dropped or {})
    kept, trimmed = [], 0
    for row in rows:
        for name in TIMES:
            row[name], gone = (times or TimeRule()).apply(row[name])
            trimmed += gone
        kept.append(row)
    told = ", ".join(f"{n} {why}" for why, n in reasons.items() if n) or "none"
    logger.info("%s: %d documents; left out: %s", task, len(kept), told)
    if trimmed:
        logger.info("%s: trim_times and log_times took %d response times away", task, trimmed)
    if not kept:
        raise ValueError(f"{task}: no document of {loaded.path} is left; left out: {told}.")
    constant = {
        "source": loaded.source,
        "published_data": loaded.published,
        "dropped_documents": reasons.total(),
        "dropped_times": trimmed,
    }
    columns = {
        name: [constant[name] if name in constant else row[name] for row in kept]
        for name in FEATURES
    }
    return datasets.DatasetDict(test=datasets.Dataset.from_dict(columns, features=FEATURES))
