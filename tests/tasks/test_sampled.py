"""Sampled answers: what is asked, how answers become meanings, and the metrics made of them."""

import json
import math
from collections import Counter

import lm_eval
import numpy as np
import pytest
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager
from lm_eval.utils import sanitize_list
from sklearn.metrics import roc_auc_score

from lm_eval_semsoft.judges import DEFAULT, JudgeError, encoder
from lm_eval_semsoft.judges.exact import Exact
from lm_eval_semsoft.judges.f1 import F1
from lm_eval_semsoft.models.generated import GeneratedText
from lm_eval_semsoft.tasks import right, sampled
from lm_eval_semsoft.tasks.sampled import METRICS, Options, Question, judge_all, payloads

TASKS = ("hotpotqa_se", "triviaqa_se", "nq_open_se", "ms_marco_se")
CAPITAL = Question("What is the capital of France?", ("Paris", "City of Paris"))
SAMPLES = ["Paris", "Lyon", "paris.", "Lyon", "", "Paris", "Lyon", "Nice", "the Paris", "Paris"]


def outcome(samples=SAMPLES, question=CAPITAL, greedy="Paris", judge=None, **options):
    options = Options(**{"n_samples": len(samples), **options})
    return judge_all(judge or Exact(), Exact(), [question], [samples], [greedy], options)[0]


def measured(found, question=CAPITAL, k=None, doc_id="d0"):
    doc = {"id": doc_id, "question": question.text, "answers": list(question.answers)}
    return payloads(doc, found.samples[k or max(found.samples)], found.greedy)


# --- from answers to meanings --------------------------------------------------------------------


def test_ten_samples_by_hand():
    found = outcome()
    ten = found.samples[10]
    assert ten["clusters"] == [0, 1, 0, 1, 2, 0, 1, 3, 0, 0]
    assert (ten["prediction"], ten["confidence"], ten["right"]) == ("Paris", 0.5, True)
    own = measured(found)
    shares = np.array([5, 3, 1, 1]) / 10
    assert own["semantic_entropy"] == pytest.approx(-(shares * np.log(shares)).sum())
    assert own["n_clusters"] == 4
    assert own["parse_rate"] == pytest.approx(0.9)
    assert tuple(own["brier"]) == (0.5, 1.0)
    assert own["no_gold"] == 0


def test_smaller_numbers_of_samples_are_the_first_ones():
    found = outcome()
    assert sorted(found.samples) == [2, 5, 10]
    for k in (2, 5):
        alone = outcome(SAMPLES[:k]).samples[k]
        assert found.samples[k] == alone
    assert found.samples[2]["confidence"] == 0.5  # a tie: the first one is the prediction
    assert found.samples[2]["prediction"] == "Paris"


@pytest.mark.parametrize(("n", "sizes"), [(1, (1,)), (2, (2,)), (4, (4, 2)), (20, (20, 5, 2))])
def test_sizes(n, sizes):
    assert Options(n_samples=n).sizes == sizes


def test_one_sample():
    own = measured(outcome(["Lyon"]))
    assert own["semantic_entropy"] == 0
    assert tuple(own["ece"]) == (1.0, 0.0)


def test_all_empty_answers_agree_and_are_wrong():
    own = measured(outcome(["", " ", "..."]))
    assert own["n_clusters"] == 1
    assert own["parse_rate"] == 0
    assert own["accuracy"] == 0


def test_order_of_samples_changes_no_entropy():
    first = measured(outcome())["semantic_entropy"]
    for seed in range(5):
        mixed = [SAMPLES[i] for i in np.random.default_rng(seed).permutation(len(SAMPLES))]
        assert measured(outcome(mixed))["semantic_entropy"] == pytest.approx(first)


def test_confidence_of_the_entropy():
    found = outcome(["a", "b", "c", "d"], confidence="entropy")
    assert found.samples[4]["confidence"] == pytest.approx(0)
    assert outcome(["a"] * 4, confidence="entropy").samples[4]["confidence"] == 1


