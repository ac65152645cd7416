"""`semsoft probe`: from readouts with activations to the page, the figure and the JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from lm_eval_semsoft.cli import probe as pages
from lm_eval_semsoft.cli.shared import plain
from lm_eval_semsoft.core import probes
from lm_eval_semsoft.core.bootstrap import UndefinedMetricWarning
from lm_eval_semsoft.engine.readout import Readout
from lm_eval_semsoft.engine.records import StoredDocument, text_key
from lm_eval_semsoft.engine.store import Store
from lm_eval_semsoft.reports import probe as reports
from lm_eval_semsoft.reports import probe_figure
from lm_eval_semsoft.reports.probe import Settings, depth, probe_all
from lm_eval_semsoft.reports.readings import load, load_hidden

OPTIONS = ("A", "B", "C", "D")
LAYERS, D, K = 5, 12, 6
QUICK = Settings(folds=5, permutations=20, draws=50)
FAST = ["--folds", "5", "--permutations", "20", "--resamples", "50"]


def write(
    folder: Path,
    n: int = 60,
    seed: int = 0,
    *,
    tasks: Sequence[str] = ("quiz",),
    layers: int = LAYERS,
    at: int = 3,
    captured: bool = True,
    overflow: int | None = None,
    with_people: bool = True,
) -> Path:
    """A run with activations; layer `at` knows the documents' `human_entropy`."""
    rng = np.random.default_rng(seed)
    shape = (layers, D)
    about = {"model": "test/model", "top_k": K, "scoring": {"kernel": "auto"}}
    store = Store(folder, "f" * 16, K, about, shape if captured else None)
    store.save_model(lambda: torch.zeros(20, 4), lambda: [f"w{i}" for i in range(20)])
    store.save_tasks({task: {"why_identity": "options"} for task in tasks}, {})
    documents = []
    for task in tasks:
        for i in range(n):
            hidden = rng.normal(size=shape)
            people, right = float(rng.random()), int(rng.integers(4))
            hidden[at] += 6 * people
            if overflow is not None and i == 0:
                hidden[overflow, 0] = np.inf
            scores = rng.normal(size=4)
            doc: dict[str, Any] = {"id": f"q{i}", "labels": [right], "question": f"{task} {i}?"}
            if with_people:
                doc |= {"human_entropy": people, "response_time": 1000 * people if i % 7 else 0.0}
            key = text_key(f"{task} {i}")
            readout = Readout(
                topk_ids=np.arange(K, dtype=np.int32),
                topk_logprobs=np.linspace(-1, -3, K).astype(np.float32),
                label_logprobs=scores.astype(np.float32),
                label_greedy=np.zeros(4, dtype=bool),
                label_first=np.arange(4, dtype=np.int32),
                entropy=1.0,
                nucleus_sizes=np.ones(4, dtype=np.int32),
                nucleus_entropies=np.ones(4, dtype=np.float32),
                hidden=hidden.astype(np.float16) if captured else None,
            )
            store.add(key, readout)
            documents.append(
                StoredDocument(task, i, key, json.dumps(doc), None, OPTIONS, (key,), (0, 1, 2, 3))
            )
    store.save_documents(documents)
    store.close()
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("probe") / "run")


def app(*arguments: object) -> Any:
    own = typer.Typer()
    own.command()(pages.probe)
    return CliRunner().invoke(own, [str(a) for a in arguments])


# ------------------------------------------------------------------ numbers


def test_it_is_the_probe_of_the_runs_activations(run: Path) -> None:
    found = probe_all([run], "human_entropy", settings=QUICK)
    readings = load(run)
    order = np.argsort(readings.keys)
    people = np.array([doc["human_entropy"] for doc in readings.docs])[order]
    expected = probes.probe(
        load_hidden(readings)[order], people, folds=5, permutations=20, draws=50
    )
    (table,) = found.tables
    assert table.probe == expected
    assert (table.name, table.task, table.model) == ("run", "quiz", "test/model")
    assert table.probe.layer == 3
    assert table.probe.pearson.low > 0.5
    assert table.notes == []
    assert not found.empty


def test_correct_is_whether_the_most_probable_option_is_right(run: Path) -> None:
    readings = load(run)
    got = reports.target_of(readings, "correct")
    right = [
        float(scores.argmax() in doc["labels"])
        for scores, doc in zip(readings.label_logprobs, readings.docs, strict=True)
    ]
    assert got is not None
    assert got.tolist() == right
    found = probe_all([run], "correct", settings=QUICK)
    assert found.tables[0].probe.n == 60


def test_logarithms_of_times(run: Path) -> None:
    plainly = probe_all([run], "response_time", settings=QUICK).tables[0]
    logs = probe_all(
        [run], "response_time", settings=Settings(5, 42, 20, 50, log_times=True)
    ).tables[0]
    assert (plainly.probe.n, plainly.untimed) == (60, 0)
    assert (logs.probe.n, logs.untimed, logs.probe.dropped) == (51, 9, 9)
    assert "run, quiz: of these, 9 have times of 0, which have no logarithm." in logs.notes


def test_all_tasks_that_have_the_target_or_one(tmp_path: Path) -> None:
    folder = write(tmp_path / "two", n=20, tasks=("quiz", "exam"))
    found = probe_all([folder], "human_entropy", settings=QUICK)
    assert [t.task for t in found.tables] == ["exam", "quiz"]
    found = probe_all([folder], "human_entropy", "exam", QUICK)
    assert [t.task for t in found.tables] == ["exam"]


