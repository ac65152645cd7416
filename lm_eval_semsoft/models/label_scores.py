"""From readouts to what the harness gets: `LabelScore`, and the kernels behind it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lm_eval_semsoft.core.semantic_softmax import (
    Kernel,
    LabelSet,
    Scoring,
    build_kernel,
    fit_space,
    label_cosines,
    neighbour_votes,
    semantic_log_scores,
)
from lm_eval_semsoft.engine.labels import Encode, label_set, why_no_kernel
from lm_eval_semsoft.engine.plan import Tokens, shared_lead
from lm_eval_semsoft.engine.readout import Readout
from lm_eval_semsoft.engine.trace import Trace

from .generated import GeneratedText
from .pairs import Document

logger = logging.getLogger(__name__)

KERNELS = ("auto", "cosine", "identity")


class LabelScore(tuple[float, bool]):
    """`(log S, is_greedy)` to the harness, and more to those who know.

    Attributes:
        constrained: exact log P(label | prompt), whatever the scoring.
        readout: the document's readout, on its first label only; None elsewhere.
    """

    constrained: float
    readout: Readout | None

    def __new__(
        cls,
        log_score: float,
        is_greedy: bool,
        constrained: float,
        readout: Readout | None = None,
    ) -> LabelScore:
        self = super().__new__(cls, (log_score, is_greedy))
        self.constrained = constrained
        self.readout = readout
        return self

    def __getnewargs__(self) -> tuple[float, bool, float, Readout | None]:
        return (self[0], self[1], self.constrained, self.readout)


def dump_response(value: object) -> str:
    """A cached response as JSON: what comes back from disk is data, never a pickle."""
    if isinstance(value, LabelScore):
        readout = value.readout.to_json() if value.readout else None
        return json.dumps({"label_score": [value[0], value[1], value.constrained, readout]})
    if isinstance(value, GeneratedText):
        trace = None if value.trace is None else value.trace.to_json()
        return json.dumps({"generated": [value, trace, value.logprob, value.n_tokens]})
    return json.dumps({"tuple" if isinstance(value, tuple) else "value": value})


def load_response(text: str) -> Any:
    record = json.loads(text)
    if "label_score" in record:
        log_score, greedy, constrained, readout = record["label_score"]
        own = Readout.from_json(readout) if readout else None
        return LabelScore(log_score, greedy, constrained, own)
    if "generated" in record:
        generated, trace, *totals = record["generated"]  # without totals before they were kept
        return GeneratedText(generated, None if trace is None else Trace.from_json(trace), *totals)
    return tuple(record["tuple"]) if "tuple" in record else record["value"]


@dataclass(frozen=True)
class TaskLabels:
    """The labels of a task, over all of its documents.

    Attributes:
        tokens: continuation -> its tokens.
        fixed: do all documents choose from the same labels?
    """

    tokens: dict[str, Tokens]
    fixed: bool

    @classmethod
    def of(
        cls, documents: Sequence[Document], tokens: Sequence[Mapping[str, Tokens]]
    ) -> TaskLabels:
        """The labels of a task's documents, given the tokens of each one's continuations.

        They are fixed if no document lacks some that another one has, so far as none has them all;
        a lone document's are not if they stand in it, as a question's own options do.
        """
        union = {c: own for document in reversed(tokens) for c, own in document.items()}
        largest = max(map(len, tokens))
        alone = len({document.doc_id for document in documents}) == 1
        fixed = len(union) == largest > 1 and not (alone and _labels_are_in(documents[0]))
        return cls(union, fixed)

    @cached_property
    def lead(self) -> int:
        """How many tokens all labels begin with (`engine.plan.Prompt.lead`)."""
        return shared_lead(tuple(self.tokens.values())) if self.fixed else 0

    def lead_of(self, own: Mapping[str, Tokens]) -> int:
        """The lead of a document: the task's, or its own where it has its own labels.

        A run that was stopped may ask for some labels only; their answer position is the same.
        """
        if not self.fixed:
            return shared_lead(tuple(own.values()))
        mine = {t[: self.lead] for t in own.values()}
        theirs = next(iter(self.tokens.values()))[: self.lead]
        return self.lead if mine == {theirs} else 0

    @cached_property
    def why_identity(self) -> str | None:
        """Why neighbours should not vote for these labels, or None if they should."""
        if not self.fixed:
            return "no label set that all documents share"
        return why_no_kernel(tuple(self.tokens))

    def to_json(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "fixed": self.fixed}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> TaskLabels:
        return cls({k: tuple(v) for k, v in record["tokens"].items()}, record["fixed"])


def _labels_are_in(document: Document) -> bool:
    """Is every label a whole field, or a whole list element, of the task's document?"""
    found: set[str] = set()

    def collect(value: object) -> None:
        if isinstance(value, str):
            found.add(value.strip())
        elif isinstance(value, Mapping):
            for item in value.values():
                collect(item)
        elif isinstance(value, (list, tuple)):
            for item in value:
                collect(item)

    collect(document.doc)
    return all(c.strip() in found for c in document.continuations)