def test_a_judge_that_is_not_transitive():
    chain = ["red green", "green blue", "blue black"]  # neighbours share a word, ends do not
    greedy = outcome(chain, judge=F1(0.5)).samples[3]["clusters"]
    closure = outcome(chain, judge=F1(0.5), cluster="closure").samples[3]["clusters"]
    assert greedy == [0, 0, 1]
    assert closure == [0, 0, 0]


def test_no_gold_is_left_out_and_counted():
    unknown = Question("Who?", ())
    found = outcome(question=unknown)
    assert found.samples[10]["right"] is None
    own = measured(found, unknown)
    assert own["no_gold"] == 1
    assert math.isnan(own["accuracy"])
    assert measured(found, Question("Who?", ("...",)))["no_gold"] == 1  # says nothing
    known = [measured(outcome(), doc_id="d1"), own]
    assert METRICS["accuracy"].aggregation([p["accuracy"] for p in known]) == 1
    assert METRICS["ece"].aggregation([p["ece"] for p in known]) == pytest.approx(0.5)
    entropies = [p["semantic_entropy"] for p in known]
    assert METRICS["semantic_entropy"].aggregation(entropies) == pytest.approx(np.mean(entropies))


def test_likelihoods_weigh_clusters():
    likely = [
        GeneratedText("Paris", None, logprob=-1.0, n_tokens=2),
        GeneratedText("Lyon", None, logprob=-9.0, n_tokens=3),
    ]
    found = outcome(likely)
    p = np.exp([-0.5, -3.0])
    p /= p.sum()
    own = measured(found)
    assert own["rao_semantic_entropy"] == pytest.approx(-(p * np.log(p)).sum(), rel=1e-6)
    assert own["n_tokens"] == 5


def test_plain_strings_have_no_likelihoods():
    own = measured(outcome())
    assert math.isnan(own["rao_semantic_entropy"])
    assert math.isnan(own["n_tokens"])
    assert math.isnan(METRICS["rao_semantic_entropy"].aggregation([own["rao_semantic_entropy"]]))


def test_auroc_of_the_entropy_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    rows, entropies, correct = [], [], []
    for i in range(60):
        words = [rng.choice(["Paris", "Lyon", "Nice", "Lille"]) for _ in range(6)]
        found = outcome(words)
        rows.append(measured(found, doc_id=f"d{i}")["entropy_auroc"])
        counts = np.array(list(Counter(words).values())) / 6
        entropies.append(-(counts * np.log(counts)).sum())
        correct.append(found.samples[6]["right"])
    expected = roc_auc_score(correct, -np.round(entropies, 12))
    assert METRICS["entropy_auroc"].aggregation(rows) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"n_samples": 0}, "n_samples=0"),
        ({"n_samples": "ten"}, "n_samples='ten'"),
        ({"n_samples": True}, "n_samples=True"),
        ({"cluster": "greed"}, "greedy"),
        ({"confidence": "shares"}, "share"),
    ],
)
def test_bad_options(options, told):
    with pytest.raises(ValueError, match=told):
        Options(**options)


# --- as the harness sees it ----------------------------------------------------------------------


def test_what_is_asked(embedded, load_task):
    task = load_task("triviaqa_se", judge="exact", n_samples=7, n_questions=3)
    task.build_all_requests()
    samples, greedy = task.instances[:2]
    assert (samples.repeats, greedy.repeats, samples.doc_id, greedy.doc_id) == (7, 1, 0, 0)
    assert samples.args[0] == greedy.args[0]
    assert samples.args[1] == {
        "until": ["\n"], "do_sample": True, "temperature": 1.0, "top_p": 1.0, "max_gen_toks": 64,
    }  # fmt: skip
    assert greedy.args[1] == {
        "until": ["\n"], "max_gen_toks": 64, "do_sample": False, "temperature": 0.0,
    }  # fmt: skip
    assert samples.args[0].count("Question:") == 5
    assert samples.args[0].endswith("Answer:")


