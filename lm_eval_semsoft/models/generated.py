"""`GeneratedText`: what the harness gets for a generation request."""

from __future__ import annotations

from lm_eval_semsoft.engine.trace import Trace


class GeneratedText(str):
    """The generated text to the harness, and more to those who know.

    Attributes:
        trace: what each token of the text tells.
    """

    trace: Trace

    def __new__(cls, text: str, trace: Trace) -> GeneratedText:
        self = super().__new__(cls, text)
        self.trace = trace
        return self

    def __getnewargs__(self) -> tuple[str, Trace]:  # type: ignore[override]
        return (str(self), self.trace)
