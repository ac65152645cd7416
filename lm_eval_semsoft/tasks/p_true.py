"""P(True): a model answers, then reads its answer and says whether it is true (tasks ``*_ptrue``).

After Kadavath et al. 2022 (arXiv 2207.05221), in our own wording. The confidence is the probability
of ``True``, of the exact probabilities of ``True`` and ``False``: no neighbours vote here, they
would vote between opposites.

Both stages run in one command: each document has a generation request and two log-likelihood
requests, whose prompt is composed from the answer when it is asked for. The harness runs its
generation requests first if they come first among a run's requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from lm_eval.api.instance import Instance

from lm_eval_semsoft.engine.parts import encodable
from lm_eval_semsoft.tasks import questions
from lm_eval_semsoft.tasks.baseline import BaselineTask, Reply, ask

LABELS = ("True", "False")
CHECK = "Is the proposed answer True or False?"
LEAD = "The proposed answer is:"
INSTRUCTION = (
    "You will be shown questions, each with a proposed answer that may be right or wrong. Say "
    "which it is with one word: True or False."
)
# Question, text that holds the answer, proposed answer, is it right?
CHECKED = (
    (
        "In which country does the river Po reach the sea?",
        "The Po rises in the Cottian Alps and flows through northern Italy to the Adriatic Sea.",
        "Italy",
        True,
    ),
    (
        "Who wrote the play The Cherry Orchard?",
        "The Cherry Orchard is the last play by Anton Chekhov, first staged in 1904.",
        "Leo Tolstoy",
        False,
    ),
    (
        "Which metal is liquid at room temperature?",
        "Of all metals, mercury alone is liquid at room temperature, or quicksilver as it was "
        "once called.",
        "quicksilver",
        True,
    ),
    (
        "How many strings does a cello have?",
        "A cello has four strings, tuned in fifths.",
        "six",
        False,
    ),
)
_SECOND = "_check"  # added to the task's name in the requests of the second stage
_MARK = (
    "ProposedAnswer-4f1c9"  # where the answer goes in a prompt that has been rendered without it
)

ChatTemplate = Callable[..., str]


class Frame(NamedTuple):
    """A prompt around an answer that is not known yet."""

    before: str
    after: str

    def around(self, answer: str) -> str:
        return f"{self.before}{answer}{self.after}"


class AnswerMissing(RuntimeError):
    """The second stage was asked for before the first one ran."""


class AboutAnswer(Instance):
    """A label's log-likelihood after a prompt that holds the answer to another request.

    Args:
        answer: the request for the answer.
        frame: the prompt around it.
        label: the continuation.
        idx, metadata: as of any `Instance`.
    """

    def __init__(self, answer: Instance, frame: Frame, label: str, idx: int, metadata: Any) -> None:
        super().__init__("loglikelihood", answer.doc, (*frame, label), idx, metadata)
        self.answer = answer
        self.frame = frame
        self.label = label

    @property
    def args(self) -> tuple[str, str]:
        """Context and continuation.

        Raises:
            AnswerMissing: there is no answer yet.
        """
        if not self.answer.resps:
            raise AnswerMissing(
                f"{self.answer.task_name}: the model was asked whether its answers are true before "
                "it had given them, because another task's log-likelihoods came first: run P(True) "
                "tasks in a command of their own."
            )
        return self.frame.around(answer_text(self.answer.resps[0])), self.label


class Task(BaselineTask):
    """P(True) of the greedy answer, in two stages."""

    instruction = questions.INSTRUCTION
    conventions = ("none",)

    def examples(self, context: str) -> list[dict[str, Any]]:
        """The solved questions of the first stage; the second one's are `CHECKED`."""
        self.context = context
        return questions.examples(context)

    def doc_to_text(self, doc: Any, doc_to_text: Any = None) -> Any:
        """The question as `SampledTask` asks it, so that both have the same greedy answer."""
        if self.is_chat and doc_to_text in (None, self.config.doc_to_text):
            return questions.chat_text(doc)
        return super().doc_to_text(doc, doc_to_text)

    def construct_requests(self, doc: dict[str, Any], ctx: Any, **kwargs: Any) -> list[Instance]:
        """The request for an answer, and two about it.

        A base model's answer ends with its line (``until`` in the YAML); a chat model ends it
        itself.
        """
        chat = kwargs.get("apply_chat_template", False)
        template: ChatTemplate | None = kwargs.get("chat_template")
        answer = super().construct_requests(doc, ctx, **kwargs)
        assert isinstance(answer, Instance)
        n = self.config.num_fewshot or 0
        if chat and template is not None:
            answer.args[1]["until"] = questions.chat_stops(answer.args[1].get("until", []))
            frame, space = chat_frame(doc, self.context, n, template), ""
        else:
            frame, space = plain_frame(doc, self.context, n), " "
        # A name of its own: a readouts directory has one kind of prompt for each task and document.
        task, *numbers = kwargs["metadata"]
        metadata = (f"{task}{_SECOND}", *numbers)
        about = [
            AboutAnswer(answer, frame, f"{space}{label}", idx, metadata)
            for idx, label in enumerate(LABELS, start=1)
        ]
        return [answer, *about]

    def read(self, instances: Sequence[Instance]) -> Reply:
        """The answer and P(True); an empty answer is an answer that could not be read."""
        text, yes, no = (instance.resps[0] for instance in instances)
        answer = answer_text(text)
        return Reply(
            answer=answer,
            confidence=p_true(_exact(yes), _exact(no)),
            parsed=bool(answer),
            n_tokens=float(getattr(text, "n_tokens", math.nan)),
        )


