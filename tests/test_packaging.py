"""Wheel, sdist and editable install, each in an environment of its own, without network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from ast import literal_eval
from pathlib import Path

import pytest

from lm_eval_semsoft import __version__

pytest.importorskip("hatchling", reason="needs the build backend: pip install -e '.[dev]'")

CHECKOUT = Path(__file__).resolve().parents[1]
START_UP_FILE = "lm_eval_semsoft_autoload.pth"
ENV = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
YAMLS = sorted(
    str(path.relative_to(CHECKOUT)) for path in (CHECKOUT / "task_configs").rglob("*.yaml")
)

# Prints what `lm_eval` knows in an environment; its 14,000 built-in tasks are left out.
PROBE = """
import lm_eval.models, lm_eval_semsoft
from lm_eval.api.registry import model_registry
from lm_eval.tasks import manager
from lm_eval_semsoft.plugin import task_path
searched = []
manager.TaskIndex.build = lambda self, paths: searched.extend(map(str, paths)) or {}
manager.TaskManager()
print({
    "models": [name for name in ("hf", "semsoft-hf") if name in model_registry],
    "searched": searched[1:],
    "task_path": str(task_path()),
    "yamls": sorted(str(path.relative_to(task_path())) for path in task_path().rglob("*.yaml")),
    "package": lm_eval_semsoft.__path__[0],
    "entry_point": list(__import__("lm_eval_semsoft.task_configs").task_configs.__path__),
})
"""


def build(function: str, source: Path, target: Path) -> Path:
    """Call one hook of the build backend, as pip does, in an interpreter of its own."""
    target.mkdir(parents=True, exist_ok=True)
    code = f"import hatchling.build as b; print(b.{function}({str(target)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=source, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return target / done.stdout.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build("build_wheel", CHECKOUT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    return build("build_sdist", CHECKOUT, tmp_path_factory.mktemp("sdist"))


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_wheel_has_tasks_data_and_start_up_file(wheel):
    names = set(contents(wheel))
    assert {f"lm_eval_semsoft/{path}" for path in YAMLS} <= names
    assert START_UP_FILE in names
    assert "lm_eval_semsoft/py.typed" in names
    for folder in ("tasks/embedded", "reports/templates"):
        files = [p for p in (CHECKOUT / "lm_eval_semsoft" / folder).rglob("*") if p.is_file()]
        assert files
        assert {str(path.relative_to(CHECKOUT)) for path in files} <= names
    top = {name.split("/")[0] for name in names}
    ours = {"lm_eval_semsoft", "csr_trainer", f"lm_eval_semsoft-{__version__}.dist-info"}
    assert top - {START_UP_FILE} == ours


def test_sdist_builds_the_same_wheel(wheel, sdist, tmp_path):
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    assert contents(build("build_wheel", unpacked, tmp_path / "built")) == contents(wheel)


@pytest.fixture
def environment(tmp_path):
    """A virtual environment that sees the harness and nothing of ours, without copying torch."""
    venv.create(tmp_path / "venv", symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    site_packages = next((tmp_path / "venv").rglob("site-packages"))
    # A path line does not run the start-up files of the folder that it names. The link leaves out
    # what an installation of ours in the outer environment would add.
    borrowed = tmp_path / "borrowed"
    borrowed.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "lm_eval_semsoft" not in entry.name and entry.suffix != ".pth":
            (borrowed / entry.name).symlink_to(entry)
    (site_packages / "zz_borrowed.pth").write_text(f"{borrowed}\n")
    return python, site_packages


def pip(python: Path, *arguments: str | Path) -> None:
    pytest.importorskip("pip")
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, "--quiet", *arguments],
        check=True,
        timeout=120,
    )


def install(python: Path, wheel: Path) -> None:
    pip(python, "install", "--no-index", "--no-deps", "--no-warn-script-location", wheel)


def probe(python: Path, cwd: Path) -> dict[str, list[str]]:
    done = subprocess.run(
        [python, "-c", PROBE], capture_output=True, text=True, timeout=120, cwd=cwd, env=ENV
    )
    assert done.returncode == 0, done.stderr
    return literal_eval(done.stdout.strip().splitlines()[-1])


def without_package(python: Path, package: Path, tmp_path: Path) -> None:
    """The start-up file survives the loss of the package."""
    package.rename(tmp_path / "lost")
    code = "import lm_eval.models; print('fine')"
    done = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, timeout=120, cwd=tmp_path, env=ENV
    )
    assert (done.stdout, done.stderr) == ("fine\n", "")
    (tmp_path / "lost").rename(package)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wheel", "editable"])  # an sdist builds the same wheel, see above
def test_installed(kind, environment, request, tmp_path):
    python, site_packages = environment
    if kind == "editable":
        checkout = tmp_path / "checkout"  # a copy: an install leaves nothing in the real one
        ignored = shutil.ignore_patterns(".git", "*venv*", "__pycache__", ".*_cache")
        shutil.copytree(CHECKOUT, checkout, symlinks=True, ignore=ignored)
        install(python, build("build_editable", checkout, tmp_path / "built"))
        package, tasks = checkout / "lm_eval_semsoft", checkout / "task_configs"
    else:
        install(python, request.getfixturevalue("wheel"))
        package = site_packages / "lm_eval_semsoft"
        tasks = package / "task_configs"

    found = probe(python, tmp_path)
    assert found["models"] == ["hf", "semsoft-hf"]
    assert found["package"] == str(package)
    assert found["searched"] == [str(tasks.resolve())]
    assert found["task_path"] == str(tasks.resolve())
    assert [f"task_configs/{path}" for path in found["yamls"]] == YAMLS
    assert [Path(path).resolve() for path in found["entry_point"]] == [tasks.resolve()]
    assert (python.parent / "semsoft").is_file()
    if kind == "wheel":
        without_package(python, package, tmp_path)

    pip(python, "uninstall", "--yes", "lm-eval-semsoft")
    assert not [path for path in site_packages.iterdir() if "lm_eval_semsoft" in path.name]
