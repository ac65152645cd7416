"""Measures of a run's documents, against loops over whole distributions."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special, stats

from lm_eval_semsoft.core import uncertainty
from lm_eval_semsoft.engine.readout import Readout
from lm_eval_semsoft.engine.store import Store, StoredDocument, text_key
from lm_eval_semsoft.reports import doubt, readings

V, K = 400, 120
TEXTS = {
    3: "A", 5: " A", 9: "a", 11: "(A)", 12: "A)", 14: "A,", 15: "A。", 20: "B", 21: " b", 22: "B:",
    30: "C", 31: "C ", 40: "D", 50: "AB", 51: "A;", 52: "Aa", 53: "", 54: "  A",
}  # fmt: skip
SPELL = {"A": [3, 5, 9, 11, 12, 14, 15], "B": [20, 21, 22], "C": [30, 31], "D": [40]}
ASKED = [5, 21, 31, 40]  # the tokens that the run asked for


def nuclei(p: np.ndarray) -> tuple[list[int], list[float]]:
    p = -np.sort(-p)
    sizes = [int((np.cumsum(p) - p < level).sum()) for level in uncertainty.NUCLEUS_LEVELS]
    return sizes, [float(stats.entropy(p[:n])) for n in sizes]


def write(folder: Path, logprobs: np.ndarray, options: list[int], letters: str = "ABCD") -> Path:
    """A directory of one document per row of logprobs [n, V]."""
    store = Store(folder, "f" * 16, K, {"model": "test/model", "top_k": K, "scoring": {}})
    store.save_model(lambda: torch.zeros(V, 4), lambda: [TEXTS.get(i, f" w{i}") for i in range(V)])
    documents = []
    for i, (row, n) in enumerate(zip(logprobs, options, strict=True)):
        key = text_key(f"prompt {i}")
        order = np.argsort(-row)[:K]
        sizes, entropies = nuclei(np.exp(row))
        store.add(
            key,
            Readout(
                topk_ids=order.astype(np.int32),
                topk_logprobs=row[order].astype(np.float32),
                label_logprobs=row[ASKED[:n]].astype(np.float32),
                label_greedy=np.zeros(n, dtype=bool),
                label_first=np.array(ASKED[:n], dtype=np.int32),
                entropy=float(stats.entropy(np.exp(row))),
                nucleus_sizes=np.array(sizes, dtype=np.int32),
                nucleus_entropies=np.array(entropies, dtype=np.float32),
            ),
        )
        doc = json.dumps({"id": f"q{i}"})
        labels = tuple(letters[:n])
        documents.append(StoredDocument("mc", i, key, doc, None, labels, (key,), tuple(range(n))))
    store.save_tasks({"mc": {"why_identity": "option letters"}}, {})
    store.save_documents(documents)
    store.close()
    return folder


@pytest.fixture(scope="module")
def logprobs() -> np.ndarray:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(9, V)) * rng.uniform(0.5, 4, (9, 1))
    logits[:, [3, 5, 20, 21, 30, 40]] += 3
    logits[4, list(TEXTS)] -= 30  # no letter among the stored tokens
    return np.asarray(special.log_softmax(logits, axis=1))


OPTIONS = [4, 4, 3, 4, 4, 2, 4, 4, 4]


@pytest.fixture(scope="module")
def measures(logprobs: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = write(tmp_path_factory.mktemp("ro") / "run", logprobs, OPTIONS)
    return doubt.of_readings(readings.load(folder))


def test_every_measure_is_there(measures: dict[str, Any]) -> None:
    own = uncertainty.token_measures(
        np.zeros((1, 100)), [0.0], np.ones((1, 4)), np.zeros((1, 4)), V
    )
    assert len(own) == 25
    assert set(measures) - set(own) == {
        f"option_{name}" for name in (
            "entropy", "entropy_norm", "top1",
            "entropy_variants", "entropy_variants_norm", "top1_variants",
        )
    }  # fmt: skip
    for values in measures.values():
        assert values.shape == (9,)
        assert np.isfinite(values).all()


def test_plain_options(logprobs: np.ndarray, measures: dict[str, Any]) -> None:
    for i, n in enumerate(OPTIONS):
        p = np.exp(logprobs[i, ASKED[:n]])
        nats = stats.entropy(p)
        assert measures["option_entropy"][i] == pytest.approx(nats, abs=1e-5)
        assert measures["option_entropy_norm"][i] == pytest.approx(nats / math.log(n), abs=1e-5)
        assert measures["option_top1"][i] == pytest.approx(1 - p.max(), abs=1e-5)


def test_variants_of_options(logprobs: np.ndarray, measures: dict[str, Any]) -> None:
    for i, n in enumerate(OPTIONS):
        stored = set(np.argsort(-logprobs[i])[:K])
        p = []
        for letter, asked in list(zip(SPELL, ASKED, strict=True))[:n]:
            seen = sum(math.exp(logprobs[i, t]) for t in SPELL[letter] if t in stored)
            p.append(max(seen, math.exp(logprobs[i, asked])))
        nats = stats.entropy(p)
        assert measures["option_entropy_variants"][i] == pytest.approx(nats, abs=1e-5)
        assert measures["option_entropy_variants_norm"][i] == pytest.approx(
            nats / math.log(n), abs=1e-5
        )
        assert measures["option_top1_variants"][i] == pytest.approx(1 - max(p), abs=1e-5)


def test_token_measures(logprobs: np.ndarray, measures: dict[str, Any]) -> None:
    for i, row in enumerate(logprobs):
        p = -np.sort(-np.exp(row))
        assert measures["top1"][i] == pytest.approx(1 - p[0], abs=1e-6)
        assert measures["entropy_norm"][i] == pytest.approx(stats.entropy(p) / math.log(V))
        assert measures["top25_entropy"][i] == pytest.approx(stats.entropy(p[:25]), abs=1e-5)
        n = int((np.cumsum(p) - p < 0.9).sum())
        assert measures["nucleus90_size"][i] == n
        nats = stats.entropy(p[:n]) / math.log(n) if n > 1 else 0
        assert measures["nucleus90_entropy_norm"][i] == pytest.approx(nats, abs=1e-5)


def test_labels_that_are_no_letters_have_no_variants(logprobs: np.ndarray, tmp_path: Path) -> None:
    folder = write(tmp_path / "run", logprobs, [4] * 9)
    own = readings.load(folder)
    words = readings.replace(own, choices=(("joy", "fear", "anger", "no"),) * 9)
    found = doubt.of_readings(words)
    assert not [name for name in found if "variants" in name]
    assert "option_entropy" in found


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        ([("A", "B"), ("A", "B", "C")], ("A", "B", "C")),
        ([(" A", " B")], ("A", "B")),
        ([("A", "B"), ("B", "A")], ()),
        ([("A", "no")], ()),
        ([("1", "2")], ()),
        ([("A",)], ()),
        ([], ()),
    ],
)
def test_what_counts_as_option_letters(
    choices: list[tuple[str, ...]], expected: tuple[str, ...]
) -> None:
    assert doubt.option_letters(choices) == expected


def test_variants_are_found_by_their_text() -> None:
    texts = [TEXTS.get(i, f" w{i}") for i in range(V)]
    found = doubt.variant_tokens(texts, "ABCD")
    assert {letter: list(tokens) for letter, tokens in found.items()} == SPELL
    assert len(set(doubt.spellings("A"))) == 18


# ------------------------------------------------------------------ answers


def trace(logprobs: np.ndarray, chosen: list[int], ends: list[int]) -> Any:
    """What `engine.trace.Trace` holds, by hand, of full distributions [T, V]."""
    p = np.exp(logprobs)
    order = -np.sort(-p, axis=1)
    return SimpleNamespace(
        tokens=np.array(chosen),
        logprobs=logprobs[np.arange(len(chosen)), chosen].astype(np.float32),
        top_logprobs=np.log(order[:, 0]) if len(p) else np.zeros(0),
        entropy=np.array([stats.entropy(row) for row in p]),
        topk_entropies=np.array(
            [[stats.entropy(row[:k]) for k in uncertainty.TOP_KS] for row in order]
        ).reshape(-1, 5),
        nucleus_sizes=np.array([nuclei(row)[0] for row in p]).reshape(-1, 4),
        nucleus_entropies=np.array([nuclei(row)[1] for row in p]).reshape(-1, 4),
        ends=np.array(ends, dtype=int),
        vocabulary=V,
    )


def test_answers(logprobs: np.ndarray) -> None:
    answers = SimpleNamespace(
        texts=("The Beatles}. And", "", "no end"),
        traces=(
            trace(logprobs[:5], [1, 2, 3, 4, 5], [3, 11, 12, 13, 17]),
            trace(logprobs[:0], [], []),
            trace(logprobs[5:7], [7, 8], [2, 6]),
        ),
    )
    found = doubt.of_generations(answers)  # type: ignore[arg-type]
    assert len(found) == 3 * 25 + 2
    nats = [stats.entropy(np.exp(row)) for row in logprobs]
    np.testing.assert_allclose(found["fr_entropy"], [np.mean(nats[:5]), np.nan, np.mean(nats[5:7])])
    np.testing.assert_allclose(
        found["bfr_entropy"], [np.mean(nats[:2]), np.nan, np.mean(nats[5:7])]
    )
    np.testing.assert_allclose(found["first_entropy"], [nats[0], np.nan, nats[5]])
    own = logprobs[[0, 1], [1, 2]]
    assert found["bfr_perplexity"][0] == pytest.approx(math.exp(-own.mean()), rel=1e-6)
    assert doubt.of_generations(SimpleNamespace(texts=(), traces=())) == {}  # type: ignore[arg-type]


# ------------------------------------------------------------------ twins


def test_measures_in_the_same_order_are_one() -> None:
    rng = np.random.default_rng(0)
    x = rng.random(400)
    holes = np.where(np.arange(400) % 9 == 0, np.nan, x)
    swapped = x.copy()
    swapped[[3, 4]] = x[[4, 3]]
    found = doubt.without_twins(
        {
            "x": x, "x/ln V": x / math.log(V), "exp": np.exp(x), "-x": -x, "swapped": swapped,
            "holes": holes, "holes/2": holes / 2, "nan": x * np.nan, "zero": x * 0,
        }
    )  # fmt: skip
    assert {a: b for a, b in found.items() if a != b} == {
        "x/ln V": "x", "exp": "x", "holes/2": "holes",
    }  # fmt: skip


def test_rounding_does_not_hide_a_twin() -> None:
    x = np.nextafter(0.7, 1) * np.ones(50)
    x[::2] = 0.7
    x = np.concatenate([x, np.linspace(0.1, 0.9, 50)])
    assert doubt.without_twins({"x": x, "n": x / 7.123})["n"] == "x"
