"""The hook that lets a stock `lm_eval` find us: fake harnesses for each rule, then the real one."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from ast import literal_eval
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace

import pytest

from lm_eval_semsoft import plugin

PACKAGE_PARENT = str(Path(plugin.__file__).resolve().parents[1])
START_UP_FILE = Path(PACKAGE_PARENT) / "startup" / "lm_eval_semsoft_autoload.pth"

REGISTRY = """
class Registry(dict):
    def register(self, name, target):
        self[name] = target
model_registry = Registry()
"""
MODELS = """
from lm_eval.api.registry import model_registry
model_registry.register("hf", "lm_eval.models.huggingface:HFLM")
"""
MANAGER = """
class TaskManager:
    def __init__(self, verbosity=None, include_path=None, include_defaults=True, metadata=None):
        given = include_path if isinstance(include_path, (list, tuple)) else [include_path]
        self.include_path = include_path
        self.searched = ["defaults"] * include_defaults + [str(p) for p in given if p]
"""


def write_harness(folder: Path, registry: str = "", manager: str = "") -> Path:
    """A package `lm_eval` with the modules, names and import order that the hook relies on."""
    files = {
        "__init__.py": "",
        "api/__init__.py": "",
        "api/registry.py": REGISTRY + registry,
        "models/__init__.py": MODELS,
        "tasks/__init__.py": "from lm_eval.tasks.manager import TaskManager",
        "tasks/manager.py": MANAGER + manager,
    }
    for name, text in files.items():
        path = folder / "lm_eval" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def python(code: str, *path: str | Path, flags: tuple[str, ...] = ("-S",), **env: str) -> str:
    """Run code in a new interpreter (without site-packages by default); return what it printed."""
    done = subprocess.run(
        [sys.executable, *flags, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), **env},
        capture_output=True,
        text=True,
        timeout=120,
        cwd="/",  # `-c` searches the working folder first: not ours
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()


def start_up_line() -> str:
    """The one line of the start-up file that is code."""
    lines = START_UP_FILE.read_text(encoding="ascii").splitlines()
    (code,) = [line for line in lines if not line.startswith("#")]
    assert code.startswith("import ")  # else site.py would take it for a folder
    return code


SHOW_MODELS = (
    "import lm_eval.models; from lm_eval.api.registry import model_registry as r; print(dict(r))"
)
SHOW_TASKS = "from lm_eval.tasks import TaskManager; print(TaskManager().searched)"
ARM = "from lm_eval_semsoft.plugin import arm; arm();"


# ------------------------------------------------------------------ models


def test_registers_a_placeholder_beside_the_built_in_models(tmp_path):
    out = python(ARM + SHOW_MODELS, write_harness(tmp_path), PACKAGE_PARENT)
    assert literal_eval(out) == {"hf": "lm_eval.models.huggingface:HFLM", **plugin.MODELS}


def test_registers_nothing_before_the_harness_imports_its_models(tmp_path):
    code = ARM + "from lm_eval.api.registry import model_registry as r; print(dict(r))"
    assert python(code, write_harness(tmp_path), PACKAGE_PARENT) == "{}"


def test_leaves_models_to_a_harness_that_loads_plugins(tmp_path):
    harness = write_harness(tmp_path, registry="def load_plugins(): pass")
    out = python(ARM + SHOW_MODELS, harness, PACKAGE_PARENT)
    assert literal_eval(out) == {"hf": "lm_eval.models.huggingface:HFLM"}


def test_extends_modules_that_were_imported_before(tmp_path):
    code = f"import lm_eval.models, lm_eval.tasks; {ARM} {SHOW_MODELS}; {SHOW_TASKS}"
    out = python(code, write_harness(tmp_path), PACKAGE_PARENT)
    assert "semsoft-hf" in out
    assert "task_configs" in out


def test_arming_twice_is_arming_once(tmp_path):
    code = (
        ARM + ARM + "import sys; print(sum(type(f).__name__ == '_Watcher' for f in sys.meta_path))"
    )
    assert python(code, write_harness(tmp_path), PACKAGE_PARENT) == "1"


def test_models_are_the_entry_points():
    installed = {point.name: point.value for point in entry_points(group="lm_eval.models")}
    assert {name: installed.get(name) for name in plugin.MODELS} == plugin.MODELS


# ------------------------------------------------------------------ tasks


def test_searches_our_tasks_after_the_defaults(tmp_path):
    out = python(ARM + SHOW_TASKS, write_harness(tmp_path), PACKAGE_PARENT)
    assert literal_eval(out) == ["defaults", str(plugin.task_path())]


def test_leaves_tasks_to_a_harness_that_discovers_them(tmp_path):
    harness = write_harness(tmp_path, manager="def discover_plugin_task_paths(): return []")
    assert literal_eval(python(ARM + SHOW_TASKS, harness, PACKAGE_PARENT)) == ["defaults"]


def test_entry_point_of_tasks_is_our_folder():
    (point,) = [p for p in entry_points(group="lm_eval.tasks") if p.name == "semsoft"]
    spec = importlib.util.find_spec(point.value)  # how a newer harness turns it into a folder
    assert spec is not None
    assert spec.submodule_search_locations is not None
    assert [Path(place).resolve() for place in spec.submodule_search_locations] == [
        plugin.task_path()
    ]


@pytest.fixture
def task_manager():
    """A fresh fake `TaskManager` that the hook has extended."""
    namespace: dict[str, type] = {}
    exec(MANAGER, namespace)
    manager = SimpleNamespace(TaskManager=namespace["TaskManager"])
    plugin._extend_task_manager(manager)
    return manager.TaskManager


OURS = str(plugin.task_path())


@pytest.mark.parametrize(
    ("include_path", "searched"),
    [
        (None, [OURS]),
        ("", [OURS]),
        ([], [OURS]),
        ("/their/tasks", [OURS, "/their/tasks"]),
        (Path("/their/tasks"), [OURS, "/their/tasks"]),
        (["/one", Path("/two")], [OURS, "/one", "/two"]),
        (("/one", "/two"), [OURS, "/one", "/two"]),
        (OURS, [OURS]),
        (["/one", OURS + "/"], ["/one", OURS + "/"]),
        (str(Path(OURS).parent), [str(Path(OURS).parent)]),  # holds ours: not twice
    ],
)
def test_user_folders_come_last_so_that_they_win(task_manager, include_path, searched):
    made = task_manager(include_path=include_path)
    assert made.searched == ["defaults", *searched]
    assert made.include_path == include_path  # what the caller gave, not what we made of it


def test_positional_arguments_mean_what_they_meant(task_manager):
    assert task_manager(None, "/their/tasks").searched == ["defaults", OURS, "/their/tasks"]
    assert task_manager(None, "/their/tasks", False).searched == ["/their/tasks"]


def test_without_defaults_we_are_no_default(task_manager):
    assert task_manager(include_defaults=False).searched == []


def test_a_wrong_call_fails_as_without_us(task_manager):
    with pytest.raises(TypeError, match="no_such_argument"):
        task_manager(no_such_argument=1)


def test_extending_twice_searches_once(task_manager):
    plugin._extend_task_manager(SimpleNamespace(TaskManager=task_manager))
    assert task_manager().searched == ["defaults", OURS]


def test_reloading_the_manager_extends_it_again(tmp_path):
    code = ARM + "import importlib, lm_eval.tasks.manager as m; importlib.reload(m);"
    out = python(code + "print(m.TaskManager().searched)", write_harness(tmp_path), PACKAGE_PARENT)
    assert literal_eval(out) == ["defaults", OURS]


# ------------------------------------------------------------------ never in the way


def test_a_harness_we_do_not_understand_works_as_without_us(tmp_path):
    harness = write_harness(tmp_path, registry="del model_registry.__class__.register")
    (harness / "lm_eval" / "models" / "__init__.py").write_text("")
    code = (
        "import logging; logging.disable(); "
        + ARM
        + "import lm_eval.models; from lm_eval_semsoft.plugin import report; print(report)"
    )
    assert "failed: AttributeError" in python(code, harness, PACKAGE_PARENT)


def test_a_failure_is_said_once_and_names_the_switch(caplog):
    plugin._extend(SimpleNamespace(__name__="lm_eval.models"), lambda module: 1 / 0)
    (record,) = caplog.records
    assert "ZeroDivisionError" in record.getMessage()
    assert plugin.SWITCH in record.getMessage()


def test_another_finder_that_asks_every_finder_does_not_loop(tmp_path):
    code = """
