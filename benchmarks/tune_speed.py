"""How long a grid takes: `python benchmarks/tune_speed.py` prints seconds, cells/s and peak memory.

No model runs here: the readouts are random, of the shape of the GoEmotions test split. A table of
5000 documents × 1000 tokens of a vocabulary of 50,000, 28 labels; the tokens that follow a prompt
repeat from document to document as real ones do (a Zipf law). The time with cosines contains the
spaces, which depends on the model's embeddings only; the rest is the grid itself.

    python benchmarks/tune_speed.py --objective auroc --documents 1000
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path

import numpy as np
import torch

from lm_eval_semsoft.core.semantic_softmax import LabelSet
from lm_eval_semsoft.reports import scores
from lm_eval_semsoft.reports.readings import Readings, Source
from lm_eval_semsoft.reports.tune import make_grid, parse_objective, tune

LABELS, TOP_K, WIDTH = 28, 1000, 256


def readings(documents: int, vocabulary: int) -> Readings:
    """Random readouts of documents whose label is somewhat visible in them."""
    rng = np.random.default_rng(0)
    embeddings = torch.randn(vocabulary, WIDTH, generator=torch.Generator().manual_seed(0))
    source = Source(Path("synthetic"), {"about": {"model": "synthetic"}})
    vars(source)["_matrix"] = embeddings  # what would be read from the directory
    spelled = rng.choice(2000, (LABELS, 3), replace=False)
    spelled_as = tuple(
        (int(a),) if i % 4 else (int(a), int(b)) for i, (a, b, _) in enumerate(spelled)
    )
    names = tuple(f"label {i}" for i in range(LABELS))
    variants = tuple((int(c),) for *_, c in spelled)

    chance = 1 / np.arange(1, vocabulary + 1)
    noise = np.log(chance) + rng.gumbel(size=(1, vocabulary))
    ids = np.empty((documents, TOP_K), dtype=np.int32)
    logprobs = np.empty((documents, TOP_K), dtype=np.float32)
    for i in range(documents):
        logits = noise[0] + np.log(-1 / np.log(rng.random(vocabulary)))
        top = np.argpartition(-logits, TOP_K)[:TOP_K]
        ids[i] = top[np.argsort(-logits[top])]
        logprobs[i] = logits[ids[i]] - np.log(np.exp(logits).sum())
    own = rng.normal(-8, 2, (documents, LABELS))
    right = rng.integers(LABELS, size=documents)
    own[np.arange(documents), right] += 2
    return Readings(
        source=source,
        task="synthetic",
        labels=names,
        label_set=LabelSet(names, spelled_as, variants),
        why_identity=None,
        keys=tuple(map(str, range(documents))),
        docs=({},) * documents,
        target=np.eye(LABELS, dtype=np.bool_)[right],
        topk_ids=ids,
        topk_logprobs=logprobs,
        label_logprobs=own.astype(np.float32),
        entropy=np.zeros(documents),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--documents", type=int, default=5000)
    parser.add_argument("--vocabulary", type=int, default=50_000)
    parser.add_argument("--objective", default="brier")
    parser.add_argument("--slow", action="store_true", help="Time one cell of the slow path, too.")
    asked = parser.parse_args()
    found = readings(asked.documents, asked.vocabulary)
    grid = make_grid(found)
    assert found.label_set is not None

    start = time.perf_counter(), time.process_time()
    for space, anchors in {(s.space, s.anchors) for s in grid}:
        found.source.cosines(found.label_set, space, anchors)
    ready = time.perf_counter(), time.process_time()
    tune(found, grid, parse_objective(asked.objective))
    done = time.perf_counter(), time.process_time()

    print(f"{asked.documents} documents x {LABELS} labels x {TOP_K} tokens of {asked.vocabulary}")
    print(f"{len(grid)} cells, objective {asked.objective}")
    print(f"{'':10}{'seconds':>9}{'processor':>11}")
    for name, a, b in (("cosines", start, ready), ("grid", ready, done), ("together", start, done)):
        print(f"{name:10}{b[0] - a[0]:9.1f}{b[1] - a[1]:11.1f}")
    print(f"{len(grid) / (done[0] - ready[0]):.1f} cells/s in the grid")
    if asked.slow:
        begun = time.perf_counter()
        scores.log_scores(found, grid[0])
        each = time.perf_counter() - begun
        print(f"one cell by itself {each:.2f} s, so {each * len(grid):.0f} s for the scores alone")
    # ru_maxrss is in bytes on macOS, in KiB elsewhere.
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
    print(f"{peak:.2f} GiB at most")


if __name__ == "__main__":
    main()
