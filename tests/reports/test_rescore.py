"""`semsoft rescore`: the numbers of a fresh run through the harness, without the model."""

from __future__ import annotations

import importlib.util
import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import typer
import yaml
from typer.testing import CliRunner

from lm_eval_semsoft import plugin
from lm_eval_semsoft.cli.rescore import rescore as command
from lm_eval_semsoft.models import semsoft_hf
from lm_eval_semsoft.reports import readings as reading
from lm_eval_semsoft.reports.readings import Readings
from lm_eval_semsoft.reports.rescore import measures_of, rescore, scoring_of

pytestmark = pytest.mark.usefixtures("one_thread")

LIMIT = 40
OTHERS: dict[str, dict[str, Any]] = {
    "published formula": {"preset": "paper"},
    "far from the default": {
        "space": "whitened", "tau": 0.25, "top_k": 37, "anchors": "spelled", "rival_votes": "on",
    },
    "constrained": {"scoring": "constrained"},
}  # fmt: skip


def harness_run() -> ModuleType:
    path = Path(__file__).parents[1] / "harness_run.py"
    spec = importlib.util.spec_from_file_location("harness_run", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def evaluate(tiny_model_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """`evaluate(**model_args)` runs the harness in this process and gives its table."""
    run = harness_run()
    folder = tmp_path_factory.mktemp("results")

    def table(limit: int = LIMIT, **model_args: Any) -> dict[str, Any]:
        result = folder / f"{time.monotonic_ns()}.json"
        given = {"pretrained": tiny_model_path, **model_args}
        run.main(str(result), {"model_args": given, "device": "cpu", "limit": limit})
        metrics = json.loads(result.read_text())["results"]["goemotions_zs"]
        kept = {k.removesuffix(",none"): v for k, v in metrics.items() if k.endswith(",none")}
        return {k: float(v) for k, v in kept.items() if not isinstance(v, str)}

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEMSOFT_DATA", "embedded")
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield table


@pytest.fixture(scope="module")
def run(evaluate: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, float]]:
    """A directory of readouts, and the table of the run that wrote it."""
    folder = tmp_path_factory.mktemp("readouts") / "tiny"
    return folder, evaluate(readouts=str(folder), space="centered", tau="q0.9")


@pytest.fixture(scope="module")
def readings(run: tuple[Path, dict[str, float]]) -> Readings:
    return reading.load(run[0])


def assert_same(results: Mapping[str, float], fresh: Mapping[str, float]) -> None:
    assert set(results) == set(fresh)
    assert dict(results) == pytest.approx(dict(fresh), abs=1e-6, nan_ok=True)


# ------------------------------------------------------------------ values


def test_own_scoring_gives_the_table_of_the_run(
    run: tuple[Path, dict[str, float]], readings: Readings
) -> None:
    result = rescore(readings)
    assert_same(result.results, run[1])
    assert result.n == LIMIT
    assert result.scoring.space == "centered"
    assert len(result.results) == 2 * 8 * 2 + 2 + 1


@pytest.mark.parametrize("name", OTHERS)
def test_other_scorings_equal_fresh_runs(name: str, evaluate: Any, readings: Readings) -> None:
    given = OTHERS[name]
    # A preset starts from its own values, everything else from those of the run.
    own = {} if "preset" in given else {"space": "centered", "tau": "q0.9"}
    fresh = evaluate(**{**own, **given})
    assert_same(rescore(readings, scoring_of(readings, **given)).results, fresh)


def test_scorings_differ(readings: Readings) -> None:
    tables = [
        dict(rescore(readings, scoring_of(readings, **own)).results) for own in OTHERS.values()
    ]
    assert len({table["brier"] for table in tables}) == len(OTHERS)
    assert len({table["constrained_brier"] for table in tables}) == 1


def test_kernel_identity_is_the_constrained_table(readings: Readings) -> None:
    results = rescore(readings, kernel="identity").results
    assert results["brier"] == results["constrained_brier"]
    assert results["silent_vote"] == 0


def test_embedded_sample_is_named(readings: Readings) -> None:
    result = rescore(readings)
    assert result.results["published_data"] == 0
    assert any("not the published data" in note for note in result.notes)


def test_nan_documents_are_named(readings: Readings) -> None:
    broken = readings.label_logprobs.copy()
    broken[3] = np.nan
    result = rescore(replace(readings, label_logprobs=broken))
    assert math.isnan(result.results["constrained_brier"])
    assert any(readings.keys[3] in note and "1 of 40" in note for note in result.notes)


def test_choices_of_their_own_have_no_metrics_between_documents(readings: Readings) -> None:
    logprobs = readings.label_logprobs.copy()
    target = np.zeros_like(readings.target)
    target[:, :2] = [True, False]
    logprobs[::2, 2:] = -np.inf  # every other document has two choices
    ragged = replace(readings, label_logprobs=logprobs, target=target, label_set=None)
    result = rescore(ragged)
    assert not any("macro_f1" in name or "auroc" in name for name in result.results)
    two = np.exp(logprobs[::2, :2].astype(float))
    assert 0 < result.results["nll"] < math.inf
    assert (two.sum(axis=1) > 0).all()
    assert any("choices of its own" in note for note in result.notes)


def test_documents_without_data_source_have_no_such_row(readings: Readings) -> None:
    docs = tuple({k: v for k, v in d.items() if k != "published_data"} for d in readings.docs)
    assert "published_data" not in rescore(replace(readings, docs=docs)).results


# ------------------------------------------------------------------ what a task measures


def test_every_task_of_ours_is_measured_as_its_yaml_says() -> None:
    loader = type("Loader", (yaml.SafeLoader,), {})
    loader.add_constructor("!function", lambda _, node: node.value)
    found = 0
    for path in plugin.task_path().rglob("*.yaml"):
        config = yaml.load(path.read_text(), Loader=loader)
        if "task" not in config or not isinstance(config["task"], str):
            continue
        if "include" in config and "metric_list" not in config:
            config |= yaml.load((path.parent / config["include"]).read_text(), Loader=loader)
        names = [entry["metric"] for entry in config["metric_list"]]
        if not names:  # listed in Python: answers in the model's own words, no labels to score
            assert config["output_type"] == "generate_until"
            continue
        assert list(measures_of(config["task"]).aggregations) == names
        found += 1
    assert found


def test_other_tasks_are_measured_as_label_sets() -> None:
    assert measures_of("sst2") == measures_of("goemotions_zs")


# ------------------------------------------------------------------ errors


def test_more_tokens_than_are_stored(
    evaluate: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(semsoft_hf, "DEFAULT_TOP_K", 16)
    evaluate(limit=3, readouts=str(tmp_path / "few"), top_k=16)
    few = reading.load(tmp_path / "few")
    with pytest.raises(ValueError, match=r"top_k=17 is more than is stored: .* holds the 16 most"):
        rescore(few, scoring_of(few, top_k=17))
    rescore(few, scoring_of(few, top_k=17, scoring="constrained"))  # nobody votes


def test_all_tokens_are_enough_for_any_k(readings: Readings) -> None:
    assert readings.topk_ids.shape[1] == readings.vocabulary
    rescore(readings, scoring_of(readings, top_k=10**6))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"space": "pc:0"}, "space='pc:0'"),
        ({"tau": "q2"}, "tau='q2'"),
        ({"anchors": "variant"}, "did you mean 'variants'"),
        ({"preset": "papre"}, "did you mean 'paper'"),
    ],
)
def test_bad_arguments(given: dict[str, Any], said: str, readings: Readings) -> None:
    with pytest.raises(ValueError, match=said):
        scoring_of(readings, **given)


