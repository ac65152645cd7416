"""The loader, the metrics and the YAML of `civil_comments_ambiguous`, alone and in the harness."""

import csv
import json
import logging
import math
import pickle
import random
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
from scipy.stats import entropy, spearmanr
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss, roc_auc_score

from lm_eval_semsoft.core.bootstrap import UndefinedMetricWarning
from lm_eval_semsoft.tasks import civil_comments, data, metrics, soft_metrics
from lm_eval_semsoft.tasks.data import BrokenData, DataUnavailable

ROOT = Path(__file__).parents[2]
TASK_CONFIGS = ROOT / "task_configs"
SHARED = ROOT.parent / "shared" / "data" / "civil_comments" / "rater_fractions_sample.jsonl"
SOFT = ("soft_brier", "soft_ece", "spearman_fraction", "spearman_entropy")

TEST = [
    {"text": "all agree: fine", "toxicity": 0.0},
    {"text": "on the lower bound", "toxicity": 0.25, "toxicity_annotator_count": 4},
    {"text": "a third of them", "toxicity": 0.333333, "id": "own"},
    {"text": "half and half", "toxicity": 0.5},
    {"text": "on the upper bound", "toxicity": 0.75, "severe_toxicity": 0.1},
    {"text": "just above it", "toxicity": 0.76},
    {"text": "all agree: toxic", "toxicity": 1},
]
TRAIN = [
    {"text": "half and half", "toxicity": 0.5},  # is evaluated, too
    {"text": "clearly fine", "toxicity": 0.0},
    {"text": "a little rude", "toxicity": 0.3},
    {"text": "a little rude", "toxicity": 0.4},
    {"text": "rather mild", "toxicity": 0.4},
    {"text": "rather rude", "toxicity": 0.6},
    {"text": "very rude", "toxicity": 0.7},
    {"text": "  ", "toxicity": 0.6},
]


def write(folder, **splits):
    target = folder / "civil_comments"
    target.mkdir(exist_ok=True)
    for name, rows in splits.items():
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (target / f"{name}.jsonl").write_text(text, encoding="utf-8", newline="")
    return target


def build(**metadata):
    manager = TaskManager(
        include_path=str(TASK_CONFIGS), include_defaults=False, metadata=metadata or None
    )
    task = manager.load(["civil_comments_ambiguous"])["tasks"]["civil_comments_ambiguous"]
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


def read_yaml(name):
    loader = type("Loader", (yaml.SafeLoader,), {})
    loader.add_constructor("!function", lambda _, node: node.value)
    return yaml.load((TASK_CONFIGS / name).read_text(), Loader=loader)


# --- which rows ----------------------------------------------------------------------------------


def test_the_ambiguous_band_includes_its_bounds(local):
    write(local, test=TEST)
    rows = civil_comments.load()["test"]
    assert rows["text"][:] == [row["text"] for row in TEST[1:5]]
    assert rows["toxicity"][:] == [0.25, 0.333333, 0.5, 0.75]
    assert rows["label"][:] == [0, 0, 1, 1]
    assert rows["labels"][:] == [[0], [0], [1], [1]]
    assert rows["toxicity_annotator_count"][:] == [4, None, None, None]
    assert set(rows["source"]) == {"local"}
    assert set(rows["published_data"]) == {1}


@pytest.mark.parametrize(
    ("ambiguity", "kept"),
    [
        ([0, 1], range(7)),
        ((0.0, 1.0), range(7)),
        ([0.5, 0.5], [3]),
        ([1 / 3, 0.5], [2, 3]),  # as a fraction of three raters is written with six decimals
        ([0.76, 1], [5, 6]),
    ],
)
def test_other_bands(local, ambiguity, kept):
    write(local, test=TEST)
    rows = civil_comments.load(ambiguity=ambiguity)["test"]
    assert rows["text"][:] == [TEST[i]["text"] for i in kept]


@pytest.mark.parametrize(("split", "file"), [("validation", "validation"), ("dev", "validation")])
def test_other_splits(local, split, file):
    write(local, **{file: TEST})
    assert len(civil_comments.load(split=split)["test"]) == 4


