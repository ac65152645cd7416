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
from transformers import AutoModelForCausalLM

from csr_trainer import __main__, checkpoint
from csr_trainer.callbacks import DEVELOPMENT, LOG, PICTURE
from csr_trainer.development import METRICS
from csr_trainer.dry_run import memory_of
from csr_trainer.steplog import StepLog
from lm_eval_semsoft.engine.checkpoint import read
from lm_eval_semsoft.models.semsoft_csr import SemsoftCSR

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


def settings_for(model: Path, questions: Path, folder: Path) -> dict[str, Any]:
    return {
        "model": str(model), "dataset": str(questions), "output_dir": str(folder),
        "dev_questions": 4, "judge": "exact", "num_generations": 4,
        "per_device_train_batch_size": 8, "max_completion_length": 1, "max_steps": 4,
        "learning_rate": 1e-2, "lora_dropout": 0.1, "lora_r": 4, "save_steps": 2, "eval_steps": 2,
        "eval_samples": 3, "use_cpu": True, "prompt": "completion", "dtype": "float32",
    }  # fmt: skip


@pytest.fixture
def settings(model: Path, questions: Path, tmp_path: Path) -> dict[str, Any]:
    return settings_for(model, questions, tmp_path / "run")


@pytest.fixture(scope="module")
def run(
    model: Path, questions: Path, tmp_path_factory: pytest.TempPathFactory, one_thread: None
) -> Path:
    """The folder of a run of four steps that trained an adapter on chats."""
    folder = tmp_path_factory.mktemp("run")
    settings = {**settings_for(model, questions, folder), "prompt": "chat"}
    assert __main__.main(flags(settings)) == 0
    return folder


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


def test_run_writes_checkpoints_log_evaluations_and_a_picture(run):
    about = read(run / "checkpoint-4")
    assert about.step == read(run).step == 4
    assert about.kind == "adapter"
    assert (about.prompt.kind, about.prompt.num_fewshot) == ("chat", 4)
    assert about.reward["lambda"] == pytest.approx(1.0)
    assert about.metrics["n"] == 4
    assert set(losses(run)) == {1, 2, 3, 4}
    rows = StepLog(run / DEVELOPMENT).rows()
    assert [row["step"] for row in rows] == [0, 2, 4]
    assert set(METRICS) <= set(rows[0])
    assert (run / PICTURE).read_bytes().startswith(b"\x89PNG")
    assert not any("dev/" in name for row in StepLog(run / LOG).rows() for name in row)


def test_what_was_trained_is_what_semsoft_csr_loads(run, model, labels):
    """The adapter as peft applies it, against the merged weights of the loader."""
    peft = pytest.importorskip("peft")
    tuned = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model), str(run))
    lm = SemsoftCSR(checkpoint=str(run), device="cpu")
    tokens = torch.tensor([lm.tok_encode("The feeling is")])
    with torch.no_grad():
        expected, before = tuned.eval()(tokens).logits, None
        with tuned.disable_adapter():
            before = tuned(tokens).logits
        assert torch.allclose(lm.model(tokens).logits, expected, atol=1e-4)
    assert not torch.allclose(before, expected, atol=1e-2)


@pytest.mark.e2e
def test_stock_harness_evaluates_a_checkpoint(run, tmp_path, monkeypatch):
    """`--model semsoft-csr --model_args checkpoint=DIR` and no flag: prompts are chats."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    from lm_eval_semsoft import plugin

    (tmp_path / "hotpotqa").mkdir()
    rows = [{"id": str(i), "question": f"Who is {i}?", "answer": "joy"} for i in range(3)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "hotpotqa" / "validation.jsonl").write_text(text)
    monkeypatch.setenv("SEMSOFT_DATA_DIR", str(tmp_path))
    plugin.arm()
    arguments = {"checkpoint": str(run), "device": "cpu"}
    manager = TaskManager(
        include_path=str(plugin.task_path()),
        include_defaults=False,
        metadata={**arguments, "n_samples": 2, "judge": "exact"},
    )
    out = lm_eval.simple_evaluate(
        "semsoft-csr", arguments, ["hotpotqa_se"], task_manager=manager, log_samples=True,
        gen_kwargs={"max_gen_toks": 2},
    )  # fmt: skip
    assert out["results"]["hotpotqa_se"]["accuracy,n2"] >= 0
    assert out["config"]["csr"]["step"] == 4
    prompt = out["samples"]["hotpotqa_se"][0]["arguments"][0][0]
    assert prompt.endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert prompt.count("<|im_start|>assistant") == 5


# -- a dry run ------------------------------------------------------------------------------------


def test_dry_run_shows_groups_memory_and_first_rewards(settings, capfd):
    given = {**settings, "reward": "calibration", "gradient_accumulation_steps": 2}
    assert __main__.main([*flags(given), "--dry-run"]) == 0
    shown = capfd.readouterr().err
    assert "Groups: 4 of G = 4 rollouts in a block, 16 rollouts in each of 1 process(es)" in shown
    assert "a block lasts 2 passes, 4 groups to an optimiser step" in shown
    assert "questions: 8 of" in shown
    assert "Memory of a process, about:" in shown
    lines = shown.partition("First rewards")[2].splitlines()[1:]
    assert len([line for line in lines if line.startswith("    ")]) == 8  # two groups of four
    assert all("r_cal" in line for line in lines if line.startswith("    "))
    assert not any(Path(settings["output_dir"]).iterdir())


def test_memory_is_that_of_the_tensors(model):
    tiny = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    n = sum(p.numel() for p in tiny.parameters())
    found = memory_of(tiny, tokens=10, rows_per_pass=2, rows=3, checkpointing=False)
    assert (found.weights, found.training) == (4 * n, 12 * n)
    cache = tiny(torch.ones(3, 10, dtype=torch.long)).past_key_values
    held = sum(t.numel() * 4 for layer in cache.layers for t in (layer.keys, layer.values))
    assert found.rollouts == held
    less = memory_of(tiny, tokens=10, rows_per_pass=2, rows=3, checkpointing=True)
    assert less.activations < found.activations


# -- resuming -------------------------------------------------------------------------------------


def test_a_run_is_not_resumed_with_other_settings(run, model, questions, capfd):
    settings = {**settings_for(model, questions, run), "prompt": "chat", "seed": 7}
    assert __main__.main([*flags(settings), "--resume"]) == 2
    assert "seed 42 -> 7" in capfd.readouterr().err


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
    assert len(set(losses(folder).values())) == 8  # they say something
    rows = [StepLog(path / DEVELOPMENT).rows() for path in (folder, tmp_path / "whole")]
    assert rows[0] == rows[1]
    trained = [weights(path) for path in (folder, tmp_path / "whole")]
    assert trained[0].keys() == trained[1].keys()
    assert all(torch.equal(trained[0][name], trained[1][name]) for name in trained[0])


def weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    (path,) = folder.glob("*.safetensors")
    return load_file(path)