@dataclass(frozen=True)
class Votes:
    """A kernel and the continuations that its columns stand for."""

    labels: tuple[str, ...]
    kernel: Kernel

    @cached_property
    def column(self) -> dict[str, int]:
        return {label: i for i, label in enumerate(self.labels)}


class Scorer:
    """Turns readouts into log S, with one kernel per label set.

    Args:
        scoring: what to compute.
        embeddings: gives the output embeddings [V, d] when a kernel is first needed.
        encode: text -> tokens without special tokens.
        kernel: `auto` decides per task, `cosine` and `identity` force one.
    """

    def __init__(
        self,
        scoring: Scoring,
        embeddings: Callable[[], torch.Tensor],
        encode: Encode,
        kernel: str = "auto",
    ) -> None:
        self.scoring = scoring
        self._embeddings = embeddings
        self._encode = encode
        self._kernel = kernel
        self._built: dict[tuple[tuple[str, ...], tuple[Tokens, ...]], Votes] = {}
        self._space: Any = None
        self._said: set[str] = set()

    def votes(self, task: str | None, known: TaskLabels, own: Mapping[str, Tokens]) -> Votes | None:
        """Who votes for the labels of a document; None = identity kernel.

        Args:
            task: for messages.
            known: all labels of the task.
            own: this document's continuations and their tokens in its context.

        Raises:
            ValueError: labels that are empty or the same to the model.
        """
        if self.scoring.scoring == "constrained" or self._kernel == "identity":
            return None
        if not self._wants_cosine(task, known):
            return None
        labels = tuple(known.tokens if known.fixed else own)
        lead = known.lead_of(own)
        spelled = tuple((own.get(c) or known.tokens[c])[lead:] for c in labels)
        if (labels, spelled) not in self._built:
            if not known.fixed:  # other labels in every document: keep only the newest
                self._built.clear()
            self._built[labels, spelled] = Votes(labels, self._build(task, labels, spelled))
        return self._built[labels, spelled]

    def _wants_cosine(self, task: str | None, known: TaskLabels) -> bool:
        reason = known.why_identity
        if self._kernel == "cosine":
            if reason:
                self._say_once(
                    f"{task}: kernel=cosine is forced on {reason}: cosines measure relatedness, "
                    "not equivalence, so these votes mean little.",
                    logging.WARNING,
                )
            return True
        if reason:
            self._say_once(f"{task}: identity kernel (constrained scoring): {reason}.")
        return reason is None

    def _say_once(self, message: str, level: int = logging.INFO) -> None:
        if message not in self._said:
            self._said.add(message)
            logger.log(level, message)

    def _build(
        self, task: str | None, columns: Sequence[str], spelled: tuple[Tokens, ...]
    ) -> Kernel:
        labels = label_set([c.strip() for c in columns], spelled, self._encode)
        embeddings = self._embeddings()
        if self._space is None:
            _check_rows(task, embeddings)
            self._space = fit_space(embeddings, self.scoring.space)
        cosines = label_cosines(embeddings, self._space, labels, self.scoring.anchors)
        kernel = build_kernel(cosines, labels, self.scoring)
        self._say_once(_describe(task, labels, kernel))
        return kernel

    def log_scores(
        self, readout: Readout, labels: Sequence[str], votes: Votes | None
    ) -> NDArray[np.float64]:
        """log S of the labels of one readout: [L]."""
        if votes is None:
            return readout.label_logprobs.astype(np.float64)
        given = neighbour_votes(
            readout.topk_ids, readout.topk_logprobs, votes.kernel, self.scoring.top_k
        )
        own = given[[votes.column[label] for label in labels]]
        return semantic_log_scores(readout.label_logprobs, own, self.scoring)


def _check_rows(task: str | None, embeddings: torch.Tensor) -> None:
    for start in range(0, len(embeddings), 16384):  # no second copy of a large matrix
        broken = ~torch.isfinite(embeddings[start : start + 16384]).all(1)
        if broken.any():
            raise ValueError(
                f"Cannot score the label words of task {task}: the output embedding of token "
                f"{start + int(broken.nonzero()[0])} is NaN or infinite, so the model's weights "
                "are broken, and the logits of every document with them."
            )


def _describe(task: str | None, labels: LabelSet, kernel: Kernel) -> str:
    counts = kernel.neighbours
    lonely = int((counts == 0).sum())
    return (
        f"{task}: {len(labels.labels)} labels, {int(np.median(counts))} neighbours each "
        f"(median; {counts.min()} to {counts.max()}"
        + (f"; {lonely} without any)" if lonely else ")")
    )