@pytest.mark.parametrize("ambiguity", [
    *([0.9, 0.1], [-0.1, 0.5], [0.5, 1.5], [0.5], [0, 0.5, 1], [], 0.5, None, "0.25,0.75"),
    *(["0.25", "0.75"], [math.nan, 1], [True, True], {"low": 0, "high": 1}),
])  # fmt: skip
def test_bad_bands(local, ambiguity):
    write(local, test=TEST)
    with pytest.raises(ValueError, match=r"ambiguity=.* use \[low, high\] with 0 <= low <= high"):
        civil_comments.load(ambiguity=ambiguity)


def test_a_band_without_rows(local):
    write(local, test=TEST)
    with pytest.raises(
        ValueError,
        match=r"ambiguity=\[0.1, 0.2\] leaves none of the 7 rows .*test\.jsonl: their fractions "
        r"lie between 0 and 1 \(\[0, 1\] keeps everything\)",
    ):
        civil_comments.load(ambiguity=[0.1, 0.2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "tets"}, r"split='tets'.*test, validation, dev, train.*mean 'test'"),
        ({"max_rows": 0}, "max_rows=0 .* whole number"),
        ({"max_rows": 2.5}, "max_rows=2.5"),
        ({"max_rows": True}, "max_rows=True"),
        ({"max_rows": "10"}, "max_rows='10'"),
    ],
)
def test_unknown_options(local, options, message):
    write(local, test=TEST)
    with pytest.raises(ValueError, match=message):
        civil_comments.load(**options)


def test_what_else_the_harness_passes_is_ignored(local, caplog):
    write(local, test=TEST)
    civil_comments.load(version=1.0, config_source="x.yaml", pretrained="gpt2", tau=0.8)
    assert "is ignored" not in caplog.text
    civil_comments.load(ambiguty=[0, 1], maxrows=3)
    assert "'ambiguty' is ignored; is 'ambiguity' meant?" in caplog.text
    assert "'maxrows' is ignored; is 'max_rows' meant?" in caplog.text


def test_max_rows_is_a_seeded_subset_in_the_order_of_the_file(local):
    write(local, test=[{"text": f"text {i}", "toxicity": 0.5} for i in range(200)])
    everything = civil_comments.load()["test"]["text"][:]
    few = civil_comments.load(max_rows=20)["test"]["text"][:]
    assert len(few) == 20
    assert few == [text for text in everything if text in set(few)]
    assert few != everything[:20]
    assert civil_comments.load(max_rows=20)["test"]["text"][:] == few
    assert civil_comments.load(max_rows=500)["test"]["text"][:] == everything


def test_rows_without_text_are_left_out_and_counted(local, caplog):
    write(local, test=[*TEST, {"text": "", "toxicity": 0.5}, {"text": " \n", "toxicity": 0.5}])
    assert len(civil_comments.load()["test"]) == 4
    assert "2 of 9 rows have no text; left out." in caplog.text
    write(local, test=[{"text": "", "toxicity": 0.5}])
    with pytest.raises(ValueError, match="leaves none of the 0 rows with text"):
        civil_comments.load()


def test_ids(local):
    """Own ones stay, others come from the text, repeated ones are numbered, none meet."""
    rows = [
        *({"text": "same", "toxicity": t} for t in (0.5, 0.5, 0.6)),
        *({"text": t, "toxicity": 0.5, "id": i} for t, i in (("a", "x"), ("b", "x"), ("c", "x-2"))),
        *({"text": t, "toxicity": 0.5, "id": i} for t, i in (("d", 0), ("e", None), ("f", " "))),
    ]
    write(local, test=rows)
    ids = civil_comments.load()["test"]["id"][:]
    assert len(set(ids)) == len(rows)
    assert ids[1:3] == [f"{ids[0]}-2", f"{ids[0]}-3"]
    assert ids[3:7] == ["x", "x-2", "x-2-2", "0"]
    assert all(i.startswith("cc") for i in (ids[0], *ids[7:]))

    write(local, test=list(reversed(rows)))
    assert set(civil_comments.load()["test"]["id"]) >= {ids[0], ids[7], ids[8], "x", "0"}


