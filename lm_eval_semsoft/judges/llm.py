"""Two answers mean the same if a language model says yes when asked.

The model is not sampled: one pass of our engine reads the probabilities of "yes" and "no" behind
the prompt, for both orders of the answers, over the keys and values of the examples that all
prompts begin with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lm_eval_semsoft.engine.forward import Engine
from lm_eval_semsoft.engine.plan import Prompt

from .base import Judge, JudgeError, Pair
from .loading import load

_TASK = "Do the two answers to the question mean the same? Reply yes or no."
_EXAMPLES = (  # every second one is the same, so that no reply is favoured
    ("What is the capital of Australia?", "Canberra", "It is the city of Canberra.", "yes"),
    ("What is the capital of Australia?", "Canberra", "Sydney", "no"),
    ("How many legs does a spider have?", "8", "eight legs", "yes"),
    ("How many legs does a spider have?", "six", "8", "no"),
    ("Who painted the Mona Lisa?", "Leonardo da Vinci", "Michelangelo", "no"),
    ("Who painted the Mona Lisa?", "da Vinci", "Leonardo", "yes"),
)
_MOST_CHARACTERS = 1000  # of an answer and of a question, some 250 tokens each


class LLM(Judge):
    """Scores P(yes) / (P(yes) + P(no)), the mean of both orders in log-odds.

    Args:
        model: hub id, folder, or what `locate` understands.
        locate: turns a model's name into something that can be loaded, e.g.
            `lm_eval_semsoft.models.demo.resolve` for the packaged demo models.
        device: None = a GPU if there is one.
        batch_size: prompts at once, as for `Engine.read`.

    Raises:
        JudgeError: the model cannot be loaded.
    """

    def __init__(
        self,
        model: str,
        locate: Callable[[str], str] = str,
        device: str | None = None,
        batch_size: int = 32,
    ) -> None:
        super().__init__(f"llm:{model}")
        try:
            path = locate(model)
        except ValueError as error:  # it speaks of an argument of its own
            raise JudgeError(f"judge={self.name!r}: the model is not known ({error})") from error
        self._tokenizer, loaded, where = load(
            self.name, path, "AutoModelForCausalLM", "auto", device
        )
        if where == "cpu":
            loaded = loaded.float()  # CPUs without bf16 instructions emulate them, slowly
        self._engine = Engine(loaded)
        self._batch_size = batch_size
        self._chat = bool(self._tokenizer.chat_template)
        self._labels = tuple(
            tuple(self._tokenizer.encode(reply, add_special_tokens=False))
            for reply in (("yes", "no") if self._chat else (" yes", " no"))
        )

    def score(self, pairs: Sequence[Pair]) -> list[float]:
        prompts = [
            Prompt(self._tokens(question, *answers), self._labels)
            for question, a, b in pairs
            for answers in ((a, b), (b, a))
        ]
        odds = np.empty(len(prompts))
        for i, readout in self._engine.read(prompts, self._batch_size, top_k=1):
            yes, no = readout.label_logprobs
            odds[i] = yes - no
        both = odds.reshape(-1, 2).mean(axis=1)
        return [float(p) for p in 1 / (1 + np.exp(-np.clip(both, -500, 500)))]

    def _tokens(self, question: str, a: str, b: str) -> tuple[int, ...]:
        """The prompt. Chats get the examples as turns, other models as text."""
        if not self._chat:
            shown = "\n\n".join(f"{_ask(q, x, y)} {reply}" for q, x, y, reply in _EXAMPLES)
            text = f"{_TASK}\n\n{shown}\n\n{_ask(question, a, b)}"
            return tuple(self._tokenizer.encode(text))
        turns: list[dict[str, str]] = []
        for q, x, y, reply in _EXAMPLES:
            turns += [_turn("user", f"{_TASK}\n\n{_ask(q, x, y)}"), _turn("assistant", reply)]
        turns.append(_turn("user", f"{_TASK}\n\n{_ask(question, a, b)}"))
        text = self._tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=True
        )
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))


def _ask(question: str, a: str, b: str) -> str:
    one, two, asked = (" ".join(x.split())[:_MOST_CHARACTERS] for x in (a, b, question))
    return f"Question: {asked}\nFirst answer: {one}\nSecond answer: {two}\nThe same:"


def _turn(role: str, content: str) -> dict[Any, Any]:
    return {"role": role, "content": content}
