"""Readouts on disk: what goes in comes out, and nothing that happens to a disk loses more."""

from __future__ import annotations

import errno
import json
import logging
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from lm_eval_semsoft.engine import store as store_module
from lm_eval_semsoft.engine.forward import NaNLogits
from lm_eval_semsoft.engine.manifest import Manifest, folder_of
from lm_eval_semsoft.engine.parts import ForeignReadouts, parquet_bytes, parts, read_part
from lm_eval_semsoft.engine.plan import Prompt
from lm_eval_semsoft.engine.readout import Readout
from lm_eval_semsoft.engine.recorder import Recorder
from lm_eval_semsoft.engine.records import (
    ANSWER_SCHEMA,
    Answer,
    StoredDocument,
    answer_key,
    prompt_key,
    readout_schema,
    table_of_readouts,
    text_key,
)
from lm_eval_semsoft.engine.store import (
    DOCUMENTS,
    READOUTS,
    Store,
    read_answers,
    read_documents,
    read_embeddings,
    read_readouts,
    read_vocabulary,
)
from lm_eval_semsoft.engine.trace import Trace

K = 20


def readout(seed: int, k: int = K, n_labels: int = 3, vocabulary: int = 50_000) -> Readout:
    """As a model gives them: sharp or flat, some labels impossible."""
    rng = np.random.default_rng(seed)
    logits = np.sort(rng.normal(size=k) * rng.choice([0.5, 3.0, 10.0]))[::-1]
    logprobs = (logits - np.log(np.exp(logits).sum()) - 0.01).astype(np.float32)
    label_logprobs = rng.normal(-8, 3, n_labels).astype(np.float32)
    label_logprobs[rng.random(n_labels) < 0.1] = -np.inf
    return Readout(
        topk_ids=rng.permutation(vocabulary)[:k].astype(np.int32),
        topk_logprobs=logprobs,
        label_logprobs=label_logprobs,
        label_greedy=rng.random(n_labels) < 0.3,
        label_first=rng.integers(0, vocabulary, n_labels).astype(np.int32),
        entropy=float(rng.gamma(2.0)),
        nucleus_sizes=rng.integers(1, 500, 4).astype(np.int32),
        nucleus_entropies=rng.random(4).astype(np.float32),
        lead_logprob=float(-rng.exponential()),
    )


def same(a: Readout, b: Readout) -> bool:
    """Bit for bit, types included."""
    pairs = [(getattr(a, name), getattr(b, name)) for name in a.__dataclass_fields__]
    return all(
        x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()
        if isinstance(x, np.ndarray)
        else type(x) is type(y) and x == y
        for x, y in pairs
    )


def key(i: int) -> bytes:
    return i.to_bytes(16, "big")


def open_store(folder: Path, **more: Any) -> Store:
    given: dict[str, Any] = {
        "fingerprint": "f00d",
        "top_k": K,
        "about": {"model": "tiny", "dtype": "float32", "top_k": K},
    }
    return Store(folder, **{**given, **more})


def filled(folder: Path, n: int = 6, part: int = 2) -> tuple[Store, dict[bytes, Readout]]:
    """A directory of n readouts, `part` in each part."""
    opened = open_store(folder)
    rows = {key(i): readout(i, n_labels=i % 4) for i in range(n)}
    for i, (own, row) in enumerate(rows.items(), start=1):
        opened.add(own, row)
        if i % part == 0:
            opened.flush()
    opened.close()
    return opened, rows


def recalled(folder: Path, n: int = 100) -> dict[bytes, Readout]:
    return dict(open_store(folder).recall(map(key, range(n))))


def document(i: int, task: str = "emotions", **more: Any) -> StoredDocument:
    return StoredDocument(
        **{
            "task": task,
            "doc_id": i,
            "context": text_key(f"{task} {i}"),
            "doc": json.dumps({"text": f"text {i}"}),
            "label_set": "abc",
            "labels": ("joy", "anger"),
            "prompts": (key(i),),
            "places": (0, 1),
            **more,
        }
    )


# -- round trips -------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 7, 1000])
def test_readouts_come_back_bit_for_bit(tmp_path: Path, k: int) -> None:
    opened = open_store(tmp_path, top_k=k)
    rows = {key(i): readout(i, k=k, n_labels=[0, 1, 5, 28][i % 4]) for i in range(30)}
    rows[key(99)] = replace(
        readout(99, k=k), label_logprobs=np.array([-np.inf, -0.0, 1e-45], dtype=np.float32)
    )
    for own, row in rows.items():
        opened.add(own, row)
    opened.close()
    back = dict(open_store(tmp_path, top_k=k).recall(rows))
    assert back.keys() == rows.keys()
    assert all(same(back[own], rows[own]) for own in rows)


def test_recalled_readouts_do_not_keep_their_part_in_memory(tmp_path: Path) -> None:
    filled(tmp_path)
    for row in recalled(tmp_path).values():
        arrays = [v for v in vars(row).values() if isinstance(v, np.ndarray)]
        assert all(a.base is None and a.flags.owndata for a in arrays)


def test_only_what_is_asked_for_comes_once(tmp_path: Path) -> None:
    filled(tmp_path)
    filled(tmp_path)  # another process has read the same prompts
    got = [own for own, _ in open_store(tmp_path).recall([key(3), key(1), key(77)])]
    assert sorted(got) == [key(1), key(3)]
    assert list(open_store(tmp_path).recall([])) == []