# --- reading -------------------------------------------------------------------------------------


def as_csv(path, rows, columns):
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def test_csv_gives_what_jsonl_gives(local):
    odd = [*TEST, {"text": 'He said "no",\nthen left\u2028', "toxicity": 0.7, "id": "q"}]
    folder = write(local, test=odd)
    from_jsonl = civil_comments.load(ambiguity=[0, 1])["test"].to_list()
    as_csv(folder / "test.csv", odd, ["id", "toxicity", "text", "toxicity_annotator_count", "x"])
    (folder / "test.jsonl").unlink()
    assert civil_comments.load(ambiguity=[0, 1])["test"].to_list() == from_jsonl


def test_jsonl_wins_over_csv(local):
    folder = write(local, test=TEST)
    as_csv(folder / "test.csv", TEST[:2], ["text", "toxicity"])
    assert len(civil_comments.load()["test"]) == 4


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "x", "toxicity": 0.5', r"test\.jsonl, line 3: expected a JSON object, found"),
        ("[1, 2]", "line 3: expected a JSON object"),
        ('"text"', "line 3: expected a JSON object"),
        ("[" * 100_000, "line 3: expected a JSON object"),
        ('{"toxicity": 0.5}', r"line 3: expected a row with text, found \['toxicity'\]"),
        ('{"text": "x", "target": 0.5}', r"line 3: expected a row with toxicity, found \['target'"),
        ('{"text": null, "toxicity": 0.5}', "line 3: expected text to be a string"),
        ('{"text": 5, "toxicity": 0.5}', "line 3: expected text to be a string"),
        (r'{"text": "\ud83d", "toxicity": 0.5}', "line 3: expected text to be a string of Unicode"),
        ('{"text": "x", "toxicity": 1.01}', "line 3: expected toxicity to be a fraction of raters"),
        ('{"text": "x", "toxicity": -0.1}', "toxicity to be a fraction .* 0 to 1, found -0.1"),
        ('{"text": "x", "toxicity": NaN}', "toxicity to be a fraction .* found nan"),
        ('{"text": "x", "toxicity": 1e999}', "toxicity to be a fraction .* found inf"),
        ('{"text": "x", "toxicity": 1%s}' % ("0" * 400), "toxicity to be a fraction"),
        ('{"text": "x", "toxicity": null}', "toxicity to be a fraction .* found None"),
        ('{"text": "x", "toxicity": true}', "toxicity to be a fraction .* found True"),
        ('{"text": "x", "toxicity": "0.5"}', "toxicity to be a fraction .* found '0.5'"),
        *(
            (
                f'{{"text": "x", "toxicity": 0.5, "toxicity_annotator_count": {count}}}',
                "line 3: expected toxicity_annotator_count to be a number of raters",
            )
            for count in ("-1", "0", "2.5", "NaN", '"7"', "true", "1" + "0" * 40)
        ),
    ],
)
def test_broken_jsonl(local, line, message):
    folder = write(local, test=TEST[:1])
    with (folder / "test.jsonl").open("a", encoding="utf-8") as stream:
        stream.write("\n" + line + "\n")
    with pytest.raises(BrokenData, match=message):
        civil_comments.load()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("text,tox\nx,0.5\n", r"test\.csv, line 2: expected a row with toxicity"),
        ('text,toxicity\n"a\nb",0.5\nx,1.5\n', "line 4: expected toxicity to be a fraction"),
        ("text,toxicity\nx,often\n", "line 2: expected toxicity .* found 'often'"),
        ("text,toxicity\nx,\n", "line 2: expected toxicity .* found None"),
        ("text,toxicity\nx,nan\n", "line 2: expected toxicity .* found nan"),
        ("text,toxicity\na,b,0.5\n", r"line 2: expected 2 comma-separated fields \(text, toxicity"),
        ("text,toxicity\nx\n", "line 2: expected 2 comma-separated fields"),
        ('text,toxicity\n"open,0.5\n', r"line 2: expected CSV \(unexpected end of data"),
        ('text,toxicity\nx,0.5\n"a"b,0.5\n', "line 3: expected CSV"),
        ("text,toxicity,toxicity_annotator_count\nx,0.5,many\n", "line 2: expected toxicity_anno"),
        ("", "holds no rows"),
        ("text,toxicity\n", "holds no rows"),
    ],
)
def test_broken_csv(local, text, message):
    folder = write(local)
    (folder / "test.csv").write_text(text, encoding="utf-8", newline="")
    with pytest.raises(BrokenData, match=message):
        civil_comments.load()


