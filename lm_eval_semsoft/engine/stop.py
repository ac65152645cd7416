"""When a generated answer ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Stop:
    """When an answer ends.

    Attributes:
        tokens: tokens that end it.
        strings: texts that end it.
        look_back: how many of the last tokens are searched for them.
        decode: token lists -> their texts, special tokens included.
    """

    tokens: frozenset[int] = frozenset()
    strings: tuple[str, ...] = ()
    look_back: int = 0
    decode: Callable[[list[list[int]]], list[str]] = field(default=lambda rows: [], compare=False)

    def ended(self, answers: Sequence[Sequence[int]]) -> list[bool]:
        """Which answers end with their last token."""
        done = [answer[-1] in self.tokens for answer in answers]
        if self.strings:
            tails = self.decode([list(answer[-self.look_back :]) for answer in answers])
            done = [d or any(s in t for s in self.strings)
                    for d, t in zip(done, tails, strict=True)]  # fmt: skip
        return done
