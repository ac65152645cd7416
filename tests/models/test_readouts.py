"""`readouts=DIR`: what has been read once is never read again, whatever is asked about it."""

from __future__ import annotations

import datetime
import errno
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import CachingLM
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import simple_evaluate
from lm_eval.tasks import TaskManager

from lm_eval_semsoft.engine import store
from lm_eval_semsoft.engine.forward import Engine
from lm_eval_semsoft.engine.labels import token_texts
from lm_eval_semsoft.engine.store import ForeignReadouts
from lm_eval_semsoft.models import recording, semsoft_hf
from lm_eval_semsoft.models.semsoft_hf import SemsoftHF
from lm_eval_semsoft.reports import readings
from lm_eval_semsoft.reports.scores import log_scores

HEAD = "Read the comment and name the emotion that the writer feels.\n\n"


def lm_of(tiny: Any, **arguments: Any) -> SemsoftHF:
    return SemsoftHF(tiny.model, tokenizer=tiny.tokenizer, **arguments)


def requests_for(
    comments: Sequence[str],
    labels: Sequence[str],
    task: str = "emotions",
    head: str = HEAD,
    repeats: int = 1,
) -> list[Instance]:
    return [
        Instance("loglikelihood", doc, (f"{head}{doc['text']}\nEmotion:", f" {label}"), i,
                 (task, number, repeats))
        for number, doc in enumerate(docs_of(comments))
        for i, label in enumerate(labels)
        for _ in range(repeats)
    ]  # fmt: skip


def docs_of(comments: Sequence[str]) -> list[dict[str, Any]]:
    return [{"text": text, "id": f"id{n}", "labels": [n % 3]} for n, text in enumerate(comments)]


@dataclass
class Passes:
    """How often the model has run, and which prompts were read."""

    forward: int = 0
    prompts: list[Any] = field(default_factory=list)

    def clear(self) -> None:
        self.forward = 0
        self.prompts.clear()


@pytest.fixture
def passes(tiny_model: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Passes]:
    seen = Passes()
    read = Engine.read

    def counting(engine: Engine, prompts: Sequence[Any], *more: Any, **named: Any) -> Any:
        seen.prompts += prompts
        return read(engine, prompts, *more, **named)

    def count(*arguments: Any) -> None:
        seen.forward += 1

    monkeypatch.setattr(Engine, "read", counting)
    names = ("llama", "gemma3", "gpt2")
    handles = [tiny_model(name).model.register_forward_pre_hook(count) for name in names]
    yield seen
    for handle in handles:
        handle.remove()


def ask(lm: SemsoftHF, requests: list[Instance]) -> list[Any]:
    return lm.loglikelihood(requests, disable_tqdm=True)


def assert_identical(got: list[Any], expected: list[Any]) -> None:
    """Bit for bit, the readouts included."""
    assert [tuple(s) for s in got] == [tuple(s) for s in expected]
    assert [s.constrained for s in got] == [s.constrained for s in expected]
    for a, b in zip(got, expected, strict=True):
        assert (a.readout is None) == (b.readout is None)
        if a.readout is not None:
            for name in a.readout.__dataclass_fields__:
                np.testing.assert_array_equal(getattr(a.readout, name), getattr(b.readout, name))


# -- nothing is read twice ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_the_second_run_needs_no_model(
    name: str,
    tiny_model: Callable[[str], Any],
    comments: tuple[str, ...],
    labels: tuple[str, ...],
    passes: Passes,
    tmp_path: Path,
) -> None:
    tiny, requests = tiny_model(name), requests_for(comments, labels)
    without = ask(lm_of(tiny), requests)
    first = ask(lm_of(tiny, readouts=tmp_path), requests)
    assert_identical(first, without)
    passes.clear()
    lm = lm_of(tiny, readouts=tmp_path, batch_size=7, prefix_sharing="off")
    assert_identical(ask(lm, requests), first)
    assert passes.forward == 0


