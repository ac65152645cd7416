"""semsoft-csr: the trained model and nothing else, from checkpoints that are whole."""

from __future__ import annotations

import copy
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_eval.api.instance import Instance

from lm_eval_semsoft.engine import checkpoint
from lm_eval_semsoft.engine.checkpoint import Base, Checkpoint, CheckpointError, PromptTemplate
from lm_eval_semsoft.engine.fingerprint import model_fingerprint
from lm_eval_semsoft.models.semsoft_csr import SemsoftCSR
from lm_eval_semsoft.models.semsoft_hf import SemsoftHF
from lm_eval_semsoft.tasks.prompts import Recorded

pytest.importorskip("peft", reason="adapters need peft")
PROMPT = "Comment: lol no\nEmotion:"


def requests(labels: tuple[str, ...]) -> list[Instance]:
    return [
        Instance("loglikelihood", {}, (PROMPT, f" {label}"), i, ("emotions", 0, 1))
        for i, label in enumerate(labels)
    ]


def scores(lm: SemsoftHF, labels: tuple[str, ...]) -> list[float]:
    return [score for score, _ in lm.loglikelihood(requests(labels), disable_tqdm=True)]


def with_adapter(model: Any) -> Any:
    """A LoRA adapter that changes the model, untrained ones do not."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return adapted.eval()


def save(folder: Path, kind: str, base: str, fingerprint: str, **other: Any) -> Checkpoint:
    about = Checkpoint(
        kind=kind,
        base=Base(base, None, fingerprint, "float32"),
        prompt=other.pop("prompt", PromptTemplate("completion", "", 4)),
        step=3,
        reward={"name": "csr"},
        seeds={"seed": 42},
        files=checkpoint.weights_in(folder),
        **other,
    )
    checkpoint.write(folder, about)
    return about


@pytest.fixture(scope="module")
def base(tiny_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tiny = tiny_model("llama")
    folder = tmp_path_factory.mktemp("base")
    tiny.model.save_pretrained(folder)
    tiny.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def adapter(tiny_model: Any, base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tiny = tiny_model("llama")
    folder = tmp_path_factory.mktemp("adapter")
    with_adapter(copy.deepcopy(tiny.model)).save_pretrained(folder)
    tiny.tokenizer.save_pretrained(folder)
    save(folder, "adapter", str(base), model_fingerprint(tiny.model))
    return folder


@pytest.mark.parametrize("scoring", ["semantic", "constrained"])
def test_adapter_scores_as_the_adapted_model(tiny_model, adapter, labels, scoring):
    tiny = tiny_model("llama")
    lm = SemsoftCSR(checkpoint=str(adapter), device="cpu", scoring=scoring)
    reference = with_adapter(copy.deepcopy(tiny.model))
    oracle = SemsoftHF(reference.base_model.model, tokenizer=tiny.tokenizer, scoring=scoring)
    assert scores(lm, labels) == pytest.approx(scores(oracle, labels), abs=1e-4)
    untrained = SemsoftHF(str(adapter and lm.checkpoint.base.model), device="cpu", scoring=scoring)
    assert scores(lm, labels) != pytest.approx(scores(untrained, labels), abs=1e-2)
    assert lm.fingerprint != untrained.fingerprint


def test_adapter_writes_readouts_of_its_own(adapter, base, labels, tmp_path):
    """What the base model has left in a readouts folder is not served for the adapter."""
    folder = str(tmp_path / "readouts")
    scores(SemsoftHF(str(base), device="cpu", readouts=folder), labels)
    with pytest.raises(ValueError, match="readouts"):
        scores(SemsoftCSR(checkpoint=str(adapter), device="cpu", readouts=folder), labels)


def test_base_in_another_dtype_is_the_same_base(adapter, labels):
    lm = SemsoftCSR(checkpoint=str(adapter), device="cpu", dtype="bfloat16")
    assert lm.model.dtype == torch.bfloat16
    exact = scores(SemsoftCSR(checkpoint=str(adapter), device="cpu"), labels)
    assert scores(lm, labels) == pytest.approx(exact, abs=0.5)


def test_wrong_base_is_refused(adapter, tiny_model_path, base, tmp_path):
    with pytest.raises(CheckpointError, match="not the one that was trained"):
        SemsoftCSR(checkpoint=str(adapter), pretrained=tiny_model_path, device="cpu")
    moved = tmp_path / "moved"
    moved.symlink_to(base)
    assert SemsoftCSR(checkpoint=str(adapter), pretrained=str(moved), device="cpu").folder


def test_full_checkpoint(tiny_model, base, labels, tmp_path):
    tiny = tiny_model("llama")
    tiny.model.save_pretrained(tmp_path)
    tiny.tokenizer.save_pretrained(tmp_path)
    save(tmp_path, "full", str(base), "0" * 16)
    lm = SemsoftCSR(checkpoint=str(tmp_path), device="cpu")
    assert scores(lm, labels) == scores(SemsoftHF(str(base), device="cpu"), labels)
    info = lm.get_model_info()
    assert info["csr"]["step"] == 3
    assert info["semsoft"]["fingerprint"] == lm.fingerprint
    json.dumps(info["csr"])
    with pytest.raises(ValueError, match="full checkpoint"):
        SemsoftCSR(checkpoint=str(tmp_path), pretrained=str(base))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "needs checkpoint=<folder>"),
        ({"checkpoint": "nowhere"}, "no such folder"),
        ({"checkpoint": "ADAPTER", "peft": "x"}, "peft='x' does not go with"),
        ({"checkpoint": "ADAPTER", "load_in_4bit": True}, "load_in_4bit=True is not possible"),
    ],
)
def test_arguments_that_do_not_go_together(adapter, arguments, message):
    given = {k: str(adapter) if v == "ADAPTER" else v for k, v in arguments.items()}
    with pytest.raises(ValueError, match=message):
        SemsoftCSR(**given)


def test_missing_peft_is_one_sentence(adapter, monkeypatch):
    monkeypatch.setattr("lm_eval_semsoft.models.semsoft_csr.find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match=r'pip install "lm-eval-semsoft\[train\]"'):
        SemsoftCSR(checkpoint=str(adapter))


# -- csr_config.json ------------------------------------------------------------------------------


def test_what_is_written_is_read_back(adapter):
    about = checkpoint.read(adapter)
    checkpoint.write(adapter, about)
    assert checkpoint.read(adapter) == about
    assert checkpoint.is_complete(adapter)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "found an empty folder"),
        (["config.json"], "pretrained="),
        (["adapter_config.json", "a"], "peft="),
        (["checkpoint-2/csr_config.json"], "checkpoint-2"),
        (["notes.txt"], "notes.txt"),
    ],
)
def test_folder_without_csr_config(tmp_path, files, message):
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    with pytest.raises(CheckpointError, match=r"has no csr_config\.json") as error:
        SemsoftCSR(checkpoint=str(tmp_path))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format 2"),
        ({"kind": "half"}, "kind is 'half'"),
        ({"base": {"model": "x"}}, "lacks 'revision'"),
        ({"base": 3}, "must be JSON objects"),
        ({"prompt": {"kind": "poem", "instruction": "", "num_fewshot": 0, "form": ""}}, "poem"),
        ({"files": {}}, "names no weights"),
        ({"files": {"adapter_model.safetensors": 1}}, "is damaged"),
    ],
)
def test_broken_csr_config(adapter, tmp_path, change, message):
    content = json.loads((adapter / checkpoint.FILE).read_text())
    (tmp_path / checkpoint.FILE).write_text(json.dumps({**content, **change}))
    (tmp_path / "adapter_model.safetensors").write_bytes(
        (adapter / "adapter_model.safetensors").read_bytes()
    )
    with pytest.raises(CheckpointError, match=message):
        checkpoint.read(tmp_path)
    assert not checkpoint.is_complete(tmp_path)


def test_csr_config_that_is_no_json(tmp_path):
    (tmp_path / checkpoint.FILE).write_text("{")
    with pytest.raises(CheckpointError, match="no JSON"):
        checkpoint.read(tmp_path)


# -- prompts --------------------------------------------------------------------------------------


def ask(lm: SemsoftCSR, prompt: str) -> None:
    how = {"until": ["\n"], "max_gen_toks": 1, "do_sample": False}
    lm.generate_until([Instance("generate_until", {}, (prompt, how), 0, ("t", 0, 1))], True)


@pytest.mark.parametrize(
    ("kind", "warned"), [("chat", [True, False]), ("completion", [False, True])]
)
def test_prompts_of_another_kind_are_warned_of(
    adapter, tiny_model, base, tmp_path, caplog, kind, warned
):
    for path in adapter.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    fingerprint = model_fingerprint(tiny_model("llama").model)
    save(tmp_path, "adapter", str(base), fingerprint, prompt=PromptTemplate(kind, "Be brief.", 0))
    plain = "Question: Who?\nAnswer:"
    for is_chat, expected in zip((False, True), warned, strict=True):
        lm = SemsoftCSR(checkpoint=str(tmp_path), device="cpu")
        prompt = lm.apply_chat_template([{"role": "user", "content": "Who?"}]) if is_chat else plain
        caplog.clear()
        with caplog.at_level(logging.WARNING, "lm_eval_semsoft"):
            ask(lm, prompt)
            ask(lm, prompt)
        assert caplog.text.count("--apply_chat_template") == expected


def test_recorded_prompt_needs_a_checkpoint_of_ours(adapter, tmp_path):
    assert Recorded.of({}) is None
    assert Recorded.of({"checkpoint": str(tmp_path)}) is None
    recorded = Recorded.of({"checkpoint": str(adapter)})
    assert recorded is not None
    assert not recorded.is_chat
    assert recorded.template.num_fewshot == 4
