"""What keeping activations costs: `capture=hidden` beside the same pass without it.

    SEMSOFT_DATA_DIR=data python benchmarks/capture_speed.py --task coane_mc --documents 200

Rounds are interleaved, on the same loaded weights, and every figure is the median of the rounds.
Memory is what the readouts hold more, per document.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Annotated, Any

import torch
import typer


def requests_of(task: str, documents: int) -> list[Any]:
    """The requests of the first documents of one of our tasks."""
    from lm_eval.tasks import TaskManager

    from lm_eval_semsoft import plugin

    manager = TaskManager(include_path=str(plugin.task_path()), include_defaults=False)
    loaded = manager.load([task])["tasks"][task]
    loaded.build_all_requests(limit=documents, rank=0, world_size=1)
    return list(loaded.instances)


def seconds(lm: Any, requests: list[Any]) -> tuple[float, list[Any]]:
    start = time.perf_counter()
    scores = lm.loglikelihood(requests, disable_tqdm=True)
    return time.perf_counter() - start, scores


def main(
    task: Annotated[str, typer.Option(help="One of our multiple-choice tasks.")] = "coane_mc",
    model: Annotated[str, typer.Option(help="A demo model, a path or a hub id.")] = (
        "demo:gemma-3-270m"
    ),
    dtype: Annotated[str, typer.Option(help="As for lm_eval.")] = "float32",
    documents: Annotated[int, typer.Option(min=1)] = 100,
    batch_size: Annotated[int, typer.Option(min=1)] = 16,
    repeats: Annotated[int, typer.Option(min=1)] = 5,
) -> None:
    """Compare passes with and without capture."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from lm_eval_semsoft.models import demo
    from lm_eval_semsoft.models.semsoft_hf import SemsoftHF

    path = demo.resolve(model) if model.startswith(demo.PREFIX) else model
    weights = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype)).eval()
    tokenizer = AutoTokenizer.from_pretrained(path)
    requests = requests_of(task, documents)
    plain, capturing = (
        SemsoftHF(weights, tokenizer=tokenizer, batch_size=batch_size, capture=capture)
        for capture in (None, "hidden")
    )
    for lm in (plain, capturing):
        seconds(lm, requests[:16])  # the self-check of the packed pass happens once
    ratios = []
    for _ in range(repeats):
        without, _scores = seconds(plain, requests)
        with_hidden, scores = seconds(capturing, requests)
        ratios.append(with_hidden / without)
    readouts = [s.readout for s in scores if s.readout is not None]
    layers, width = readouts[0].hidden.shape
    rate = len(readouts) / without
    typer.echo(
        f"{model}, {task}, {dtype}: {len(readouts)} documents, {rate:.1f} a second without; "
        f"capture takes {median(ratios):.3f} of that time "
        f"({', '.join(f'{r:.3f}' for r in ratios)}); "
        f"{readouts[0].hidden.nbytes} bytes a document ({layers} layers x {width} x 2)"
    )


if __name__ == "__main__":
    typer.run(main)
