"""Sampled answers: our engine beside the stock `hf` model, on the same loaded weights.

    python benchmarks/sampling_speed.py
    python benchmarks/sampling_speed.py --models smollm2-135m-instruct --documents 8 --rounds 5

Both sides draw from the model's own distribution (temperature 1, nothing cut) and answer the same
prompts of 200 tokens ten times each, round by round in turn, with another seed in every round.
Stock `hf` runs at the harness's default batch size of 1 and at one that holds all repeats of a
prompt; ours at the default. Figures are medians of the rounds, in processor seconds (`--wall` for
elapsed ones), which other work on the machine disturbs less.

Answers end at a line break or after `--most` tokens, as those of the question-answering tasks do;
with `--whole` nearly all have `--most` tokens, which makes the figures steadier.
Stock `hf` draws with other random numbers, so the sides write other answers, of the same length on
average: tokens/s count what stands in them.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Annotated, Any

import torch
import typer
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from rich.console import Console
from rich.table import Table

from lm_eval_semsoft.models.semsoft_hf import SemsoftHF

SHOTS = (
    ("What is the capital of France?", "Paris"),
    ("Who wrote the play Hamlet?", "William Shakespeare"),
    ("How many legs does a spider have?", "Eight"),
    ("In which year did the Second World War end?", "1945"),
    ("What is the chemical symbol for iron?", "Fe"),
    ("Which river flows through the city of London?", "The Thames"),
    ("What is the largest planet of the solar system?", "Jupiter"),
    ("Who painted the Mona Lisa?", "Leonardo da Vinci"),
    ("What language is spoken in Brazil?", "Portuguese"),
    ("Which gas do plants take from the air?", "Carbon dioxide"),
    ("What is the square root of eighty-one?", "Nine"),
    ("Which ocean lies between Africa and Australia?", "The Indian Ocean"),
)
QUESTIONS = (
    "Which metal is liquid at room temperature?", "Who was the first person on the moon?",
    "What is the longest bone of the human body?", "Which country gave the world the pizza?",
    "What do bees make?", "Who discovered penicillin?", "What is the currency of Japan?",
    "Which animal is the fastest on land?", "What is the hardest natural substance?",
    "Who wrote the novel War and Peace?", "Which planet is known for its rings?",
    "What is the tallest mountain of Africa?", "Which instrument has eighty-eight keys?",
    "Who invented the telephone?", "What is the smallest prime number?",
    "Which sea has the most salt?",
)  # fmt: skip


def prompts(n: int, lm: HFLM, tokens: int) -> list[str]:
    """Questions after worked examples, cut from the left to a number of tokens.

    Each begins in another example, so that they share no prefix and only the repeats do.
    """
    out = []
    for i in range(n):
        shots = [SHOTS[(i + j) % len(SHOTS)] for j in range(2 * len(SHOTS))]
        head = "".join(f"Question: {q}\nAnswer: {a}\n\n" for q, a in shots)
        text = f"{head}Question: {QUESTIONS[i % len(QUESTIONS)]}\nAnswer:"
        ids = lm.tok_encode(text, add_special_tokens=False)[-tokens + 1 :]
        out.append(lm.tok_decode(ids))
    return out


def requests_of(contexts: list[str], most: int, repeats: int, until: list[str]) -> list[Instance]:
    """As the harness clones them."""
    kwargs = {"until": until, "max_gen_toks": most, "do_sample": True, "temperature": 1.0,
              "top_k": 0, "top_p": 1.0}  # fmt: skip
    return [
        request
        for i, context in enumerate(contexts)
        for request in [
            Instance("generate_until", {}, (context, dict(kwargs)), 0, ("questions", i, repeats))
        ]
        * repeats
    ]


def main(
    models: str = "gemma-3-270m,smollm2-135m-instruct",
    documents: Annotated[int, typer.Option(help="Prompts of a round.")] = 4,
    repeats: int = 10,
    tokens: Annotated[int, typer.Option(help="Of a prompt.")] = 200,
    most: Annotated[int, typer.Option(help="Tokens of an answer.")] = 64,
    rounds: int = 3,
    whole: Annotated[bool, typer.Option(help="Answers end at no line break.")] = False,
    dtype: str = "bfloat16",
    wall: bool = False,
) -> None:
    """Print answers/s and tokens/s of the sides, and their ratios."""
    clock = time.perf_counter if wall else time.process_time
    table = Table("model", "side", "answers/s", "tokens/s", "tokens/answer", "ours is faster by")
    for name in models.split(","):
        ours = SemsoftHF(f"demo:{name}", dtype=dtype, device="cpu")
        stock = {size: HFLM(ours.model, tokenizer=ours.tokenizer, batch_size=size)
                 for size in (1, repeats)}  # fmt: skip
        sides: dict[str, Any] = {
            "semsoft-hf": ours,
            **{f"hf, batch size {size}": lm for size, lm in stock.items()},
        }
        contexts = prompts(documents, ours, tokens)
        requests = requests_of(contexts, most, repeats, [] if whole else ["\n"])
        seconds: dict[str, list[float]] = {side: [] for side in sides}
        written: dict[str, list[int]] = {side: [] for side in sides}
        ours.generate_until(requests[:2], disable_tqdm=True)
        for number in range(rounds):
            for side, lm in sides.items():
                torch.manual_seed(number)
                start = clock()
                texts = lm.generate_until(requests, disable_tqdm=True)
                seconds[side].append(clock() - start)
                lengths = (len(ours.tok_encode(t, add_special_tokens=False)) for t in texts)
                written[side].append(sum(lengths))
        own = seconds["semsoft-hf"]
        for side in sides:
            took, total = seconds[side], written[side]
            ratio = median(t / o for t, o in zip(took, own, strict=True))
            row = (
                name,
                side,
                f"{len(requests) / median(took):.2f}",
                f"{median(w / t for w, t in zip(total, took, strict=True)):.1f}",
                f"{sum(total) / len(requests) / rounds:.1f}",
                "" if side == "semsoft-hf" else f"{ratio:.2f}×",
            )
            print(*row, sep=" | ", flush=True)
            table.add_row(*row)
    Console(width=120).print(table)


if __name__ == "__main__":
    torch.set_num_threads(1)
    typer.run(main)
