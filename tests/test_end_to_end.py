"""Whole runs in processes of their own: killed half-way, two at once, through the stock command."""

from __future__ import annotations

import io
import json
import os
import random
import runpy
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, redirect_stderr
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from lm_eval_semsoft.engine import store
from lm_eval_semsoft.engine.forward import Engine
from lm_eval_semsoft.engine.records import prompt_key
from lm_eval_semsoft.reports import readings

pytestmark = pytest.mark.slow

RUN = str(Path(__file__).with_name("harness_run.py"))
WITHOUT_BUILTIN_TASKS = str(Path(__file__).with_name("without_builtin_tasks.py"))
ENV = {
    **os.environ,
    "SEMSOFT_DATA": "embedded",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def arguments(tiny_model_path: str, **more: Any) -> dict[str, Any]:
    return {"model_args": {"pretrained": tiny_model_path}, "device": "cpu", "batch_size": 4, **more}


TWO_PROCESSES = (
    *("env", "ACCELERATE_USE_CPU=true", sys.executable, "-m", "accelerate.commands.launch"),
    *("--multi_gpu", "--num_processes", "2", "--num_machines", "1"),
    *("--mixed_precision", "no", "--dynamo_backend", "no"),
)


def in_two_processes(tmp_path: Path, given: dict[str, Any]) -> dict[str, Any]:
    result = tmp_path / "two.json"
    command = [*TWO_PROCESSES, RUN, str(result), json.dumps(given)]
    done = subprocess.run(
        command, env=ENV, cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert result.exists(), done.stderr[-3000:]
    return {**json.loads(result.read_text()), "log": done.stderr}


Run = Callable[[dict[str, Any]], dict[str, Any]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The same run in this process, which has imported everything already."""
    monkeypatch.setenv("SEMSOFT_DATA", "embedded")
    monkeypatch.chdir(tmp_path)
    main = runpy.run_path(RUN)["main"]

    def here(given: dict[str, Any]) -> dict[str, Any]:
        result = tmp_path / f"{time.monotonic_ns()}.json"
        log = io.StringIO()
        with redirect_stderr(log):
            main(str(result), json.loads(json.dumps(given)))
        return {**json.loads(result.read_text()), "log": log.getvalue()}

    return here


def numbers(outcome: dict[str, Any]) -> dict[str, float]:
    metrics = outcome["results"]["goemotions_zs"]
    return {k: v for k, v in metrics.items() if isinstance(v, float)}


def same(a: dict[str, Any], b: dict[str, Any], tolerance: float = 1e-4) -> bool:
    return numbers(a) == pytest.approx(numbers(b), abs=tolerance, nan_ok=True)


def test_killed_half_way_and_started_again(run: Run, tiny_model_path: str, tmp_path: Path) -> None:
    given = arguments(tiny_model_path, limit=45)  # 1260 answers
    whole = run(given)
    cache = tmp_path / "cache"
    given["use_cache"] = str(cache)
    command = [sys.executable, RUN, str(tmp_path / "never.json"), json.dumps(given)]
    process = subprocess.Popen(
        command, env=ENV, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    database = Path(f"{cache}_rank0.db")
    try:
        while rows_so_far(database) < 100:
            assert process.poll() is None, "finished before it could be killed"
            time.sleep(0.005)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (tmp_path / "never.json").exists()
    assert rows(database, "rw") >= 100
    assert same(run(given), whole)
    assert same(run(given), whole)  # now all from the cache


def rows(database: Path, mode: str = "ro") -> int:
    """Answers in a cache. `rw` also takes back what a killed process left half written."""
    with closing(sqlite3.connect(f"file:{database}?mode={mode}", uri=True, timeout=5)) as opened:
        return int(opened.execute("select count(*) from unnamed").fetchone()[0])


def rows_so_far(database: Path) -> int:
    """The same while another process writes: 0 while it has no table yet, or holds the lock."""
    try:
        return rows(database)
    except sqlite3.OperationalError:
        return 0


# -- readouts on disk --------------------------------------------------------------------------

# Reads slowly, keeps small parts, and writes down the key of every prompt that it reads.
SLOWLY = """
import runpy, sys, time
from lm_eval_semsoft.engine import store
from lm_eval_semsoft.engine.forward import Engine
from lm_eval_semsoft.engine.records import prompt_key
store._PART_ROWS = 4
read = Engine._read_batch
def slowly(self, prompts, *more):
    time.sleep(0.2)
    with open("reads.txt", "a") as log:
        log.writelines(prompt_key(prompts[i]).hex() + chr(10) for i in more[-1])
    return read(self, prompts, *more)
Engine._read_batch = slowly
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def stored(readouts: Path) -> list[str]:
    """The prompts of all finished parts."""
    tables = [pq.read_table(path, columns=["prompt"]) for path in part_files(readouts)]
    return [key.hex() for table in tables for key in table["prompt"].to_pylist()]


def part_files(readouts: Path) -> list[Path]:
    return sorted((readouts / "readouts").glob("*.parquet"))


def kill_when(
    tmp_path: Path, given: dict[str, Any], moment: Callable[[], bool], late: float
) -> None:
    command = [sys.executable, "-c", SLOWLY, RUN, str(tmp_path / "never.json"), json.dumps(given)]
    process = subprocess.Popen(
        command, env=ENV, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while not moment():
            assert process.poll() is None, "finished before it could be killed"
            time.sleep(0.001)
        time.sleep(late)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (tmp_path / "never.json").exists()


def log_reads(monkeypatch: pytest.MonkeyPatch, log: Path) -> None:
    """As SLOWLY, in this process and at once."""
    read = Engine._read_batch

    def logged(self: Engine, prompts: Any, *more: Any) -> Any:
        with log.open("a") as lines:
            lines.writelines(f"{prompt_key(prompts[i]).hex()}\n" for i in more[-1])
        return read(self, prompts, *more)

    monkeypatch.setattr(store, "_PART_ROWS", 4)
    monkeypatch.setattr(Engine, "_read_batch", logged)


def test_killed_again_and_again_it_goes_on_where_it_stopped(
    run: Run, tiny_model_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = arguments(tiny_model_path, limit=60)
    whole = run(given)
    readouts, reads, rng = tmp_path / "readouts", tmp_path / "reads.txt", random.Random(0)
    given["model_args"]["readouts"] = str(readouts)
    kills = 3
    for kill in range(kills):
        before = stored(readouts)
        done = reads.read_text().split() if reads.exists() else []
        more, late, seen = rng.randrange(4), rng.uniform(0, 0.3), len(part_files(readouts))

        def made() -> bool:
            return (readouts / ".lock").exists()

        def read_on(least: int = seen + more) -> bool:
            return reads.exists() and len(part_files(readouts)) >= least

        kill_when(tmp_path, given, read_on if kill else made, late if kill else 0.0)
        read = reads.read_text().split()[len(done) :] if reads.exists() else []
        assert not set(read) & set(before)  # what was on the disk is not read again
        assert set(stored(readouts)) >= set(before)
    log_reads(monkeypatch, reads)
    assert same(run(given), whole, 1e-6)
    times = Counter(stored(readouts))
    assert len(times) == 60
    assert set(times.values()) == {1}
    twice = sum(Counter(reads.read_text().split()).values()) - 60
    assert twice <= kills * (4 + 4)  # a part that was not full, and a batch
    assert not (readouts / "set_aside").exists()
    reads.unlink()
    assert same(run(given), whole, 1e-6)
    assert not reads.exists()


def test_two_processes_give_the_numbers_of_one(
    run: Run, tiny_model_path: str, tmp_path: Path
) -> None:
    """accelerate on the CPU, with a number of documents that does not divide by two.

    `accelerate launch --cpu --num_processes 2` starts one process only; this starts two. They
    write into one directory.
    """
    given = arguments(tiny_model_path, limit=45)
    one = run(given)
    assert one["n"]["goemotions_zs"]["effective"] == 45
    assert "45/45" in one["log"]
    readouts = tmp_path / "readouts"
    given["model_args"]["readouts"] = str(readouts)
    two = in_two_processes(tmp_path, given)
    assert "23/23" in two["log"]  # they did share the work
    assert "45/45" not in two["log"]
    assert same(one, two)
    assert len(part_files(readouts)) >= 2  # each wrote its own
    assert len(stored(readouts)) == len(set(stored(readouts))) == 45
    before = part_files(readouts)
    assert same(run(given), one, 1e-5)
    assert part_files(readouts) == before  # there was nothing left to read
    loaded = readings.load(readouts)
    assert (loaded.n, loaded.missing, len(loaded.labels)) == (45, 0, 28)
    assert loaded.label_set is not None


def test_stock_command_prints_the_table(tiny_model_path: str, tmp_path: Path) -> None:
    """`lm_eval --model semsoft-hf --tasks goemotions_zs`, found through the start-up file."""
    done = subprocess.run(
        [sys.executable, WITHOUT_BUILTIN_TASKS, "-m", "lm_eval", "run", "--model", "semsoft-hf",
         "--model_args", f"pretrained={tiny_model_path},preset=paper", "--tasks", "goemotions_zs",
         "--limit", "2", "--output_path", str(tmp_path / "out"), "--log_samples"],
        env=ENV, cwd=tmp_path, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "scoring semantic, space raw, tau 0.8, K 50" in done.stderr
    assert "goemotions_zs (embedded)" in done.stderr
    for metric in ("ece_sweep", "constrained_ece_sweep", "silent_vote", "published_data"):
        assert metric in done.stdout
    (saved,) = (tmp_path / "out").rglob("results_*.json")
    record = json.loads(saved.read_text())
    assert record["config"]["semsoft"]["preset"] == "paper"
    assert record["results"]["goemotions_zs"]["published_data,none"] == 0
    (samples,) = (tmp_path / "out").rglob("samples_goemotions_zs_*.jsonl")
    assert len(samples.read_text().splitlines()) == 2
