"""Readouts directories as a run leaves them, written from random numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lm_eval_semsoft.core.semantic_softmax import Scoring
from lm_eval_semsoft.engine.readout import Readout
from lm_eval_semsoft.engine.store import Store, StoredDocument, text_key

LABELS = ("joy", "anger", "fear", "neutral")
V, D, K = 160, 12, 60
SCORING = {**vars(Scoring(top_k=K, space="centered", tau="q0.9")), "kernel": "auto"}


@pytest.fixture(scope="session")
def write_readouts() -> Callable[..., Path]:
    return _write_readouts


def _write_readouts(
    folder: Path,
    n: int = 80,
    labels: Sequence[str] = LABELS,
    *,
    seed: int = 0,
    model: str = "test/model",
    task: str = "emotions",
    docs: Callable[[int], dict[str, Any]] = lambda i: {},
    several: bool = False,
    words: Sequence[str] | None = None,
    why_identity: str | None = None,
    about: dict[str, Any] | None = None,
    embeddings: bool = True,
    unread: int = 0,
    v: int = V,
) -> Path:
    """Label l is token l, and its neighbours follow after the labels.

    Args:
        n: documents.
        seed: documents depend on it alone, and what is read of them on it and the model.
        docs: fields of each document that differ from the usual; None takes one away.
        several: does every document have two right labels?
        words: token texts.
        embeddings: False: they cannot be stored.
        unread: how many of the last documents have no readout.
        v: tokens in the vocabulary.
    """
    size = len(labels)
    matrix = _embeddings(v, size)
    known = {"model": model, "dtype": "float32", "top_k": K, "scoring": SCORING}
    store = Store(
        folder,
        text_key(model).hex()[:16],
        K,
        {**known, "versions": {"torch": "2.0"}, **(about or {})},
    )

    def given() -> torch.Tensor:
        if not embeddings:
            raise ValueError("the head is quantised")
        return torch.tensor(matrix)

    store.save_model(given, lambda: list(words or [f" word{i}" for i in range(v)]))
    own = {"labels": list(labels), "spelled": [[i] for i in range(size)],
           "variants": [[] for _ in labels]}  # fmt: skip
    store.save_tasks({task: {"why_identity": why_identity}}, {"set": own})
    truth, logp = _documents(n, matrix, size, seed, model)
    stored = []
    for i in range(n):
        right = sorted({int(truth[i]), (int(truth[i]) + 1) % size} if several else {int(truth[i])})
        doc = {"id": f"{seed}-{i}", "text": f"text {seed} {i}", "labels": right}
        doc |= {"published_data": 1, **docs(i)}
        doc = {name: value for name, value in doc.items() if value is not None}
        key = text_key(f"{task} {seed} {i} {doc.get('text')} {model}")
        stored.append(
            StoredDocument(
                task, i, key, json.dumps(doc), "set", tuple(labels), (key,), tuple(range(size))
            )
        )
        if i < n - unread:
            store.add(key, _readout(logp[i], size))
    store.save_documents(stored)
    store.close()
    return folder


def _embeddings(v: int, size: int) -> np.ndarray:
    matrix = np.random.default_rng(7).normal(size=(v, D)).astype(np.float32)
    if v >= 5 * size:
        matrix[size : 5 * size] = np.tile(matrix[:size], (4, 1)) + 0.6 * matrix[size : 5 * size]
    return matrix


def _documents(
    n: int, matrix: np.ndarray, size: int, seed: int, model: str
) -> tuple[np.ndarray, np.ndarray]:
    """Right labels [n], and log-probabilities of the next token [n, V]."""
    rng, own = np.random.default_rng(seed), np.random.default_rng([seed, len(model)])
    truth = rng.integers(size, size=n)
    hidden = 0.7 * rng.normal(size=(n, D)) + 0.7 * own.normal(size=(n, D)) + matrix[truth]
    logits = hidden @ matrix.T
    return truth, logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)


def _readout(logp: np.ndarray, size: int) -> Readout:
    order = np.argsort(-logp)[:K]
    return Readout(
        topk_ids=order.astype(np.int32),
        topk_logprobs=logp[order].astype(np.float32),
        label_logprobs=logp[:size].astype(np.float32),
        label_greedy=np.zeros(size, dtype=bool),
        label_first=np.arange(size, dtype=np.int32),
        entropy=1.0,
        nucleus_sizes=np.ones(4, dtype=np.int32),
        nucleus_entropies=np.ones(4, dtype=np.float32),
    )