def test_bad_kernels(readings: Readings) -> None:
    with pytest.raises(ValueError, match="did you mean 'cosine'"):
        rescore(readings, kernel="cosin")
    with pytest.raises(ValueError, match="do not share one label set"):
        rescore(replace(readings, label_set=None), kernel="cosine")


def test_unknown_right_labels(readings: Readings) -> None:
    with pytest.raises(ValueError, match="--samples"):
        rescore(replace(readings, target=None))


# ------------------------------------------------------------------ the command


def semsoft(*arguments: object) -> Any:
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_command_prints_the_table(run: tuple[Path, dict[str, float]]) -> None:
    done = semsoft(run[0])
    assert done.exit_code == 0
    assert f"{run[1]['brier']:.4f} ± {run[1]['brier_stderr']:.4f}" in done.stdout
    assert f"{run[1]['constrained_auroc']:.4f}" in done.stdout
    assert "! tiny: these are documents of the small sample" in " ".join(done.stdout.split())


def test_command_as_json(run: tuple[Path, dict[str, float]], tmp_path: Path) -> None:
    done = semsoft(run[0], "--json")
    record = json.loads(done.stdout)
    assert_same(record["results"], run[1])
    assert set(record) == {"directory", "model", "task", "n", "scoring", "results", "notes"}
    assert record["scoring"]["tau"] == "q0.9"
    assert record["scoring"]["kernel"] == "auto"
    assert semsoft(run[0], "-o", tmp_path / "own.json").exit_code == 0
    assert json.loads((tmp_path / "own.json").read_text()) == record


