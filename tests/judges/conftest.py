"""Judges with tiny random models: what they say means nothing, how they say it is tested."""

import pytest

LABELS = ("contradiction", "neutral", "entailment")


def _saved(folder, tiny, kind, **config):
    import transformers

    own = transformers.BertConfig(
        vocab_size=len(tiny.tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
        initializer_range=0.5,  # random, but not all the same
        **config,
    )
    transformers.set_seed(0)
    getattr(transformers, kind)(own).save_pretrained(folder)
    tiny.tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory, tiny_model):
    """Folder of a sentence encoder that sees 128 tokens."""
    return _saved(tmp_path_factory.mktemp("encoder"), tiny_model("gemma3"), "BertModel")


@pytest.fixture(scope="session")
def tiny_nli(tmp_path_factory, tiny_model):
    """Folder of an NLI model that sees 128 tokens."""
    return _saved(
        tmp_path_factory.mktemp("nli"),
        tiny_model("gemma3"),
        "BertForSequenceClassification",
        id2label=dict(enumerate(LABELS)),
        label2id={x: i for i, x in enumerate(LABELS)},
    )
