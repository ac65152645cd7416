"""Two answers mean the same if each entails the other: an NLI model, both ways.

As in the published semantic entropy (Farquhar et al. 2024, with DeBERTa-large-MNLI): premise and
hypothesis are "question answer". Strict: both directions are entailment. Loose: no direction is
contradiction, and not both are neutral.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .base import Judge, JudgeError, Pair
from .loading import batches, load, most_tokens, stacked

_MOST_TOKENS = 512
_MOST_CHARACTERS = 4000


class NLI(Judge):
    """Scores how clearly the two directions are what they must be; .5 is where the decision of
    the published code lies.

    Args:
        model: hub id or folder of a sequence classifier with the labels entailment, neutral and
            contradiction (or entailment and another).
        strict: both directions must be entailment.
        device: None = a GPU if there is one.

    Raises:
        JudgeError: the model cannot be loaded, or has no label that says entailment.
    """

    def __init__(self, model: str, strict: bool = True, device: str | None = None) -> None:
        super().__init__(f"nli{'' if strict else '-loose'}:{model}")
        self.strict = strict
        self._tokenizer, self._model, self._device = load(
            self.name, model, "AutoModelForSequenceClassification", torch.float32, device
        )
        self._padding = self._tokenizer.pad_token_id or 0
        labels = {int(i): str(x).lower() for i, x in self._model.config.id2label.items()}
        self._entails = [i for i, x in labels.items() if x.startswith("entail")]
        self._contradicts = [i for i, x in labels.items() if x.startswith("contra")]
        if len(self._entails) != 1 or not (strict or self._contradicts):
            wanted = "entailment" if strict else "entailment and contradiction"
            raise JudgeError(
                f"judge={self.name!r}: the model {model!r} is no NLI model; its labels are "
                f"{', '.join(labels.values())}, and there must be {wanted}."
            )

    def score(self, pairs: Sequence[Pair]) -> list[float]:
        p = self._classify([way for q, a, b in pairs for way in _both_ways(q, a, b)])
        entailed = [_margin(row, self._entails) for row in p]
        if self.strict:
            return [min(two) for two in zip(entailed[::2], entailed[1::2], strict=True)]
        denied = [_margin(row, self._contradicts) for row in p]
        return [
            min(max(entailed[i : i + 2]), 1 - max(denied[i : i + 2])) for i in range(0, len(p), 2)
        ]

    def _classify(self, ways: Sequence[tuple[str, str]]) -> torch.Tensor:
        """Probabilities [n, classes] of (premise, hypothesis)."""
        premises, hypotheses = (list(side) for side in zip(*ways, strict=True))
        most = min(_MOST_TOKENS, getattr(self._model.config, "max_position_embeddings", 512))
        # RoBERTa's positions begin behind its padding id.
        most -= 2 if self._model.config.model_type in ("roberta", "xlm-roberta", "camembert") else 0
        given = self._tokenizer(premises, hypotheses, truncation=True, max_length=most)
        rows = [{name: given[name][i] for name in given} for i in range(len(ways))]
        out = torch.empty(len(ways), self._model.config.num_labels)

        def run(batch: list[int]) -> None:
            padded = stacked([rows[i] for i in batch], self._padding, self._device)
            with torch.inference_mode():
                logits = self._model(**padded).logits
            out[batch] = logits.float().softmax(-1).cpu()

        batches([len(row["input_ids"]) for row in rows], run, most_tokens(self._device))
        return out


def _both_ways(question: str, a: str, b: str) -> tuple[tuple[str, str], tuple[str, str]]:
    one, two = (f"{question} {x[:_MOST_CHARACTERS]}".strip() for x in (a, b))
    return (one, two), (two, one)


def _margin(p: torch.Tensor, chosen: Sequence[int]) -> float:
    """p of a class against the most probable other one, 0..1; .5 = as probable."""
    own = float(p[chosen].sum())
    others = [float(x) for i, x in enumerate(p) if i not in chosen]
    return own / (own + max(others)) if own + max(others) else 0.0