def test_csv_of_a_spreadsheet(local):
    """A byte-order mark, \\r\\n, empty lines, spaces in the header, whole numbers as 7.0."""
    folder = write(local)
    (folder / "test.csv").write_bytes(
        b"\xef\xbb\xbftext, toxicity,toxicity_annotator_count\r\n\r\nx,0.5,7.0\r\ny,.3,\r\n"
    )
    rows = civil_comments.load()["test"]
    assert rows["text"][:] == ["x", "y"]
    assert rows["toxicity_annotator_count"][:] == [7, None]


def test_hub_file(tmp_path):
    path = tmp_path / "x.parquet"
    table = pyarrow.table({
        "text": ["a", "a", None, "b"],
        "toxicity": pyarrow.array([1 / 3, 0.6, 0.5, 0.3], pyarrow.float32()),
        "insult": [0.0] * 4,
    })  # fmt: skip
    pyarrow.parquet.write_table(table, path)
    rows = civil_comments.read_parquet_file(path)
    assert [row["text"] for row in rows] == ["a", "a", "", "b"]
    assert [row["toxicity"] for row in rows] == [0.333333, 0.6, 0.5, 0.3]  # single precision ends
    assert rows[1]["id"] == f"{rows[0]['id']}-2"

    pyarrow.parquet.write_table(pyarrow.table({"text": ["x"], "toxicity": [1.5]}), path)
    with pytest.raises(BrokenData, match="line 1: expected toxicity to be a fraction"):
        civil_comments.read_parquet_file(path)
    pyarrow.parquet.write_table(pyarrow.table({"text": ["no fraction"]}), path)
    with pytest.raises(BrokenData, match="expected parquet with text, toxicity"):
        civil_comments.read_parquet_file(path)
    path.write_bytes(b"<html>not found</html>")
    with pytest.raises(BrokenData, match="expected parquet with text, toxicity"):
        civil_comments.read_parquet_file(path)


def test_hub_files_are_pinned_parquet():
    hub = civil_comments.SPEC.hub
    assert hub.repo_id == "google/civil_comments"
    assert len(hub.revision) == 40
    assert set(hub.files) == set(civil_comments.SPEC.files)
    assert all(name.endswith(".parquet") for name in hub.files.values())


def test_nothing_found(local, monkeypatch):
    monkeypatch.setattr(data, "EMBEDDED_DIR", local / "nothing")
    with pytest.raises(DataUnavailable, match=r"civil_comments/test\.jsonl or test\.csv, or run"):
        civil_comments.load()


@pytest.mark.parametrize("split", ["test", "validation", "train"])
def test_packaged_sample(local, monkeypatch, split):
    monkeypatch.setenv("SEMSOFT_DATA", "embedded")
    rows = civil_comments.load(split=split, ambiguity=[0, 1])["test"]
    assert set(rows["published_data"]) == {0}
    assert set(rows["source"]) == {"embedded"}
    assert len(set(rows["text"])) == len(set(rows["id"])) == len(rows)
    assert len(rows) >= {"test": 80, "validation": 30, "train": 30}[split]
    assert {round(10 * q) for q in rows["toxicity"]} == set(range(11))
    assert all(round(10 * q) == pytest.approx(10 * q) for q in rows["toxicity"])
    band = civil_comments.load(split=split)["test"]
    assert len(band) >= 0.5 * len(rows)
    assert min(Counter(band["label"]).values()) >= 0.35 * len(band)


