"""Sources of data: which one is used, what the user is told, how files are read. No network."""

import hashlib
import http.server
import logging
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import huggingface_hub.constants
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm_eval_semsoft.engine import hub
from lm_eval_semsoft.tasks import data
from lm_eval_semsoft.tasks.data import BrokenData, DatasetSpec, DataUnavailable, HubFiles

REVISION = "0123456789abcdef0123456789abcdef01234567"


def read_pairs(path):
    return [{"text": t, "key": k} for _, (t, k) in data.read_tsv(path, ("text", "key"))]


def read_parquet(path):
    return pyarrow.parquet.read_table(path).to_pylist()


@pytest.fixture
def spec():
    return DatasetSpec(
        name="toy",
        files={"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"},
        read=read_pairs,
        hub=HubFiles("owner/toy", REVISION, {"test": "main/test.parquet"}, read_parquet),
        published_rows={"test": 2},
    )


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    """No settings, no cache, no memory of an earlier test, and nothing packaged."""
    for name in ("SEMSOFT_DATA", "SEMSOFT_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(data, "EMBEDDED_DIR", tmp_path / "embedded")
    monkeypatch.setattr(data, "_told", set())
    forget = data.hub_problem.cache_clear
    forget()
    yield
    forget()


@pytest.fixture
def no_network(monkeypatch):
    def refuse(request, timeout):
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)


