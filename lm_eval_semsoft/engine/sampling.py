"""Tokens drawn at random, so that an answer depends on its own random numbers alone.

A token is drawn by the Gumbel-max rule: the largest of log p + g, with independent Gumbel noise g,
is a draw from p. Rounding changes a draw only where two of those sums nearly tie; walking along
the cumulated probabilities would change it wherever a large vocabulary is flat. It is done twice,
for a block of the vocabulary and for a token in it, so that some 2 sqrt(V) numbers a token do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from .readout import NotFinite, slices_of, top_k_of
from .token_measures import Measures

_TOP = 1024  # most probable tokens among which a nucleus mostly ends
_INFINITE = float("-inf")
_COLDEST = torch.finfo(torch.float32).tiny  # what is below is 0 in fp32


@dataclass(frozen=True)
class Sampling:
    """What a token is drawn from, in the order in which it is applied.

    Attributes:
        temperature: divides the logits, above 0.
        top_k: draw among that many most probable tokens, and those as probable as the last; 0 =
            all.
        top_p: draw from the smallest set of most probable tokens that holds this probability, of
            at least one token; 1 = all.

    Raises:
        ValueError: one of them is out of its range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature={self.temperature} must be a number above 0 to sample.")
        if self.top_k < 0:
            raise ValueError(f"top_k={self.top_k} must be 0 (all tokens) or a number of tokens.")
        if not 0 <= self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p} must be in [0, 1]; 1 keeps all tokens.")

    def scores(self, logits: torch.Tensor) -> torch.Tensor:
        """[n, V] fp32 of logits [n, V]: tempered, up to a constant of each row, and -inf where no
        token is drawn."""
        scores = logits.float()
        if self.temperature != 1:
            # The largest one at 0: near a temperature of 0 it stays there, and the rest overflow
            # to -inf, which leaves the greedy token.
            scores = scores - scores.amax(-1, keepdim=True)
            scores = scores / max(self.temperature, _COLDEST)
        if 0 < self.top_k < scores.shape[1]:
            least = top_k_of(scores, self.top_k)[0][:, -1:]
            scores = scores.masked_fill(scores < least, _INFINITE)
        return scores if self.top_p == 1 else _nucleus(scores, self.top_p)


def _nucleus(scores: torch.Tensor, p: float) -> torch.Tensor:
    """-inf outside of the smallest sets that hold probability p; among equals the first stay."""
    total = scores.logsumexp(-1, keepdim=True)
    top = top_k_of(scores, min(_TOP, scores.shape[1]))[0]
    mass = (top - total).exp().cumsum(-1)
    if bool((mass[:, -1] < p).any()):
        top = scores.sort(-1, descending=True).values
        mass = (top - total).exp().cumsum(-1)
    before = F.pad(mass[:, :-1], (1, 0))
    size = (before < p).sum(-1, keepdim=True).clamp_min(1)
    least = top.gather(1, size - 1)
    kept = scores >= least
    if bool((kept.sum(-1, keepdim=True) > size).any()):
        tied = scores == least
        room = size - (scores > least).sum(-1, keepdim=True)
        kept = kept & (~tied | (tied.cumsum(-1) <= room))
    return scores.masked_fill(~kept, _INFINITE)


def draw(
    logits: torch.Tensor, sampling: Sampling, places: Sequence[tuple[bytes, int]]
) -> tuple[list[int], Measures]:
    """A token for each row of the logits [n, V], and its log-probability [n, 1].

    The log-probabilities are the model's own, in nats: of the whole distribution as it is before
    `sampling`.

    Args:
        logits: [n, V].
        sampling: what to draw from.
        places: [n] the seed (16 bytes) of each row's answer, and the number of the token in it:
            the same ones always meet the same random numbers.

    Raises:
        NotFinite: some logits of a row are NaN or infinite, or none is above -inf.
    """
    size = math.isqrt(logits.shape[1] - 1) + 1
    blocks = -(-logits.shape[1] // size)
    noise = torch.from_numpy(gumbels(places, blocks + size)).to(logits.device)
    tokens, logprobs = [], []
    for rows in slices_of(logits):
        own = slice(rows.start, rows.stop)
        ids, chosen = _draw(logits[own].float(), sampling, noise[own], size, blocks, rows.start)
        tokens.append(ids)
        logprobs.append(chosen)
    return torch.cat(tokens).tolist(), torch.cat(logprobs).cpu().numpy()[:, None]


def _draw(
    logits: torch.Tensor,
    sampling: Sampling,
    noise: torch.Tensor,
    size: int,
    blocks: int,
    first: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    scores = sampling.scores(logits)
    table = F.pad(scores, (0, blocks * size - scores.shape[1]), value=_INFINITE)
    table = table.view(-1, blocks, size)
    masses = table.logsumexp(-1)
    total = (masses if scores is logits else logits).logsumexp(-1)
    if bad := (~torch.isfinite(total)).nonzero().flatten().tolist():
        raise NotFinite(first + bad[0])
    block = (masses + noise[:, :blocks]).argmax(-1)
    inside = table[torch.arange(len(table), device=table.device), block]
    ids = block * size + (inside + noise[:, blocks:]).argmax(-1)
    return ids, logits.gather(1, ids[:, None])[:, 0] - total


def gumbels(places: Sequence[tuple[bytes, int]], n: int) -> NDArray[np.float32]:
    """[rows, n] Gumbel noise, as the seed (16 bytes) and number of each row say.

    The bits are those of the counter-based Philox generator, which no library version changes.
    """
    bits = [
        np.random.Philox(counter=number << 64, key=int.from_bytes(seed, "little")).random_raw(n)
        for seed, number in places
    ]
    uniform = ((np.stack(bits) >> np.uint64(11)) + 0.5) * 2.0**-53  # inside (0, 1)
    noise: NDArray[np.float32] = (-np.log(-np.log(uniform))).astype(np.float32)
    return noise