import sys
class Nosy:
    busy = False
    def find_spec(self, name, path=None, target=None):
        if Nosy.busy: return None
        for finder in list(sys.meta_path):
            if finder is not self:
                spec = finder.find_spec(name, path, target)
                if spec is not None: return spec
sys.meta_path.insert(0, Nosy())
"""
    out = python(
        code + ARM.rstrip(";") + "\n" + SHOW_MODELS, write_harness(tmp_path), PACKAGE_PARENT
    )
    assert "semsoft-hf" in out


def test_a_harness_inside_a_zip_archive(tmp_path):
    write_harness(tmp_path / "plain")
    archive = shutil.make_archive(str(tmp_path / "harness"), "zip", tmp_path / "plain")
    out = python(ARM + SHOW_MODELS + ";" + SHOW_TASKS, archive, PACKAGE_PARENT)
    models, tasks = out.splitlines()
    assert "semsoft-hf" in literal_eval(models)
    assert literal_eval(tasks) == ["defaults", OURS]


def test_without_lm_eval_nothing_happens(tmp_path):
    code = ARM + "import importlib.util as u; print(u.find_spec('lm_eval'))"
    assert python(code, PACKAGE_PARENT) == "None"


# ------------------------------------------------------------------ the start-up file


def test_start_up_file_arms_when_lm_eval_is_imported(tmp_path):
    code = start_up_line() + "\nprint('lm_eval_semsoft' in sys.modules)\n" + SHOW_MODELS
    before, models = python(code, write_harness(tmp_path), PACKAGE_PARENT).splitlines()
    assert before == "False"  # costs nothing until then
    assert "semsoft-hf" in literal_eval(models)


@pytest.mark.parametrize("value", ["0", "false", "OFF", " no "])
def test_the_switch_turns_it_off(tmp_path, value):
    code = start_up_line() + "\n" + SHOW_MODELS + "\n" + SHOW_TASKS
    harness = write_harness(tmp_path)
    models, tasks = python(code, harness, PACKAGE_PARENT, **{plugin.SWITCH: value}).splitlines()
    assert "semsoft-hf" not in literal_eval(models)
    assert literal_eval(tasks) == ["defaults"]


def test_start_up_file_left_behind_by_a_deleted_package(tmp_path):
    out = python(start_up_line() + "\n" + SHOW_MODELS, write_harness(tmp_path))
    assert "semsoft-hf" not in literal_eval(out)


def test_start_up_file_with_a_broken_package(tmp_path):
    write_harness(tmp_path)
    (tmp_path / "lm_eval_semsoft").mkdir()
    (tmp_path / "lm_eval_semsoft" / "__init__.py").write_text("this is no Python")
    assert "semsoft-hf" not in literal_eval(python(start_up_line() + "\n" + SHOW_MODELS, tmp_path))


def test_spawned_processes_know_our_models(tmp_path):
    (tmp_path / "work.py").write_text(
        start_up_line()
        + """
