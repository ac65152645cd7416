"""How unsure a model was of every document of a run: the measures of `core.uncertainty` by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import scipy.stats
from numpy.typing import NDArray

from lm_eval_semsoft.core import uncertainty
from lm_eval_semsoft.engine.trace import answer_doubt

if TYPE_CHECKING:
    from lm_eval_semsoft.reports.generations import Generations
    from lm_eval_semsoft.reports.readings import Readings

Floats = NDArray[np.float64]

# How the study (arXiv 2605.30675) lets an option letter be spelled, each in upper and lower case.
TEMPLATES = ("{}", "{}.", "{} ", "{})", "{},", "{}:", " {}", "({})", "{}。")


def of_readings(readings: Readings) -> dict[str, Floats]:
    """Measures of the next-token distribution and of the options.

    Returns:
        name -> float64 [n], as `core.uncertainty.token_measures` and `option_measures`; those of
        the variants only where all options are letters.
    """
    found = uncertainty.option_measures(readings.label_logprobs)
    letters = option_letters(readings.choices)
    if letters:
        variants = variant_tokens(readings.source.token_texts(), letters)
        logprobs = uncertainty.option_logprobs(
            readings.topk_ids,
            readings.topk_logprobs,
            [variants[letter] for letter in letters],
            exact=readings.label_logprobs[:, : len(letters)],
        )
        logprobs[~_offered(readings.choices, len(letters))] = -np.inf
        found |= uncertainty.option_measures(logprobs, variants=True)
    return found | uncertainty.token_measures(
        readings.topk_logprobs,
        readings.entropy,
        readings.nucleus_sizes,
        readings.nucleus_entropies,
        readings.vocabulary,
    )


def of_generations(generations: Generations) -> dict[str, Floats]:
    """Measures of the generated answers, as `core.uncertainty.answer_measures`.

    Returns:
        name -> float64 [n]; NaN where an answer, or the part of it in brackets, has no tokens.
    """
    answers = zip(generations.traces, generations.texts, strict=True)
    rows = [answer_doubt(trace, text) for trace, text in answers]
    return {name: np.array([row[name] for row in rows]) for name in (rows[0] if rows else ())}


def option_letters(choices: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """The letters that all documents call their options by, () if they do not.

    A document with fewer options has the first of them.
    """
    stripped = [tuple(text.strip() for text in own) for own in choices]
    longest = max(stripped, key=len, default=())
    letters = all(len(text) == 1 and text.isalpha() for text in longest)
    same = all(own == longest[: len(own)] for own in stripped)
    return longest if letters and same and len(longest) > 1 else ()


def variant_tokens(texts: Sequence[str], letters: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The single tokens that spell each letter in one of the `TEMPLATES`, in either case.

    Args:
        texts: [V] text of every token.
        letters: of the options.
    """
    spelled = {form: letter for letter in letters for form in spellings(letter)}
    found: dict[str, list[int]] = {letter: [] for letter in letters}
    for token, text in enumerate(texts):
        if text in spelled:
            found[spelled[text]].append(token)
    return {letter: tuple(tokens) for letter, tokens in found.items()}


def spellings(letter: str) -> Iterator[str]:
    """Every surface variant of an option letter."""
    for template in TEMPLATES:
        yield template.format(letter.upper())
        yield template.format(letter.lower())


def without_twins(measures: Mapping[str, Floats]) -> dict[str, str]:
    """Measures that put the documents into one order have one rank correlation with anything.

    Returns:
        name -> the first measure with the same ranks (the name itself if none comes before it).
    """
    ranks = {
        name: scipy.stats.rankdata(values, nan_policy="omit") for name, values in measures.items()
    }
    first: dict[str, str] = {}
    for name, own in measures.items():
        earlier = (
            other
            for other in dict.fromkeys(first.values())
            if np.array_equal(ranks[other], ranks[name], equal_nan=True)
            or _proportional(measures[other], own)
        )
        first[name] = next(earlier, name)
    return first


def _proportional(a: Floats, b: Floats) -> bool:
    """b = c a with c > 0 up to rounding, which may tie values that differ in the last bit."""
    one, other = np.nansum(a), np.nansum(b)
    if not (one > 0 and other > 0) or (np.isnan(a) != np.isnan(b)).any():
        return False
    return bool(np.nanmax(np.abs(a * (other / one) - b)) <= 1e-12 * np.nanmax(np.abs(b)))


def _offered(choices: Sequence[Sequence[str]], size: int) -> NDArray[np.bool_]:
    lengths = np.array([len(own) for own in choices])
    return np.asarray(np.arange(size) < lengths[:, None])
