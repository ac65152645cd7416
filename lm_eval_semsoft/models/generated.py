"""`GeneratedText`: what the harness gets for a generation request."""

from __future__ import annotations

import math
from typing import Any

from lm_eval_semsoft.engine.trace import Trace


class GeneratedText(str):
    """The generated text to the harness, and more to those who know.

    Attributes:
        trace: what each token of the text tells; None for sampled answers.
        logprob: of all tokens that were generated, with the one that ended the answer: the sum of
            their log-probabilities in the model's own distribution, before temperature and cuts.
            In nats; NaN where it is not known.
        n_tokens: how many those are, at least 1; NaN where it is not known.
    """

    trace: Trace | None
    logprob: float
    n_tokens: float

    def __new__(
        cls,
        text: str,
        trace: Trace | None = None,
        logprob: float = math.nan,
        n_tokens: float = math.nan,
    ) -> GeneratedText:
        self = super().__new__(cls, text)
        self.trace = trace
        self.logprob = logprob
        self.n_tokens = n_tokens
        return self

    @property
    def mean_logprob(self) -> float:
        """Nats a token."""
        return self.logprob / self.n_tokens

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (str(self), self.trace, self.logprob, self.n_tokens)