def test_splits_of_the_packaged_sample_share_no_text(local, monkeypatch):
    monkeypatch.setenv("SEMSOFT_DATA", "embedded")
    splits = [
        civil_comments.load(split=split, ambiguity=[0, 1])["test"]["text"][:]
        for split in ("test", "validation", "train")
    ]
    assert len(set().union(*splits)) == sum(map(len, splits))


@pytest.mark.skipif(not SHARED.exists(), reason="no shared data")
def test_real_fractions(local, caplog):
    folder = write(local)
    (folder / "test.jsonl").write_bytes(SHARED.read_bytes())
    rows = civil_comments.load()["test"]
    given = [json.loads(line) for line in SHARED.read_text().splitlines()]
    inside = [row for row in given if 0.25 <= row["toxicity"] <= 0.75]
    assert rows["text"][:] == [row["text"] for row in inside]
    assert rows["toxicity_annotator_count"][:] == [r["toxicity_annotator_count"] for r in inside]
    assert len(set(rows["id"])) == len(rows)
    assert len(civil_comments.load(ambiguity=[0, 1])["test"]) == len(given) == 3000
    assert "has 3000 rows, the published split has 97320" in caplog.text


# --- few-shot examples ---------------------------------------------------------------------------


def examples(task, n):
    """(text, label) of the examples in the prompt, which are the same for every document."""
    shared = {prompt.rsplit("Comment: ", 1)[0] for prompt, _ in prompts(task, num_fewshot=n)}
    (prefix,) = shared
    blocks = prefix.split("Comment: ")[1:]
    return [tuple(block.strip().split("\nTone: ")) for block in blocks]


def test_examples_are_as_ambiguous_as_the_documents(local):
    write(local, test=TEST, train=TRAIN)
    made = examples(build(), 4)
    assert sorted(made) == [
        *(("a little rude", "okay"), ("rather mild", "okay")),
        *(("rather rude", "toxic"), ("very rude", "toxic")),
    ]
    assert {made[0][1], made[1][1]} == {made[2][1], made[3][1]} == {"okay", "toxic"}
    with pytest.raises(DataUnavailable, match=r"num_fewshot=5: .*civil_comments offers 4 examples"):
        examples(build(), 5)
    assert ("clearly fine", "okay") in examples(build(ambiguity=[0, 1]), 5)


def test_examples_depend_on_the_seed_of_the_harness(local):
    rows = [{"text": f"text {i}", "toxicity": 0.3 + 0.4 * (i % 2)} for i in range(60)]
    write(local, test=TEST, train=rows)
    task = build()
    made = []
    for seed in (1234, 7, 1234):
        task.set_fewshot_seed(seed)
        made.append(examples(task, 6))
    assert made[0] == made[2] != made[1]
    assert Counter(label for _, label in made[1]) == {"okay": 3, "toxic": 3}


def test_zero_shot_reads_no_train_split(local):
    folder = write(local, test=TEST)
    (folder / "train.jsonl").write_text("this is broken")
    task = build()
    assert len(prompts(task)) == 4
    with pytest.raises(BrokenData, match=r"train\.jsonl, line 1"):
        prompts(task, num_fewshot=2)


def test_without_train_split_only_few_shot_runs_fail(local):
    write(local, test=TEST)
    task = build()
    assert len(prompts(task)) == 4
    with pytest.raises(DataUnavailable, match=r"0 examples.*/train\.jsonl or train\.csv"):
        prompts(task, num_fewshot=2)


def test_train_is_evaluated_with_examples_from_validation(local):
    write(local, train=TRAIN, validation=TEST)
    task = build(split="train")
    assert len(prompts(task)) == 6  # of TRAIN: one is clear, one has no text
    assert ("on the lower bound", "okay") in examples(task, 3)
    assert "half and half" not in dict(examples(task, 3))


# --- prompts -------------------------------------------------------------------------------------