tokens = st.lists(st.integers(0, 300_000), min_size=1, max_size=4).map(tuple)
prompts = st.one_of(
    st.builds(Prompt, tokens, st.lists(tokens, max_size=3).map(tuple)),
    st.builds(lambda t, n: Prompt(t, ((*t, 1), (*t, 2)), n), tokens, st.integers(0, 1)),
)


@settings(max_examples=300, deadline=None)
@given(prompts, prompts)
def test_keys_are_the_same_for_the_same_prompt_only(a: Prompt, b: Prompt) -> None:
    assert (prompt_key(a) == prompt_key(b)) == (a == b)
    assert len(prompt_key(a)) == 16


def test_keys_tell_where_prompt_and_labels_end() -> None:
    spellings = [
        Prompt((1, 2, 3), ()),
        Prompt((1, 2), ((3,),)),
        Prompt((1,), ((2, 3),)),
        Prompt((1,), ((2,), (3,))),
        Prompt((1,), ((3,), (2,))),
        Prompt((1, 2, 3), ((1,),)),
        Prompt((1, 2, 3, 1), ()),
        Prompt((1,), ((2, 3), (2, 4))),
        Prompt((1,), ((2, 3), (2, 4)), lead=1),
    ]
    assert len({prompt_key(p) for p in spellings}) == len(spellings)


def test_keys_do_not_change_between_versions() -> None:
    """Otherwise nobody's directory could be used any more."""
    assert prompt_key(Prompt((5, 6), ((7,), (8, 9)))).hex() == PINNED
    assert text_key("\ud83d").hex() != text_key("?").hex()  # half a surrogate pair has a key


PINNED = "2ed566649cac20156b3ca9094d95225e"


def test_a_document_costs_at_most_eight_kilobytes(tmp_path: Path) -> None:
    """K = 1000, 28 labels, the largest vocabulary in use, parts as small as a slow model's."""
    for rows in (1, 16, 64):
        folder = tmp_path / str(rows)
        opened = open_store(folder, top_k=1000)
        for i in range(rows):
            row = readout(i, k=1000, n_labels=28, vocabulary=262_144)
            opened.add(text_key(str(i)), row)
        opened.close()
        (part,) = parts(folder, READOUTS)
        assert part.stat().st_size / rows <= (8192 if rows > 1 else 9216)
    assert part.stat().st_size / rows < 6000


# -- parts -------------------------------------------------------------------------------------


