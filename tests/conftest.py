"""Tiny random models with real tokenizers, built in the process: no network, no files.

Their weights are scaled so that the next-token distributions are peaked and depend on every
earlier token: with the usual initialisation all labels would have nearly the same probability,
and a wrong position or a wrong mask would go unnoticed at 1e-4.

torch and transformers are imported inside the functions: most test files need neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

# ------------------------------------------------------------------ text

#: One-token labels, many-token labels, two that share a first piece, one that begins another.
LABELS = (
    "joy", "joyful", "anger", "disgust", "disapproval", "fear", "love", "sadness", "surprise",
    "realization", "optimism", "neutral",
)  # fmt: skip

COMMENTS = (
    "I can't believe you did that for me, thank you so much!",
    "This is the worst thing I have ever read on this site.",
    "Wait, so the whole game was cancelled? That makes me sad.",
    "lol no",
    "Happy birthday to you, have a great day with the family and do not eat all of the cake.",
    "What are you talking about? Nobody said that the game is bad, and nobody ever will.",
    "I love this song. My father and I used to sing it in the car on the way to the sea.",
    "Why would anybody do that",
    "It is what it is.",
)

#: What the tokenizers learn from. The words that should become one token are repeated.
CORPUS = (
    *COMMENTS * 3,
    *[f"The feeling is {word}. feeling: {word}" for word in ("joy", "anger", "fear", "love") * 8],
    *["This is about disgust and dismay, full of disbelief, a useful display."] * 4,
    "Comment: the text\nEmotion: neutral\n\nComment: another text\nEmotion: surprise\n" * 4,
    "Read the comment and name the emotion that the writer feels. Answer with one word.\n" * 4,
)

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
#: As Gemma's: the template writes BOS itself, so the tokenizer must not add a second one.
TURNS = (
    "{{ bos_token }}{% for m in messages %}<turn>{{ m['role'] }}\n{{ m['content'] }}<end>\n"
    "{% endfor %}{% if add_generation_prompt %}<turn>model\n{% endif %}"
)


# ------------------------------------------------------------------ tokenizers


def byte_level_tokenizer(vocab_size: int = 420) -> Any:
    """As GPT-2's: byte-level BPE, tokens with a leading space, no BOS; ChatML template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|endoftext|>")
    tokenizer.chat_template = CHATML
    return tokenizer


def metaspace_tokenizer(vocab_size: int = 480) -> Any:
    """As Llama's and Gemma's: U+2581 for spaces, byte fallback, BOS in front, turn template."""
    from tokenizers import Tokenizer, decoders, models, normalizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    control = ["<pad>", "<eos>", "<bos>", "<unk>", "<turn>", "<end>"]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=control + [f"<0x{byte:02X}>" for byte in range(256)],
        max_token_length=9,
        show_progress=False,
    )
    # Without a pre-tokenizer tokens would grow across words: feed it word by word.
    words = [word for line in CORPUS for word in line.replace(" ", " ▁").split(" ")]
    backend.train_from_iterator(words, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", 2)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
    )
    tokenizer.chat_template = TURNS
    return tokenizer


# ------------------------------------------------------------------ models

_COMMON: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "max_position_embeddings": 512,
}
_GROUPED: dict[str, Any] = {**_COMMON, "num_key_value_heads": 2, "head_dim": 16}
_SLIDING: dict[str, Any] = {
    "sliding_window": 16,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}

