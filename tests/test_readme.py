"""Every command in the README runs: on a tiny model, a few documents and the embedded sample."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
WITHOUT_BUILTIN_TASKS = str(Path(__file__).with_name("without_builtin_tasks.py"))
# Run by .ci/run in a fresh environment, word for word (the first with a --limit).
SET_UP = {
    'pip install -e ".[demo]" && lm_eval --model semsoft-hf --tasks goemotions_zs',
    'pip install -e ".[dev]" && pytest',
}

GROUPS = {"human_alignment": "coane_mc"}  # and one of its tasks, which the table shows


def commands(text: str) -> list[str]:
    """The indented commands; a line that ends in a backslash goes on in the next."""
    joined = re.sub(r"\\\n\s*", "", text)
    starts = ("lm_eval ", "semsoft ", "python ", "pip ", "SEMSOFT_")
    lines = [line.strip() for line in joined.splitlines() if line.startswith("    ")]
    return [line for line in lines if line.startswith(starts)]


README = commands((ROOT / "README.md").read_text(encoding="utf-8"))


def test_set_up_commands_are_those_of_ci() -> None:
    assert set(README) >= SET_UP
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for part in ('install -e ".[demo]"', 'install -e ".[dev]"', "--tasks goemotions_zs"):
        assert part in ci


RECORDING = [command for command in README if "readouts=" in command]
RECORDED = ("readouts/", "results/")  # folders that those write


@pytest.fixture(scope="module")
def recorded(tiny_model_path: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the README's runs have left their readouts and results."""
    folder = tmp_path_factory.mktemp("readme")
    for command in RECORDING:
        run(command, tiny_model_path, folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [c for c in README if c not in RECORDING and any(f in c for f in RECORDED)]
)
def test_command_on_readouts(command: str, tiny_model_path: str, recorded: Path) -> None:
    run(command, tiny_model_path, recorded)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [c for c in README if c not in SET_UP and not any(f in c for f in RECORDED)]
)
def test_command(command: str, tiny_model_path: str, tmp_path: Path) -> None:
    run(command, tiny_model_path, tmp_path)


def run(command: str, tiny_model_path: str, cwd: Path) -> None:
    words = shlex.split(command)
    if words[0] == "python" and words[1].startswith("benchmarks/"):
        words = [words[0], str(ROOT / words[1]), "--help"]  # it runs for minutes
    elif words[:2] == ["semsoft", "train"]:
        words[words.index("--model") + 1] = tiny_model_path
        rows = ({"question": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(12))
        (cwd / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif "--model" in words or "explain" in words:
        words = on_tiny_model(words, tiny_model_path)
    programs = Path(sys.executable).parent
    words[0] = sys.executable if words[0] == "python" else str(programs / words[0])
    if "--tasks" in words:
        words = [sys.executable, WITHOUT_BUILTIN_TASKS, *words[words[0] == sys.executable :]]
    env = {**os.environ, "SEMSOFT_DATA": "embedded", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    if "--tasks" in words:
        asked = words[words.index("--tasks") + 1]
        task = GROUPS.get(asked, asked)
        assert re.search(rf"\|[ -]*{task}\s*\|", done.stdout), done.stdout[-2000:]


def on_tiny_model(words: list[str], path: str) -> list[str]:
    words = [re.sub(r"pretrained=[^,]+", f"pretrained={path}", word) for word in words]
    if "--model_args" not in words:
        words += ["--model_args", f"pretrained={path}"]
    return words if "explain" in words else [*words, "--limit", "24"]