def test_prompt(local):
    odd = ["{{ 7 * 7 }} {% raw %}", "12345", " a\r ", "line\nbreak\u2028", "🙂🏳️🌈", "[]"]
    write(local, test=[{"text": text, "toxicity": 0.5} for text in odd])
    made = prompts(build())
    description = read_yaml("civil_comments/civil_comments_ambiguous.yaml")["description"]
    assert [p for p, _ in made] == [f"{description}Comment: {text}\nTone:" for text in odd]
    assert all(continuations == [" okay", " toxic"] for _, continuations in made)


def test_labels_agree():
    config = read_yaml("civil_comments/civil_comments_ambiguous.yaml")
    assert tuple(config["doc_to_choice"]) == civil_comments.LABELS
    assert all(label in config["description"] for label in civil_comments.LABELS)
    assert "num_fewshot" not in config  # 0 there could not be overridden


def test_chat_template(local):
    write(local, test=TEST, train=TRAIN)

    def template(messages, add_generation_prompt=True):
        return "".join(f"<{m['role']}>{m['content']}" for m in messages) + "<assistant>"

    made = prompts(
        *(build(), 1), apply_chat_template=True, chat_template=template, fewshot_as_multiturn=True
    )
    prompt, continuations = made[0]
    assert prompt.startswith("<system>")
    assert prompt.endswith("<user>Comment: on the lower bound\nTone:<assistant>")
    assert prompt.count("<assistant>") == 2
    assert continuations == ["okay", "toxic"]  # the template ends with its own delimiter


# --- metrics -------------------------------------------------------------------------------------


class Score(tuple):
    """As a semsoft model returns it: a pair that knows the label's own probability."""

    def __new__(cls, score, constrained):
        self = super().__new__(cls, (score, False))
        self.constrained = constrained
        return self


def document(i, fraction):
    return {"id": f"d{i:03}", "labels": [int(fraction >= 0.5)], "toxicity": fraction,
            "published_data": 1}  # fmt: skip


def make_run(n=60, seed=3):
    """Fractions, constrained and semantic log-scores, and the payloads of all documents."""
    rng = np.random.default_rng(seed)
    fraction = rng.integers(0, 11, size=n) / 10
    own = rng.normal(size=(n, 2)) - 6
    own[:, 1] += 2 * fraction
    scores = np.logaddexp(own, rng.normal(size=(n, 2)) - 7)
    payloads = [
        civil_comments.process_results(
            document(i, q), [Score(*pair) for pair in zip(s, o, strict=True)]
        )
        for i, (q, s, o) in enumerate(zip(fraction.tolist(), scores, own, strict=True))
    ]
    return fraction, scores, own, payloads


def aggregations():
    for entry in read_yaml("civil_comments/civil_comments_ambiguous.yaml")["metric_list"]:
        module, _, function = entry["aggregation"].rpartition(".")
        source = {"metrics": metrics, "soft_metrics": soft_metrics}[module.rpartition(".")[2]]
        yield entry["metric"], getattr(source, function)


def aggregate(payloads):
    return {name: fn([p[name] for p in payloads]) for name, fn in aggregations()}


def soft_oracle(fraction, scores):
    """From definitions: scipy's correlation and entropy, loops for the rest."""
    probs = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    shares = np.stack([1 - fraction, fraction], axis=1)
    bins = [[i for i, p in enumerate(probs[:, 1]) if min(int(p * 15), 14) == b] for b in range(15)]
    return {
        "soft_brier": np.mean([sum((p - s) ** 2) for p, s in zip(probs, shares, strict=True)]),
        "soft_ece": sum(abs(sum(probs[i, 1] - fraction[i] for i in b)) for b in bins) / len(probs),
        "spearman_fraction": spearmanr(probs[:, 1], fraction).statistic,
        "spearman_entropy": spearmanr(
            entropy(probs, axis=1), entropy(shares, axis=1).round(9)
        ).statistic,
    }


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(metrics, "RESAMPLES", 50)
    metrics._warn.cache_clear()