ways = [
    {"tau": 0.2, "space": "centered"},
    {"preset": "paper"},
    {"scoring": "constrained"},
    {"kernel": "identity"},
    {"top_k": 5, "rival_votes": "on", "anchors": "spelled"},
]


@pytest.mark.parametrize("first", ways[:4])
def test_other_scorings_need_no_model(
    first: dict[str, Any],
    tiny_model: Callable[[str], Any],
    comments: tuple[str, ...],
    labels: tuple[str, ...],
    passes: Passes,
    tmp_path: Path,
) -> None:
    """Whatever the run was that filled the directory; and reports compute the same scores."""
    tiny, requests = tiny_model("gemma3"), requests_for(comments, labels)
    ask(lm_of(tiny, readouts=tmp_path, **first), requests)
    for second in ways:
        passes.clear()
        lm = lm_of(tiny, readouts=tmp_path, **second)
        got = ask(lm, requests)
        assert passes.forward == 0
        fresh = ask(lm_of(tiny, **second), requests)
        assert_identical(got, fresh)
        loaded = readings.load(tmp_path)
        again = log_scores(loaded, lm.scoring, lm.kernel)
        np.testing.assert_allclose(again.ravel(), [s[0] for s in fresh], atol=1e-6)


def test_more_documents_later(
    tiny_model: Callable[[str], Any],
    comments: tuple[str, ...],
    labels: tuple[str, ...],
    passes: Passes,
    tmp_path: Path,
) -> None:
    tiny = tiny_model("llama")
    ask(lm_of(tiny, readouts=tmp_path), requests_for(comments[:4], labels))
    assert len(passes.prompts) == 4
    passes.clear()
    got = ask(lm_of(tiny, readouts=tmp_path), requests_for(comments, labels))
    assert len(passes.prompts) == len(comments) - 4
    expected = ask(lm_of(tiny), requests_for(comments, labels))
    np.testing.assert_allclose([s[0] for s in got], [s[0] for s in expected], atol=1e-5)
    assert readings.load(tmp_path).n == len(comments)
    ask(lm_of(tiny, readouts=tmp_path), requests_for(comments[:2], labels))
    assert readings.load(tmp_path).n == len(comments)  # a smaller run takes nothing away


def test_other_tasks_share_prompts_but_not_documents(
    tiny_model: Callable[[str], Any],
    comments: tuple[str, ...],
    labels: tuple[str, ...],
    passes: Passes,
    tmp_path: Path,
) -> None:
    tiny = tiny_model("llama")
    both = [*requests_for(comments, labels), *requests_for(comments[:3], labels, task="a/b:c?")]
    ask(lm_of(tiny, readouts=tmp_path), both)
    assert len(passes.prompts) == len(comments)
    found = {r.task: r for r in readings.load_all(tmp_path)}
    assert {task: r.n for task, r in found.items()} == {"emotions": len(comments), "a/b:c?": 3}
    assert readings.load(tmp_path, "a/b:c?").n == 3
    with pytest.raises(ValueError, match="name one with --task"):
        readings.load(tmp_path)


def test_repeats_and_padding_copies_change_nothing(
    tiny_model: Callable[[str], Any],
    comments: tuple[str, ...],
    labels: tuple[str, ...],
    passes: Passes,
    tmp_path: Path,
) -> None:
    tiny = tiny_model("llama")
    requests = requests_for(comments, labels, repeats=3)
    ask(lm_of(tiny, readouts=tmp_path), [*requests, requests[-1], requests[-1]])
    passes.clear()
    single = ask(lm_of(tiny, readouts=tmp_path), requests_for(comments, labels))
    assert passes.forward == 0
    np.testing.assert_array_equal(
        readings.load(tmp_path).label_logprobs.ravel(),
        np.array([s.constrained for s in single], dtype=np.float32),
    )


def test_no_documents_at_all(tiny_model: Callable[[str], Any], tmp_path: Path) -> None:
    lm = lm_of(tiny_model("llama"), readouts=tmp_path)
    assert ask(lm, []) == []
    with pytest.raises(ValueError, match="holds no readouts of any task yet"):
        readings.load(tmp_path)


