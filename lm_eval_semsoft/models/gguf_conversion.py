"""A GGUF file into an ordinary Hugging Face directory: config, bf16 weights, tokenizer.

Only what the packaged models need (`demo.py` says why transformers' own reader is not used): the
architectures llama and gemma3, tied embeddings, byte-level and sentencepiece-like BPE.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

# ------------------------------------------------------------------ reading GGUF
# The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (version 3, little-endian)


@dataclass(frozen=True)
class _Tensor:
    """A quantised tensor: its type number, its shape (row-major) and where its bytes begin."""

    type: int
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class GGUF:
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


def parse_gguf(data: bytes) -> GGUF:
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
    return GGUF(data, metadata, placed)


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


def config_of(gguf: GGUF) -> dict[str, Any]:
    """The config.json of the model in a GGUF file."""
    build = {"llama": _llama_config, "gemma3": _gemma3_config}
    return build[gguf.metadata["general.architecture"]](gguf.metadata)


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


def _hf_weights(gguf: GGUF, name: str) -> torch.Tensor:
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


def write_weights(gguf: GGUF, directory: Path, name: str) -> None:
    """All tensors as one safetensors file, after transformers agrees with names and shapes."""
    from safetensors.torch import save_file
    from tqdm.auto import tqdm

    arch = gguf.metadata["general.architecture"]
    bar = tqdm(gguf.tensors, desc=f"Converting demo model {name}", unit="tensor")
    state = {_hf_name(tensor, arch): _hf_weights(gguf, tensor) for tensor in bar}
    got = {n: tuple(tensor.shape) for n, tensor in state.items()}
    expected = _expected_shapes(directory)
    if got != expected:
        differing = sorted(n for n, _ in got.items() ^ expected.items())
        raise ValueError(
            f"the weights of the demo model {name} do not fit this transformers version "
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


def write_tokenizer(meta: dict[str, Any], directory: Path) -> None:
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