def test_parts_appear_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, rows = filled(tmp_path)
    before = parts(tmp_path, READOUTS)
    write = Path.write_bytes
    seen = []

    def interrupted(path: Path, data: bytes) -> int:
        write(path, data[: len(data) // 2])
        seen.append(path)
        assert parts(tmp_path, READOUTS) == before
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_bytes", interrupted)
    opened.add(key(50), readout(50))
    with pytest.raises(KeyboardInterrupt):
        opened.flush()
    assert seen
    assert not seen[0].exists()  # swept up; a killed process leaves it
    assert parts(tmp_path, READOUTS) == before
    monkeypatch.undo()
    opened.close()  # and what was to be written is written now
    assert recalled(tmp_path).keys() == {*rows, key(50)}


def test_temporary_files_are_ignored_and_swept_when_they_are_old(tmp_path: Path) -> None:
    _, rows = filled(tmp_path)
    part = parts(tmp_path, READOUTS)[0]
    young, old = (part.with_name(f".{part.name}.{x}.tmp") for x in ("young", "old"))
    stale = [old, tmp_path / ".embeddings.safetensors.x.tmp", tmp_path / ".tmpvlVeuu"]
    for path in (young, *stale):
        path.write_bytes(part.read_bytes()[:100])
    for path in stale:
        os.utime(path, (time.time() - 10_000, time.time() - 10_000))
    assert recalled(tmp_path).keys() == rows.keys()
    assert young.exists()  # somebody may be writing it
    assert not any(path.exists() for path in stale)
    assert not (tmp_path / "set_aside").exists()


def test_names_are_safe_on_any_file_system(tmp_path: Path) -> None:
    opened, _ = filled(tmp_path)
    odd = 'a/b\\c:d*?"<>|\x00 \u2028 ../..'
    opened.save_documents([document(0, task=odd)])
    opened.save_tasks({odd: {"why_identity": None}}, {})
    assert read_documents(tmp_path)[0].task == odd
    assert Manifest.read(tmp_path).tasks.keys() == {odd}
    for path in tmp_path.rglob("*"):
        assert all(c.isalnum() or c in "-._" for c in path.name), path


def flipped(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def foreign_table(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"prompt": [1, 2]}), sink)
    return sink.getvalue().to_pybytes()


def other_fingerprint(data: bytes) -> bytes:
    table = pq.read_table(pa.BufferReader(data)).replace_schema_metadata({"fingerprint": "beef"})
    return parquet_bytes(table)


def other_k(data: bytes) -> bytes:
    table = table_of_readouts([(key(1), readout(1, k=K + 1))], K + 1)
    return parquet_bytes(table.replace_schema_metadata({"fingerprint": "f00d"}))


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "truncated": (lambda data: data[: len(data) // 2], "truncated or corrupt"),
    "without its end": (lambda data: data[:-1], "truncated or corrupt"),
    "longer": (lambda data: data + b"\0" * 8, "truncated or corrupt"),
    "empty": (lambda data: b"", "truncated or corrupt"),
    "zeros": (lambda data: bytes(len(data)), "truncated or corrupt"),
    "text": (lambda data: b"prompt,topk_ids\n1,2\n", "truncated or corrupt"),
    "foreign": (foreign_table, "other columns"),
    "another model's": (other_fingerprint, "another model or precision"),
    "another K": (other_k, "other columns"),
    "a pickle": (lambda data: b"\x80\x04cos\nsystem\n(S'false'\ntR.", "truncated or corrupt"),
}


@pytest.mark.parametrize("kind", [READOUTS, DOCUMENTS])
@pytest.mark.parametrize("name", ["as written", "by hand"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_parts_that_cannot_be_used_are_named_and_set_aside(
    damage: str, name: str, kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the file is called: a part's own name also tells what bytes it must have."""
    opened, rows = filled(tmp_path)
    for i in range(3):
        opened.save_documents([document(i)])
    victim = parts(tmp_path, kind)[1]
    change, reason = DAMAGE[damage]
    broken = change(victim.read_bytes())
    if name == "by hand":
        victim.unlink()
        victim = victim.with_name("my part.parquet")
    else:
        reason = "truncated or corrupt"
    victim.write_bytes(broken)
    again = open_store(tmp_path)
    got = dict(again.recall(map(key, range(100))))
    again.save_documents([document(i) for i in range(3)])
    assert all(same(got[own], rows[own]) for own in got)
    assert len(got) == (4 if kind == READOUTS else 6)
    assert read_documents(tmp_path) == [document(i) for i in range(3)]  # written once more
    assert str(victim) in caplog.text
    assert reason in caplog.text
    assert not victim.exists()
    assert (tmp_path / "set_aside" / victim.name).read_bytes() == broken


def test_any_flipped_bit_is_found(tmp_path: Path) -> None:
    """Parquet's own checksums leave out the headers of its pages and its footer."""
    filled(tmp_path, n=5, part=5)
    (part,) = parts(tmp_path, READOUTS)
    data, rng = part.read_bytes(), random.Random(0)
    for _ in range(400):
        part.write_bytes(flipped(data, rng))
        with pytest.raises(ForeignReadouts, match="truncated or corrupt"):
            read_part(part, readout_schema(K))
    part.write_bytes(data)
    assert len(read_part(part, readout_schema(K))) == 5


def test_parts_of_the_first_version_are_read(tmp_path: Path) -> None:
    """Their names end in eight random digits, and their pages have checksums."""
    _, rows = filled(tmp_path, n=5, part=5)
    (part,) = parts(tmp_path, READOUTS)
    part = part.rename(part.with_name("01796124578997062992-49db8221.parquet"))
    assert recalled(tmp_path).keys() == rows.keys()
    data, rng = part.read_bytes(), random.Random(1)
    for _ in range(20):
        middle = rng.randrange(200, len(data) // 2)
        part.write_bytes(data[:middle] + bytes([data[middle] ^ 16]) + data[middle + 1 :])
        got = recalled(tmp_path)
        assert all(same(got[own], rows[own]) for own in got)


def test_nothing_that_was_set_aside_is_overwritten(tmp_path: Path) -> None:
    filled(tmp_path)
    for text in (b"one", b"two", b"three"):
        (tmp_path / READOUTS / "part.parquet").write_bytes(text)
        recalled(tmp_path)
    kept = [p.read_bytes() for p in sorted((tmp_path / "set_aside").iterdir())]
    assert sorted(kept) == [b"one", b"three", b"two"]


def test_a_part_that_the_system_does_not_give_is_not_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Missing rights, or a network file system that is away for a moment."""
    filled(tmp_path)
    victim = parts(tmp_path, READOUTS)[0]
    read = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path == victim:
            raise PermissionError(errno.EACCES, "Permission denied")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert len(recalled(tmp_path)) == 4
    assert victim.exists()
    assert f"{victim} cannot be read" in caplog.text


def test_a_part_that_another_process_has_just_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path)
    listed = parts(tmp_path, READOUTS)
    listed[0].unlink()
    monkeypatch.setattr(store_module, "parts", lambda folder, kind: listed)
    assert len(recalled(tmp_path)) == 4


# -- the manifest ------------------------------------------------------------------------------


def test_no_manifest_is_no_readouts(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"holds no readouts .*run the evaluation"):
        Manifest.read(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(FileNotFoundError, match="holds no readouts"):
        Manifest.read(tmp_path / "file")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '"text"',
        "{}",
        '{"format": 1}',
        '{"format": 2, "fingerprint": "f00d"}',
        '{"format": 1, "fingerprint": 5}',
        '{"format": 1, "fingerprint": "f00d", "about": []}',
        '{"format": 1, "fingerprint": "f00d", "unheard of": 1}',
        '{"format": 1, "fingerprint": "f00d", "label_sets": null}',
        b"\xff\xfe\x00",
    ],
)
def test_broken_manifests_are_refused(text: str | bytes, tmp_path: Path) -> None:
    _, rows = filled(tmp_path)
    path = tmp_path / "manifest.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    for attempt in (lambda: Manifest.read(tmp_path), lambda: open_store(tmp_path)):
        with pytest.raises(ForeignReadouts, match=r"manifest\.json is damaged or was not written"):
            attempt()
    assert path.read_bytes() == (text if isinstance(text, bytes) else text.encode())
    path.unlink()  # as the message says
    assert recalled(tmp_path).keys() == rows.keys()


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"about": {"model": "big", "dtype": "float32", "top_k": K}},
         rf"holds readouts of tiny \(float32, K {K}\), not of big \(float32, K {K}\)"),
        ({"about": {"model": "tiny", "dtype": "bfloat16", "top_k": K}},
         rf"of tiny \(float32, K {K}\), not of tiny \(bfloat16, K {K}\)"),
        ({}, "not of this one: its weights or configuration differ"),
    ],
)  # fmt: skip
def test_another_models_directory_is_refused(
    other: dict[str, Any], message: str, tmp_path: Path
) -> None:
    filled(tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(ForeignReadouts, match=message):
        open_store(tmp_path, fingerprint="beef", **other)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_the_manifest_keeps_what_earlier_runs_noted(tmp_path: Path) -> None:
    first = open_store(tmp_path)
    first.save_tasks({"a": {"why_identity": None}}, {"x": {"labels": ["joy", "é", "\ud83d"]}})
    second = open_store(tmp_path, about={"top_k": K, "model": "renamed"})
    second.save_tasks({"b": {"why_identity": "yes/no"}}, {"y": {"labels": ["yes"]}})
    manifest = Manifest.read(tmp_path)
    assert manifest.tasks == {"a": {"why_identity": None}, "b": {"why_identity": "yes/no"}}
    assert manifest.label_sets["x"]["labels"] == ["joy", "é", "\ud83d"]
    assert manifest.label_sets["y"]["labels"] == ["yes"]
    assert manifest.about == {"model": "renamed", "dtype": "float32", "top_k": K}


def test_a_run_that_adds_nothing_writes_nothing(tmp_path: Path) -> None:
    opened, _ = filled(tmp_path)
    opened.save_documents([document(0)])
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.name != ".lock"}
    again = open_store(tmp_path)
    assert len(dict(again.recall(map(key, range(6))))) == 6
    again.save_documents([document(0)])
    again.close()
    after = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.name != ".lock"}
    assert after == before


@pytest.mark.parametrize("error", [NotImplementedError("no flock"), OSError(errno.ENOLCK, "none")])
def test_file_systems_without_locks_do(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **more: Any) -> None:
        raise error

    monkeypatch.setattr(store_module.FileLock, "acquire", refuse)
    _, rows = filled(tmp_path)
    assert recalled(tmp_path).keys() == rows.keys()


# -- documents ---------------------------------------------------------------------------------


def test_documents_come_back_in_order(tmp_path: Path) -> None:
    opened = open_store(tmp_path)
    several = [document(i, task) for task in ("b", "a") for i in (10, 2, 0)]
    several[0] = replace(several[0], label_set=None, labels=(), places=(), prompts=(key(1), key(2)))
    opened.save_documents(several)
    opened.save_documents(several[:2])
    opened.save_documents([document(5, "a")])
    expected = sorted([*several, document(5, "a")], key=lambda d: (d.task, d.doc_id))
    assert read_documents(tmp_path) == expected
    assert len(parts(tmp_path, DOCUMENTS)) == 2


def test_the_latest_way_to_ask_counts(tmp_path: Path) -> None:
    """Another label set after the same text; and back again."""
    one, other = document(0), document(0, labels=("sad",), places=(0,), prompts=(key(9),))
    for d in (one, other, one):
        open_store(tmp_path).save_documents([d])
        assert read_documents(tmp_path) == [d]


def test_another_prompt_of_the_same_document_is_refused(tmp_path: Path) -> None:
    opened = open_store(tmp_path)
    empty = document(0, context=text_key(""))
    opened.save_documents([document(0), empty])
    with pytest.raises(ForeignReadouts, match="document 0 of task emotions with another prompt"):
        opened.save_documents([document(0, context=text_key("few-shot")), empty])
    opened.save_documents([document(0), document(1)])  # more documents are welcome
    opened.save_documents([document(0, context=text_key("second half")), document(0)])
    assert len(read_documents(tmp_path)) == 4


def test_documents_of_another_model_are_not_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_store(tmp_path / "a").save_documents([document(0)])
    open_store(tmp_path / "b", fingerprint="beef").save_documents([document(1)])
    (theirs,) = parts(tmp_path / "b", DOCUMENTS)
    shutil.copy(theirs, tmp_path / "a" / DOCUMENTS)
    assert read_documents(tmp_path / "a") == [document(0)]
    assert "is from another model: left out" in caplog.text


def test_reports_name_a_part_of_documents_that_they_cannot_read(tmp_path: Path) -> None:
    open_store(tmp_path).save_documents([document(0)])
    (part,) = parts(tmp_path, DOCUMENTS)
    part.write_bytes(part.read_bytes()[:-5])
    with pytest.raises(ForeignReadouts, match=rf"{part.name} is truncated.*run the evaluation"):
        read_documents(tmp_path)
    assert part.exists()


def test_half_a_surrogate_pair_does_not_stop_anything(tmp_path: Path) -> None:
    opened = open_store(tmp_path)
    opened.save_documents([document(0, labels=("a\ud83d", "b")), document(1)])
    assert [d.labels for d in read_documents(tmp_path)] == [("a\ufffd", "b"), ("joy", "anger")]


# -- disks that are full, or may not be written to ---------------------------------------------


class Disk:
    """Refuses to take bytes while it is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: OSError | None = None
        self.refused = 0
        write = Path.write_bytes

        def take(path: Path, data: bytes) -> int:
            if self.error is not None:
                write(path, data[:10])
                self.refused += 1
                raise self.error
            return write(path, data)

        monkeypatch.setattr(Path, "write_bytes", take)

    def fill(self, number: int = errno.ENOSPC) -> None:
        self.error = OSError(number, os.strerror(number))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    now = [1000.0]
    monkeypatch.setattr(store_module.time, "monotonic", lambda: now[0])
    yield now
    monkeypatch.undo()


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_a_full_disk_is_said_once_and_nothing_is_lost(
    number: int, tmp_path: Path, disk: Disk, clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    opened = open_store(tmp_path)
    disk.fill(number)
    for i in range(50):
        opened.add(key(i), readout(i))
        if i % 5 == 4:  # batches of five, eleven seconds each
            clock[0] += 11
            opened.flush_if_due()
    assert disk.refused == 10  # tried again and again
    assert len(errors(caplog)) == 1
    assert "cannot be written to" in errors(caplog)[0]
    assert os.strerror(number) in errors(caplog)[0]
    assert parts(tmp_path, READOUTS) == []
    assert not list(tmp_path.rglob("*.tmp"))
    disk.error = None
    opened.close()
    assert recalled(tmp_path).keys() == {key(i) for i in range(50)}
    assert len(errors(caplog)) == 1


def test_a_disk_that_stays_full_is_reported_at_the_end(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    opened = open_store(tmp_path)
    disk.fill()
    opened.save_tasks({"emotions": {"why_identity": None}}, {})
    opened.save_documents([document(i) for i in range(4)])
    for i in range(4):
        opened.add(key(i), readout(i))
    opened.close()
    assert len(errors(caplog)) == 2
    assert "4 readouts are missing" in errors(caplog)[1]
    assert "The scores of this run are" in errors(caplog)[1]
    disk.error = None
    opened.close()  # the harness asks for another task, and there is space again
    assert recalled(tmp_path).keys() == {key(i) for i in range(4)}
    assert len(read_documents(tmp_path)) == 4
    assert Manifest.read(tmp_path).tasks.keys() == {"emotions"}


def test_a_full_disk_that_is_new_is_refused_at_once(tmp_path: Path, disk: Disk) -> None:
    disk.fill()
    with pytest.raises(OSError, match=r"readouts=.*cannot be written to.*No space left"):
        open_store(tmp_path / "new")


def test_a_directory_that_is_read_only_is_read(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else's readouts. (Tests may run as root, who may write anywhere.)"""
    _, rows = filled(tmp_path)

    def refuse(*arguments: Any, **more: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    disk.fill(errno.EACCES)
    monkeypatch.setattr(store_module.FileLock, "acquire", refuse)
    monkeypatch.setattr(store_module.os, "replace", refuse)
    (tmp_path / READOUTS / "foreign.parquet").write_text("as if")
    opened = open_store(tmp_path, about={"model": "tiny", "scoring": "another"})
    assert len(errors(caplog)) == 1
    assert "cannot be written to (Permission denied)" in errors(caplog)[0]
    assert dict(opened.recall(rows)).keys() == rows.keys()
    assert "foreign.parquet is truncated or corrupt" in caplog.text
    assert "cannot be moved to set_aside" in caplog.text
    opened.close()  # nothing was to be written
    assert len(errors(caplog)) == 1
    opened.save_documents([document(0)])
    opened.close()
    assert "its documents are not noted" in errors(caplog)[1]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write")
def test_a_directory_without_rights(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, rows = filled(tmp_path / "old")
    tmp_path.chmod(0o555)
    for path in (tmp_path / "old").rglob("*"):
        if path.is_dir():
            path.chmod(0o555)
    with pytest.raises(OSError, match="cannot be written to"):
        open_store(tmp_path / "new")
    assert recalled(tmp_path / "old").keys() == rows.keys()
    assert errors(caplog) == []


# -- E and the words ---------------------------------------------------------------------------


def unavailable() -> torch.Tensor:
    raise ValueError("the output embeddings are quantised")


def test_the_matrix_is_stored_as_small_as_it_can_be_exactly(tmp_path: Path) -> None:
    exact = torch.randn(40, 8).bfloat16().float()
    for name, matrix, kept in [
        ("widened", exact, torch.bfloat16),
        ("fp32", torch.cat([exact, torch.full((1, 8), 1 / 3)]), torch.float32),
        ("fp16", torch.randn(40, 8).half(), torch.float16),
        ("bf16", exact.bfloat16().t().contiguous().t(), torch.bfloat16),
        ("nan", torch.full((3, 2), torch.nan), torch.float32),
    ]:
        open_store(tmp_path / name).save_model(lambda m=matrix: m, lambda: ["a", "b", "\ud83d"])
        back = read_embeddings(tmp_path / name)
        assert back.dtype == kept
        torch.testing.assert_close(back.float(), matrix.float(), rtol=0, atol=0, equal_nan=True)
        assert read_vocabulary(tmp_path / name) == ["a", "b", "\ufffd"]
        modes = {p.stat().st_mode & 0o777 for p in (tmp_path / name).iterdir() if p.is_file()}
        assert len(modes) == 1  # who may read one of them may read all


def test_a_head_that_is_quantised_is_noted(tmp_path: Path) -> None:
    open_store(tmp_path).save_model(unavailable, lambda: ["a"])
    assert Manifest.read(tmp_path).about["no_embeddings"] == "the output embeddings are quantised"
    with pytest.raises(ForeignReadouts, match=r"are quantised.*only constrained scores"):
        read_embeddings(tmp_path)


def test_the_matrix_is_written_once(tmp_path: Path) -> None:
    matrix = torch.randn(5, 3)
    open_store(tmp_path).save_model(lambda: matrix, lambda: ["a"])
    before = (tmp_path / "embeddings.safetensors").stat().st_mtime_ns
    open_store(tmp_path).save_model(lambda: matrix, lambda: pytest.fail("decoded again"))
    assert (tmp_path / "embeddings.safetensors").stat().st_mtime_ns == before
    save_file({"embeddings": matrix}, tmp_path / "embeddings.safetensors")  # as version 1 did
    before = (tmp_path / "embeddings.safetensors").stat().st_mtime_ns
    open_store(tmp_path).save_model(lambda: matrix, lambda: ["a"])
    assert (tmp_path / "embeddings.safetensors").stat().st_mtime_ns == before


@pytest.mark.parametrize("damage", ["truncated", "empty", "another model's", "another shape"])
def test_a_matrix_that_cannot_be_used_is_set_aside(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    matrix, path = torch.randn(50, 3), tmp_path / "embeddings.safetensors"
    open_store(tmp_path).save_model(lambda: matrix, lambda: ["a"])
    if damage == "another model's":
        save_file({"embeddings": matrix + 1}, path, metadata={"fingerprint": "beef"})
    elif damage == "another shape":
        save_file({"embeddings": matrix[1:]}, path)
    else:
        path.write_bytes(path.read_bytes()[:-100] if damage == "truncated" else b"")
    if damage != "another shape":
        with pytest.raises(ForeignReadouts, match="the output embeddings, cannot be read"):
            read_embeddings(tmp_path)
    open_store(tmp_path).save_model(lambda: matrix, lambda: ["a"])
    torch.testing.assert_close(read_embeddings(tmp_path), matrix, rtol=0, atol=0)
    assert f"{path} cannot be used" in caplog.text
    assert (tmp_path / "set_aside" / path.name).exists()


def test_words_that_cannot_be_read_are_written_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "vocabulary.parquet"
    assert read_vocabulary(tmp_path) == []
    open_store(tmp_path).save_model(unavailable, lambda: ["a", "b"])
    path.write_bytes(b"PAR1")
    assert read_vocabulary(tmp_path) == []
    assert "The texts of the tokens cannot be read" in caplog.text
    open_store(tmp_path).save_model(unavailable, lambda: ["a", "b"])
    assert read_vocabulary(tmp_path) == ["a", "b"]


def test_a_tokenizer_that_fails_costs_the_words_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> list[str]:
        raise TypeError("sequence item 0: expected str instance, NoneType found")

    matrix = torch.randn(5, 3)
    open_store(tmp_path).save_model(lambda: matrix, fail)
    assert "The texts of the tokens cannot be stored: sequence item 0" in caplog.text
    assert read_embeddings(tmp_path).shape == (5, 3)


def test_a_matrix_too_large_for_the_disk_is_said_and_readouts_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*arguments: Any, **more: Any) -> None:
        raise store_module.SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(store_module, "save_file", full)
    opened = open_store(tmp_path)
    opened.save_model(lambda: torch.randn(5, 3), lambda: ["a"])
    (said,) = errors(caplog)
    assert "The output embeddings cannot be written" in said
    assert "No space left" in said
    opened.add(key(1), readout(1))
    opened.close()
    assert recalled(tmp_path).keys() == {key(1)}
    assert len(errors(caplog)) == 1


# -- where it is -------------------------------------------------------------------------------


def test_directories_are_found_and_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real", target_is_directory=True)
    for named, expected in [
        ("~/a b/c", tmp_path / "a b" / "c"),
        (" padded ", tmp_path / "padded"),
        ("not/yet/there", tmp_path / "not" / "yet" / "there"),
        ("link", tmp_path / "real"),
        ("1234", tmp_path / "1234"),
        ("naïve=1%20x", tmp_path / "naïve=1%20x"),
        ("_hidden", tmp_path / "_hidden"),
        (".", tmp_path),
    ]:
        _, rows = filled(Path(named))
        assert (expected / "manifest.json").exists()
        assert recalled(expected).keys() == rows.keys()


@pytest.mark.parametrize("given", ["", "  ", True, False])
def test_what_names_no_directory_is_refused(given: object) -> None:
    with pytest.raises(ValueError, match=r"readouts=.*: name a directory"):
        folder_of(given)


def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    for named in ("file", "file/below/it", "dangling"):
        with pytest.raises(ValueError, match="is there and is not a directory"):
            open_store(tmp_path / named)
    with pytest.raises(ValueError, match="readouts=~nobody-of-that-name/x"):
        folder_of("~nobody-of-that-name/x")


# -- the recorder ------------------------------------------------------------------------------


class FakeEngine:
    """Reads prompts in batches, and counts."""

    def __init__(self, broken: int | None = None) -> None:
        self.read_tokens: list[tuple[int, ...]] = []
        self.broken = broken

    def read(
        self, prompts: list[Prompt], batch_size: Any, top_k: int, progress: Callable[[int], object]
    ) -> Iterator[tuple[int, Readout]]:
        for start in range(0, len(prompts), 3):
            batch = range(start, min(start + 3, len(prompts)))
            for i in batch:
                if prompts[i].tokens[0] == self.broken:
                    raise NaNLogits(i)
                self.read_tokens.append(prompts[i].tokens)
                yield i, readout(prompts[i].tokens[0], k=top_k)
            progress(len(batch))


def some_prompts(n: int) -> list[Prompt]:
    return [Prompt((i, 1), ((2,),)) for i in range(n)]


def recorder(folder: Path, engine: FakeEngine) -> Recorder:
    return Recorder(engine, open_store(folder))  # type: ignore[arg-type]


def test_the_recorder_reads_what_is_missing(tmp_path: Path) -> None:
    engine, done = FakeEngine(), []
    first = dict(recorder(tmp_path, engine).read(some_prompts(7), progress=done.append))
    assert sum(done) == len(first) == 7
    doubled = [*some_prompts(10), *some_prompts(2)]
    done.clear()
    got = dict(recorder(tmp_path, engine).read(doubled, progress=done.append))
    assert len(got) == 12
    assert engine.read_tokens == [p.tokens for p in some_prompts(10)]
    assert all(same(got[i], readout(doubled[i].tokens[0])) for i in got)


def test_a_consumer_that_stops_loses_nothing_that_it_has_seen(tmp_path: Path) -> None:
    reading = recorder(tmp_path, FakeEngine()).read(some_prompts(9))
    seen = [next(reading)[0] for _ in range(5)]
    reading.close()
    engine = FakeEngine()
    assert len(list(recorder(tmp_path, engine).read(some_prompts(9)))) == 9
    assert [t[0] for t in engine.read_tokens] == [i for i in range(9) if i not in seen]


def test_nan_logits_name_the_prompt_as_it_was_asked(tmp_path: Path) -> None:
    list(recorder(tmp_path, FakeEngine()).read(some_prompts(4)))
    with pytest.raises(NaNLogits) as caught:
        list(recorder(tmp_path, FakeEngine(broken=6)).read(some_prompts(9)))
    assert caught.value.index == 6
    assert len(dict(open_store(tmp_path).recall(map(prompt_key, some_prompts(9))))) == 6


def rows_on_disk(folder: Path) -> int:
    return sum(pq.read_metadata(path).num_rows for path in parts(folder, READOUTS))


def test_slow_batches_are_written_one_by_one(tmp_path: Path, clock: list[float]) -> None:
    """What a killed run has to do again is one batch, or ten seconds."""
    reading = recorder(tmp_path, FakeEngine()).read(
        some_prompts(9), progress=lambda n: clock.__setitem__(0, clock[0] + 60)
    )
    on_disk = [rows_on_disk(tmp_path) for _ in reading]
    assert on_disk == [0, 0, 0, 3, 3, 3, 6, 6, 6]
    assert len(parts(tmp_path, READOUTS)) == 3


def test_quick_batches_share_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_PART_ROWS", 100)
    list(recorder(tmp_path, FakeEngine()).read(some_prompts(250)))
    rows = [pq.read_metadata(p).num_rows for p in parts(tmp_path, READOUTS)]
    assert rows == [100, 100, 50]


# -- two processes -----------------------------------------------------------------------------

TURNS = 6
WRITER = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from test_store import document, key, open_store, readout
folder, me = Path(sys.argv[1]), int(sys.argv[2])
Path(f"{folder}.{me}").touch()
while not all(Path(f"{folder}.{i}").exists() for i in range(3)):
    time.sleep(0.01)
for turn in range(6):
    store = open_store(folder)
    own = f"{me} {turn}"
    store.save_tasks({f"task {own}": {"why_identity": None}}, {own: {"labels": []}})
    store.save_documents([document(turn), document(turn, f"task {me}")])
    for i in range(turn * 4, turn * 4 + 4):
        store.add(key(i), readout(i))                       # what the others read, too
        store.add(key(1000 * me + 1000 + i), readout(i))    # what only this one reads
    store.close()
"""


@pytest.mark.slow
def test_processes_may_write_to_one_directory(tmp_path: Path) -> None:
    """The same and other prompts, documents and label sets, at the same time."""
    folder = tmp_path / "readouts"
    here = str(Path(__file__).parent)
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(folder), str(i), here], stderr=-1)
        for i in range(3)
    ]
    for writer in writers:
        _, problems = writer.communicate(timeout=300)
        assert writer.returncode == 0, problems.decode()[-2000:]
    manifest = Manifest.read(folder)
    assert manifest.tasks.keys() == {f"task {i} {turn}" for i in range(3) for turn in range(TURNS)}
    assert manifest.label_sets.keys() == {f"{i} {turn}" for i in range(3) for turn in range(TURNS)}
    wanted = {key(i): i for i in range(4 * TURNS)}
    wanted |= {key(1000 * me + 1000 + i): i for me in range(3) for i in range(4 * TURNS)}
    got = dict(open_store(folder).recall(wanted))
    assert got.keys() == wanted.keys()
    assert all(same(got[own], readout(i)) for own, i in wanted.items())
    expected = {("emotions", i) for i in range(TURNS)}
    expected |= {(f"task {me}", i) for me in range(3) for i in range(TURNS)}
    assert {(d.task, d.doc_id) for d in read_documents(folder)} == expected
    assert not (folder / "set_aside").exists()
    assert not list(folder.rglob("*.tmp"))


# --------------------------------------------------------------------------------------------
# captured activations
# --------------------------------------------------------------------------------------------

SHAPE = (3, 8)


def with_hidden(seed: int) -> Readout:
    values = np.random.default_rng(seed).normal(size=SHAPE).astype(np.float16)
    return replace(readout(seed), hidden=values)


def test_activations_come_back_bit_for_bit(tmp_path: Path) -> None:
    store = open_store(tmp_path, hidden=SHAPE)
    given = {key(i): with_hidden(i) for i in range(5)}
    for name, own in given.items():
        store.add(name, own)
    store.close()
    back = dict(open_store(tmp_path, hidden=SHAPE).recall(given))
    assert all(same(own, back[name]) for name, own in given.items())
    assert Manifest.read(tmp_path).about["layers"] == list(SHAPE)


def test_a_run_without_capture_uses_what_was_captured_but_not_the_reverse(tmp_path: Path) -> None:
    filled(tmp_path, n=4)
    capturing = open_store(tmp_path, hidden=SHAPE)
    assert not dict(capturing.recall([key(i) for i in range(4)]))
    capturing.add(key(0), with_hidden(0))
    capturing.close()
    found = dict(open_store(tmp_path, hidden=SHAPE).recall([key(i) for i in range(4)]))
    assert set(found) == {key(0)}
    assert found[key(0)].hidden is not None
    plain = recalled(tmp_path)
    assert set(plain) == {key(i) for i in range(4)}
    assert all(own.hidden is None for own in plain.values())
    assert not list((tmp_path / "set_aside").glob("*"))


def test_parts_with_activations_are_no_larger_than_memory_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_PART_BYTES", 2 * 2 * SHAPE[0] * SHAPE[1])
    store = open_store(tmp_path, hidden=SHAPE)
    for i in range(5):
        store.add(key(i), with_hidden(i))
    store.close()
    assert [len(table) for table in read_readouts(tmp_path, K)] == [2, 2, 1]


# --------------------------------------------------------------------------------------------
# generated answers
# --------------------------------------------------------------------------------------------


def answer(seed: int, n: int) -> Answer:
    """Of n tokens."""
    rng = np.random.default_rng(seed)
    shapes = {"topk_entropies": (n, 5), "nucleus_sizes": (n, 4), "nucleus_entropies": (n, 4)}
    whole = ("tokens", "nucleus_sizes", "ends")
    own = {
        name: rng.integers(0, 9, shapes.get(name, n)).astype(np.int32)
        if name in whole
        else rng.random(shapes.get(name, n)).astype(np.float32)
        for name in (
            "tokens", "logprobs", "top_logprobs", "entropy", "topk_entropies", "nucleus_sizes",
            "nucleus_entropies", "ends",
        )
    }  # fmt: skip
    return Answer("x" * n + "\N{PARTY POPPER}", Trace(**own, vocabulary=99))


def test_answers_come_back_bit_for_bit(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    given = {key(i): answer(i, n) for i, n in enumerate((3, 0, 7, 1))}
    for name, own in given.items():
        store.add_answer(name, own)
    store.close()
    for found in (dict(open_store(tmp_path).recall_answers(given)), read_answers(tmp_path)):
        assert found.keys() == given.keys()
        for name, own in given.items():
            assert found[name].text == own.text
            for part, value in vars(own.trace).items():
                back = getattr(found[name].trace, part)
                np.testing.assert_array_equal(back, value, strict=isinstance(value, np.ndarray))
    assert set(dict(open_store(tmp_path).recall_answers([key(0)]))) == {key(0)}


def test_samples_and_what_their_tokens_are_worth(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    logprobs = np.array([-0.5, -2.25], np.float32)
    store.add_answer(key(1), Answer("a sample", None, logprobs))
    store.add_answer(key(2), answer(2, 3)._replace(logprobs=np.zeros(4, np.float32)))
    store.close()
    for found in (dict(open_store(tmp_path).recall_answers([key(1), key(2)])),
                  read_answers(tmp_path)):  # fmt: skip
        assert found[key(1)].text == "a sample"
        assert found[key(1)].trace is None
        np.testing.assert_array_equal(found[key(1)].logprobs, logprobs, strict=True)
        assert len(found[key(2)].trace) == 3
        assert len(found[key(2)].logprobs) == 4


def test_parts_from_before_samples_are_read(tmp_path: Path) -> None:
    """They have no column for them."""
    store = open_store(tmp_path)
    store.add_answer(key(1), answer(1, 2))
    store.close()
    (part,) = parts(tmp_path, "answers")
    assert pq.ParquetFile(part).schema_arrow.names == ANSWER_SCHEMA.names
    assert read_answers(tmp_path)[key(1)].logprobs is None


def test_answers_alone_empty_ones_too(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.add_answer(key(1), answer(1, 0))
    store.close()
    assert read_answers(tmp_path)[key(1)].trace.topk_entropies.shape == (0, 5)


def test_an_answer_that_has_rotted_is_set_aside_and_written_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path)
    store.add_answer(key(1), answer(1, 4))
    store.close()
    (part,) = parts(tmp_path, "answers")
    part.write_bytes(flipped(part.read_bytes(), random.Random(0)))
    assert not read_answers(tmp_path)
    assert not dict(open_store(tmp_path).recall_answers([key(1)]))
    assert "moved to" in caplog.text


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (((1, 2), "a"), ((1, 2), "b")),
        (((1, 2), "a"), ((1, 2, 3), "a")),
        (((1, 97), ""), ((1,), "a\0\0\0\0\0\0\0")),
    ],
)
def test_another_prompt_or_another_way_is_another_answer(one: Any, other: Any) -> None:
    assert answer_key(*one) == answer_key(*one) != answer_key(*other)