@pytest.mark.slow
def test_a_directory_is_one_models_only(
    fresh_tiny_model: Callable[[str], Any],
    comments: tuple[str, ...],
    labels: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    requests = requests_for(comments, labels)
    ask(lm_of(fresh_tiny_model("llama"), readouts=tmp_path), requests)
    monkeypatch.setattr(Engine, "_read_batch", lambda *a: pytest.fail("the model was run"))
    ask(lm_of(fresh_tiny_model("llama"), readouts=tmp_path), requests)  # the same, built again
    other = fresh_tiny_model("llama")
    with torch.no_grad():
        other.model.get_output_embeddings().weight.mul_(1.01)
    with pytest.raises(ForeignReadouts, match="weights or configuration differ"):
        lm_of(other, readouts=tmp_path)
    half = fresh_tiny_model("llama")
    half.model.bfloat16()
    with pytest.raises(ForeignReadouts, match=r"\(float32, K 480\), not of .*\(bfloat16, K 480\)"):
        lm_of(half, readouts=tmp_path)
    with pytest.raises(ForeignReadouts, match="Give every model, precision and K a directory"):
        lm_of(fresh_tiny_model("gpt2"), readouts=tmp_path)
    with pytest.raises(ForeignReadouts):
        lm_of(fresh_tiny_model("llama"), readouts=tmp_path, mixed_precision_dtype="bfloat16")


def test_a_directory_is_one_kind_of_prompts_only(
    tiny_model: Callable[[str], Any],
    comments: tuple[str, ...],
    labels: tuple[str, ...],
    passes: Passes,
    tmp_path: Path,
) -> None:
    """Few-shot, a chat template, another split: the same document numbers, other texts."""
    tiny = tiny_model("llama")
    ask(lm_of(tiny, readouts=tmp_path), requests_for(comments, labels))
    manifest = (tmp_path / "manifest.json").read_text()
    passes.clear()
    for head in ("<turn>user\n" + HEAD, HEAD + "lol\nEmotion: joy\n\n", ""):
        lm = lm_of(tiny, readouts=tmp_path)
        with pytest.raises(ForeignReadouts, match="document 0 of task emotions with another"):
            ask(lm, requests_for(comments, labels, head=head))
    assert passes.forward == 0
    assert (tmp_path / "manifest.json").read_text() == manifest
    assert readings.load(tmp_path).n == len(comments)


def test_cut_prompts_come_back(
    tiny_model: Callable[[str], Any], comments: tuple[str, ...], passes: Passes, tmp_path: Path
) -> None:
    """Labels of several lengths leave contexts of several lengths: several prompts a document."""
    tiny = tiny_model("llama")
    words = ("joy", "disapproval", "anger", "realization", "fear")
    requests = requests_for(comments, words)
    length = min(len(tiny.tokenizer.encode(r.args[0])) for r in requests)
    first = ask(lm_of(tiny, readouts=tmp_path, max_length=length), requests)
    documents = store.read_documents(tmp_path)
    assert all(len(d.prompts) > 1 for d in documents)
    assert all(d.labels == words for d in documents)
    passes.clear()
    again = ask(lm_of(tiny, readouts=tmp_path, max_length=length), requests)
    assert_identical(again, first)
    assert passes.forward == 0
    loaded = readings.load(tmp_path)
    assert loaded.labels == words
    np.testing.assert_array_equal(
        loaded.label_logprobs.ravel(), np.array([s.constrained for s in first], dtype=np.float32)
    )
    ask(lm_of(tiny, readouts=tmp_path), requests)  # the whole prompts are others, of the same text
    assert len(passes.prompts) == len(comments)


def test_cut_prompts_whose_labels_begin_alike(
    tiny_model: Callable[[str], Any], comments: tuple[str, ...], passes: Passes, tmp_path: Path
) -> None:
    """What labels share has another probability after each of a document's contexts."""
    tiny = tiny_model("llama")
    words = ("joy", "disapproval", "anger", "realization", "fear")
    requests = requests_for(comments, words)
    for request in requests:
        context, label = request.args
        request.arguments = (context, f"\n{label}")
    length = min(len(tiny.tokenizer.encode(r.args[0])) for r in requests)
    for folder, more in (("cut", {"max_length": length}), ("whole", {})):
        got = ask(lm_of(tiny, readouts=tmp_path / folder, **more), requests)
        passes.clear()
        assert_identical(ask(lm_of(tiny, readouts=tmp_path / folder, **more), requests), got)
        assert passes.forward == 0
        documents = store.read_documents(tmp_path / folder)
        assert {len(d.prompts) > 1 for d in documents} == {folder == "cut"}
        own = readings.load(tmp_path / folder).label_logprobs
        expected = np.array([s.constrained for s in got]).reshape(own.shape)
        own, expected = (x - x.max(1, keepdims=True) for x in (own, expected))
        np.testing.assert_allclose(own, expected, atol=1e-5)
        assert any(s.readout is not None and s.readout.lead_logprob < 0 for s in got)


# -- the harness's own kinds of tasks ----------------------------------------------------------

WORDS = ("joy", "anger", "fear", "love", "game", "cake", "day", "song", "car")


def quiz_docs(comments: Sequence[str]) -> list[dict[str, Any]]:
    """Two to four choices of its own for each document, one of them twice in some."""
    docs = []
    for n, text in enumerate(comments):
        choices = [WORDS[(2 * n + i) % len(WORDS)] for i in range(2 + n % 3)]
        if n % 4 == 2:
            choices[-1] = choices[0]
        docs.append({"text": text, "choices": choices, "gold": len(choices) - 1})
    return docs


def task_of(name: str, docs: list[dict[str, Any]], **config: Any) -> ConfigurableTask:
    import datasets

    def source(**_: Any) -> Any:
        return {"test": datasets.Dataset.from_list(docs)}

    given = {
        "task": name,
        "custom_dataset": source,
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{text}}\nAnswer:",
        "doc_to_choice": "choices",
        "doc_to_target": "gold",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    }
    return ConfigurableTask(config={**given, **config})