@pytest.mark.parametrize(
    "other", [{"n_samples": 4}, {"question_seed": 5}, {"gen_kwargs": {"temperature": 0.5}}]
)
def test_cached_requests_are_those_of_the_same_options(
    embedded, load_task, monkeypatch, tmp_path, other
):
    def requests(cached=True, gen_kwargs=None, **options):
        task = load_task("triviaqa_se", judge="exact", n_questions=3, **options)
        task.set_config("generation_kwargs", gen_kwargs or {}, update=True)
        task.build_all_requests(cache_requests=cached)
        return [(i.args, i.repeats, i.doc_id) for i in task.instances]

    monkeypatch.setattr("lm_eval.caching.cache.PATH", str(tmp_path))
    first = requests()
    assert requests() == first
    assert len(list(tmp_path.iterdir())) == 1
    assert requests(**other) == requests(cached=False, **other) != first


def test_chat_models_are_told_what_to_do_and_may_write_lines(embedded, load_task, prompts):
    task = load_task("triviaqa_se", judge="exact", n_questions=2)
    prompt, asked = prompts(task, num_fewshot=0, chat=True)[0]
    assert asked[0]["until"] == asked[1]["until"] == []
    assert prompt.startswith(f"<system>{task.instruction}<user>")
    assert "Answer:" not in prompt


@pytest.mark.parametrize(
    "change", [{"temperature": 0.0}, {"temperature": "hot"}, {"do_sample": False}]
)
def test_sampling_cannot_be_turned_off(embedded, load_task, change):
    task = load_task("triviaqa_se", judge="exact", n_questions=2)
    task.set_config("generation_kwargs", change, update=True)
    with pytest.raises(ValueError, match="triviaqa_se samples its answers"):
        task.build_all_requests()


def test_options_that_are_nearly_known_are_warned_of(embedded, load_task, caplog):
    load_task("triviaqa_se", n_sample=3, judge="exact")
    load_task("triviaqa_verbal", jugde="exact", reference_judge="exact")
    load_task("triviaqa_verbal", judge="exact", reference_judge="exact", n_samples=3)
    told = [r.getMessage() for r in caplog.records if "is ignored" in r.getMessage()]
    assert len(told) == 2
    assert "triviaqa_se: the option 'n_sample' is ignored; is 'n_samples' meant?" in told
    assert "triviaqa_verbal: the option 'jugde' is ignored; is 'judge' meant?" in told


def test_a_missing_judge_is_told_before_anything_is_sampled(embedded, load_task, monkeypatch):
    monkeypatch.setattr(encoder, "packaged_encoder", lambda: None)
    right._judge.cache_clear()
    with pytest.raises(JudgeError, match="sentence encoder is not installed"):
        load_task("nq_open_se")


class Parrot(LM):
    """Samples as a script says, greedily the gold answer; counts what it was asked."""

    def __init__(self, script):
        super().__init__()
        self.script, self.asked = script, Counter()

    def generate_until(self, requests, disable_tqdm=False):
        out = []
        for request in requests:
            sampling = request.args[1]["do_sample"]
            number = self.asked[request.doc_id, sampling]
            self.asked[request.doc_id, sampling] += 1
            gold = request.doc["answers"][:1] or ["nobody knows"]
            out.append(self.script[number % len(self.script)] if sampling else gold[0])
        return out

    def loglikelihood(self, requests):
        raise NotImplementedError

    loglikelihood_rolling = loglikelihood


@pytest.fixture
def run(embedded, quick):
    def evaluate(lm, tasks=("triviaqa_se",), metadata=(), **arguments):
        from lm_eval_semsoft import plugin

        options = {"judge": "exact", "n_questions": 6, **dict(metadata)}
        manager = TaskManager(
            include_path=str(plugin.task_path()), include_defaults=False, metadata=options
        )
        return lm_eval.simple_evaluate(
            lm, tasks=list(tasks), task_manager=manager, bootstrap_iters=0, **arguments
        )

    return evaluate


