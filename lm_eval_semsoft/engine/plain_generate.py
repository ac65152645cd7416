"""Answers of models that do not go through our loop: `model.generate`, watched or led.

Batches hold prompts of one length only, so that nothing is padded: not every model that lacks a
key-value cache reads a mask.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)

from .forward import NaNLogits
from .plan import Tokens
from .readout import NotFinite
from .stop import Stop
from .token_measures import Measures, Pick


def write_plainly(
    model: Any,
    device: torch.device,
    prompts: Sequence[Tokens],
    max_tokens: int,
    stop: Stop,
    batch_size: int,
    pick: Pick,
) -> Iterator[tuple[int, list[int], list[Measures]]]:
    """Yield (index, tokens, measures of each token) for every prompt; see `Generator.generate`.

    Raises:
        NaNLogits: naming the prompt.
    """
    order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
    for n_tokens, same in groupby(order, key=lambda i: len(prompts[i])):
        own = list(same)
        for start in range(0, len(own), batch_size):
            batch = own[start : start + batch_size]
            ids = torch.tensor([prompts[i] for i in batch], device=device)
            leader, ender = _Leader(pick, batch, n_tokens), _Ender(n_tokens, stop)
            try:
                given = model.generate(
                    input_ids=ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=max_tokens,
                    do_sample=False,
                    pad_token_id=0,
                    logits_processor=LogitsProcessorList([leader]),
                    stopping_criteria=StoppingCriteriaList([ender]),
                    **({"eos_token_id": sorted(stop.tokens)} if stop.tokens else {}),
                )
            except NotFinite as error:
                raise NaNLogits(batch[error.row]) from error
            for row, index in enumerate(batch):
                tokens = given[row, n_tokens:].tolist()[: ender.length(row)]
                yield index, tokens, [step[row] for step in leader.steps[: len(tokens)]]


class _Leader(LogitsProcessor):
    """Leaves only the picked token of each row, and keeps what the logits tell at each step."""

    def __init__(self, pick: Pick, answers: Sequence[int], n_prompt: int) -> None:
        self.steps: list[Measures] = []
        self._pick, self._answers, self._n_prompt = pick, answers, n_prompt

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        number = input_ids.shape[1] - self._n_prompt
        tokens, measures = self._pick(scores, [(answer, number) for answer in self._answers])
        if measures is not None:
            self.steps.append(measures)
        picked = torch.tensor(tokens, device=scores.device)[:, None]
        return torch.full_like(scores, float("-inf")).scatter_(1, picked, 0.0)


class _Ender(StoppingCriteria):
    """Ends each answer by itself, and knows how long it was then."""

    def __init__(self, n_prompt: int, stop: Stop) -> None:
        self._n_prompt, self._stop = n_prompt, stop
        self._lengths: dict[int, int] = {}

    def length(self, row: int) -> int | None:
        return self._lengths.get(row)

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        answers = input_ids[:, self._n_prompt :].tolist()
        for row, ended in enumerate(self._stop.ended(answers)):
            if ended:
                self._lengths.setdefault(row, len(answers[row]))
        done = [row in self._lengths for row in range(len(answers))]
        return torch.tensor(done, device=input_ids.device)
