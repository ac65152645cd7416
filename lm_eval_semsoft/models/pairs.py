"""Requests into documents, and (context, continuation) pairs into tokens, as the harness does.

The harness tokenises the whole context once per label. Here it is tokenised once per document:
what a continuation does to the tokens is settled within the last line of the context, which is
the same for every document of a task.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    from lm_eval_semsoft.engine.plan import Tokens

_MIN_TAIL = 4  # characters; shorter tails settle nothing
_CHECKED_DOCUMENTS = 2  # documents per tail on which the shortcut is compared with the long way


@dataclass
class Document:
    """One context and the continuations to score after it.

    Attributes:
        task, doc_id: who asked (None if the caller did not say).
        context: the prompt.
        doc: the task's document.
        places: continuation -> indices of the requests that ask for it.
        indices: continuation -> the choice numbers (`Instance.idx`) under which it was asked.
    """

    task: str | None
    doc_id: int | None
    context: str
    doc: Any
    places: dict[str, list[int]] = field(default_factory=dict)
    indices: dict[str, set[int]] = field(default_factory=dict)

    @property
    def continuations(self) -> tuple[str, ...]:
        return tuple(self.places)

    def __str__(self) -> str:
        return f"document {self.doc_id} of task {self.task}"


def documents_of(requests: Sequence[Instance]) -> list[Document]:
    """Group requests by (task, document, context).

    Repeats and padding copies of a request fall together, so they change nothing.
    """
    found: dict[Hashable, Document] = {}
    for place, request in enumerate(requests):
        context, continuation = request.args
        key = (request.task_name, request.doc_id, context)
        if key not in found:
            found[key] = Document(request.task_name, request.doc_id, context, request.doc)
        document = found[key]
        document.places.setdefault(continuation, []).append(place)
        document.indices.setdefault(continuation, set()).add(request.idx)
    return list(found.values())


class PairEncoder:
    """Tokens of a context and of each continuation: exactly the harness's, but quickly.

    Byte-pair merges are local. If (1) the tokens of the context end with those of its tail alone
    and (2) tail and tail + continuation begin with the same token, then no merge crosses the start
    of the tail in either text, so tail + continuation can be tokenised apart from the rest, once
    for all documents. Both conditions are checked for every document; other tokenizers, and
    whatever fails a check, go the long way.
    """

    def __init__(self, lm: HFLM) -> None:
        self._lm = lm
        backend = getattr(lm.tokenizer, "backend_tokenizer", None)
        self._local = type(getattr(backend, "model", None)).__name__ == "BPE"
        self._tails: dict[str, Tokens] = {}
        self._extended: dict[tuple[str, str], Tokens | None] = {}
        self._checked: dict[str, int] = {}

    def __call__(self, context: str, continuations: Sequence[str]) -> list[tuple[Tokens, Tokens]]:
        """(context tokens, continuation tokens) for each continuation."""
        if context == "":
            return [self._without_context(c) for c in continuations]
        text = context.rstrip()
        spaces = context[len(text) :]
        before = tuple(self._lm.tok_encode(text))
        tail = self._tail(text, before)
        out = []
        for continuation in continuations:
            more = spaces + continuation
            whole = self._quick(before, tail, more) if tail else None
            if whole is None or self._checked.get(tail, 0) < _CHECKED_DOCUMENTS:
                slow = tuple(self._lm.tok_encode(text + more))
                if whole is not None and whole != slow:
                    self._local = False  # this tokenizer is not what it seems
                whole = slow
            out.append((before, whole[len(before) :]))
        self._checked[tail] = self._checked.get(tail, 0) + 1
        return out

    def _without_context(self, continuation: str) -> tuple[Tokens, Tokens]:
        tokens = tuple(self._lm.tok_encode(continuation, add_special_tokens=False))
        prefix = self._lm.prefix_token_id
        if tokens and tokens[0] == prefix:
            return tokens[:1], tokens[1:]
        return (prefix,), tokens

    def _tail(self, text: str, tokens: Tokens) -> str:
        """The end of a context from its last word boundary on, or "" if there is no shortcut."""
        if not self._local:
            return ""
        cut = max(text.rfind(mark, 0, -_MIN_TAIL) for mark in ("\n", " "))
        if cut <= 0 or text[cut - 1].isspace():
            return ""
        tail = text[cut:]
        if tail not in self._tails:
            self._tails[tail] = tuple(self._lm.tok_encode(tail, add_special_tokens=False))
        own = self._tails[tail]
        return tail if own and tokens[-len(own) :] == own else ""

    def _quick(self, before: Tokens, tail: str, more: str) -> Tokens | None:
        own = self._tails[tail]
        if (tail, more) not in self._extended:
            longer = tuple(self._lm.tok_encode(tail + more, add_special_tokens=False))
            self._extended[tail, more] = longer if longer[:1] == own[:1] else None
        extended = self._extended[tail, more]
        return None if extended is None else before[: len(before) - len(own)] + extended
