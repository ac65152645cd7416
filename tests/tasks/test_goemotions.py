"""The loader and the YAML of `goemotions_zs`, alone and through the harness."""

import json
import logging
import math
from collections import Counter
from pathlib import Path

import lm_eval
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import yaml
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager
from lm_eval.utils import make_table
from sklearn.metrics import accuracy_score, f1_score, log_loss, roc_auc_score

from lm_eval_semsoft.tasks import fewshot, goemotions, metrics
from lm_eval_semsoft.tasks.data import BrokenData, DataUnavailable

ROOT = Path(__file__).parents[2]
TASK_CONFIGS = ROOT / "task_configs"
SHARED = ROOT.parent / "shared" / "data" / "goemotions"
LABELS = goemotions.LABELS

# Five comments per split; one of them has two labels, one is in both splits.
TEST = [
    ("I love this!", "18", "t1"),
    ("so, so sad\u2028 about it", "25", "t2"),
    ('He said "thanks', "15", "t3"),
    ("wait, what? lol", "26,1", "t4"),
    ("seen twice", "27", "t5"),
]
TRAIN = [
    ("seen twice", "27", "r1"),
    ("great work", "0", "r2"),
    ("great work", "0", "r3"),
    ("happy and proud", "17,21", "r4"),
    ("the bus is at nine", "27", "r5"),
    ("the train is at ten", "27", "r6"),
    ("why would you do that", "3", "r7"),
    ("   ", "3", "r8"),
]


def write_tsv(folder, **splits):
    target = folder / "goemotions"
    target.mkdir(exist_ok=True)
    for name, rows in splits.items():
        text = "".join("\t".join(row) + "\n" for row in rows)
        (target / f"{name}.tsv").write_text(text, encoding="utf-8", newline="")
    return target


def build(**metadata):
    manager = TaskManager(
        include_path=str(TASK_CONFIGS), include_defaults=False, metadata=metadata or None
    )
    task = manager.load(["goemotions_zs"])["tasks"]["goemotions_zs"]
    task.set_fewshot_seed(1234)
    return task


def prompts(task, num_fewshot=0, **options):
    """(prompt, continuations) of every document, as the harness makes them."""
    task.set_config("num_fewshot", num_fewshot)
    task.build_all_requests(**options)
    by_doc = {}
    for instance in task.instances:
        prompt, continuation = instance.args
        by_doc.setdefault(instance.doc_id, (prompt, []))[1].append(continuation)
    return list(by_doc.values())


def yaml_config():
    loader = type("Loader", (yaml.SafeLoader,), {})
    loader.add_constructor("!function", lambda _, node: node.value)
    text = (TASK_CONFIGS / "goemotions" / "goemotions_zs.yaml").read_text()
    return yaml.load(text, Loader=loader)


# --- labels --------------------------------------------------------------------------------------


def test_labels():
    assert len(LABELS) == len(set(LABELS)) == 28
    assert (LABELS[0], LABELS[15], LABELS[26], LABELS[27]) == (
        *("admiration", "gratitude", "surprise", "neutral"),
    )
    config = yaml_config()
    assert tuple(config["doc_to_choice"]) == LABELS
    assert ", ".join(LABELS) in " ".join(config["description"].split())
    assert "num_fewshot" not in config  # 0 there could not be overridden


@pytest.mark.skipif(not SHARED.exists(), reason="no shared data")
def test_labels_are_in_the_published_order():
    assert tuple((SHARED / "labels.txt").read_text().split()) == LABELS


# --- loading -------------------------------------------------------------------------------------


def test_rows_with_one_label_by_default(local):
    write_tsv(local, test=TEST, train=TRAIN)
    rows = goemotions.load()["test"]
    assert rows["id"][:] == ["t1", "t2", "t3", "t5"]
    assert rows["text"][1] == "so, so sad\u2028 about it"
    assert rows["text"][2] == 'He said "thanks'
    assert rows[0]["label"] == 18
    assert rows[0]["labels"] == [18]
    assert set(rows["source"]) == {"local"}
    assert set(rows["published_data"]) == {1}


