"""Judges: do two answers to a question mean the same?

    judge = resolve("rules+encoder")
    judge.equivalent("Who wrote Emma?", "Jane Austen", "Austen")  # 0..1, >= .5 is the same

| name | the same if | needs |
|---|---|---|
| ``exact`` | equal after SQuAD's normalisation | nothing |
| ``f1:0.5`` | token F1 of at least .5 | nothing |
| ``rules`` | the rules of `judges.rules` say so | nothing |
| ``encoder:minilm``, ``encoder:<hub id or folder>``, with ``@<cosine>`` | a sentence encoder puts \
them near each other | the model |
| ``nli:<hub id>``, ``nli-loose:<hub id>`` | each entails the other | the model |
| ``llm:<hub id or demo model>`` | a language model replies yes | the model |
| ``rules+<any other>`` | the rules say so; what they leave open, the other judges | as the other |

How they were measured, and why `DEFAULT` is the default: docs/judges.md. This package knows
`core`, `engine` and transformers, and nothing of lm_eval.
"""

from __future__ import annotations

from collections.abc import Callable

from lm_eval_semsoft.core.errors import check_choice

from .base import SAME, Equivalence, Judge, JudgeError, Pair, check_threshold

__all__ = ["DEFAULT", "SAME", "Equivalence", "Judge", "JudgeError", "Pair", "resolve"]

DEFAULT = "rules+encoder"
KINDS = ("exact", "f1", "rules", "encoder", "nli", "nli-loose", "llm")
_RULES_AND = "rules+"


def resolve(
    name: str = DEFAULT,
    device: str | None = None,
    locate: Callable[[str], str] = str,
) -> Judge:
    """The judge of that name, ready: its model, if it needs one, is loaded.

    Args:
        name: see the table above.
        device: of its model; None = a GPU if there is one.
        locate: turns the model's name of ``llm:<model>`` into something that can be loaded;
            `lm_eval_semsoft.models.demo.resolve` knows ``demo:<name>``.

    Raises:
        JudgeError (a ValueError): one sentence that says what is wrong with the name, or what is
            not installed or cannot be reached.
    """
    if not isinstance(name, str):
        raise JudgeError(f"judge={name!r} is no name of a judge, such as {DEFAULT!r}.")
    if name.startswith(_RULES_AND):
        from .rules import RulesThen

        return RulesThen(resolve(name.removeprefix(_RULES_AND), device, locate))
    kind, _, rest = name.partition(":")
    try:
        check_choice("judge", kind, KINDS)
    except ValueError as error:
        raise JudgeError(str(error)) from error
    if kind in ("exact", "rules"):
        return _plain(kind, rest)
    if kind == "f1":
        from .f1 import F1

        return F1(check_threshold(name, rest or "0.5"))
    return _with_model(name, kind, rest, device, locate)


def _plain(kind: str, rest: str) -> Judge:
    if rest:
        raise JudgeError(f"judge='{kind}:{rest}': {kind} takes nothing after a colon.")
    from .exact import Exact
    from .rules import Rules

    return Exact() if kind == "exact" else Rules()


def _with_model(
    name: str, kind: str, model: str, device: str | None, locate: Callable[[str], str]
) -> Judge:
    if kind == "encoder":
        from .encoder import PACKAGED, THRESHOLD, Encoder

        model, _, cosine = model.partition("@")
        threshold = check_threshold(name, cosine) if cosine else THRESHOLD
        return Encoder(model or PACKAGED, threshold, device)
    if not model:
        raise JudgeError(f"judge={name!r} needs a model after a colon, as in {kind}:<hub id>.")
    if kind == "llm":
        from .llm import LLM

        return LLM(model, locate, device)
    from .nli import NLI

    return NLI(model, kind == "nli", device)
