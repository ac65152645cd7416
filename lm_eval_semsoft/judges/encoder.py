"""Two answers mean the same if a sentence encoder puts them near each other.

The encoder reads question and answer together, because what an answer means depends on the
question. But then the question is most of the text, and all its answers are near each other. So
the question's own direction is taken out: with unit vectors e(question answer) and e(question),
the score is the cosine of the parts of the former that are orthogonal to the latter
(docs/judges.md: what that is worth).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from .base import Judge, JudgeError, Pair, at_half
from .loading import INSTALL, PACKAGED, batches, load, most_tokens, packaged_encoder, stacked

Floats = NDArray[np.float32]

THRESHOLD = 0.55  # of the packaged encoder, chosen in docs/judges.md
_MOST_TOKENS = 256  # of a text: what MiniLM was trained on
_MOST_CHARACTERS = 2000  # surely more than those tokens
_MOST_QUESTION = 400  # characters: of a longer question, its end
_KEPT_VECTORS = 2**16
_TOKENISED = 2**10  # texts at once


class Encoder(Judge):
    """Scores the cosine (negative ones as 0), bent so that the threshold becomes .5.

    Args:
        model: ``minilm`` (the packaged all-MiniLM-L6-v2), a hub id or a folder: an encoder whose
            sentence vector is the mean over its tokens.
        threshold: cosine from which on two answers mean the same.
        device: None = a GPU if there is one.

    Raises:
        JudgeError: the model is not installed, or cannot be loaded.
    """

    def __init__(
        self, model: str = PACKAGED, threshold: float = THRESHOLD, device: str | None = None
    ) -> None:
        super().__init__(f"encoder:{model}@{threshold:g}")
        self.threshold = threshold
        path = model
        if model == PACKAGED:
            folder = packaged_encoder()
            if folder is None:
                raise JudgeError(
                    f"judge={self.name!r}: the sentence encoder is not installed; install it with "
                    f"`{INSTALL}`, name another one as encoder:<hub id or folder>, or use a judge "
                    "that needs none (rules, f1:0.5), in a task by --metadata "
                    '\'{"judge": "rules"}\'.'
                )
            path = str(folder)
        self._tokenizer, self._model, self._device = load(
            self.name, path, "AutoModel", torch.float32, device
        )
        self._padding = self._tokenizer.pad_token_id or 0
        self._most = min(_MOST_TOKENS, getattr(self._model.config, "max_position_embeddings", 512))
        self._vectors: dict[str, Floats] = {}

    def score(self, pairs: Sequence[Pair]) -> list[float]:
        cosines = self.cosines(pairs)
        return [at_half(min(max(float(c), 0.0), 1.0), self.threshold) for c in cosines]

    def cosines(self, pairs: Sequence[Pair]) -> Floats:
        """Cosine of every pair of answers without their questions' directions, [n]."""
        answers = dict.fromkeys((q, x) for q, a, b in pairs for x in (a, b))
        vectors = self._read(t for q, x in answers for t in (_text(q), _text(q, x)))
        rest = {(q, x): _orthogonal(vectors[_text(q, x)], vectors[_text(q)]) for q, x in answers}
        return np.array([rest[q, a] @ rest[q, b] for q, a, b in pairs], dtype=np.float32)

    def _read(self, texts: Iterable[str]) -> dict[str, Floats]:
        """Unit vectors of texts, each read once."""
        wanted = dict.fromkeys(texts)
        new = [text for text in wanted if text and text not in self._vectors]
        self._vectors |= dict(zip(new, self._encode(new), strict=True))
        found = {text: self._vectors[text] for text in wanted if text}
        while len(self._vectors) > _KEPT_VECTORS:
            del self._vectors[next(iter(self._vectors))]
        return {"": np.zeros(self._model.config.hidden_size, dtype=np.float32)} | found

    def _encode(self, texts: Sequence[str]) -> Floats:
        """Unit vectors, [n, d]: the mean over a text's tokens."""
        out = np.empty((len(texts), self._model.config.hidden_size), dtype=np.float32)
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        for start in range(0, len(order), _TOKENISED):
            own = order[start : start + _TOKENISED]
            out[own] = self._encode_few([texts[i] for i in own])
        return out

    def _encode_few(self, texts: list[str]) -> Floats:
        """As `_encode`; what the tokenizer gives for all of them is in memory at once."""
        out = np.empty((len(texts), self._model.config.hidden_size), dtype=np.float32)
        given = self._tokenizer(texts, truncation=True, max_length=self._most)
        rows = [{name: given[name][i] for name in given} for i in range(len(texts))]

        def run(batch: list[int]) -> None:
            padded = stacked([rows[i] for i in batch], self._padding, self._device)
            with torch.inference_mode():
                hidden = self._model(**padded).last_hidden_state
            inside = padded["attention_mask"][..., None].to(hidden.dtype)
            mean = (hidden * inside).sum(1) / inside.sum(1)
            out[batch] = torch.nn.functional.normalize(mean, dim=-1).cpu().numpy()

        batches([len(row["input_ids"]) for row in rows], run, most_tokens(self._device))
        return out


def _text(question: str, answer: str = "") -> str:
    """What is read; neither question nor answer gets longer than the encoder can see."""
    return f"{question[-_MOST_QUESTION:]} {answer[:_MOST_CHARACTERS]}".strip()


def _orthogonal(vector: Floats, to: Floats) -> Floats:
    """The part of a vector that is orthogonal to a unit vector, at length 1 (0 stays 0)."""
    rest = vector - (vector @ to) * to
    length = float(np.linalg.norm(rest))
    return np.asarray(rest / length if length > 1e-6 else rest * 0, dtype=np.float32)
