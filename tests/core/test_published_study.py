"""The study of human-aligned uncertainty (arXiv 2605.30675), from its own published columns.

Two real models, 421 questions. Its entropies are already ÷ ln V, ln k or ln n, its `-prob` columns
are log-probabilities.
"""

from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lm_eval_semsoft.core.alignment import spearman, spearman_matrix
from lm_eval_semsoft.core.calibration import ece_sweep
from lm_eval_semsoft.core.soft_labels import crowd, human_ece
from lm_eval_semsoft.core.uncertainty import TOP_KS, entropy, normalised, option_measures

SHARED = Path(__file__).parents[3] / "shared" / "data"
pytestmark = pytest.mark.skipif(not (SHARED / "alignment_study").exists(), reason="no shared data")

MODELS = {"Gemma2_9B": 256_000, "Llama_3.2_1B": 128_256}  # and the size of their vocabularies
LEVELS = ("0.5", "0.75", "0.9", "0.95")

# ECE-sweep: measure -> Gemma2_9B, Llama_3.2_1B
PUBLISHED = {
    "mc_choice-ent": (0.194, 0.327),
    "mc_choice-prob": (0.033, 0.120),
    "mc_total-ent": (0.142, 0.455),
    "mc_top-1-prob": (0.033, 0.120),
    "mc_top-k-ent-5": (0.152, 0.248),
    "mc_top-k-ent-10": (0.082, 0.165),
}


@cache
def study(model):
    return pd.read_parquet(SHARED / "alignment_study" / f"coane_{model}.parquet")


@cache
def options(model):
    """Log-probabilities of the four options, [421, 4]."""
    return np.stack(study(model)["mc_choice-pdf"]).astype(np.float64)


def correct(model):
    table = study(model)
    return (table["cloze_pred"] == table["Correct_Answer"]).to_numpy()


@cache
def coane():
    return pd.read_parquet(SHARED / "coane" / "coane.parquet")


def shares(table):
    rows = np.stack(table["Answer_Ratios"]).astype(np.float64)
    return rows / rows.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("measure", PUBLISHED)
@pytest.mark.parametrize(("column", "model"), list(enumerate(MODELS)))
def test_ece_sweep_of_every_published_cell(measure, column, model):
    values = study(model)[measure].to_numpy()
    confidence = np.exp(values) if measure.endswith("-prob") else 1 - values
    got = ece_sweep(confidence, correct(model), ties="split")
    assert got.value == pytest.approx(PUBLISHED[measure][column], abs=0.01)


def test_spearman_of_option_entropy_with_human_entropy():
    table = study("Gemma2_9B")
    ours = option_measures(options("Gemma2_9B"), variants=True)
    for values in (table["mc_choice-ent"], ours["option_entropy_variants_norm"]):
        got = spearman(values, table["human-ent"], n=200)
        assert got.r == pytest.approx(0.32, abs=0.01)
        assert (got.n, got.dropped) == (421, 0)
        assert 0.2 < got.low < got.r < got.high < 0.45
        assert got.p < 1e-9


@pytest.mark.parametrize("model", MODELS)
def test_the_matrix_is_scipys_on_real_columns_with_missing_times(model):
    table = study(model)
    names = [name for name in table if name.startswith("mc_") and table[name].dtype != object]
    targets = ["human-ent", "MC_Human_RT_Correct", "FR_Human_RT_Wrong", "FR_Human_RT_DNA"]
    got = spearman_matrix(table[names], table[targets], n=10)
    assert got.n.min() < 421
    for i, j in np.ndindex(got.r.shape):
        both = table[[names[i], targets[j]]].dropna()
        r, p = stats.spearmanr(*both.to_numpy().T)
        assert (got.r[i, j], got.p[i, j]) == pytest.approx((r, p), abs=1e-9)


@pytest.mark.parametrize(("model", "rounding"), [("Gemma2_9B", 1e-6), ("Llama_3.2_1B", 0.006)])
def test_option_measures_follow_from_the_options(model, rounding):
    """Llama's entropies were computed before its log-probabilities were rounded (to 8 bits)."""
    table, ours = study(model), option_measures(options(model), variants=True)
    np.testing.assert_allclose(
        ours["option_entropy_variants_norm"], table["mc_choice-ent"], atol=rounding
    )
    np.testing.assert_allclose(
        ours["option_entropy_variants"], table["mc_choice-ent"] * np.log(4), atol=2 * rounding
    )
    np.testing.assert_allclose(
        ours["option_top1_variants"], 1 - np.exp(table["mc_choice-prob"]), atol=1e-12
    )
    assert (np.array(list("ABCD"))[options(model).argmax(axis=1)] == table["cloze_pred"]).all()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("answers", ["mc", "fr_tok1", "bfr_tok1"])
def test_normalised_entropies_follow_from_nats(model, answers):
    """Back in nats, more tokens hold more entropy, and a nucleus of k tokens is the top k."""
    table = study(model)
    nats = [table[f"{answers}_top-k-ent-{k}"] * np.log(k) for k in TOP_KS]
    nats.append(table[f"{answers}_total-ent"] * np.log(MODELS[model]))
    # Llama's were rounded to 8 bits of nats: multiples of 1/128 around 1.
    assert (np.diff(nats, axis=0) > -0.01).all()
    same = 0
    for level in LEVELS:
        size, own = table[f"{answers}_top-p-len-{level}"], table[f"{answers}_top-p-ent-{level}"]
        assert (own[size == 1] == 0).all()
        assert normalised(own * np.log(size), size) == pytest.approx(own, abs=1e-12)
        for k in TOP_KS:
            here = size == k
            same += here.sum()
            np.testing.assert_allclose(
                own[here], table[f"{answers}_top-k-ent-{k}"][here], atol=1e-5
            )
    assert same > 0 or answers == "mc"


def test_human_entropy_follows_from_the_shares():
    for table in (coane(), study("Gemma2_9B")):
        with np.errstate(divide="ignore"):
            logs = np.log(np.stack(table["Answer_Ratios"]).astype(np.float64))
        np.testing.assert_allclose(
            normalised(entropy(logs), 4), table["human-ent"], atol=1e-9, rtol=0
        )


def test_people_know_more_than_they_are_sure_of():
    """A loop over bins instead of `ece`; the crowd is right more often than it agrees."""
    table = coane()
    right = np.stack([table["Correct_Answer"] == letter for letter in "ABCD"], axis=1)
    confidence, hit = crowd(shares(table), right)
    gaps = []
    for b in range(15):
        inside = [i for i in range(421) if b / 15 <= confidence[i] < (b + 1) / 15 + (b == 14)]
        if inside:
            gaps.append(len(inside) / 421 * abs(np.mean(confidence[inside] - hit[inside])))
    assert human_ece(shares(table), right) == pytest.approx(sum(gaps), abs=1e-12)
    assert hit.mean() > confidence.mean() + 0.05
    # An item's most frequent answer is no rarer than the right one.
    assert (confidence >= table["MC_Human_Prop_Correct"] - 0.011).mean() > 0.99
