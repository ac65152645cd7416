"""Free-response generation: our engine beside the stock `hf` model, on the same loaded weights.

    python benchmarks/generation_speed.py QUESTIONS.parquet
    python benchmarks/generation_speed.py QUESTIONS.parquet --models gemma-3-270m --repeats 3

Three sides answer the same prompts greedily in fp32, round by round in turn: stock
`generate_until`, ours, and our engine without the measures. Prompts are two worked examples and a
question (column `Question` of the file) whose answer begins in a curly bracket. Figures are medians
of the rounds, in processor seconds (`--wall` for elapsed ones), which other work on the machine
disturbs less.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import pyarrow.parquet as pq
import torch
import typer
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from rich.console import Console
from rich.table import Table

from lm_eval_semsoft.models.generation import asks_of, stop_of, way_of
from lm_eval_semsoft.models.semsoft_hf import SemsoftHF

ASK = "Answer in as few words as possible and put the key part in curly brackets."
EXAMPLES = (
    ("What is the chemical symbol for gold?", "The chemical symbol for gold is {Au}."),
    ("In which year did the First World War end?", "It ended in {1918}."),
)
#: name -> what ends an answer
ENDINGS: dict[str, list[str]] = {
    "coane_oe": ["\n\n", "\nQuestion:"],  # as in its YAML
    "one line": ["\n"],
    "no stop string": [],
}


def prompts(questions: Path, n: int, lm: HFLM, chat: bool) -> list[str]:
    """The first n questions, as a text to go on with or as a conversation."""
    column = pq.read_table(questions, columns=["Question"])["Question"].to_pylist()
    if not chat:
        head = "".join(f"Question: {q}\n{ASK}\nAnswer: {a}\n\n" for q, a in EXAMPLES)
        return [f"{head}Question: {question}\n{ASK}\nAnswer: {{" for question in column[:n]]
    turns = [{"role": "system", "content": ASK}]
    for question, answer in EXAMPLES:
        turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return [
        lm.apply_chat_template([*turns, {"role": "user", "content": question}]) + "{"
        for question in column[:n]
    ]


def requests_of(contexts: list[str], until: list[str], most: int) -> list[Instance]:
    kwargs = {"until": until, "max_gen_toks": most, "do_sample": False}
    return [
        Instance("generate_until", {}, (context, dict(kwargs)), 0, ("coane", i, 1))
        for i, context in enumerate(contexts)
    ]


def unmeasured(lm: SemsoftHF, requests: list[Instance]) -> None:
    """Our engine's answers without measures: tokens only."""
    way = way_of(lm, requests[0].args[1])
    assert way is not None
    asks = asks_of(lm, way, list(enumerate(requests)))
    tokens = [ask.tokens for ask in asks]
    found = lm.generator.generate(
        tokens, way.max_tokens, stop_of(lm, way), int(lm.batch_size), measured=False
    )
    for _, own, _ in found:
        lm.tok_decode(own)


def compare(
    sides: dict[str, Callable[[], Any]], repeats: int, clock: Callable[[], float]
) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, run in sides.items():
            start = clock()
            run()
            seconds[name].append(clock() - start)
    return seconds


def main(
    questions: Annotated[Path, typer.Argument(help="A parquet file with a column Question.")],
    models: str = "gemma-3-270m,smollm2-135m-instruct",
    documents: int = 32,
    batch_size: int = 8,
    most: int = 150,
    repeats: int = 3,
    endings: str = "coane_oe,no stop string",
    wall: bool = False,
) -> None:
    """Print documents/s of the three sides, their ratios, and whether the texts are the same."""
    clock = time.perf_counter if wall else time.process_time
    table = Table("what", "stock docs/s", "ours docs/s", "ratio", "measures cost", "same texts")
    for name in models.split(","):
        ours = SemsoftHF(f"demo:{name}", dtype="float32", device="cpu", batch_size=batch_size)
        stock = HFLM(ours.model, tokenizer=ours.tokenizer, batch_size=batch_size)
        contexts = prompts(questions, documents, ours, chat="instruct" in name)
        for ending in endings.split(","):
            requests = requests_of(contexts, ENDINGS[ending], most)
            texts = {
                "stock": stock.generate_until(requests[:batch_size], disable_tqdm=True),
                "ours": ours.generate_until(requests[:batch_size], disable_tqdm=True),
            }
            seconds = compare(
                {
                    "stock": lambda: stock.generate_until(requests, disable_tqdm=True),  # noqa: B023
                    "ours": lambda: ours.generate_until(requests, disable_tqdm=True),  # noqa: B023
                    "unmeasured": lambda: unmeasured(ours, requests),  # noqa: B023
                },
                repeats,
                clock,
            )
            rounds = list(zip(*seconds.values(), strict=True))
            row = (
                f"{name}, {ending}",
                f"{documents / median(seconds['stock']):.2f}",
                f"{documents / median(seconds['ours']):.2f}",
                f"{median(s / o for s, o, _ in rounds):.2f}×",
                f"{median(o / u - 1 for _, o, u in rounds):+.1%}",
                f"{sum(map(str.__eq__, *texts.values()))} of {len(texts['ours'])}",
            )
            print(*row, sep=" | ", flush=True)
            table.add_row(*row)
    Console(width=120).print(table)


if __name__ == "__main__":
    torch.set_num_threads(1)
    typer.run(main)