def test_values_equal_scipy_and_loops(quick):
    fraction, scores, own, payloads = make_run()
    table = aggregate(payloads)
    expected = soft_oracle(fraction, scores)
    expected |= {f"constrained_{k}": v for k, v in soft_oracle(fraction, own).items()}
    assert {name: table[name] for name in expected} == pytest.approx(expected)
    assert expected["soft_ece"] != pytest.approx(expected["constrained_soft_ece"])
    labels = (fraction >= 0.5).astype(int)
    toxic = (np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True))[:, 1]
    assert table["auroc"] == pytest.approx(roc_auc_score(labels, toxic))
    assert table["brier"] == pytest.approx(2 * brier_score_loss(labels, toxic))
    for name in (*SOFT, *(f"constrained_{name}" for name in SOFT)):
        assert 0 < table[f"{name}_stderr"] < 0.5, name


def test_shares_that_mirror_each_other_tie():
    """.3 and .7 of the raters are equally divided, whatever floating point thinks."""
    results = [(-1.0, False), (-2.0, False)]
    for tenths in range(6):
        pair = [
            civil_comments.process_results(document(0, q), results)["spearman_entropy"][1]
            for q in (tenths / 10, 1 - tenths / 10)
        ]
        assert pair[0] == pair[1]
    thirds = [
        civil_comments.process_results(document(0, q), results)["spearman_entropy"][1]
        for q in (0.333333, 0.666667)
    ]
    assert thirds[0] == thirds[1]


def test_order_of_documents_changes_nothing(quick):
    payloads = make_run()[3]
    shuffled = payloads.copy()
    random.Random(0).shuffle(shuffled)
    assert aggregate(shuffled) == aggregate(payloads)
    assert aggregate(pickle.loads(pickle.dumps(payloads))) == aggregate(payloads)


def test_certain_scores_are_no_trouble(quick):
    """A probability that underflows, and one label that is impossible."""
    for other in (-5000.0, -math.inf):
        payload = civil_comments.process_results(document(0, 0.3), [(0.0, True), (other, False)])
        assert payload["soft_brier"] == pytest.approx(2 * 0.3**2)
        assert payload["soft_ece"] == (0.0, 0.3)
        assert payload["spearman_entropy"][0] == 0


def test_nan_scores_are_nan_and_named(quick):
    payloads = make_run()[3]
    broken = [Score(math.nan, -1.0), Score(-1.0, -1.0)]
    payloads[7] = civil_comments.process_results(document(7, 0.5), broken)
    with pytest.warns(UndefinedMetricWarning, match="1 of 60 documents have NaN scores, first 'd0"):
        table = aggregate(payloads)
    for name in SOFT:
        assert math.isnan(table[name])
        assert math.isnan(table[f"{name}_stderr"])
        assert not math.isnan(table[f"constrained_{name}"])


def test_few_documents(quick):
    """`--limit 2`: correlations of two documents are NaN and say why, the rest is there."""
    with pytest.warns(UndefinedMetricWarning, match="spearman_r is NaN: there are 2 pairs"):
        table = aggregate(make_run(n=2)[3])
    assert math.isnan(table["spearman_fraction"])
    assert table["soft_ece"] >= 0


def test_one_share_per_label():
    with pytest.raises(ValueError, match=r"document 'x': shares=\[1.0\] .* each of its 2 choices"):
        soft_metrics.payloads("x", [(0.0, True), (0.0, True)], [1.0])


def test_yaml_lists_exactly_the_metrics_that_documents_have():
    """All of the shared ones in their order, then the soft ones, each before its error."""
    config = read_yaml("civil_comments/civil_comments_ambiguous.yaml")["metric_list"]
    listed = [entry["metric"] for entry in config]
    assert listed == list(make_run(n=1)[3][0])
    base = read_yaml("_label_set.yaml")["metric_list"]
    own = [entry for entry in config if entry not in base]
    assert [entry for entry in config if entry in base] == base
    assert [entry["metric"] for entry in own] == [
        f"{prefix}{name}{ending}"
        for prefix in ("", "constrained_")
        for name in SOFT
        for ending in ("", "_stderr")
    ]
    for value, error in zip(own[::2], own[1::2], strict=True):
        assert error["aggregation"] == f"{value['aggregation']}_stderr"
        assert value["higher_is_better"] is ("spearman" in value["metric"])