def test_all_rows_with_multilabel_any(local):
    write_tsv(local, test=TEST)
    rows = goemotions.load(multilabel="any")["test"]
    assert len(rows) == 5
    assert rows[3]["labels"] == [1, 26]
    assert rows[3]["label"] == 1


@pytest.mark.parametrize(("split", "file"), [("validation", "dev"), ("dev", "dev")])
def test_other_splits(local, split, file):
    write_tsv(local, **{file: TEST})
    assert len(goemotions.load(split=split)["test"]) == 4


def test_what_else_the_harness_passes_is_ignored(local, caplog):
    write_tsv(local, test=TEST)
    goemotions.load(version=1.0, config_source="x.yaml", pretrained="gpt2", tau=0.8)
    assert "is ignored" not in caplog.text
    goemotions.load(multilable="any", Split="train")
    assert "'multilable' is ignored; is 'multilabel' meant?" in caplog.text
    assert "'Split' is ignored; is 'split' meant?" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "tets"}, r"split='tets'.*test, validation, dev, train.*mean 'test'"),
        ({"split": 3}, "split=3 is not known"),
        ({"multilabel": "all"}, r"multilabel='all'.*use one of drop, any"),
        ({"multilabel": True}, "multilabel=True is not known"),
    ],
)
def test_unknown_options(local, options, message):
    write_tsv(local, test=TEST)
    with pytest.raises(ValueError, match=message):
        goemotions.load(**options)


def test_no_document_left(local):
    write_tsv(local, test=[TEST[3]])
    with pytest.raises(ValueError, match=r"multilabel='drop' leaves none of the 1 rows"):
        goemotions.load()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("text\tlabels\tid", r"test\.tsv, line 2: expected distinct .*ids from 0 to 27"),
        ("x\t28\tid", "line 2: expected distinct"),
        ("x\t-1\tid", "line 2: expected distinct"),
        ("x\t\tid", "line 2: expected distinct"),
        ("x\t1,1\tid", "line 2: expected distinct"),
        ("x\t1.5\tid", "line 2: expected distinct"),
        ("x\t1\t ", "line 2: expected a comment id"),
        ("x\t1", r"line 2: expected 3 tab-separated fields \(text, label ids, comment id\)"),
        ("x\ty\t1\tid", "line 2: expected 3 tab-separated fields"),
    ],
)
def test_broken_row(local, line, message):
    folder = write_tsv(local, test=[TEST[0]])
    with (folder / "test.tsv").open("a", encoding="utf-8") as stream:
        stream.write(line + "\n")
    with pytest.raises(BrokenData, match=message):
        goemotions.load()


def test_hub_file(tmp_path):
    path = tmp_path / "x.parquet"
    good = [{"text": t, "labels": sorted(map(int, ls.split(","))), "id": k} for t, ls, k in TEST]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(good), path)
    assert goemotions.read_parquet_file(path) == good

    bad = [*good, {"text": None, "labels": [1], "id": "x"}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(bad), path)
    with pytest.raises(BrokenData, match="line 6: expected a text, found None"):
        goemotions.read_parquet_file(path)

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"text": "no labels"}]), path)
    with pytest.raises(BrokenData, match="expected parquet with text, labels, id"):
        goemotions.read_parquet_file(path)

    path.write_bytes(b"<html>not found</html>")
    with pytest.raises(BrokenData, match="expected parquet with text, labels, id"):
        goemotions.read_parquet_file(path)


def test_hub_files_are_pinned_parquet():
    hub = goemotions.SPEC.hub
    assert hub.repo_id == "google-research-datasets/go_emotions"
    assert len(hub.revision) == 40
    assert hub.files["validation"] == "simplified/validation-00000-of-00001.parquet"
    assert set(hub.files) == set(goemotions.SPEC.files) == set(goemotions.SPEC.published_rows)