def test_command_takes_scoring_arguments(run: tuple[Path, dict[str, float]]) -> None:
    done = semsoft(
        run[0], "--json", "--space", "raw", "--tau", ".5", "--top-k", 7, "--rival-votes", "on",
        "--anchors", "spelled", "--task", "goemotions_zs",
    )  # fmt: skip
    scoring = json.loads(done.stdout)["scoring"]
    assert (scoring["space"], scoring["tau"], scoring["top_k"]) == ("raw", 0.5, 7)
    assert (scoring["rival_votes"], scoring["anchors"]) == ("on", "spelled")
    assert (
        json.loads(semsoft(run[0], "--json", "--preset", "paper").stdout)["scoring"]["top_k"] == 50
    )


def test_command_writes_text(run: tuple[Path, dict[str, float]], tmp_path: Path) -> None:
    done = semsoft(run[0], "-o", tmp_path / "own.txt")
    assert done.exit_code == 0
    assert not done.stdout.strip()
    assert f"{run[1]['brier']:.4f} ±" in (tmp_path / "own.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tau", "2"], "tau=2.0: must be a number in [-1, 1)"),
        (["--task", "sst2"], "'sst2' is not among them"),
        (["-o", "no/such/folder.json"], "there is no directory no/such"),
        (["--samples", "none.jsonl"], "none.jsonl: there is no such file."),
    ],
)
def test_command_fails_in_one_sentence(
    arguments: list[str], said: str, run: tuple[Path, dict[str, float]]
) -> None:
    done = semsoft(run[0], *arguments)
    assert done.exit_code == 2
    assert said in done.stderr
    assert "Traceback" not in done.output


def test_command_on_something_else(tmp_path: Path) -> None:
    done = semsoft(tmp_path)
    assert done.exit_code == 2
    assert "holds no readouts" in done.stderr


# ------------------------------------------------------------------ speed


@pytest.mark.slow
def test_speed_on_many_documents(readings: Readings) -> None:
    many = np.arange(5000) % readings.n
    rng = np.random.default_rng(0)
    logprobs = readings.label_logprobs[many]
    big = replace(
        readings,
        keys=tuple(f"d{i}" for i in range(5000)),
        docs=tuple(readings.docs[i] for i in many),
        target=readings.target[many],
        topk_ids=readings.topk_ids[many],
        topk_logprobs=readings.topk_logprobs[many],
        label_logprobs=logprobs + rng.normal(0, 0.1, logprobs.shape).astype(np.float32),
    )
    started = time.process_time()
    assert rescore(big).n == 5000
    assert time.process_time() - started < 20
