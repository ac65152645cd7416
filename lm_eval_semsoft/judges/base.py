"""What a judge is: how sure it is that two answers to a question mean the same.

`Judge` does for all judges what must not differ between them: answers that say nothing, identical
answers, symmetry, and a cache by content. A judge itself only scores pairs that are left.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import combinations
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from .text import clean, has_content

SAME = 0.5  # of every judge: from this score on, two answers mean the same
CACHED_PAIRS = 2**19  # about 100 MB of short answers


class Pair(NamedTuple):
    """Two answers to one question."""

    question: str
    a: str
    b: str


class Equivalence(Protocol):
    """All that others need from a judge; anything with this method can serve as one."""

    def equivalent(self, question: str, a: str, b: str) -> float: ...


class JudgeError(ValueError):
    """A judge that cannot be had: unknown, not installed, not reachable."""


class Judge(ABC):
    """A judge of whether answers mean the same.

    Scores are 0..1, and from `SAME` (.5) on two answers mean the same, whatever the judge. They
    rank pairs; only where a judge says so are they probabilities. `equivalent` is symmetric: a
    judge sees the two answers in one order, sorted by their text.

    Attributes:
        name: how `resolve` knows it, e.g. ``f1:0.5``.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._cache: dict[Pair, float] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @abstractmethod
    def score(self, pairs: Sequence[Pair]) -> Iterable[float]:
        """Score pairs, each once, of different answers that say something, a < b."""

    def equivalent(self, question: str, a: str, b: str) -> float:
        """How sure the judge is that a and b mean the same as answers to the question, 0..1.

        An answer without a single letter, number or symbol says nothing: it means the same as
        any other such answer (1) and never the same as one that says something (0). Identical
        answers mean the same (1).
        """
        return float(self.equivalents([Pair(question, a, b)])[0])

    def equivalents(self, pairs: Iterable[tuple[str, str, str]]) -> NDArray[np.float64]:
        """`equivalent` of many (question, a, b) at once, float64 [n]: the fast way.

        Raises:
            ValueError: the judge gave no score between 0 and 1.
        """
        cleaned = cache(clean)
        wanted = [
            Pair(cleaned(question), *sorted((cleaned(a), cleaned(b)))) for question, a, b in pairs
        ]
        found = {pair: known for pair in wanted if (known := self._known(pair)) is not None}
        new = [pair for pair in dict.fromkeys(wanted) if pair not in found]
        for pair, score in zip(new, self.score(new) if new else (), strict=True):
            if not 0 <= score <= 1:  # NaN, too
                raise ValueError(f"judge {self.name!r} gave the score {score} to {pair}")
            found[pair] = self._cache[pair] = float(score)
        while len(self._cache) > CACHED_PAIRS:
            del self._cache[next(iter(self._cache))]  # the oldest
        return np.array([found[pair] for pair in wanted], dtype=np.float64)

    def matrices(
        self, questions: Sequence[str], answers: Sequence[Sequence[str]]
    ) -> list[NDArray[np.float64]]:
        """Scores of all pairs of answers to each question, [N, N] each, symmetric, 1 on the
        diagonal: what `core.semantic_entropy.cluster` takes.

        Args:
            questions: [n].
            answers: [n], N of them for each question, which may differ.
        """
        pairs = [
            Pair(question, a, b)
            for question, own in zip(questions, answers, strict=True)
            for a, b in combinations(own, 2)
        ]
        scores, tables, start = self.equivalents(pairs), [], 0
        for own in answers:
            table, n = np.eye(len(own)), math.comb(len(own), 2)
            upper = np.triu_indices(len(own), 1)
            table[upper] = scores[start : start + n]
            tables.append(np.maximum(table, table.T))
            start += n
        return tables

    def _known(self, pair: Pair) -> float | None:
        if pair.a == pair.b:
            return 1.0
        says_something = has_content(pair.a), has_content(pair.b)
        if not all(says_something):
            return 0.0 if any(says_something) else 1.0
        return self._cache.get(pair)


def at_half(score: float, threshold: float) -> float:
    """Bend a score in 0..1 so that `threshold` becomes `SAME`; 0 stays 0, 1 stays 1.

    >>> at_half(0.4, 0.8), at_half(0.9, 0.8), at_half(1.0, 1.0)
    (0.25, 0.75, 1.0)
    """
    if score < threshold:
        return SAME * score / threshold
    if threshold >= 1:
        return 1.0
    return SAME + (1 - SAME) * (score - threshold) / (1 - threshold)


def check_threshold(judge: str, text: str) -> float:
    """A threshold in (0, 1] from the name of a judge.

    Raises:
        JudgeError: it is none.
    """
    try:
        threshold = float(text)
    except ValueError:
        threshold = math.nan
    if not 0 < threshold <= 1:
        raise JudgeError(
            f"judge={judge!r}: {text!r} is no threshold; it must be a number above 0 and at most 1."
        )
    return threshold