def test_directories_of_one_name_are_told_apart(tmp_path: Path) -> None:
    folders = [write(tmp_path / part / "run", n=20, seed=i) for i, part in enumerate("ab")]
    found = probe_all(folders, "human_entropy", settings=QUICK)
    assert [t.name for t in found.tables] == [str(f) for f in folders]


def test_progress_tells_every_layer(run: Path) -> None:
    told: list[tuple[str, int]] = []
    probe_all([run], "human_entropy", settings=QUICK, progress=lambda *own: told.append(own))
    assert told == [("run, quiz", LAYERS)] * LAYERS


# ------------------------------------------------------------------ the command


def test_the_page(run: Path) -> None:
    done = app(run, *FAST)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "run: test/model, quiz, human_entropy, 60 documents, 5 layers"
    assert any(line.startswith("nested ") and " 3 (5 of 5) " in line for line in lines)
    assert any(line.startswith("max_over_layers ") for line in lines)
    assert "least squares" in done.output
    assert "20 shuffled targets" in " ".join(done.output.split())


def test_json_has_every_layer(run: Path, tmp_path: Path) -> None:
    done = app(run, *FAST, "-o", tmp_path / "probe.json")
    assert done.exit_code == 0, done.output
    record = json.loads((tmp_path / "probe.json").read_text())
    assert (record["target"], record["folds"], record["permutations"]) == ("human_entropy", 5, 20)
    (own,) = record["probes"]
    expected = probe_all([run], "human_entropy", settings=QUICK)
    assert own["probe"] == plain(expected.tables[0].probe)
    assert len(own["probe"]["layers"]) == LAYERS
    assert own["probe"]["layers"][3]["pearson"]["r"] > 0.5


def test_markdown(run: Path, tmp_path: Path) -> None:
    done = app(run, *FAST, "--markdown")
    assert done.exit_code == 0, done.output
    assert "| layer | ridge, r | ridge, Spearman | least squares | shuffled, 95 % |" in done.output
    assert done.stdout.count("\n| 3 |") == 1
    app(run, *FAST, "-o", tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text() == done.stdout


def test_the_picture(run: Path, tmp_path: Path) -> None:
    done = app(run, *FAST, "--png", tmp_path / "probe.png")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "probe.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--target", "human_entrpy"], "Did you mean human_entropy? There are: human_entropy,"),
        (["--target", "question"], "has a number in the field 'question'"),
        (["--task", "exam"], "holds the tasks quiz: 'exam' is not among them."),
        (["--json", "--markdown"], "exclude each other"),
        (["-o", "/nowhere/x.json"], "there is no directory /nowhere"),
    ],
)
def test_what_it_refuses(run: Path, arguments: list[str], sentence: str) -> None:
    done = app(run, *FAST, *arguments)
    assert done.exit_code == 2
    assert sentence in " ".join(done.output.split())


def test_a_run_without_activations(tmp_path: Path) -> None:
    done = app(write(tmp_path / "run", n=12, captured=False), *FAST)
    assert done.exit_code == 2
    assert "capture=hidden" in done.output


def test_nothing_to_find_is_a_finding(tmp_path: Path) -> None:
    done = app(write(tmp_path / "run", n=8), *FAST, "--png", tmp_path / "none.png")
    assert done.exit_code == 1
    assert "! run, quiz: there are 8 documents with target and activations" in done.output
    assert not (tmp_path / "none.png").exists()
    assert "Warning" not in done.output
    assert "least squares  shuffled" not in done.output  # no table of dashes
    assert "no probe" in done.output
    assert not done.stderr.startswith("\n")


def test_a_layer_that_overflowed_is_named(tmp_path: Path) -> None:
    done = app(write(tmp_path / "run", overflow=1), *FAST)
    assert done.exit_code == 0, done.output
    assert "layer 1: activations of 1 of 60 documents are NaN or infinite" in done.output


# ------------------------------------------------------------------ the figure


def drawn(axes: Any, name: str) -> Any:
    return next(line for line in axes.get_lines() if line.get_gid() == name)


def test_the_figure_draws_the_numbers(run: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "deep", layers=9, at=5, overflow=0)
    with pytest.warns(UndefinedMetricWarning, match="layer 0"):
        found = probe_all([run, other], "human_entropy", settings=QUICK)
    figure = probe_figure.curves(found)
    assert len(figure.axes) == 2
    for axes, table in zip(figure.axes, found.tables, strict=True):
        layers = table.probe.layers
        curve = drawn(axes, "ridge")
        assert curve.get_xdata() == pytest.approx(
            [depth(i, len(layers)) for i in range(len(layers))]
        )
        np.testing.assert_allclose(curve.get_ydata(), [own.pearson.r for own in layers])
        ols = drawn(axes, "ols")
        np.testing.assert_allclose(ols.get_ydata(), [own.ols_r for own in layers])
        headline = drawn(axes, "headline")
        assert headline.get_ydata() == pytest.approx([table.probe.pearson.r] * 2)
        best = drawn(axes, "max_over_layers")
        assert table.probe.max_over_layers is not None
        assert best.get_ydata() == pytest.approx([layers[table.probe.max_over_layers].pearson.r])
    assert math.isnan(drawn(figure.axes[1], "ridge").get_ydata()[0])
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()
    assert depth(8, 9) == 1
