"""Verbalised confidence: a model answers and says how sure it is (tasks ``*_verbal…``).

How the replies are read is in `lm_eval_semsoft.tasks.verbal_formats`; what an unreadable one counts
as, in `baseline.record`. The wording of the prompts is ours.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lm_eval.api.instance import Instance

from lm_eval_semsoft.tasks import questions
from lm_eval_semsoft.tasks.baseline import BaselineTask, Reply, ask
from lm_eval_semsoft.tasks.verbal_formats import Verbal, parse_tags, parse_ten


@dataclass(frozen=True)
class Example:
    """A solved question.

    Attributes:
        question, text: the question, and a text to go with it, which need not settle it.
        think, answer, analysis: the reply.
        tenths: its confidence, 0 to 10.
    """

    question: str
    text: str
    think: str
    answer: str
    analysis: str
    tenths: int


# Confidences vary, and the second and the last answer are wrong (it was Cebu; it has 365 steps):
# nothing but sure and right examples would teach to be sure.
EXAMPLES = (
    Example(
        "Which planet is known as the red planet?",
        "Iron oxide on its surface makes Mars look red.",
        "A planet that looks red has rust on its surface. That is Mars.",
        "Mars",
        "This is common knowledge, and no other planet has that name.",
        10,
    ),
    Example(
        "What was the first capital of the Spanish Philippines?",
        "Manila was the seat of the Spanish governors of the Philippines for more than 300 years.",
        "Manila was the seat of government for centuries, but it need not have been the first one.",
        "Manila",
        "The question asks for the first capital, which hints at another town before Manila. I do "
        "not remember which, so this is likely to be wrong.",
        2,
    ),
    Example(
        "Who painted the ceiling of the Paris opera house in 1964?",
        "The ceiling of 1964, full of dancers and lovers, covers an older one.",
        "A painter who worked in France in the 1960s: Picasso, Miró or Chagall. I connect large, "
        "colourful ceilings with Chagall.",
        "Marc Chagall",
        "I am fairly sure that he painted a ceiling in Paris, less sure about the year.",
        7,
    ),
    Example(
        "How many steps lead to the top of the lighthouse of Genoa?",
        "The lighthouse of Genoa, called the Lanterna, is 77 metres tall.",
        "Tall lighthouses have several hundred steps. I have never read the number for this one.",
        "about 300",
        "The size may be right, but the number is a guess.",
        1,
    ),
)


class VerbalTask(BaselineTask):
    """A task whose model is told, and shown, in which format it has to reply.

    Chat models are told in the system message, base models in front of the examples.
    """

    conventions = ("zero", "exclude")

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        config = dict(config or {})
        self.ask_as_recorded(config)
        super().__init__(config)

    @staticmethod
    @abstractmethod
    def parse(text: str) -> Verbal:
        """Read a reply."""

    @staticmethod
    @abstractmethod
    def written(example: Example) -> str:
        """The reply of an example, in the format."""

    def examples(self, context: str) -> list[dict[str, Any]]:
        """The solved questions in front of every document."""
        return [
            {
                "question": example.question,
                "answers": [self.written(example)],
                "context": example.text if context == "gold" else "",
            }
            for example in EXAMPLES
        ]

    def fewshot_context(
        self,
        doc: dict[str, Any],
        num_fewshot: int,
        system_instruction: str | None = None,
        apply_chat_template: bool = False,
        **kwargs: Any,
    ) -> Any:
        """The prompt of a document; a base model's has the instruction, too."""
        is_chat = apply_chat_template or (self.recorded is not None and self.recorded.is_chat)
        if not is_chat and system_instruction is None:
            system_instruction = f"{self.instruction}\n\n"
        return super().fewshot_context(
            doc,
            num_fewshot,
            system_instruction=system_instruction,
            apply_chat_template=apply_chat_template,
            **kwargs,
        )

    def read(self, instances: Sequence[Instance]) -> Reply:
        """What the model said; an answer or a confidence that cannot be read leaves it unparsed."""
        text = instances[0].resps[0]
        found = self.parse(str(text))
        return Reply(
            answer=found.answer or "",
            confidence=math.nan if found.confidence is None else found.confidence,
            parsed=found.complete,
            n_tokens=float(getattr(text, "n_tokens", math.nan)),
        )


class TagsTask(VerbalTask):
    """The format of RLCR (Damani et al. 2025)."""

    form = "tags"
    instruction = (
        "Reply to each question in four parts, each between its own tags. Between <think> and "
        "</think>, reason briefly. Between <answer> and </answer>, give nothing but the answer, in "
        "a few words. Between <analysis> and </analysis>, say how reliable that answer is. Between "
        "<confidence> and </confidence>, give the probability that it is right, as a number from 0 "
        "to 1. Write nothing else."
    )
    parse = staticmethod(parse_tags)

    @staticmethod
    def written(example: Example) -> str:
        return (
            f"<think>{example.think}</think> <answer>{example.answer}</answer> "
            f"<analysis>{example.analysis}</analysis> "
            f"<confidence>{example.tenths / 10:g}</confidence>"
        )


class TenTask(VerbalTask):
    """The format of Rewarding Doubt (Stangel et al. 2025)."""

    form = "ten"
    instruction = (
        "Reply to each question with your answer, in a few words, and with your confidence that it "
        "is right, as a whole number from 0 (surely wrong) to 10 (surely right). Use this form and "
        "write nothing else: Answer: your answer, Confidence: your number"
    )
    parse = staticmethod(parse_ten)

    @staticmethod
    def written(example: Example) -> str:
        return f"Answer: {example.answer}, Confidence: {example.tenths}"


def doc_to_text(doc: Mapping[str, Any]) -> str:
    """The question; what comes next is the model's."""
    return ask(doc)


def doc_to_target(doc: Mapping[str, Any]) -> str:
    """The reply of an example, or the (first) gold answer of a document."""
    return questions.doc_to_target(doc)