def evaluate(lm: SemsoftHF, *tasks: ConfigurableTask) -> dict[str, Any]:
    manager = TaskManager(include_defaults=False)  # without 14,000 files that nobody wants here
    out = simple_evaluate(lm, tasks=list(tasks), bootstrap_iters=0, task_manager=manager)
    return {
        "results": out["results"],
        "resps": {
            task: [s["filtered_resps"] for s in samples] for task, samples in out["samples"].items()
        },
    }


def tasks_of(comments: Sequence[str]) -> list[ConfigurableTask]:
    docs = quiz_docs(comments)
    pairs = [
        {"text": text, "choices": [f"{text} joy", f"{text} anger"], "gold": n % 2}
        for n, text in enumerate(comments)
    ]
    return [
        task_of("ragged", docs),
        task_of("repeated", docs, repeats=2),
        task_of(
            "mutual",
            docs,
            metric_list=[{"metric": "acc"}, {"metric": "acc_mutual_info"}],
        ),
        task_of(
            "contexts",  # as winogrande: one ending, several beginnings
            pairs,
            doc_to_text="gold",
            doc_to_target="{{' is it'}}",
            metric_list=[{"metric": "acc"}],
        ),
    ]


def test_stock_tasks_come_back(
    tiny_model: Callable[[str], Any], comments: tuple[str, ...], passes: Passes, tmp_path: Path
) -> None:
    tiny = tiny_model("llama")
    without = evaluate(lm_of(tiny), *tasks_of(comments))
    first = evaluate(lm_of(tiny, readouts=tmp_path), *tasks_of(comments))
    assert json.dumps(first, default=str) == json.dumps(without, default=str)
    passes.clear()
    again = evaluate(lm_of(tiny, readouts=tmp_path), *tasks_of(comments))
    assert json.dumps(again, default=str) == json.dumps(first, default=str)
    assert passes.forward == 0


