"""benchmarks/csr_toy.py: its world, its measures, its verdicts, and a few steps of its training."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import csr_toy
import csr_toy_page
import csr_world

from csr_trainer.rewards import calibration_reward, pairwise


@pytest.fixture(scope="module")
def world():
    return csr_world.World(7)


def test_answers_are_drawn_as_their_source_draws_them(world):
    questions = world.questions(csr_world.RELATIONS)
    assert len({q.text for q in questions}) == len(questions) == 8 * 12 * 12
    rng = np.random.default_rng(0)
    for told in (True, False):
        drawn = [csr_world.draw(questions, told, rng) for _ in range(40)]
        for kind, about in csr_world.KINDS.items():
            shares = about.told if told else about.right
            assert sum(shares) == pytest.approx(1)
            places = [
                q.candidates.index(answer)
                for row in drawn
                for q, answer in zip(questions, row, strict=True)
                if q.kind == kind
            ]
            found = np.bincount(places, minlength=len(shares)) / len(places)
            np.testing.assert_allclose(found, shares, atol=0.02)


def test_rows_ask_every_question_equally_often(world):
    questions = world.questions(csr_world.SEEN)
    asked = [row.question.text for row in csr_world.rows(questions, 2 * len(questions),
                                                         np.random.default_rng(1))]  # fmt: skip
    assert sorted(asked) == sorted(2 * [q.text for q in questions])
    held_out = {q.text for q in world.questions(csr_world.HELD_OUT)}
    assert not held_out & set(asked)


def test_the_oracle_looks_through_dress_and_f1_does_not():
    from lm_eval_semsoft.judges.f1 import F1

    answers = ["oak", "oak town", "elm town"]
    oracle = pairwise(csr_world.Oracle(), "q", answers) >= 0.5
    f1 = pairwise(F1(), "q", answers) >= 0.5
    assert oracle.tolist() == [[True, True, False], [True, True, False], [False, False, True]]
    assert f1[1, 2]
    assert not f1[0, 2]


def test_measures_against_the_definitions(world):
    rng = np.random.default_rng(2)
    questions = world.questions(["lake"])[::7]
    answers = [[str(a) for a in rng.choice(q.candidates[:3], size=9)] for q in questions]
    golds = [csr_world.draw(questions, False, rng) for _ in range(2)]
    found, bins = csr_toy.measure(questions, answers, golds)
    agree = [pairwise(csr_world.Oracle(), "q", own) for own in answers]
    rewards = [
        calibration_reward(table, [float(a == gold) for a in own]).mean()
        for marks in golds
        for table, own, gold in zip(agree, answers, marks, strict=True)
    ]
    assert found["r_cal"] == pytest.approx(np.mean(rewards))
    assert found["agreement"] == pytest.approx(np.mean([(t.sum() - 9) / 72 for t in agree]))
    best = [max(own.count(name) for name in own) / 9 for own in answers]
    assert found["confidence"] == pytest.approx(np.mean(best))
    assert np.sum(bins, axis=1)[0] == 2 * len(questions)
    assert np.sum(bins, axis=1)[1] == pytest.approx(found["accuracy"] * 2 * len(questions))


def test_verdicts_judge_what_the_claims_say():
    def outcomes(**ece):
        common = {"accuracy": 0.6, "auroc": 0.7, "agreement": 0.5}
        return [
            csr_toy_page.Outcome(
                1, variant, {s: {**common, "ece": e} for s in ("seen", "held out")}
            )
            for variant, e in ece.items()
        ]

    def holding(found):
        return {v.claim: v.holds for v in csr_toy_page.verdicts(found)}

    claims = csr_toy_page.CLAIMS
    runs = outcomes(rlvr=0.3, csr=0.2, csr_f1=0.22)
    assert holding(runs) == {claims["better"]: False, claims["f1"]: True}  # AUROC is not higher
    for own in runs[1].measures.values():
        own["auroc"] = 0.8
    assert holding(runs)[claims["better"]]
    for own in runs[1].measures.values():
        own["accuracy"] = 0.57
    assert not holding(runs)[claims["better"]]
    assert not holding(outcomes(rlvr=0.3, csr=0.2, csr_f1=0.23))[claims["f1"]]
    assert not holding(outcomes(rlvr=0.3, csr=0.3, csr_f1=0.2))[claims["f1"]]
    assert not holding(outcomes(base=0.1, calibration=0.1))[claims["degenerate"]]


@pytest.mark.parametrize(
    ("variant", "judge", "weights"),
    [("csr", "oracle", (1, 0)), ("csr_f1", "f1:0.5", (1, 0)), ("constant", "oracle", (1, 1.25)),
     ("calibration", "oracle", (0, 1))],
)  # fmt: skip
def test_rewards_of_the_variants_before_the_first_step(variant, judge, weights):
    class Args:
        steps_per_generation = num_iterations = gradient_accumulation_steps = 1

    reward = csr_toy.reward_of(variant, csr_toy.Settings(), Args)
    assert reward.judge.name == judge
    assert reward.weights(None) == weights


def test_answers_are_sampled_from_the_model(world):
    tokenizer = csr_world.make_tokenizer()
    model = csr_world.make_model(tokenizer, 0)
    asked = [q.text for q in world.questions(["lake"])[:1]]
    (texts,) = csr_world.sample(model, tokenizer, asked[:1], 2000, seed=0)
    first = [text.split(" ")[0] for text in texts]
    with torch.no_grad():
        probs = model(torch.tensor([tokenizer.encode(asked[0])])).logits[0, -1].softmax(-1)
    for name in ("oak", "hay"):
        p = float(probs[tokenizer.convert_tokens_to_ids(name)])
        assert first.count(name) / 2000 == pytest.approx(p, abs=5 * (p / 2000) ** 0.5)


@pytest.mark.slow
def test_a_few_steps_of_training(tmp_path, monkeypatch):
    pytest.importorskip("trl")
    monkeypatch.setattr(csr_toy, "SAMPLES", 4)
    monkeypatch.setattr(csr_toy, "MARKS", 4)
    settings = csr_toy.Settings(corpus_steps=3, steps=2, groups=2, num_generations=4, looks=1)
    outcomes = [csr_toy.run((7, name, settings, tmp_path)) for name in ("base", "rlvr", "csr")]
    for outcome in outcomes:
        assert set(outcome.measures) == set(csr_toy.SPLITS)
        looks = [look["step"] for look in outcome.history]
        assert looks == ([] if outcome.variant == "base" else [0, 2])
    written = "\n".join(csr_toy_page.page(outcomes, "settings", 0.0))
    assert written.count("| 7 |") == 2 + len(outcomes)
    csr_toy_page.draw_reliability(outcomes, tmp_path / "a.png")
    csr_toy_page.draw_training(outcomes, tmp_path / "b.png")
    assert (tmp_path / "b.png").stat().st_size > 10_000