@pytest.mark.parametrize("split", ["test", "validation", "train"])
def test_packaged_sample(local, monkeypatch, split):
    monkeypatch.setenv("SEMSOFT_DATA", "embedded")
    loaded = goemotions.load(split=split, multilabel="any")
    assert set(loaded["test"]["published_data"]) == {0}
    assert set(loaded["test"]["source"]) == {"embedded"}
    assert {label for row in loaded["test"]["labels"] for label in row} == set(range(28))
    assert len(loaded["train"]) >= 28
    per_label = Counter(loaded["test"]["label"])
    assert split != "test" or min(per_label.values()) >= 10


@pytest.mark.skipif(not SHARED.exists(), reason="no shared data")
def test_published_validation_split(local):
    (local / "goemotions").mkdir()
    (local / "goemotions" / "dev.tsv").write_bytes((SHARED / "dev.tsv").read_bytes())
    (local / "goemotions" / "train.tsv").write_bytes((SHARED / "train_sample.tsv").read_bytes())
    loaded = goemotions.load(split="validation")
    assert len(loaded["test"]) == 5426 - 878
    assert len(goemotions.load(split="validation", multilabel="any")["test"]) == 5426
    evaluated = {row[0] for row in map(str.strip, loaded["test"]["text"])}
    assert not evaluated & set(loaded["train"]["text"])
    assert len(set(loaded["train"]["label"][:28])) == 28


# --- few-shot examples ---------------------------------------------------------------------------


def test_candidates(local):
    """One label, some text, each text once, none that is evaluated."""
    write_tsv(local, test=TEST, train=TRAIN)
    pool = goemotions.load()["train"]
    assert sorted(pool["text"]) == [
        *("great work", "the bus is at nine", "the train is at ten", "why would you do that"),
    ]


def test_candidates_come_from_another_split_than_the_evaluated_one(local):
    write_tsv(local, dev=TEST, train=TRAIN)
    loaded = goemotions.load(split="train")
    assert "great work" in loaded["test"]["text"]
    assert sorted(loaded["train"]["id"]) == ["t1", "t2", "t3"]


def test_candidates_come_from_the_same_source(local):
    """Never published documents with examples from the packaged sample."""
    write_tsv(local, test=TEST)
    assert len(goemotions.load()["train"]) == 0


def row(i, label):
    return {"id": f"r{i:04}", "text": f"text {i}", "labels": [label]}


def test_every_label_once_before_any_comes_twice():
    rows = [row(i, i % 7 if i < 20 else 0) for i in range(200)]
    labels = [r["labels"][0] for r in fewshot.label_diverse(rows, seed=3)]
    assert len(set(labels[:7])) == 7
    assert len(set(labels[7:13])) == 6
    assert len(labels) == 200


def test_order_depends_on_the_seed_not_on_the_order_of_the_rows():
    rows = [row(i, i % 7) for i in range(50)]
    once = fewshot.label_diverse(rows, seed=1)
    assert fewshot.label_diverse(reversed(rows), seed=1) == once
    assert fewshot.label_diverse(once, seed=1) == once
    assert fewshot.label_diverse(rows, seed=2) != once


def test_candidates_are_few_enough_to_be_quick():
    rows = [row(i, i % 3) for i in range(500)]
    assert len(fewshot.fewshot_candidates(rows, set())) == 3 * fewshot.FEWSHOT_PER_LABEL


def test_the_same_examples_for_every_document(local):
    write_tsv(local, test=TEST, train=TRAIN)
    task = build()
    made = [prompt for prompt, _ in prompts(task, num_fewshot=3)]
    shared = {prompt.rsplit("Comment: ", 1)[0] for prompt in made}
    assert len(shared) == 1
    (prefix,) = shared
    assert prefix.count("Emotion:") == 3
    examples = [line.partition(": ")[2] for line in prefix.splitlines() if "Emotion:" in line]
    assert set(examples) == {"admiration", "annoyance", "neutral"}


