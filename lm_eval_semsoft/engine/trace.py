"""The trace: what every token of a generated text tells about the model's doubt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lm_eval_semsoft.core.uncertainty import answer_measures, measures_of_tokens

from .packing import pack_array, unpack_array

_BLOCK = 8  # tokens
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # what an unfinished character is decoded to

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, eq=False)
class Trace:
    """T generated tokens. Log-probabilities and entropies in nats, over the full vocabulary.

    Attributes:
        tokens: [T] int32.
        logprobs: [T] float32, of the generated token.
        top_logprobs: [T] float32, of the most probable token (another one where something else
            than its probability chose the token).
        entropy: [T] float32, entropy of the full next-token distribution.
        topk_entropies: [T, 5] float32, entropy of the `TOP_KS` most probable tokens, renormalised.
        nucleus_sizes: [T, 4] int32, tokens in the smallest set that reaches `NUCLEUS_LEVELS`.
        nucleus_entropies: [T, 4] float32, entropy of each nucleus, renormalised.
        ends: [T] int32, how many characters of the text the first t + 1 tokens settle: token t
            begins where token t - 1 ends. It never falls; a token that ends inside a character
            ends before it.
        vocabulary: V, entries of the distributions.
    """

    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    top_logprobs: NDArray[np.float32]
    entropy: NDArray[np.float32]
    topk_entropies: NDArray[np.float32]
    nucleus_sizes: NDArray[np.int32]
    nucleus_entropies: NDArray[np.float32]
    ends: NDArray[np.int32]
    vocabulary: int

    def __len__(self) -> int:
        return len(self.tokens)

    def cut(self, start: int, end: int) -> Trace:
        """The tokens that reach into characters [start, end) of the text, counted from there.

        The first of them may begin before, and the last may end after.
        """
        begins = np.concatenate([[0], self.ends[:-1]]) if len(self) else self.ends
        inside = ((self.ends > start) | (begins >= start)) & (begins < end)
        chosen = self._only(inside)
        return replace(chosen, ends=(chosen.ends.clip(start, end) - start).astype(np.int32))

    def after(self, n: int) -> Trace:
        """Without the first n tokens; the ends stay as they are."""
        return self._only(np.arange(len(self)) >= n)

    def _only(self, chosen: NDArray[np.bool_]) -> Trace:
        arrays = {f.name: getattr(self, f.name)[chosen] for f in fields(self)[:-1]}
        return Trace(**arrays, vocabulary=self.vocabulary)

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary; `from_json` gives back equal arrays."""
        arrays = {f.name: pack_array(getattr(self, f.name)) for f in fields(self)[:-1]}
        return {**arrays, "vocabulary": self.vocabulary}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Trace:
        arrays = {f.name: unpack_array(record[f.name]) for f in fields(cls)[:-1]}
        return cls(**arrays, vocabulary=record["vocabulary"])


def answer_doubt(trace: Trace, text: str) -> dict[str, float]:
    """Measures of doubt of a generated text (`core.uncertainty.answer_measures`)."""
    tokens = measures_of_tokens(
        trace.top_logprobs,
        trace.entropy,
        trace.topk_entropies,
        trace.nucleus_sizes,
        trace.nucleus_entropies,
        trace.vocabulary,
    )
    return answer_measures(trace.logprobs, tokens, text, trace.ends)


def settled(tokens: Sequence[int], decode: Decode) -> NDArray[np.int32]:
    """[T] characters of decode(tokens) that each beginning of the tokens settles.

    That is the length of what decode(tokens[: t + 1]) and decode(tokens) have in common from the
    start, and at least what the tokens before settle.
    """
    text = decode(tokens)
    ends = _settled_in_blocks(tokens, decode, text)
    if ends is None:  # what a token decodes to depends on tokens far before
        ends = [_common(decode(tokens[: t + 1]), text) for t in range(len(tokens))]
    return np.maximum.accumulate(np.array(ends, dtype=np.int32))


def _settled_in_blocks(tokens: Sequence[int], decode: Decode, text: str) -> list[int] | None:
    """As `settled`, in linear time; None where the blocks do not add up to the text.

    Each token is decoded with those of its block and of the block before, which is done.
    """
    ends: list[int] = []
    first, start, done, lead = 0, 0, 0, ""
    piece = ""
    for t in range(len(tokens)):
        own = decode(tokens[first : t + 1])
        piece = own[len(lead) :]
        ends.append(done + _common(piece, text[done : done + len(piece)]))
        whole = own.startswith(lead) and ends[-1] == done + len(piece)
        if t + 1 - start >= _BLOCK and whole and not own.endswith(_REPLACEMENT):
            first, start, done = start, t + 1, ends[-1]
            lead, piece = decode(tokens[first:start]), ""
    return ends if text[done:] == piece else None


def _common(a: str, b: str) -> int:
    """How many characters two texts share from the start."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y),
                min(len(a), len(b)))  # fmt: skip