def test_a_run_with_any_model(run):
    lm = Parrot(["so", "so", "or so"])
    out = run(lm)
    found = out["results"]["triviaqa_se"]
    assert set(lm.asked.values()) == {10, 1}
    assert found["greedy_accuracy,n10"] == 1
    assert found["accuracy,n10"] == 0
    assert found["mean_confidence,n10"] == pytest.approx(0.7)
    assert found["ece,n10"] == pytest.approx(0.7)
    assert found["ece,n5"] == pytest.approx(0.8)
    assert found["ece,n2"] == pytest.approx(1.0)
    assert found["published_data,n10"] == 0
    assert "greedy_accuracy,n2" not in found
    assert {f"{name}_stderr,n10" for name in METRICS} <= set(found)
    rows = [{**r, "filtered_resps": sanitize_list(r["filtered_resps"])}
            for r in out["samples"]["triviaqa_se"]]  # fmt: skip
    assert len(rows) == 3 * 6
    row = next(r for r in rows if r["filter"] == "n5")
    samples, greedy = map(json.loads, row["filtered_resps"])
    assert samples["answers"] == ["so", "so", "or so", "so", "so"]
    assert samples["clusters"] == [0, 0, 1, 0, 0]
    assert greedy["right"] is True


def test_the_group_has_four_tasks_and_counts_unknown_answers(run):
    out = run(Parrot(["so"]), ["semantic_uncertainty"], {"n_questions": None})
    assert set(TASKS) <= set(out["results"])
    assert out["results"]["ms_marco_se"]["no_gold,n10"] > 0
    assert out["results"]["hotpotqa_se"]["no_gold,n10"] == 0


def test_half_a_character_loses_neither_run_nor_samples(run):
    out = run(Parrot(["Paris\ud800", "\udfff", "Lyon"]), metadata={"judge": DEFAULT})
    for row in out["samples"]["triviaqa_se"]:
        told = sanitize_list([row["resps"], row["filtered_resps"]])
        json.dumps(told, ensure_ascii=False).encode()  # as the harness writes them
    assert row["resps"][0][0] == "Paris\ufffd"


@pytest.mark.parametrize(("script", "copies"), [(["so"], True), (["so", "or so"], False)])
def test_a_model_that_says_the_same_every_time_is_told(run, caplog, script, copies):
    run(Parrot(script), metadata={"n_questions": 2})
    assert ("same text, for every question" in caplog.text) == copies


def test_predict_only(run):
    out = run(Parrot(["so"]), predict_only=True, log_samples=True)
    assert out["results"]["triviaqa_se"]["bypass,n10"] == 999


def test_the_results_name_all_options(run):
    out = run(Parrot(["so"]), metadata={"judge": "f1:0.7"})
    told = out["configs"]["triviaqa_se"]["metadata"]
    assert (told["judge"], told["reference_judge"]) == ("f1:0.7", "f1:0.7")
    assert (told["n_samples"], told["cluster"], told["confidence"]) == (10, "greedy", "share")


def test_the_module_lists_its_options():
    expected = {"n_samples", "judge", "reference_judge", "cluster", "confidence"}
    assert set(sampled.OPTIONS) == expected


@pytest.mark.parametrize(
    ("judge", "reference_judge", "expected"),
    [
        ("rules+encoder", None, right.REFERENCE),
        ("encoder:minilm@0.35", None, right.REFERENCE),
        ("encoder:some/model@0.8", None, "encoder:some/model@0.8"),
        ("rules", None, "rules"),
        ("rules", "exact", "exact"),
        ("rules+encoder", "f1:0.5", "f1:0.5"),
    ],
)
def test_who_says_what_is_right(judge, reference_judge, expected):
    assert right.reference_of(judge, reference_judge) == expected