def test_fewshot_seed_of_the_harness(local):
    write_tsv(local, test=TEST, train=[(f"text {i}", str(i % 28), f"r{i}") for i in range(280)])
    task = build()
    prefixes = []
    for seed in (1234, 7, 1234):
        task.set_fewshot_seed(seed)
        prefixes.append(prompts(task, num_fewshot=5)[0][0])
    assert prefixes[0] == prefixes[2] != prefixes[1]


def test_without_train_split_only_few_shot_runs_fail(local):
    write_tsv(local, test=TEST)
    task = build()
    assert len(prompts(task)) == 4
    with pytest.raises(DataUnavailable, match=r"num_fewshot=2: .* 0 examples.*/train\.tsv"):
        prompts(task, num_fewshot=2)


# --- prompts -------------------------------------------------------------------------------------

ODD_TEXTS = ["{{ 7 * 7 }} {% raw %}", "12345", "", " a\r ", "🙂🏳️🌈", "<b>&amp;</b>", "[]"]


def test_prompt(local):
    write_tsv(local, test=[(text, "4", f"t{i}") for i, text in enumerate(ODD_TEXTS)])
    made = prompts(build())
    description = yaml_config()["description"]
    assert [prompt for prompt, _ in made] == [
        f"{description}Comment: {text}\nEmotion:" for text in ODD_TEXTS
    ]
    for _, continuations in made:
        assert continuations == [f" {label}" for label in LABELS]


def test_line_breaks_and_tabs_stay():
    """Which a TSV cannot hold and the hub's parquet can."""
    assert goemotions.doc_to_text({"text": "a\n\tb"}) == "Comment: a\n\tb\nEmotion:"


def test_digits_in_the_first_document_change_nothing(local):
    """The harness takes a rendered text of digits for a number of inputs."""
    write_tsv(local, test=[("123", "4", "t1")], train=TRAIN)
    task = build()
    assert task.multiple_input == 0
    assert prompts(task, num_fewshot=1)[0][0].endswith("Comment: 123\nEmotion:")


def test_chat_template(local):
    write_tsv(local, test=TEST, train=TRAIN)

    def template(messages, add_generation_prompt=True):
        return "".join(f"<{m['role']}>{m['content']}" for m in messages) + "<assistant>"

    made = prompts(
        *(build(), 1), apply_chat_template=True, chat_template=template, fewshot_as_multiturn=True
    )
    prompt, continuations = made[0]
    assert prompt.startswith("<system>Read the comment and answer with the one emotion")
    assert prompt.endswith("<user>Comment: I love this!\nEmotion:<assistant>")
    assert prompt.count("<assistant>") == 2
    assert continuations == list(LABELS)  # the template ends with its own delimiter


def test_embedded_sample_through_the_harness(local, monkeypatch):
    monkeypatch.setenv("SEMSOFT_DATA", "embedded")
    assert len(prompts(build(split="dev"), num_fewshot=4)) == 112


# --- a whole run ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory):
    """A random GPT-2 of two layers and a byte-level tokenizer, on disk."""
    import torch
    from tokenizers import ByteLevelBPETokenizer
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("model")
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(
        [" ".join(LABELS)] * 3, vocab_size=400, special_tokens=["<end>"], show_progress=False
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=trained._tokenizer, eos_token="<end>")
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=1024, n_embd=32, n_layer=2, n_head=2,
        initializer_range=0.3, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def evaluate(model, folder, limit=None, **metadata):
    tracker = EvaluationTracker(output_path=str(folder / "out"))
    manager = TaskManager(
        include_path=str(TASK_CONFIGS), include_defaults=False, metadata=metadata or None
    )
    results = lm_eval.simple_evaluate(
        model="hf",
        model_args={"pretrained": str(model), "dtype": "float32"},
        tasks=["goemotions_zs"],
        task_manager=manager,
        device="cpu",
        batch_size=16,
        limit=limit,
        evaluation_tracker=tracker,
    )
    samples = results.pop("samples")["goemotions_zs"]
    tracker.save_results_aggregated(results=results, samples={"goemotions_zs": samples})
    tracker.save_results_samples("goemotions_zs", samples)
    return results


