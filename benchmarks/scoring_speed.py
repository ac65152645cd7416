"""Our engine beside the stock `hf` model, on the same loaded weights, in one process.

    python benchmarks/scoring_speed.py                   everything, as the README shows it (hours
                                                         where bf16 is emulated; minutes elsewhere)
    python benchmarks/scoring_speed.py --models gemma-3-270m --dtypes float32 --repeats 3 \\
        --stock-documents 16

Rounds are interleaved (stock, ours, constrained, matmul) and every figure is the median of the
rounds; the stock model reads an evenly spaced part of the documents, since its time per document
does not depend on their number. Data: SEMSOFT_DATA_DIR/goemotions/dev.tsv or what `goemotions_zs`
finds; MMLU prompts from `--mmlu FILE` (JSON lines: split, subject, question, choices, answer).

Peak memory is measured in a process of its own per side.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from rich.console import Console
from rich.table import Table
from torch import nn

from lm_eval_semsoft.engine.embeddings import output_head
from lm_eval_semsoft.engine.forward import limits_for
from lm_eval_semsoft.engine.plan import Prompt, batches, group_by_prefix
from lm_eval_semsoft.models import demo
from lm_eval_semsoft.models.pairs import PairEncoder, documents_of
from lm_eval_semsoft.models.semsoft_hf import SemsoftHF

LETTERS = ("A", "B", "C", "D")
STOCK_BATCHES = (1, 4, 16)  # the best of these is taken
OUR_BATCHES = (4, 16, 32)


# -- what is scored ----------------------------------------------------------------------------


def goemotions(n: int) -> list[Instance]:
    """The requests of `goemotions_zs` for n evenly spaced documents of the validation split."""
    from lm_eval.tasks import TaskManager

    from lm_eval_semsoft import plugin

    manager = TaskManager(
        include_path=str(plugin.task_path()),
        include_defaults=False,
        metadata={"split": "validation"},
    )
    task = manager.load(["goemotions_zs"])["tasks"]["goemotions_zs"]
    task.build_all_requests(rank=0, world_size=1)
    labels = len(task.config.doc_to_choice)
    return spread(task.instances, labels, n)


def mmlu(path: Path, n: int) -> list[Instance]:
    """5-shot prompts over options A-D: the five dev questions of a subject, then one of its own."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    subjects = sorted({r["subject"] for r in rows})[
        :: max(1, len({r["subject"] for r in rows}) // 4)
    ]
    out: list[Instance] = []
    for subject in subjects:
        own = [r for r in rows if r["subject"] == subject]
        shots = "".join(question(r) + f" {LETTERS[r['answer']]}\n\n" for r in own[:5])
        head = f"The following are multiple choice questions (with answers) about {subject}.\n\n"
        for row in own[5 : 5 + n // len(subjects)]:
            out += [
                Instance("loglikelihood", row, (head + shots + question(row), f" {letter}"), i,
                         ("mmlu", len(out) // 4, 1))
                for i, letter in enumerate(LETTERS)
            ]  # fmt: skip
    return out


def question(row: dict[str, Any]) -> str:
    options = "".join(f"{a}. {c}\n" for a, c in zip(LETTERS, row["choices"], strict=True))
    return f"{row['question'].strip()}\n{options}Answer:"


def spread(requests: Sequence[Instance], labels: int, n: int) -> list[Instance]:
    """Evenly spaced n documents out of all."""
    total = len(requests) // labels
    chosen = [i * total // min(n, total) for i in range(min(n, total))]
    return [r for d in chosen for r in requests[d * labels : (d + 1) * labels]]


# -- one comparison ----------------------------------------------------------------------------


def timed(fn: Callable[[], Any]) -> float:
    start = time.perf_counter()
    fn()
    return time.perf_counter() - start


def documents_per_second(lm: HFLM, requests: list[Instance]) -> float:
    n = len({(r.doc_id, r.task_name) for r in requests})
    return n / timed(lambda: lm.loglikelihood(requests, disable_tqdm=True))


def best_batch(build: Callable[[int], HFLM], sizes: Sequence[int], some: list[Instance]) -> int:
    return max(sizes, key=lambda size: documents_per_second(build(size), some))


def compare(
    model: nn.Module,
    tokenizer: Any,
    requests: list[Instance],
    labels: int,
    stock_documents: int,
    repeats: int,
) -> dict[str, float]:
    """Medians over interleaved rounds: documents/s of each side, and the roofline share."""

    def stock(size: int) -> HFLM:
        return HFLM(model, tokenizer=tokenizer, batch_size=size)

    def ours(size: int, scoring: str = "semantic") -> SemsoftHF:
        return SemsoftHF(model, tokenizer=tokenizer, batch_size=size, scoring=scoring)

    few = spread(requests, labels, stock_documents)
    documents = len(requests) // labels
    sizes = {
        "stock": best_batch(stock, STOCK_BATCHES, few[: labels * 8]),
        "ours": best_batch(ours, OUR_BATCHES, spread(requests, labels, 48)),
    }
    sides = {
        "stock": (stock(sizes["stock"]), few),
        "ours": (ours(sizes["ours"]), requests),
        "constrained": (ours(sizes["ours"], "constrained"), requests),
    }
    documents_per_second(sides["ours"][0], few)  # builds the kernel, which happens once per run
    rounds: dict[str, list[float]] = {name: [] for name in [*sides, "matmul"]}
    for _ in range(repeats):
        for name, (lm, some) in sides.items():
            rounds[name].append(documents_per_second(lm, some))
        rounds["matmul"].append(documents / matmul_seconds(sides["ours"][0], requests))
    per_round = list(zip(*rounds.values(), strict=True))
    return {
        **{name: median(values) for name, values in rounds.items()},
        "ratio": median(our / stock for stock, our, _, _ in per_round),
        "semantic cost": median(plain / our - 1 for _, our, plain, _ in per_round),
        "roofline": median(our / roof for _, our, _, roof in per_round),
        "stock batch": sizes["stock"],
        "our batch": sizes["ours"],
    }


def matmul_seconds(lm: SemsoftHF, requests: list[Instance]) -> float:
    """What the matrix products of our passes take by themselves, with these shapes, here.

    Distinct tokens through every linear layer and answer positions through the head: the least
    that any engine must compute.
    """
    encode = PairEncoder(lm)
    prompts = []
    for document in documents_of(requests):
        pairs = encode(document.context, document.continuations)
        prompts.append(Prompt(pairs[0][0], tuple(tokens for _, tokens in pairs)))
    head = output_head(lm.model)
    linears = [m for m in lm.model.modules() if isinstance(m, nn.Linear) and m is not head]
    limits = limits_for(prompts, int(lm.batch_size))
    total = 0.0
    for group in group_by_prefix(prompts):
        if group.prefix:
            total += products_seconds(linears, group.prefix) + products_seconds([head], 1)
        for batch in batches(prompts, group, limits):
            chosen = [prompts[i] for i in batch]
            new = sum(len(p.tokens) - group.prefix + p.trie.n_extra for p in chosen)
            total += products_seconds(linears, new)
            total += products_seconds([head], sum(len(p.trie.tokens) for p in chosen))
    return total


@torch.inference_mode()
def products_seconds(layers: Sequence[nn.Module], rows: int) -> float:
    seconds = 0.0
    for layer in layers:
        weight: Any = layer.weight
        x = torch.randn(rows, weight.shape[1]).to(weight.dtype)
        start = time.perf_counter()
        torch.matmul(x, weight.T)
        seconds += time.perf_counter() - start
    return seconds


# -- memory ------------------------------------------------------------------------------------


def peak_gigabytes(name: str, dtype: str, side: str, batch: int, n: int) -> float:
    """Peak resident memory less the model's weights, in a process of its own (Linux)."""
    command = [sys.executable, __file__, "--memory", f"{name},{dtype},{side},{batch},{n}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.strip().splitlines()[-1])


def measure_memory(what: str) -> None:
    name, dtype, side, batch, n = what.split(",")
    build = {"stock": HFLM, "ours": SemsoftHF}[side]
    path = demo.resolve(f"demo:{name}")
    lm = build(path, dtype=dtype, device="cpu", batch_size=int(batch))
    requests = goemotions(int(n))
    # Linux: forget the peak that loading the model left behind.
    Path("/proc/self/clear_refs").write_text("5")
    lm.loglikelihood(requests, disable_tqdm=True)
    weights = sum(p.numel() * p.element_size() for p in lm.model.parameters())
    print(memory_kilobytes("VmHWM") / 1024**2 - weights / 1024**3)


def memory_kilobytes(field: str) -> int:
    """A line of /proc/self/status; VmHWM is the peak of the resident memory."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0])


# -- the report --------------------------------------------------------------------------------


def load(name: str, dtype: str) -> tuple[nn.Module, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = demo.resolve(f"demo:{name}")
    model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype)).eval()
    return model, AutoTokenizer.from_pretrained(path)


def row(table: Table, what: str, figures: dict[str, float]) -> None:
    print(what, {name: round(value, 3) for name, value in figures.items()}, flush=True)
    table.add_row(
        what,
        f"{figures['stock']:.2f} ({figures['stock batch']})",
        f"{figures['ours']:.2f} ({figures['our batch']})",
        f"{figures['ratio']:.1f}×",
        f"{figures['semantic cost']:+.1%}",
        f"{figures['roofline']:.0%}",
    )


def main(
    models: str = "gemma-3-270m,smollm2-135m-instruct",
    dtypes: str = "bfloat16,float32",
    documents: int = 200,
    stock_documents: int = 40,
    repeats: int = 5,
    mmlu_file: Annotated[
        Path | None, typer.Option("--mmlu", help="JSON lines of MMLU questions.")
    ] = None,
    memory: Annotated[str, typer.Option(hidden=True)] = "",
    peak: Annotated[bool, typer.Option(help="Measure peak memory at batch 32, too.")] = True,
    metrics: Annotated[bool, typer.Option(help="Time the metrics and the hook, too.")] = True,
) -> None:
    """Print documents/s of both sides, their ratio, and how near ours is to the matmul roofline."""
    if memory:
        measure_memory(memory)
        return
    table = Table("what", "stock docs/s (batch)", "ours docs/s (batch)", "ratio",
                  "semantic vs constrained", "of matmul roofline")  # fmt: skip
    console = Console(width=140)
    requests = goemotions(documents)
    for name in filter(None, models.split(",")):
        for dtype in dtypes.split(","):
            model, tokenizer = load(name, dtype)
            figures = compare(model, tokenizer, requests, 28, stock_documents, repeats)
            row(table, f"goemotions_zs, {name}, {dtype}", figures)
            if mmlu_file:
                questions = mmlu(mmlu_file, max(4, documents // 5))
                figures = compare(
                    model, tokenizer, questions, 4, max(4, stock_documents // 5), repeats
                )
                row(table, f"MMLU 5-shot, {name}, {dtype}", figures)
            console.print(table)
    if peak:
        for side in ("stock", "ours"):
            used = peak_gigabytes("gemma-3-270m", "float32", side, 32, 64)
            console.print(
                f"peak memory less the weights, batch 32, gemma-3-270m: {side} {used:.2f} GiB"
            )
    if metrics:
        import metrics_speed
        import startup_cost

        metrics_speed.main()
        startup_cost.main()


if __name__ == "__main__":
    typer.run(main)
