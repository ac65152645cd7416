"""Measures of doubt: how unsure a next-token distribution, an option or an answer is.

Notation: V tokens in the vocabulary, K of them stored (most probable first), L options, T tokens of
a generated answer. Leading axes `...` are documents, tokens or both. All logarithms are natural:
entropies are in nats until they are `normalised`.

Every measure grows with doubt, so probabilities enter as 1 - p. Which measures there are, and how
they are normalised, follows the study of human-aligned uncertainty (arXiv 2605.30675).

What a model can get wrong (NaN, nothing but -inf) gives NaN, without a warning: whoever uses a
measure drops and counts it. What only a caller can get wrong raises ValueError.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from .classification import Bools, Floats, Ints

TOP_KS = (5, 10, 25, 50, 100)
NUCLEUS_LEVELS = (0.5, 0.75, 0.9, 0.95)

# --------------------------------------------------------------------------------------------
# formulas
# --------------------------------------------------------------------------------------------


def entropy(logprobs: ArrayLike, axis: int = -1) -> Floats:
    """Shannon entropy along an axis, in nats: -sum p ln p, 0..ln(size).

    Args:
        logprobs: log-probabilities, or logits: they need not sum to 1 and are renormalised.
            -inf counts as probability 0.
        axis: along which they make up one distribution.

    Returns:
        float64, `logprobs` without that axis. NaN where a distribution is empty, holds a NaN, or
        has probability nowhere.
    """
    logs = np.asarray(logprobs, dtype=np.float64)
    if not logs.shape[axis]:
        return np.full(np.delete(logs.shape, axis), np.nan)
    peak = logs.max(axis=axis, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        logs = logs - np.where(np.isfinite(peak), peak, np.nan)
        p = np.exp(logs)
        total = p.sum(axis=axis)
        # H of q = p / total: ln total - (sum p ln p) / total; 0 ln 0 is 0.
        weighted = (p * np.where(p == 0, 0, logs)).sum(axis=axis)
        return np.asarray(np.maximum(np.log(total) - weighted / total, 0.0))


def top_k_entropy(topk_logprobs: ArrayLike, k: int) -> Floats:
    """Entropy of the k most probable tokens, renormalised, in nats: 0..ln k.

    Args:
        topk_logprobs: float [..., K], most probable first.
        k: at most K.

    Raises:
        ValueError: k < 1 or k > K.
    """
    logs = np.asarray(topk_logprobs)
    if not 1 <= k <= logs.shape[-1]:
        raise ValueError(f"k={k} is not allowed: {logs.shape[-1]} tokens are stored")
    return entropy(logs[..., :k])


def normalised(entropy: ArrayLike, size: ArrayLike) -> Floats:
    """Entropy as a share of the largest possible one, ln(size): 0..1; a size of at most 1 gives 0.

    Args:
        entropy: nats [...].
        size: of the support: V, k, the size of the nucleus, the number of options [...].
    """
    nats, sizes = np.broadcast_arrays(
        np.asarray(entropy, dtype=np.float64), np.asarray(size, dtype=np.float64)
    )
    many = sizes > 1
    return np.asarray(np.where(many, nats / np.log(np.where(many, sizes, np.e)), 0.0))


def doubt(logprobs: ArrayLike) -> Floats:
    """1 - exp(log-probability), 0..1, exact also where the probability is nearly 1."""
    return np.asarray(np.maximum(-np.expm1(np.asarray(logprobs, dtype=np.float64)), 0.0))


def perplexity(logprobs: ArrayLike) -> Floats:
    """exp(-mean log-probability) of the tokens of a text, 1..infinity; NaN of no token.

    Args:
        logprobs: float [..., T], of the text's own tokens.
    """
    logs = np.asarray(logprobs, dtype=np.float64)
    if not logs.shape[-1]:
        return np.full(logs.shape[:-1], np.nan)
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(-logs.mean(axis=-1)))


def option_logprobs(
    topk_ids: ArrayLike,
    topk_logprobs: ArrayLike,
    variants: Sequence[Sequence[int]],
    exact: ArrayLike | None = None,
) -> Floats:
    """Log-probability of each option: log sum exp over the tokens that spell it (the study's way).

    Only the K stored tokens are known; the others have less probability than any of them.

    Args:
        topk_ids: int [..., K], most probable first.
        topk_logprobs: float [..., K].
        variants: [L] token ids that spell each option; a token that comes twice counts once.
        exact: float [..., L], exact log-probability of each option as the prompt asks for it: an
            option has at least this, so one whose tokens are not stored is not impossible.

    Returns:
        float64 [..., L]; -inf where nothing is known of an option.

    Raises:
        ValueError: ids and log-probabilities, or variants and `exact`, have different shapes.
    """
    ids, logs = np.asarray(topk_ids), np.asarray(topk_logprobs, dtype=np.float64)
    if ids.shape != logs.shape:
        raise ValueError(
            f"topk_ids has the shape {list(ids.shape)} but topk_logprobs {list(logs.shape)}"
        )
    known = [
        np.logaddexp.reduce(np.where(np.isin(ids, list(own)), logs, -np.inf), axis=-1)
        for own in variants
    ]
    found = np.stack(known, axis=-1) if known else np.empty((*logs.shape[:-1], 0))
    if exact is None:
        return np.asarray(found, dtype=np.float64)
    least = np.asarray(exact, dtype=np.float64)
    if least.shape != found.shape:
        raise ValueError(
            f"exact has the shape {list(least.shape)}; it must be {list(found.shape)}, "
            "one value per option"
        )
    return np.asarray(np.maximum(found, least))


# --------------------------------------------------------------------------------------------
# measures by name
# --------------------------------------------------------------------------------------------


def token_measures(
    topk_logprobs: ArrayLike,
    entropy: ArrayLike,
    nucleus_sizes: ArrayLike,
    nucleus_entropies: ArrayLike,
    vocabulary: int,
) -> dict[str, Floats]:
    """Every measure of a next-token distribution that a readout tells.

    Args:
        topk_logprobs: float [..., K] over the full vocabulary, most probable first.
        entropy: float [...], of the full distribution, nats.
        nucleus_sizes: int [..., 4], tokens in the nucleus at each of `NUCLEUS_LEVELS`.
        nucleus_entropies: float [..., 4], renormalised, nats.
        vocabulary: V.

    Returns:
        name -> float64 [...]:

        - ``top1``: 1 - probability of the most probable token;
        - ``entropy``; ``entropy_norm``, ÷ ln V;
        - ``top5_entropy`` ... ``top100_entropy``; ``..._norm``, ÷ ln k (of k = V where the
          vocabulary is smaller); NaN where fewer than k tokens are stored;
        - ``nucleus50_entropy`` ... ``nucleus95_entropy``; ``..._norm``, ÷ ln n;
          ``nucleus50_size`` ... ``nucleus95_size``, n in tokens.

    Raises:
        ValueError: shapes do not fit.
    """
    logs = np.asarray(topk_logprobs, dtype=np.float64)
    return measures_of_tokens(
        logs[..., 0],
        entropy,
        np.stack([_top_k_entropy(logs, k, vocabulary) for k in TOP_KS], axis=-1),
        nucleus_sizes,
        nucleus_entropies,
        vocabulary,
    )


def _top_k_entropy(logs: Floats, k: int, vocabulary: int) -> Floats:
    wanted = min(k, vocabulary)
    if wanted > logs.shape[-1]:
        return np.full(logs.shape[:-1], np.nan)
    return top_k_entropy(logs, wanted)


def measures_of_tokens(
    top_logprobs: ArrayLike,
    entropy: ArrayLike,
    topk_entropies: ArrayLike,
    nucleus_sizes: ArrayLike,
    nucleus_entropies: ArrayLike,
    vocabulary: int,
) -> dict[str, Floats]:
    """`token_measures` where the entropies of the top k are already there, as in a trace.

    Args:
        top_logprobs: float [...], of the most probable token.
        topk_entropies: float [..., 5], at each of `TOP_KS`, renormalised, nats.
        entropy, nucleus_sizes, nucleus_entropies, vocabulary: as `token_measures`.

    Returns, Raises:
        as `token_measures`.
    """
    top, full = (np.asarray(x, dtype=np.float64) for x in (top_logprobs, entropy))
    top_k, sizes, nuclei = (
        np.asarray(x, dtype=np.float64) for x in (topk_entropies, nucleus_sizes, nucleus_entropies)
    )
    for name, array, tail in (
        ("entropy", full, ()),
        ("topk_entropies", top_k, (len(TOP_KS),)),
        ("nucleus_sizes", sizes, (len(NUCLEUS_LEVELS),)),
        ("nucleus_entropies", nuclei, (len(NUCLEUS_LEVELS),)),
    ):
        if array.shape != (*top.shape, *tail):
            raise ValueError(
                f"{name} has the shape {list(array.shape)}; it must be {[*top.shape, *tail]}"
            )
    found = {"top1": doubt(top), "entropy": full, "entropy_norm": normalised(full, vocabulary)}
    for i, k in enumerate(TOP_KS):
        found[f"top{k}_entropy"] = top_k[..., i]
        found[f"top{k}_entropy_norm"] = normalised(top_k[..., i], min(k, vocabulary))
    for i, name in enumerate(nucleus_names()):
        found[f"{name}_entropy"] = nuclei[..., i]
        found[f"{name}_entropy_norm"] = normalised(nuclei[..., i], sizes[..., i])
        found[f"{name}_size"] = sizes[..., i]
    return found


def nucleus_names() -> Iterator[str]:
    """``nucleus50`` ... ``nucleus95``, in the order of `NUCLEUS_LEVELS`."""
    return (f"nucleus{round(100 * level)}" for level in NUCLEUS_LEVELS)


def option_measures(logprobs: ArrayLike, variants: bool = False) -> dict[str, Floats]:
    """Every measure of the options of a question.

    Args:
        logprobs: float [..., L], log-probability of each option in the full vocabulary; -inf where
            a question has fewer options.
        variants: do the log-probabilities come from `option_logprobs`? Then names say so.

    Returns:
        name -> float64 [...]:

        - ``option_entropy``, of the options alone; ``option_entropy_norm``, ÷ ln(number of
          options that are not -inf);
        - ``option_top1``: 1 - probability of the most probable option, *not* renormalised: what
          the model says instead of any option counts as doubt too, as in the study.
    """
    logs = np.asarray(logprobs, dtype=np.float64)
    nats, n = entropy(logs), (logs > -np.inf).sum(axis=-1)
    top = logs.max(axis=-1) if logs.shape[-1] else np.full(logs.shape[:-1], np.nan)
    tail = "_variants" if variants else ""
    return {
        f"option_entropy{tail}": nats,
        # The probability of no option at all is NaN, not certainty.
        f"option_entropy{tail}_norm": np.where(np.isnan(nats), nats, normalised(nats, n)),
        f"option_top1{tail}": doubt(top),
    }


# --------------------------------------------------------------------------------------------
# answers of several tokens
# --------------------------------------------------------------------------------------------


def bracketed(text: str, ends: ArrayLike) -> Bools:
    """Which tokens of an answer make up the part inside the first curly brackets, bool [T].

    Prompts that ask for brackets end in the opening one, so an answer starts inside unless it
    opens them itself. The part ends before the first ``}`` (at the end of the text if there is
    none): its tokens are those that begin there, and end after the ``{``.

    Args:
        text: the answer.
        ends: int [T], length in characters of the text of the first t + 1 tokens.
    """
    stops: Ints = np.asarray(ends, dtype=np.int64)
    begins = np.concatenate([np.zeros(min(1, len(stops)), dtype=np.int64), stops[:-1]])
    close = text.find("}")
    close = len(text) if close < 0 else close
    start = text.find("{", 0, close) + 1
    return np.asarray((begins < close) & (stops > start))


def mean_measures(measures: Mapping[str, ArrayLike], chosen: ArrayLike) -> dict[str, float]:
    """Measures of an answer: means over its tokens of `measures_of_tokens`.

    The normalised entropy of a nucleus is the sum of its entropies ÷ the sum of ln n over tokens
    with n > 1 (0 if there is none), as in the study: tokens that had no alternative do not hide
    the doubt about the others.

    Args:
        measures: name -> [T].
        chosen: bool [T], tokens that count.

    Returns:
        name -> float; NaN if no token counts.
    """
    tokens = np.asarray(chosen, dtype=np.bool_)
    if not tokens.any():
        return dict.fromkeys(measures, float("nan"))
    own = {name: np.asarray(x, dtype=np.float64)[tokens] for name, x in measures.items()}
    found = {name: float(x.mean()) for name, x in own.items()}
    for name in nucleus_names():
        if f"{name}_size" in own:
            sizes, nats = own[f"{name}_size"], own[f"{name}_entropy"]
            room = np.log(np.maximum(sizes, 1)).sum()
            doubted = nats[sizes > 1].sum()
            found[f"{name}_entropy_norm"] = float(doubted / room) if room else 0.0
    return found


def answer_measures(
    logprobs: ArrayLike, measures: Mapping[str, ArrayLike], text: str, ends: ArrayLike
) -> dict[str, float]:
    """Every measure of a generated answer.

    Args:
        logprobs: float [T], of the generated tokens.
        measures: name -> [T], from `measures_of_tokens`.
        text, ends: as `bracketed`.

    Returns:
        name -> float: the token measures with the prefix ``fr_`` (mean over the whole answer),
        ``bfr_`` (over the bracketed part) and ``first_`` (first token), and ``fr_perplexity`` and
        ``bfr_perplexity``. NaN where there are no tokens.
    """
    logs = np.asarray(logprobs, dtype=np.float64)
    whole = np.ones(len(logs), dtype=np.bool_)
    first = np.arange(len(logs)) == 0
    parts = {"fr": whole, "bfr": bracketed(text, ends)}
    found: dict[str, float] = {}
    for prefix, chosen in (*parts.items(), ("first", first)):
        own = mean_measures(measures, chosen)
        found |= {f"{prefix}_{name}": value for name, value in own.items()}
    for prefix, chosen in parts.items():
        found[f"{prefix}_perplexity"] = float(perplexity(logs[chosen]))
    return found