def saved(folder, pattern):
    (path,) = (folder / "out").rglob(pattern)
    return path.read_text(encoding="utf-8")


@pytest.fixture
def twelve(local):
    write_tsv(
        local,
        test=[(f"comment {i} {LABELS[i]}", f"{i % 5}", f"t{i}") for i in range(11)]
        + [("two emotions", "3,1", "t11")],
    )
    return local


@pytest.mark.filterwarnings("ignore::lm_eval_semsoft.core.bootstrap.UndefinedMetricWarning")
def test_stock_hf_run_equals_scikit_learn(twelve, tiny_model, monkeypatch):
    """From the log-likelihoods in the sample file to the table, by way of scikit-learn."""
    monkeypatch.setattr(metrics, "RESAMPLES", 100)
    results = evaluate(tiny_model, twelve, multilabel="any")
    table = json.loads(saved(twelve, "results_*.json"))["results"]["goemotions_zs"]
    samples = [json.loads(line) for line in saved(twelve, "samples_*.jsonl").splitlines()]
    assert len(samples) == 12

    scores = np.array([[float(ll) for ll, _ in s["filtered_resps"]] for s in samples])
    assert scores.shape == (12, 28)
    probs = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    top = probs.argmax(axis=1)
    allowed = [s["doc"]["labels"] for s in samples]
    target = np.array([t if t in a else a[0] for t, a in zip(top, allowed, strict=True)])
    assert allowed[-1] == [1, 3]
    present = np.unique(target)
    expected = {
        "accuracy": accuracy_score(target, top),
        "macro_f1": f1_score(target, top, average="macro", zero_division=0),
        "auroc": np.mean([roc_auc_score(target == c, probs[:, c]) for c in present]),
        "brier": np.mean(((probs - np.eye(28)[target]) ** 2).sum(axis=1)),
        "nll": log_loss(target, probs, labels=range(28)),
        "mean_confidence": probs.max(axis=1).mean(),
    }
    for name, value in expected.items():
        assert table[f"{name},none"] == pytest.approx(value), name
        assert table[f"constrained_{name},none"] == table[f"{name},none"]
        assert table[f"{name}_stderr,none"] >= 0
    assert table["published_data,none"] == 1
    assert math.isnan(table["silent_vote,none"])

    printed = {
        cells[4].strip(): cells[6:9]
        for cells in (line.strip("|").split("|") for line in make_table(results).splitlines()[2:])
    }
    for name in (*expected, "ece", "ece_sweep", "constrained_ece"):
        value, sign, error = (cell.strip() for cell in printed[name])
        assert sign == "±"
        assert float(value) == pytest.approx(table[f"{name},none"], abs=1e-4)
        assert float(error) == pytest.approx(table[f"{name}_stderr,none"], abs=1e-4)
    assert not any(name.endswith("_stderr") for name in printed)


@pytest.mark.filterwarnings("ignore::lm_eval_semsoft.core.bootstrap.UndefinedMetricWarning")
def test_limit_of_two(twelve, tiny_model, monkeypatch):
    monkeypatch.setattr(metrics, "RESAMPLES", 20)
    table = evaluate(tiny_model, twelve, limit=2)["results"]["goemotions_zs"]
    assert table["sample_len"] == 2
    assert 0 < table["nll,none"] < 100


def test_base_yamls_are_no_tasks_and_nothing_else_is_skipped(caplog):
    with caplog.at_level(logging.DEBUG, logger="lm_eval"):
        manager = TaskManager(include_path=str(TASK_CONFIGS), include_defaults=False)
    assert "goemotions_zs" in manager.all_subtasks
    skipped = [r.message for r in caplog.records if r.message.startswith("Skip ")]
    assert all(Path(message.split()[1]).name.startswith("_") for message in skipped)