# --- a whole run ---------------------------------------------------------------------------------


def test_the_task_is_listed(caplog):
    with caplog.at_level(logging.DEBUG, logger="lm_eval"):
        manager = TaskManager(include_path=str(TASK_CONFIGS), include_defaults=False)
    assert "civil_comments_ambiguous" in manager.all_subtasks
    assert not any("civil" in r.message for r in caplog.records if r.message.startswith("Skip "))


def evaluate(model, path, folder, **metadata):
    tracker = EvaluationTracker(output_path=str(folder / "out"))
    manager = TaskManager(
        include_path=str(TASK_CONFIGS), include_defaults=False, metadata=metadata or None
    )
    results = lm_eval.simple_evaluate(
        model=model,
        model_args={"pretrained": path, "dtype": "float32"},
        tasks=["civil_comments_ambiguous"],
        task_manager=manager,
        device="cpu",
        batch_size=16,
        num_fewshot=2,
        evaluation_tracker=tracker,
    )
    samples = results.pop("samples")["civil_comments_ambiguous"]
    tracker.save_results_aggregated(results=results, samples={"civil_comments_ambiguous": samples})
    tracker.save_results_samples("civil_comments_ambiguous", samples)
    (table,) = (folder / "out").rglob("results_*.json")
    (lines,) = (folder / "out").rglob("samples_*.jsonl")
    read = json.loads(table.read_text(encoding="utf-8"))["results"]["civil_comments_ambiguous"]
    return results, read, [json.loads(x) for x in lines.read_text(encoding="utf-8").splitlines()]


@pytest.mark.filterwarnings("ignore::lm_eval_semsoft.core.bootstrap.UndefinedMetricWarning")
@pytest.mark.parametrize("model", ["hf", "semsoft-hf"])
def test_run(local, tiny_model_path, monkeypatch, one_thread, model):
    """From the log-likelihoods in the sample file to the table, by way of scipy."""
    from lm_eval_semsoft import plugin

    plugin.arm()
    monkeypatch.setattr(metrics, "RESAMPLES", 100)
    monkeypatch.setenv("SEMSOFT_DATA", "embedded")
    results, table, samples = evaluate(model, tiny_model_path, local, ambiguity=[0.2, 0.8])
    fraction = np.array([s["doc"]["toxicity"] for s in samples])
    assert len(samples) == 75
    assert fraction.min() == 0.2
    assert fraction.max() == 0.8

    scores = np.array([[float(ll) for ll, _ in s["filtered_resps"]] for s in samples])
    labels = (fraction >= 0.5).astype(int)
    assert labels.tolist() == [s["doc"]["label"] for s in samples]
    probs = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    expected = soft_oracle(fraction, scores) | {
        "accuracy": accuracy_score(labels, probs.argmax(axis=1)),
        "auroc": roc_auc_score(labels, probs[:, 1]),
        "nll": log_loss(labels, probs),
    }
    for name, value in expected.items():
        assert table[f"{name},none"] == pytest.approx(value), name
        assert table[f"{name}_stderr,none"] >= 0
    assert table["published_data,none"] == 0
    same = all(table[f"constrained_{n},none"] == table[f"{n},none"] for n in expected)
    assert same == (model == "hf")
    assert math.isnan(table["silent_vote,none"]) == (model == "hf")

    printed = {
        cells[4].strip(): [cell.strip() for cell in cells[6:9]]
        for cells in (line.strip("|").split("|") for line in make_table(results).splitlines()[2:])
    }
    for name in (*SOFT, *(f"constrained_{name}" for name in SOFT)):
        value, sign, error = printed[name]
        assert sign == "±"
        assert float(value) == pytest.approx(table[f"{name},none"], abs=1e-4)
        assert float(error) == pytest.approx(table[f"{name}_stderr,none"], abs=1e-4)
    assert not any(name.endswith("_stderr") for name in printed)