def write(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def write_embedded(tmp_path, split="test"):
    return write(tmp_path / "embedded" / "toy" / f"{split}.tsv", "ours\t1\n")


def fill_hub_cache(tmp_path, damage=b""):
    """What huggingface_hub leaves after a download: a blob named by its hash, and a link to it."""
    rows = [{"text": "from the hub", "key": "1"}, {"text": "too", "key": "2"}]
    made = tmp_path / "made.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), made)
    content = made.read_bytes()
    repo = tmp_path / "cache" / "datasets--owner--toy"
    blob = write(repo / "blobs" / hashlib.sha256(content).hexdigest(), content + damage)
    link = repo / "snapshots" / REVISION / "main" / "test.parquet"
    link.parent.mkdir(parents=True)
    link.symlink_to(blob)
    return link


# --- which source --------------------------------------------------------------------------------


def test_local_copy_comes_first(spec, tmp_path, monkeypatch):
    path = write(tmp_path / "mine" / "toy" / "test.tsv", "local\t1\nrow\t2\n")
    fill_hub_cache(tmp_path)
    write_embedded(tmp_path)
    monkeypatch.setenv("SEMSOFT_DATA_DIR", str(tmp_path / "mine"))
    loaded = data.load_rows(spec, "test")
    assert (loaded.source, loaded.published, loaded.path) == ("local", 1, path)
    assert loaded.rows[0] == {"text": "local", "key": "1"}
    assert loaded.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_cached_hub_file_needs_no_network(spec, tmp_path, monkeypatch):
    fill_hub_cache(tmp_path)
    write_embedded(tmp_path)
    monkeypatch.setattr(data, "hub_problem", lambda endpoint: pytest.fail("asked the network"))
    loaded = data.load_rows(spec, "test")
    assert (loaded.source, loaded.published) == ("hub", 1)
    assert [row["text"] for row in loaded.rows] == ["from the hub", "too"]


def test_offline_mode_uses_the_cache_and_nothing_else(spec, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(data, "hub_problem", lambda endpoint: pytest.fail("asked the network"))
    with pytest.raises(DataUnavailable, match="HF_HUB_OFFLINE is set"):
        data.load_rows(spec, "test")
    fill_hub_cache(tmp_path)
    assert data.load_rows(spec, "test").source == "hub"


def test_download_when_the_hub_answers(spec, tmp_path, monkeypatch):
    """The file that is asked for, pinned by commit."""
    asked = []

    def download(repo_id, filename, *, repo_type, revision, local_files_only):
        asked.append((repo_id, filename, repo_type, revision, local_files_only))
        if local_files_only:
            raise huggingface_hub.errors.LocalEntryNotFoundError("not cached")
        return str(fill_hub_cache(tmp_path))

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(data, "hub_problem", lambda endpoint: None)
    assert data.load_rows(spec, "test").source == "hub"
    assert asked[-1] == ("owner/toy", "main/test.parquet", "dataset", REVISION, False)


def test_failed_download_falls_back_and_says_why(spec, tmp_path, monkeypatch, caplog):
    def download(*args, local_files_only, **kwargs):
        if local_files_only:
            raise huggingface_hub.errors.LocalEntryNotFoundError("not cached")
        raise OSError("disk quota exceeded\nlong story")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(data, "hub_problem", lambda endpoint: None)
    write_embedded(tmp_path)
    assert data.load_rows(spec, "test").source == "embedded"
    assert "OSError: disk quota exceeded" in caplog.text


@pytest.mark.usefixtures("no_network")
def test_embedded_sample_with_one_loud_warning(spec, tmp_path, caplog):
    write_embedded(tmp_path, "test")
    write_embedded(tmp_path, "train")
    loaded = data.load_rows(spec, "test")
    data.load_rows(spec, "test")
    data.load_rows(spec, "train")
    assert (loaded.source, loaded.published) == ("embedded", 0)
    loud = [r.message for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(loud) == 1
    assert "EMBEDDED SAMPLE, NOT THE PUBLISHED DATA" in loud[0]
    assert "SEMSOFT_DATA_DIR is not set" in loud[0]
    assert "cannot be reached" in loud[0]
    assert "toy/test.tsv" in loud[0]


def test_forced_embedded(spec, tmp_path, monkeypatch, caplog):
    write_embedded(tmp_path)
    fill_hub_cache(tmp_path)
    monkeypatch.setenv("SEMSOFT_DATA", "embedded")
    assert data.load_rows(spec, "test").source == "embedded"
    assert "SEMSOFT_DATA=embedded" in caplog.text


def test_forced_local_never_looks_elsewhere(spec, tmp_path, monkeypatch):
    fill_hub_cache(tmp_path)
    write_embedded(tmp_path)
    monkeypatch.setenv("SEMSOFT_DATA", "local")
    with pytest.raises(DataUnavailable, match="SEMSOFT_DATA_DIR is not set"):
        data.load_rows(spec, "test")
    monkeypatch.setenv("SEMSOFT_DATA_DIR", str(tmp_path))
    with pytest.raises(DataUnavailable, match=r"there is no file .*toy/test\.tsv"):
        data.load_rows(spec, "test")


def test_folder_that_does_not_exist_is_an_error_not_a_fallback(spec, tmp_path, monkeypatch):
    write_embedded(tmp_path)
    monkeypatch.setenv("SEMSOFT_DATA_DIR", str(tmp_path / "typo"))
    with pytest.raises(DataUnavailable, match="typo' is not a folder"):
        data.load_rows(spec, "test")


def test_unknown_source(spec, monkeypatch):
    monkeypatch.setenv("SEMSOFT_DATA", "embeded")
    with pytest.raises(ValueError, match=r"SEMSOFT_DATA='embeded'.*auto, local, hub, embedded.*"):
        data.load_rows(spec, "test")
    with pytest.raises(ValueError, match=r"did you mean 'embedded'\?"):
        data.load_rows(spec, "test")


def test_empty_variable_means_auto(spec, tmp_path, monkeypatch):
    monkeypatch.setenv("SEMSOFT_DATA", "")
    fill_hub_cache(tmp_path)
    assert data.load_rows(spec, "test").source == "hub"


def test_a_split_that_the_hub_has_not(spec, monkeypatch):
    monkeypatch.setenv("SEMSOFT_DATA", "hub")
    with pytest.raises(DataUnavailable, match="the hub does not have it"):
        data.load_rows(spec, "train")


def test_damaged_hub_file(spec, tmp_path):
    fill_hub_cache(tmp_path, damage=b"x")
    with pytest.raises(BrokenData, match=r"is damaged .*delete that file"):
        data.load_rows(spec, "test")


def test_another_number_of_rows_than_published(spec, tmp_path, monkeypatch, caplog):
    write(tmp_path / "toy" / "test.tsv", "only one\t1\n")
    monkeypatch.setenv("SEMSOFT_DATA_DIR", str(tmp_path))
    assert data.load_rows(spec, "test").published == 1
    assert "has 1 rows, the published split has 2" in caplog.text


# --- no network ----------------------------------------------------------------------------------


def test_a_network_that_never_answers_costs_five_seconds_once(spec, tmp_path, monkeypatch):
    """Not even a name server that hangs (socket timeouts do not bound it) makes anybody wait."""
    release = threading.Event()

    def hang(request, timeout):
        release.wait(60)
        raise urllib.error.URLError("far too late")

    monkeypatch.setattr(urllib.request, "urlopen", hang)
    start = time.monotonic()
    with pytest.raises(DataUnavailable) as caught:
        data.load_rows(spec, "test")
    assert time.monotonic() - start < 5
    message = str(caught.value)
    assert "did not answer within" in message
    assert "SEMSOFT_DATA_DIR" in message
    assert "toy/test.tsv" in message
    assert "\n" not in message

    start = time.monotonic()
    write_embedded(tmp_path)
    assert data.load_rows(spec, "test").source == "embedded"
    assert time.monotonic() - start < hub.PROBE_SECONDS / 2
    release.set()


@pytest.mark.usefixtures("no_network")
def test_forced_hub_without_network(spec, tmp_path, monkeypatch):
    write_embedded(tmp_path)
    monkeypatch.setenv("SEMSOFT_DATA", "hub")
    start = time.monotonic()
    with pytest.raises(DataUnavailable) as caught:
        data.load_rows(spec, "test")
    assert time.monotonic() - start < 5
    assert "Name or service not known" in str(caught.value)
    assert "set SEMSOFT_DATA=embedded" in str(caught.value)


def test_probe_against_a_server_that_says_no():
    """Any answer shows that there is a network; the download itself will say what is wrong."""

    class Forbid(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_error(403)

        def log_message(self, *args):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Forbid) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        assert data.hub_problem(f"http://127.0.0.1:{server.server_port}") is None
        closed = server.server_port
    assert "cannot be reached" in data.hub_problem(f"http://localhost:{closed}")
    assert "cannot be reached" in data.hub_problem("not an address")


def test_probe_is_asked_once(monkeypatch):
    asked = []
    monkeypatch.setattr(hub, "_ask", lambda endpoint: asked.append(endpoint) or "closed")
    assert [data.hub_problem("https://hub") for _ in range(3)] == ["closed"] * 3
    assert len(asked) == 1


# --- reading -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ('say "hi\t1\n"x"\t2\n', ['say "hi', '"x"']),
        ("NA\t1\nnull\t2\n\t3\n", ["NA", "null", ""]),
        ("a\u2028b\u2029c\x0bd\x0ce\x85f\t1\ng\t2\n", ["a\u2028b\u2029c\x0bd\x0ce\x85f", "g"]),
        ("windows\t1\r\nfile\t2\r\n", ["windows", "file"]),
        ("a\rb\t1\n", ["a\rb"]),
        ("no newline at the end\t1", ["no newline at the end"]),
        ("\ufeffmark\t1\n", ["mark"]),
        ("{{ x }} {% if %} 🙂\t1\n", ["{{ x }} {% if %} 🙂"]),
    ],
)
def test_text_is_taken_verbatim(tmp_path, content, texts):
    rows = read_pairs(write(tmp_path / "x.tsv", content))
    assert [row["text"] for row in rows] == texts
    assert [row["key"] for row in rows] == [str(i + 1) for i in range(len(texts))]


@given(st.lists(st.text(st.characters(exclude_characters="\t\n", exclude_categories=["Cs"]))))
def test_any_text_survives(tmp_path_factory, texts):
    content = "".join(f"{text}\tkey\n" for text in texts)
    path = write(tmp_path_factory.mktemp("any") / "x.tsv", content)
    marked = bool(texts) and texts[0].startswith("\ufeff")  # taken for a byte-order mark
    expected = [texts[0][1:], *texts[1:]] if marked else texts
    assert [row["text"] for row in read_pairs(path)] == expected


@pytest.mark.parametrize(
    ("content", "line"),
    [("a\t1\nb\n", 2), ("a\t1\nb\t2\t3\nc\t3\n", 2), ("\na\t1\n", 1), ("a\t1\n\n\nb\t2\n", 2)],
)
def test_broken_row_names_file_line_and_expectation(tmp_path, content, line):
    path = write(tmp_path / "x.tsv", content)
    with pytest.raises(BrokenData) as caught:
        read_pairs(path)
    assert str(caught.value).startswith(f"{path}, line {line}: expected 2 tab-separated fields")
    assert "(text, key)" in str(caught.value)


def test_long_broken_row_is_shortened(tmp_path):
    path = write(tmp_path / "x.tsv", "x" * 10_000)
    with pytest.raises(BrokenData) as caught:
        read_pairs(path)
    assert len(str(caught.value)) < 400


def test_bytes_that_are_not_utf8(tmp_path):
    path = write(tmp_path / "x.tsv", b"fine\t1\nnot \xff fine\t2\n")
    with pytest.raises(BrokenData, match=r"x\.tsv, line 2: expected UTF-8 text, found b'\\xff'"):
        read_pairs(path)


def test_empty_file(spec, tmp_path, monkeypatch):
    write(tmp_path / "toy" / "test.tsv", "")
    monkeypatch.setenv("SEMSOFT_DATA_DIR", str(tmp_path))
    with pytest.raises(BrokenData, match="holds no rows"):
        data.load_rows(spec, "test")


def test_choices_are_explained():
    assert data.check_choice("split", "test", ("test", "train")) == "test"
    with pytest.raises(ValueError, match=r"^split=\['x'\] is not known: use one of test, train"):
        data.check_choice("split", ["x"], ("test", "train"))
    with pytest.raises(ValueError, match=r"did you mean 'test'\?"):
        data.check_choice("split", " TEST", ("test", "train"))