import multiprocessing
def names(_):
    import lm_eval.models
    from lm_eval.api.registry import model_registry
    return sorted(model_registry)
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(names, [0]))
"""
    )
    harness = write_harness(tmp_path)
    code = f"import runpy; runpy.run_path({str(tmp_path / 'work.py')!r}, run_name='__main__')"
    assert "semsoft-hf" in python(code, harness, PACKAGE_PARENT)


# ------------------------------------------------------------------ the real harness


def test_real_registry_keeps_its_models_and_gains_ours():
    """With the installed start-up file, or with `arm` where there is none (PYTHONPATH)."""
    installed = (Path(sysconfig.get_path("purelib")) / START_UP_FILE.name).is_file()
    code = ("" if installed else ARM) + (
        "import lm_eval.models; from lm_eval.api.registry import model_registry as r;"
        "print('hf' in r, 'vllm' in r, 'dummy' in r, 'semsoft-hf' in r)"
    )
    assert python(code, PACKAGE_PARENT, flags=()) == "True True True True"


@pytest.fixture
def real_manager(monkeypatch):
    """The harness's own `TaskManager`, extended, with its 14,000 built-in tasks out of the way."""
    manager = pytest.importorskip("lm_eval.tasks.manager")
    monkeypatch.setattr(
        manager.TaskManager,
        "__init__",
        plugin._with_our_tasks(
            getattr(manager.TaskManager.__init__, "__wrapped__", manager.TaskManager.__init__),
            plugin.task_path(),
        ),
    )
    everything = manager.TaskIndex.build
    builtin = Path(manager.__file__).parent
    monkeypatch.setattr(
        manager.TaskIndex,
        "build",
        lambda self, paths: everything([path for path in paths if path != builtin]),
    )
    return manager.TaskManager


def test_real_manager_finds_our_tasks(real_manager):
    ours = real_manager().all_tasks
    assert "goemotions_zs" in ours
    assert real_manager(include_defaults=False).all_tasks == []


def test_real_manager_prefers_the_user_s_task(real_manager, tmp_path):
    theirs = tmp_path / "mine.yaml"
    theirs.write_text("task: goemotions_zs\ndataset_path: json\noutput_type: multiple_choice\n")
    index = real_manager(include_path=str(tmp_path)).task_index
    assert index["goemotions_zs"].yaml_path == theirs


@pytest.mark.slow
def test_stock_command_finds_our_task():
    """The one test that lets the harness index all its tasks (8 s and more); the folder of ours
    that the user names himself is not searched twice."""
    arguments = ["validate", "--tasks", "goemotions_zs,arc_easy", "--include_path", OURS]
    stock = [sys.executable, "-m", "lm_eval", *arguments]
    done = subprocess.run(stock, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "All tasks found and valid" in done.stdout
