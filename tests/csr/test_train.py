"""Real training of tiny models: what a run writes, and that it goes on as if nothing had been."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from csr_trainer import __main__, checkpoint, train
from csr_trainer.callbacks import DEVELOPMENT, LOG, PICTURE
from csr_trainer.config import Command, settings_of
from csr_trainer.development import METRICS
from csr_trainer.steplog import StepLog
from lm_eval_semsoft.engine.checkpoint import FILE, read

pytest.importorskip("trl", reason="training needs trl")
pytestmark = pytest.mark.usefixtures("one_thread")



@pytest.fixture(scope="module")
def questions(tiny_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve questions; every second token of the vocabulary is right, so that an untrained model
    of one-token answers is right now and then."""
    tokenizer = tiny_model("qwen3").tokenizer
    texts = {tokenizer.decode([i]).strip() for i in range(0, len(tokenizer), 2)}
    right = sorted(text for text in texts if text.isalpha() and text.isascii())
    path = tmp_path_factory.mktemp("data") / "words.jsonl"
    rows = [
        {"id": f"r{i}", "question": f"Which word is number {i}?", "aliases": right[i % 2 :]}
        for i in range(12)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def model(tiny_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny = tiny_model("qwen3")
    tiny.model.save_pretrained(folder)
    tiny.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def settings(model: Path, questions: Path, tmp_path: Path) -> dict[str, Any]:
    return {
        "model": str(model), "dataset": str(questions), "output_dir": str(tmp_path / "run"),
        "dev_questions": 4, "judge": "exact", "num_generations": 4,
        "per_device_train_batch_size": 8, "max_completion_length": 1, "max_steps": 4,
        "learning_rate": 1e-2, "lora_dropout": 0.1, "lora_r": 4, "save_steps": 2, "eval_steps": 2,
        "eval_samples": 3, "use_cpu": True, "prompt": "completion", "dtype": "float32",
    }  # fmt: skip


def flags(settings: dict[str, Any]) -> list[str]:
    made = []
    for name, value in settings.items():
        flag = "--" + name.replace("_", "-")
        made += [flag] if value is True else [flag, str(value)]
    return made


def in_a_process(stop: int, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    script = Path(__file__).parent / "train_run.py"
    command = [sys.executable, str(script), str(stop), *arguments]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=500, env=one_thread)


def losses(folder: Path) -> dict[int, tuple[float, ...]]:
    names = ("loss", "grad_norm", "reward", "lambda", "entropy")
    return {
        row["step"]: tuple(v for k, v in row.items() if k.rpartition("/")[2] in names)
        for row in StepLog(folder / LOG).rows()
        if "loss" in row
    }


# -- a run ----------------------------------------------------------------------------------------


def test_run_writes_checkpoints_log_evaluations_and_a_picture(settings, capfd):
    assert __main__.main(flags(settings)) == 0
    folder = Path(settings["output_dir"])
    about = read(folder / "checkpoint-4")
    assert about.step == read(folder).step == 4
    assert about.kind == "adapter"
    assert about.prompt.kind == "completion"
    assert about.prompt.num_fewshot == 4
    assert about.reward["lambda"] == pytest.approx(1.0)
    assert about.metrics["n"] == 4
    assert set(losses(folder)) == {1, 2, 3, 4}
    rows = StepLog(folder / DEVELOPMENT).rows()
    assert [row["step"] for row in rows] == [0, 2, 4]
    assert set(METRICS) <= set(rows[0])
    assert (folder / PICTURE).read_bytes().startswith(b"\x89PNG")
    shown = capfd.readouterr().err
    assert "step 4/4: loss" in shown
    assert "development: accuracy" in shown
    assert "0:00:00 left" in shown


# -- resuming -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("lora_r", [4, 0])
def test_killed_run_goes_on_with_the_same_losses(settings, tmp_path, lora_r):
    """Two epochs of 8 questions, 2 groups a step: the second epoch begins at step 4. Killed after
    step 7 was logged, it goes on from the checkpoint of step 6."""
    arguments = {**settings, "max_steps": 8, "lora_r": lora_r, "num_train_epochs": 2}
    whole = {**arguments, "output_dir": str(tmp_path / "whole")}
    assert __main__.main(flags(whole)) == 0
    killed = in_a_process(7, flags(arguments))
    assert killed.returncode == -9, killed.stderr
    folder = Path(settings["output_dir"])
    (folder / "checkpoint-8").mkdir()  # as if it had been killed while it wrote one
    (folder / "checkpoint-8" / "adapter_model.safetensors").write_bytes(b"half")
    assert checkpoint.newest(folder) == folder / "checkpoint-6"
    before = losses(folder)
    assert before[7] == losses(tmp_path / "whole")[7]

    assert __main__.main([*flags(arguments), "--resume"]) == 0
    assert losses(folder) == losses(tmp_path / "whole")
    assert len({row for row in losses(folder).values()}) == 8  # they say something
    rows = [StepLog(path / DEVELOPMENT).rows() for path in (folder, tmp_path / "whole")]
    assert rows[0] == rows[1]
    trained = [weights(path) for path in (folder, tmp_path / "whole")]
    assert trained[0].keys() == trained[1].keys()
    assert all(torch.equal(trained[0][name], trained[1][name]) for name in trained[0])


def weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    (path,) = folder.glob("*.safetensors")
    return load_file(path)