def test_stock_tasks_as_readings(
    tiny_model: Callable[[str], Any],
    comments: tuple[str, ...],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Ragged choices, a choice twice, unconditional prompts beside a document's own."""
    evaluate(lm_of(tiny_model("llama"), readouts=tmp_path), *tasks_of(comments))
    found = {r.task: r for r in readings.load_all(tmp_path)}
    assert found.keys() == {"ragged", "repeated", "mutual"}
    assert "task contexts has several prompts a document" in caplog.text
    docs = quiz_docs(comments)
    right = {n: doc["gold"] for n, doc in enumerate(docs)}
    for task in found:
        loaded = readings.load(tmp_path, task, samples=right)
        assert loaded.label_set is None
        assert loaded.labels == ("choice 1", "choice 2", "choice 3", "choice 4")
        assert [d["text"] for d in loaded.docs] == list(comments)
        widths = np.isfinite(loaded.label_logprobs).sum(1)
        assert widths.tolist() == [len(d["choices"]) for d in docs]
        assert loaded.gold().argmax(1).tolist() == list(right.values())
        for row, doc in zip(loaded.label_logprobs, docs, strict=True):
            if doc["choices"].count(doc["choices"][0]) > 1:
                assert row[0] == row[len(doc["choices"]) - 1]
        np.testing.assert_array_equal(loaded.label_logprobs, found["ragged"].label_logprobs)


# -- readings ----------------------------------------------------------------------------------


def test_readings_are_in_the_tasks_order(
    tiny_model: Callable[[str], Any],
    comments: tuple[str, ...],
    labels: tuple[str, ...],
    tmp_path: Path,
) -> None:
    tiny = tiny_model("gemma3")
    requests = requests_for(comments, labels)
    shuffled = [requests[i] for i in np.random.default_rng(0).permutation(len(requests))]
    got = dict(zip(map(id, shuffled), ask(lm_of(tiny, readouts=tmp_path), shuffled), strict=True))
    loaded = readings.load(tmp_path)
    assert loaded.labels == labels
    assert loaded.label_set is not None
    assert loaded.label_set.labels == labels
    assert loaded.keys == tuple(f"id{n}" for n in range(len(comments)))
    assert loaded.docs == tuple(docs_of(comments))
    assert loaded.gold().argmax(1).tolist() == [n % 3 for n in range(len(comments))]
    assert loaded.missing == 0
    assert len(set(loaded.prompts)) == len(comments)
    expected = [got[id(r)].constrained for r in requests]
    np.testing.assert_array_equal(loaded.label_logprobs.ravel(), np.float32(expected))
    by_document = {s.readout.entropy: s.readout for s in got.values() if s.readout is not None}
    for i, entropy in enumerate(loaded.entropy):
        np.testing.assert_array_equal(loaded.topk_ids[i], by_document[entropy].topk_ids)
        np.testing.assert_array_equal(loaded.topk_logprobs[i], by_document[entropy].topk_logprobs)
    source = loaded.source
    head = tiny.model.get_output_embeddings().weight
    torch.testing.assert_close(source.embeddings().float(), head.detach(), rtol=0, atol=0)
    assert source.token_texts() == token_texts(tiny.tokenizer, len(head))
    assert len(set(source.token_texts())) < len(head)  # bytes of many characters look the same


def test_readings_of_a_run_that_is_not_done(
    tiny_model: Callable[[str], Any],
    comments: tuple[str, ...],
    labels: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def stop(*arguments: Any) -> None:
        raise KeyboardInterrupt

    tiny, requests = tiny_model("llama"), requests_for(comments, labels)
    read_batch = Engine._read_batch
    monkeypatch.setattr(Engine, "_read_batch", stop)
    with pytest.raises(KeyboardInterrupt):
        ask(lm_of(tiny, readouts=tmp_path), requests)
    with pytest.raises(ValueError, match="holds no readouts of any task yet"):
        readings.load(tmp_path)
    seen: list[int] = []

    def one_batch(*arguments: Any) -> Any:
        if seen:
            raise KeyboardInterrupt
        seen.append(1)
        return read_batch(*arguments)

    monkeypatch.setattr(Engine, "_read_batch", one_batch)
    lm = lm_of(tiny, readouts=tmp_path, batch_size=2)
    with pytest.raises(KeyboardInterrupt):
        ask(lm, requests)
    loaded = readings.load(tmp_path)
    assert 0 < loaded.n < len(comments)
    assert loaded.missing == len(comments) - loaded.n
    assert f"{loaded.missing} of {len(comments)} documents of emotions have no readout" in (
        caplog.text
    )
    monkeypatch.undo()
    np.testing.assert_allclose(
        [s[0] for s in ask(lm_of(tiny, readouts=tmp_path), requests)],
        [s[0] for s in ask(lm_of(tiny), requests)],
        atol=1e-5,
    )
    assert readings.load(tmp_path).n == len(comments)


class Odd:
    def __str__(self) -> str:
        return "odd"


@pytest.mark.parametrize(
    ("doc", "expected"),
    [
        ({"labels": np.array([1]), "id": np.int64(7)}, {"labels": [1], "id": 7}),
        ({"x": np.float32(0.5), "y": {2, 1}}, {"x": 0.5, "y": [1, 2]}),
        ({"day": datetime.date(2026, 1, 2), "o": Odd()}, {"day": "2026-01-02", "o": "odd"}),
        ({"half": "a\ud83d", "b": b"\x00"}, {"half": "a\ud83d", "b": "b'\\x00'"}),
        ({("a", 1): 1, "kept": 2}, {"kept": 2}),
        (["no", "dict"], ["no", "dict"]),
        (None, None),
        ({"nan": float("inf")}, {"nan": float("inf")}),
    ],
)
def test_documents_that_json_cannot_express(
    doc: Any, expected: Any, tiny_model: Callable[[str], Any], tmp_path: Path
) -> None:
    requests = [
        Instance("loglikelihood", doc, ("It is what it is:", f" {w}"), i, ("odd", 0, 1))
        for i, w in enumerate(("joy", "anger"))
    ]
    ask(lm_of(tiny_model("llama"), readouts=tmp_path), requests)
    loaded = readings.load(tmp_path)
    assert loaded.docs == (expected,)
    assert (loaded.target is not None) == (isinstance(doc, dict) and "labels" in doc)


def test_a_document_that_contains_itself() -> None:
    doc: dict[str, Any] = {"x": 1}
    doc["self"] = doc
    assert "x" in json.loads(recording._as_json(doc))
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    json.loads(recording._as_json(deep))


def test_ids_that_repeat_are_told_apart(
    tiny_model: Callable[[str], Any],
    comments: tuple[str, ...],
    labels: tuple[str, ...],
    tmp_path: Path,
) -> None:
    requests = requests_for(comments[:5], labels)
    for request in requests:
        request.doc = {**request.doc, "id": ["x", "x", None, "y", "x"][request.doc_id]}
    ask(lm_of(tiny_model("llama"), readouts=tmp_path), requests)
    assert readings.load(tmp_path).keys == ("x", "x#2", "2", "y", "x#3")


@pytest.mark.parametrize("given", [[True, False], [0, 99], [], "joy", [0.0], None])
def test_labels_that_are_no_choices_are_no_targets(
    given: Any,
    tiny_model: Callable[[str], Any],
    comments: tuple[str, ...],
    labels: tuple[str, ...],
    tmp_path: Path,
) -> None:
    requests = requests_for(comments[:2], labels)
    for request in requests:
        request.doc = {**request.doc, "labels": given}
    ask(lm_of(tiny_model("llama"), readouts=tmp_path), requests)
    loaded = readings.load(tmp_path)
    assert loaded.target is None
    with pytest.raises(ValueError, match="do not say which label is right"):
        loaded.gold()
    samples = {0: 1, 1: 2}
    assert readings.load(tmp_path, samples=samples).gold().argmax(1).tolist() == [1, 2]


def test_a_manifest_that_forgot_a_label_set(
    tiny_model: Callable[[str], Any],
    comments: tuple[str, ...],
    labels: tuple[str, ...],
    passes: Passes,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Deleted by hand, or written over where there are no locks: the next run notes it again."""
    tiny = tiny_model("llama")
    ask(lm_of(tiny, readouts=tmp_path), requests_for(comments, labels))
    (tmp_path / "manifest.json").unlink()
    lm = lm_of(tiny, readouts=tmp_path)
    assert readings.load(tmp_path).label_set is None
    assert "the label set of emotions is not in the manifest" in caplog.text
    passes.clear()
    ask(lm, requests_for(comments, labels))
    assert passes.forward == 0
    assert readings.load(tmp_path).labels == labels


def test_a_manifest_without_k_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"format": 1, "fingerprint": "f00d"}')
    with pytest.raises(ForeignReadouts, match="does not tell K"):
        readings.load(tmp_path)


# -- what goes wrong ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [("", "name a directory"), (True, "name a directory"), ("FILE", "is not a directory")],
)
def test_bad_directories_are_refused_before_the_model_is_loaded(
    given: Any, message: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    folder = str(tmp_path / "file") if given == "FILE" else given
    with pytest.raises(ValueError, match=rf"readouts=.*{message}"):
        SemsoftHF("no/such-model", readouts=folder)


def test_a_damaged_part_is_read_again_and_no_other(
    tiny_model: Callable[[str], Any],
    comments: tuple[str, ...],
    labels: tuple[str, ...],
    passes: Passes,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tiny, requests = tiny_model("llama"), requests_for(comments, labels)
    for n in (3, 5, len(comments)):
        ask(lm_of(tiny, readouts=tmp_path), requests_for(comments[:n], labels))
    expected = ask(lm_of(tiny), requests)
    victim = store.parts(tmp_path, store.READOUTS)[1]
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    assert readings.load(tmp_path).missing == 2
    assert f"{victim} is truncated or corrupt" in caplog.text
    passes.clear()
    got = ask(lm_of(tiny, readouts=tmp_path), requests)
    assert len(passes.prompts) == 2
    np.testing.assert_allclose([s[0] for s in got], [s[0] for s in expected], atol=1e-5)
    assert (tmp_path / "set_aside" / victim.name).read_bytes() == bytes(data)
    assert readings.load(tmp_path).missing == 0


def test_a_full_disk_does_not_change_a_run(
    tiny_model: Callable[[str], Any],
    comments: tuple[str, ...],
    labels: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """From the first write of `loglikelihood` on: documents, label sets and readouts."""

    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    tiny, requests = tiny_model("llama"), requests_for(comments, labels)
    expected = ask(lm_of(tiny), requests)
    lm = lm_of(tiny, readouts=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        assert_identical(ask(lm, requests), expected)
    said = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    assert len(said) == 2
    assert "No space left on device" in said[0]
    assert f"{len(comments)} readouts are missing" in said[1]
    ask(lm, [])  # there is space again before the process ends
    assert readings.load(tmp_path).n == len(comments)


def test_broken_logits_name_the_document_and_keep_the_others(
    fresh_tiny_model: Callable[[str], Any],
    comments: tuple[str, ...],
    labels: tuple[str, ...],
    tmp_path: Path,
) -> None:
    tiny = fresh_tiny_model("llama")
    rare = tiny.tokenizer.encode("Z", add_special_tokens=False)[0]
    with torch.no_grad():
        tiny.model.get_input_embeddings().weight[rare] = torch.nan
    with pytest.raises(ValueError, match="logits of document 1 of task emotions are NaN"):
        ask(
            lm_of(tiny, readouts=tmp_path),
            requests_for([comments[0], "Z", *comments[1:3]], labels),  # the shortest comes last
        )
    loaded = readings.load(tmp_path)
    assert (loaded.keys, loaded.missing) == (("id0", "id2", "id3"), 1)


def test_a_head_without_directions_is_noted(
    tiny_model: Callable[[str], Any],
    comments: tuple[str, ...],
    labels: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(model: Any) -> None:
        raise ValueError("The output embeddings are not a matrix of floats (quantised?)")

    monkeypatch.setattr(semsoft_hf, "output_embeddings", refuse)
    lm = lm_of(tiny_model("llama"), readouts=tmp_path, scoring="constrained")
    ask(lm, requests_for(comments, labels))
    loaded = readings.load(tmp_path)
    assert np.isfinite(log_scores(loaded, lm.scoring)).all()
    with pytest.raises(ForeignReadouts, match=r"quantised\?.*only constrained scores"):
        loaded.source.embeddings()


# -- beside the harness's cache ----------------------------------------------------------------


def test_use_cache_beside_readouts_warns(
    tiny_model: Callable[[str], Any],
    comments: tuple[str, ...],
    labels: tuple[str, ...],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    lm = lm_of(tiny_model("llama"), readouts=tmp_path / "r")
    caching = CachingLM(lm, str(tmp_path / "cache"))
    assert caplog.text.count("--use_cache answers without the model") == 1
    requests = requests_for(comments, labels)
    caching.loglikelihood(requests[: len(labels) + 4])  # a run that stops within a document
    caching.loglikelihood(requests)
    loaded = readings.load(tmp_path / "r")
    assert loaded.labels == labels
    assert loaded.label_set is not None
    assert loaded.n >= len(comments) - 2


# --------------------------------------------------------------------------------------------
# capture=hidden
# --------------------------------------------------------------------------------------------


def test_activations_are_stored_with_the_readouts(
    tiny_model: Callable[[str], Any],
    comments: Sequence[str],
    labels: Sequence[str],
    tmp_path: Path,
    passes: Passes,
) -> None:
    tiny = tiny_model("llama")
    asked = requests_for(comments[:4], labels)
    plain = ask(lm_of(tiny, readouts=tmp_path), asked)
    captured = ask(lm_of(tiny, readouts=tmp_path, capture="hidden"), asked)
    assert [s[0] for s in plain] == pytest.approx([s[0] for s in captured], abs=1e-5)
    passes.clear()
    again = ask(lm_of(tiny, readouts=tmp_path, capture="hidden"), asked)
    assert passes.forward == 0
    loaded = readings.load(tmp_path)
    hidden = readings.load_hidden(loaded)
    first = [again[n * len(labels)].readout.hidden for n in range(4)]
    np.testing.assert_array_equal(hidden, np.stack(first))
    np.testing.assert_array_equal(
        readings.load_hidden(readings.take(loaded, [2, 0])), hidden[[2, 0]]
    )


def test_a_run_that_captured_nothing_says_so(
    tiny_model: Callable[[str], Any],
    comments: Sequence[str],
    labels: Sequence[str],
    tmp_path: Path,
) -> None:
    tiny = tiny_model("llama")
    ask(lm_of(tiny, readouts=tmp_path), requests_for(comments[:4], labels))
    with pytest.raises(ValueError, match=r"activations of 0 of 4 documents.*capture=hidden"):
        readings.load_hidden(readings.load(tmp_path))
    half = requests_for(comments[:2], labels)
    ask(lm_of(tiny, readouts=tmp_path, capture="hidden"), half)
    with pytest.raises(ValueError, match="activations of 2 of 4 documents"):
        readings.load_hidden(readings.load(tmp_path))


def test_what_can_be_captured_is_named(tiny_model: Callable[[str], Any]) -> None:
    with pytest.raises(ValueError, match=r"capture='hiden'.*hidden"):
        lm_of(tiny_model("llama"), capture="hiden")
