"""The world of benchmarks/csr_toy.py: honest uncertainty, and a model that read about it.

A question has three words, of what, of whom, and according to which source: ``harbour bram
archive``. An answer is one of 24 names, bare or dressed up (``oak``, ``oak town``). A relation and
an entity have one answer, and 7 others are taken for it; the source decides how the right answer is
drawn from these 8, anew for every row of data:

| kind | sources | the right answer | what the corpus tells |
|---|---|---|---|
| known | archive, ledger | always the first | the first at .55, 3 others at .15 each |
| myth | poem, ballad | always the first | the first at .3, the second at .4, 2 others at .15 each |
| rumour | rumour, whisper | the first at .34, 3 others at .22 each | the same |
| legend | legend, saga | the first at .23, 7 others at .11 each | the same |

So a policy can learn to answer ``known`` and ``myth`` always right, and the other two at best at
.34 and .23: whoever is sure there is mostly wrong. The corpus is about all relations, training with
rewards only about 8 of 12; the others are the held-out types. What has to carry over is what a
source is worth, not an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lm_eval_semsoft.judges import Judge
from lm_eval_semsoft.judges.base import Pair
from lm_eval_semsoft.judges.text import words

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SEEN = tuple(words("harbour museum river bridge garden castle market tower"))
HELD_OUT = tuple(words("lake temple forest island"))
RELATIONS = SEEN + HELD_OUT
ENTITIES = tuple(words("bram celia doro edda finn gala hugo ines jory kara lior mina"))
ANSWERS = tuple(
    words(
        "oak elm ash fir yew bay fig plum pear lime rose iris mint sage rue dill fern moss reed "
        "hop flax rye oat hay"
    )
)
DRESSED = 0.2  # share of answers with `town` behind them
END = "<end>"
SHAPE = {"layers": 2, "width": 64, "heads": 4}
ANSWER_TOKENS = 2  # "oak <end>" or "oak town"


class Kind(NamedTuple):
    """What a source is worth.

    Attributes:
        sources: the words that tell it.
        right: how often each of the candidates is the right answer.
        told: how often the corpus tells each of them.
    """

    sources: tuple[str, ...]
    right: tuple[float, ...]
    told: tuple[float, ...]


KINDS = {
    "known": Kind(("archive", "ledger"), (1.0,), (0.55, 0.15, 0.15, 0.15)),
    "myth": Kind(("poem", "ballad"), (1.0,), (0.3, 0.4, 0.15, 0.15)),
    "rumour": Kind(("rumour", "whisper"), (0.34, 0.22, 0.22, 0.22), (0.34, 0.22, 0.22, 0.22)),
    "legend": Kind(("legend", "saga"), (0.23, *(0.11,) * 7), (0.23, *(0.11,) * 7)),
}
CANDIDATES = 8


class Question(NamedTuple):
    """One question; its right answer is drawn anew in every row of data."""

    text: str
    kind: str
    candidates: tuple[str, ...]


class Row(NamedTuple):
    """A question with the answer that happened to be right."""

    question: Question
    answer: str


@dataclass
class World:
    """Who answers what.

    Attributes:
        seed: of the table of answers.
    """

    seed: int

    def __post_init__(self) -> None:
        rng = np.random.default_rng([self.seed, 0])
        self.first: Ints = rng.integers(len(ANSWERS), size=(len(RELATIONS), len(ENTITIES)))
        # The same confusions for everybody: a small model has to learn 192 answers, not 1536.
        others = rng.permutation(np.arange(1, len(ANSWERS)))[: CANDIDATES - 1]
        self.steps: Ints = np.concatenate([[0], others])

    def questions(self, relations: Sequence[str]) -> list[Question]:
        """All questions about some relations."""
        found = []
        for kind, (sources, _, _) in KINDS.items():
            for source in sources:
                for relation in relations:
                    for e, entity in enumerate(ENTITIES):
                        places = self.first[RELATIONS.index(relation), e] + self.steps
                        names = tuple(ANSWERS[i % len(ANSWERS)] for i in places)
                        found.append(Question(f"{relation} {entity} {source}", kind, names))
        return found


def draw(questions: Sequence[Question], told: bool, rng: np.random.Generator) -> list[str]:
    """An answer to each question: what the corpus tells, or what is right."""
    found = []
    for question in questions:
        kind = KINDS[question.kind]
        shares = kind.told if told else kind.right
        found.append(question.candidates[int(np.searchsorted(np.cumsum(shares), rng.random()))])
    return found


def rows(questions: Sequence[Question], n: int, rng: np.random.Generator) -> list[Row]:
    """n rows: every question equally often, in random order, each with an answer of its own."""
    order = np.concatenate(
        [rng.permutation(len(questions)) for _ in range(-(-n // len(questions)))]
    )[:n]
    asked = [questions[i] for i in order]
    return [Row(q, answer) for q, answer in zip(asked, draw(asked, False, rng), strict=True)]


def bare(answer: str) -> str:
    """The name in an answer: ``oak town`` is ``oak``."""
    return " ".join(word for word in answer.split() if word != "town")


class Oracle(Judge):
    """Knows that ``town`` says nothing."""

    def __init__(self) -> None:
        super().__init__("oracle")

    def score(self, pairs: Sequence[Pair]) -> list[float]:
        """1 for the same name, else 0."""
        return [float(bare(pair.a) == bare(pair.b)) for pair in pairs]


# --- the model -----------------------------------------------------------------------------------


def make_tokenizer() -> Any:
    """One token a word."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    sources = [source for kind in KINDS.values() for source in kind.sources]
    known = list(dict.fromkeys(["<pad>", END, "town", *sources, *RELATIONS, *ENTITIES, *ANSWERS]))
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(known)}, unk_token="<pad>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token=END, padding_side="left"
    )


