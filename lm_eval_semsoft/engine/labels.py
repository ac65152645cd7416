"""How a label set is spelled in tokens, and whether a cosine kernel makes sense for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from lm_eval_semsoft.core.semantic_softmax import LabelSet

Encode = Callable[[str], list[int]]

_ANSWER_WORDS = {
    *("yes", "no", "true", "false", "maybe", "unknown", "unsure", "both", "neither", "none"),
    *("correct", "incorrect", "right", "wrong"),
}
_MAX_WORDS = 3


def label_set(labels: Sequence[str], spelled: Sequence[Sequence[int]], encode: Encode) -> LabelSet:
    """Label texts and their tokens at the answer position, with all single-token variants.

    Args:
        labels: the label texts, without the delimiter before them.
        spelled: the tokens of each as the prompt continues with it.
        encode: text -> token ids, no special tokens.

    Raises:
        ValueError: an empty label, one without tokens, or two that look the same to the model.
    """
    seen: dict[tuple[int, ...], str] = {}
    for label, tokens in zip(labels, spelled, strict=True):
        if not label.strip():
            raise ValueError(f"Label {label!r} is empty: every label needs a word.")
        if not tokens:
            raise ValueError(f"Label {label!r} encodes to no tokens: give it another spelling.")
        if (other := seen.setdefault(tuple(tokens), label)) is not label:
            raise ValueError(
                f"Labels {other!r} and {label!r} are the same tokens to this tokenizer "
                f"({list(tokens)}): labels must differ."
            )
    variants = tuple(single_token_variants(label, encode) for label in labels)
    return LabelSet(tuple(labels), tuple(map(tuple, spelled)), variants)


def single_token_variants(label: str, encode: Encode) -> tuple[int, ...]:
    """Ids of the single tokens that spell a label, with or without a space, in three cases."""
    word = label.strip()
    forms = dict.fromkeys([word, word.lower(), word.capitalize(), word.upper()])
    encoded = (encode(space + form) for form in forms for space in ("", " "))
    return tuple(sorted({ids[0] for ids in encoded if len(ids) == 1}))


def token_texts(tokenizer: Any, vocabulary: int) -> list[str]:
    """The text of every token id below `vocabulary`; "" where the tokenizer knows none."""
    known = max(tokenizer.get_vocab().values(), default=-1) + 1  # ids may have holes
    texts = tokenizer.batch_decode([[i] for i in range(min(known, vocabulary))])
    return [*texts, *[""] * (vocabulary - len(texts))]


def why_no_kernel(labels: Sequence[str]) -> str | None:
    """Why a cosine kernel makes no sense for these labels, or None if it does.

    Letters, digits and yes/no are near each other in embedding space without meaning the same,
    and a sentence has no neighbourhood of single tokens.
    """
    words = [label.strip().strip("()[].:'\"").lower() for label in labels]
    if all(len(w) <= 1 or re.fullmatch(r"[+-]?\d+([.,]\d+)?|[ivx]+", w) for w in words):
        return "option letters or numbers"
    if all(w in _ANSWER_WORDS for w in words):
        return "yes/no answers"
    if any(len(w.split()) > _MAX_WORDS for w in words):
        return "whole phrases"
    return None
