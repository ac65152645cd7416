"""Whole runs in processes of their own: killed half-way, two at once, through the stock command."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

RUN = str(Path(__file__).with_name("harness_run.py"))
ENV = {
    **os.environ,
    "SEMSOFT_DATA": "embedded",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def arguments(tiny_model_path: str, **more: Any) -> dict[str, Any]:
    return {"model_args": {"pretrained": tiny_model_path}, "device": "cpu", "batch_size": 4, **more}


def run(tmp_path: Path, given: dict[str, Any], *before: str) -> dict[str, Any]:
    result = tmp_path / f"{time.monotonic_ns()}.json"
    command = [*(before or (sys.executable,)), RUN, str(result), json.dumps(given)]
    done = subprocess.run(
        command, env=ENV, cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert result.exists(), done.stderr[-3000:]
    return {**json.loads(result.read_text()), "log": done.stderr}


def numbers(outcome: dict[str, Any]) -> dict[str, float]:
    metrics = outcome["results"]["goemotions_zs"]
    return {k: v for k, v in metrics.items() if isinstance(v, float)}


def same(a: dict[str, Any], b: dict[str, Any], tolerance: float = 1e-4) -> bool:
    return numbers(a) == pytest.approx(numbers(b), abs=tolerance, nan_ok=True)


def test_two_processes_give_the_numbers_of_one(tiny_model_path: str, tmp_path: Path) -> None:
    """accelerate on the CPU, with a number of documents that does not divide by two.

    `accelerate launch --cpu --num_processes 2` starts one process only; this starts two.
    """
    given = arguments(tiny_model_path, limit=45)
    one = run(tmp_path, given)
    two = run(
        tmp_path,
        given,
        *("env", "ACCELERATE_USE_CPU=true", sys.executable, "-m", "accelerate.commands.launch"),
        *("--multi_gpu", "--num_processes", "2", "--num_machines", "1"),
        *("--mixed_precision", "no", "--dynamo_backend", "no"),
    )
    assert one["n"]["goemotions_zs"]["effective"] == 45
    assert "45/45" in one["log"]
    assert "23/23" in two["log"]  # they did share the work
    assert "45/45" not in two["log"]
    assert same(one, two)


def test_killed_half_way_and_started_again(tiny_model_path: str, tmp_path: Path) -> None:
    given = arguments(tiny_model_path)
    whole = run(tmp_path, given)
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
    assert same(run(tmp_path, given), whole)
    assert same(run(tmp_path, given), whole)  # now all from the cache


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


def test_stock_command_prints_the_table(tiny_model_path: str, tmp_path: Path) -> None:
    """`lm_eval --model semsoft-hf --tasks goemotions_zs`, found through the start-up file."""
    done = subprocess.run(
        [sys.executable, "-m", "lm_eval", "run", "--model", "semsoft-hf",
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