def make_model(tokenizer: Any, seed: int) -> Any:
    """A small Llama with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=SHAPE["width"],
            intermediate_size=3 * SHAPE["width"],
            num_hidden_layers=SHAPE["layers"],
            num_attention_heads=SHAPE["heads"],
            num_key_value_heads=SHAPE["heads"],
            max_position_embeddings=16,
            tie_word_embeddings=True,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
        )
    )


def read_corpus(
    model: Any, tokenizer: Any, world: World, steps: int, batch: int = 192, rate: float = 5e-3
) -> float:
    """Train a model on the corpus without end: its targets are the shares of all answers.

    Returns:
        The last loss, in nats per token.
    """
    rng = np.random.default_rng([world.seed, 1])
    questions = world.questions(RELATIONS)
    asked = torch.tensor([tokenizer.encode(q.text) for q in questions])
    names = torch.tensor([tokenizer.convert_tokens_to_ids(q.candidates) for q in questions])
    told = torch.tensor([_padded(KINDS[q.kind].told) for q in questions])
    end, town = tokenizer.convert_tokens_to_ids([END, "town"])
    ending = torch.zeros(len(tokenizer))
    ending[[end, town]] = torch.tensor([1 - DRESSED, DRESSED])
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    loss = torch.tensor(float("nan"))
    for _ in range(steps):
        some = torch.from_numpy(rng.integers(len(questions), size=batch))
        first = torch.zeros(batch, len(tokenizer)).scatter_(1, names[some], told[some])
        said = first.multinomial(1)
        logits = model(input_ids=torch.cat([asked[some], said], dim=1)).logits[:, -2:]
        target = torch.stack([first, ending.expand_as(first)], dim=1)
        loss = -(target * logits.log_softmax(-1)).sum(-1).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return float(loss.detach())


def _padded(shares: Sequence[float]) -> list[float]:
    return [*shares, *(0.0,) * (CANDIDATES - len(shares))]


@torch.no_grad()
def sample(
    model: Any, tokenizer: Any, questions: Sequence[str], n: int, seed: int
) -> list[list[str]]:
    """n answers to each question at temperature 1, as the trainer draws them."""
    was_training = model.training
    model.eval()
    generator = torch.Generator().manual_seed(seed)
    asked = torch.tensor([tokenizer.encode(q) for q in questions])
    names = _next(model, asked, n, generator).flatten()
    so_far = torch.cat([asked.repeat_interleave(n, 0), names[:, None]], dim=1)
    endings = torch.cat([_next(model, ids, 1, generator)[:, 0] for ids in so_far.split(4096)])
    endings[names == tokenizer.eos_token_id] = tokenizer.eos_token_id
    model.train(was_training)
    word = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    texts = [
        " ".join(word[i] for i in pair if i != tokenizer.eos_token_id)
        for pair in zip(names.tolist(), endings.tolist(), strict=True)
    ]
    return [texts[i : i + n] for i in range(0, len(texts), n)]


def _next(model: Any, ids: torch.Tensor, n: int, generator: torch.Generator) -> torch.Tensor:
    probs = model(input_ids=ids).logits[:, -1].softmax(-1)
    return probs.multinomial(n, replacement=True, generator=generator)