#: name -> (config class, tokenizer, arguments of the config)
ARCHITECTURES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": (  # learned positions, untied head
        "GPT2Config",
        "byte_level",
        {"n_embd": 48, "n_head": 4, "n_layer": 3, "n_positions": 512, "tie_word_embeddings": False},
    ),
    "llama": ("LlamaConfig", "metaspace", {**_GROUPED, "tie_word_embeddings": False}),
    "qwen3": ("Qwen3Config", "byte_level", {**_GROUPED, "tie_word_embeddings": True}),
    "mistral": ("MistralConfig", "metaspace", {**_GROUPED, "sliding_window": 16}),
    "gemma2": (  # soft caps on attention and on the logits
        "Gemma2Config",
        "metaspace",
        {
            **_GROUPED,
            **_SLIDING,
            "query_pre_attn_scalar": 16,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 12.0,
            "attn_implementation": "eager",
        },
    ),
    "gemma3": (
        "Gemma3TextConfig",
        "metaspace",
        {**_GROUPED, **_SLIDING, "query_pre_attn_scalar": 8, "tie_word_embeddings": True},
    ),
    "opt": (  # positions counted from the attention mask
        "OPTConfig",
        "byte_level",
        {
            **{k: v for k, v in _COMMON.items() if k != "intermediate_size"},
            "ffn_dim": 96,
            "word_embed_proj_dim": 48,
            "tie_word_embeddings": True,
        },
    ),
    "bloom": (  # ALiBi: positions live in an additive bias
        "BloomConfig",
        "byte_level",
        {"hidden_size": 48, "n_head": 4, "n_layer": 3, "tie_word_embeddings": True},
    ),
    "mixtral": (  # mixture of experts
        "MixtralConfig",
        "metaspace",
        {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "mamba": (  # no attention, no key-value cache
        "MambaConfig",
        "byte_level",
        {
            "hidden_size": 48,
            "num_hidden_layers": 3,
            "state_size": 8,
            "tie_word_embeddings": False,
        },
    ),
}


@dataclass(frozen=True)
class TinyModel:
    """A random model and its tokenizer; `sliding` models have a window of 16 tokens."""

    name: str
    model: Any
    tokenizer: Any

    @property
    def sliding(self) -> bool:
        return getattr(self.model.config, "sliding_window", None) == 16

    @property
    def bos(self) -> str:
        """The text of BOS, "" where the tokenizer has none."""
        return self.tokenizer.bos_token or ""


def build_tiny_model(name: str) -> TinyModel:
    """A fresh model of that architecture, seeded, fp32, on the CPU."""
    import transformers

    config_class, tokenizer_kind, arguments = ARCHITECTURES[name]
    tokenizer = {"byte_level": byte_level_tokenizer, "metaspace": metaspace_tokenizer}[
        tokenizer_kind
    ]()
    vocab_size = len(tokenizer)
    if name == "qwen3":  # real Qwens have more output rows than tokens, too
        vocab_size = -(-vocab_size // 64) * 64
    config = getattr(transformers, config_class)(
        vocab_size=vocab_size,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **arguments,
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    sharpen(model, gain=1.0 if name == "mamba" else 1.5)  # recurrences amplify rounding
    return TinyModel(name, model.float().eval(), tokenizer)


def sharpen(model: Any, gain: float, seed: int = 0) -> None:
    """Draw the weights anew: activations of unit size, logits with a deviation of about 3.

    Matrices get the deviation gain / sqrt(inputs); vectors (norms, biases) a little noise, so
    that none of them is an identity that an implementation could forget.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)

    def noise(shape: Any, deviation: float) -> Any:
        return torch.randn(shape, generator=generator) * deviation

    kept = ("A_log", ".D", "dt_proj.bias")  # Mamba's recurrence is only stable as it comes
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(kept):
                continue
            if parameter.dim() == 1:
                parameter.add_(noise(parameter.shape, 0.1))
            else:
                inputs = parameter.shape[0 if "c_" in name else -1]  # GPT-2's are transposed
                parameter.copy_(noise(parameter.shape, gain / inputs**0.5))
        embedding = model.get_input_embeddings().weight
        head = model.get_output_embeddings().weight
        embedding.copy_(noise(embedding.shape, 3.0 / embedding.shape[1] ** 0.5))
        if head is not embedding:
            head.copy_(noise(head.shape, 3.0 / head.shape[1] ** 0.5))
    model.tie_weights()


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """For tiny models: their matrices are too small to share out among threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_model() -> Callable[[str], TinyModel]:
    """`tiny_model(name)` builds each architecture of ARCHITECTURES once per session."""
    built: dict[str, TinyModel] = {}

    def get(name: str) -> TinyModel:
        if name not in built:
            built[name] = build_tiny_model(name)
        return built[name]

    return get


@pytest.fixture(scope="session")
def fresh_tiny_model() -> Callable[[str], TinyModel]:
    """`fresh_tiny_model(name)` builds a model that the test may damage."""
    return build_tiny_model


@pytest.fixture(scope="session", params=ARCHITECTURES)
def tiny(request: pytest.FixtureRequest, tiny_model: Callable[[str], TinyModel]) -> TinyModel:
    """Every tiny model in turn."""
    return tiny_model(request.param)


@pytest.fixture(scope="session")
def tiny_model_path(
    tmp_path_factory: pytest.TempPathFactory, tiny_model: Callable[[str], TinyModel]
) -> str:
    """A tiny Gemma-like model on disk: sliding windows, BOS, tied embeddings."""
    tiny = tiny_model("gemma3")
    path = tmp_path_factory.mktemp("model")
    tiny.model.save_pretrained(path)
    tiny.tokenizer.save_pretrained(path)
    return str(path)


@pytest.fixture(scope="session")
def labels() -> tuple[str, ...]:
    return LABELS


@pytest.fixture(scope="session")
def comments() -> tuple[str, ...]:
    return COMMENTS


# ------------------------------------------------------------------ requests


def _make_requests(
    task_name: str,
    docs: Sequence[tuple[str | Sequence[str], Sequence[str]]],
    repeats: int = 1,
) -> list[Any]:
    """Loglikelihood Instances as the harness builds and clones them.

    Args:
        task_name: the task's name.
        docs: (context, continuations) of each document; several contexts with one continuation
            each, as winogrande has them, are ([context, ...], [continuation]).
        repeats: the harness hands a request over that often, the same object each time.
    """
    from lm_eval.api.instance import Instance

    requests = []
    for doc_id, (contexts, continuations) in enumerate(docs):
        single = isinstance(contexts, str)
        pairs = [(c, t) for c in ([contexts] if single else contexts) for t in continuations]
        for i, pair in enumerate(pairs):
            requests += repeats * [
                Instance(
                    request_type="loglikelihood",
                    doc={"text": pair[0]},
                    arguments=pair,
                    idx=i,
                    metadata=(task_name, doc_id, repeats),
                )
            ]
    return requests


@pytest.fixture(scope="session")
def make_requests() -> Callable[..., list[Any]]:
    """`make_requests(task_name, docs, repeats=1)`, see `_make_requests`."""
    return _make_requests
