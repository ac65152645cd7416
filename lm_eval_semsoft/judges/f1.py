"""Two answers mean the same if they share enough words: SQuAD's token F1."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from .base import Judge, Pair, at_half
from .text import squad_tokens


class F1(Judge):
    """Scores token F1, bent so that the threshold becomes .5 (with ``f1:0.5`` it is F1 itself).

    Args:
        threshold: F1 from which on two answers mean the same, above 0 and at most 1.
    """

    def __init__(self, threshold: float = 0.5) -> None:
        super().__init__(f"f1:{threshold:g}")
        self.threshold = threshold

    def score(self, pairs: Sequence[Pair]) -> list[float]:
        return [at_half(token_f1(pair.a, pair.b), self.threshold) for pair in pairs]


def token_f1(a: str, b: str) -> float:
    """2 · words in common / words of both, 0..1, a word as often as it comes in both.

    >>> token_f1("the big red car", "a red car")
    0.8
    """
    first, second = Counter(squad_tokens(a)), Counter(squad_tokens(b))
    total = first.total() + second.total()
    return 2 * (first & second).total() / total if total else 0.0
