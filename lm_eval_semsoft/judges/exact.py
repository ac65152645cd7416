"""Two answers mean the same if SQuAD's normalisation makes them the same text."""

from __future__ import annotations

from collections.abc import Sequence

from .base import Judge, Pair
from .text import squad


class Exact(Judge):
    """Scores 1 or 0."""

    def __init__(self) -> None:
        super().__init__("exact")

    def score(self, pairs: Sequence[Pair]) -> list[float]:
        return [float(squad(pair.a) == squad(pair.b)) for pair in pairs]