def p_true(log_true: float, log_false: float) -> float:
    """P(True) among True and False, from their log-probabilities; NaN if both are impossible."""
    if math.isnan(log_true) or math.isnan(log_false) or log_true == log_false == -math.inf:
        return math.nan
    if log_true >= log_false:
        return 1 / (1 + math.exp(log_false - log_true))
    odds = math.exp(log_true - log_false)
    return odds / (1 + odds)


def _exact(response: Any) -> float:
    """log P(label | prompt), whatever a semsoft model's scoring is."""
    return float(getattr(response, "constrained", response[0]))


def answer_text(text: str) -> str:
    """A generated answer on one line, in whole characters (a server can send half of one)."""
    return " ".join(encodable(str(text)).split())


# --- prompts of the second stage -----------------------------------------------------------------


def plain_frame(doc: Mapping[str, Any], context: str, n: int) -> Frame:
    """The prompt of a base model, ready for the label with a space in front.

    Args:
        doc: the document.
        context: do the examples have a text (``gold``)?
        n: number of examples.
    """
    checked = [
        f"{_proposal(example, answer)}\n{LEAD} {LABELS[not right]}\n\n"
        for example, answer, right in _checked(context, n)
    ]
    before, after = _proposal(doc, _MARK).split(_MARK)
    return Frame("".join(checked) + before, f"{after}\n{LEAD}")


def chat_frame(doc: Mapping[str, Any], context: str, n: int, template: ChatTemplate) -> Frame:
    """The prompt of a chat model: an instruction, examples as turns; the label begins its turn.

    Args:
        doc, context, n: see `plain_frame`.
        template: messages -> prompt, the model's.

    Raises:
        ValueError: the template does not show the user's last message once.
    """
    messages = [{"role": "system", "content": INSTRUCTION}]
    for example, answer, right in _checked(context, n):
        messages += [
            {"role": "user", "content": _proposal(example, answer)},
            {"role": "assistant", "content": LABELS[not right]},
        ]
    messages.append({"role": "user", "content": _proposal(doc, _MARK)})
    parts = template(messages, add_generation_prompt=True).split(_MARK)
    if len(parts) != 2:
        raise ValueError(
            f"The chat template shows the user's last message {len(parts) - 1} times; P(True) "
            "needs one that shows it once."
        )
    return Frame(*parts)


def _checked(context: str, n: int) -> list[tuple[dict[str, Any], str, bool]]:
    """The first `n` of the solved examples: document, proposed answer, is it right?

    Raises:
        ValueError: there are fewer.
    """
    if n > len(CHECKED):
        raise ValueError(
            f"num_fewshot={n} is too large: P(True) has {len(CHECKED)} fixed examples; use 0 to "
            f"{len(CHECKED)}."
        )
    return [
        ({"question": question, "context": text if context == "gold" else ""}, answer, right)
        for question, text, answer, right in CHECKED[:n]
    ]


def _proposal(doc: Mapping[str, Any], answer: str) -> str:
    return f"{ask(doc)}\nProposed answer: {answer}\n{CHECK}"
