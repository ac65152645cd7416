"""How `lm_eval` finds this package.

Harnesses newer than 0.4.13 read the entry points in pyproject.toml and need nothing from here.
0.4.13 looks for no plugins. So the start-up file `lm_eval_semsoft_autoload.pth` waits for
`import lm_eval` and then calls `autoload`, which watches for two modules of the harness:

* after `lm_eval.models` our models are registered beside the built-in ones. Registering earlier
  would make the built-in ones vanish: the harness imports them only while its registry is empty;
* after `lm_eval.tasks.manager` every `TaskManager` searches our task folder, after the harness's
  own and before the user's, so that a user's task of the same name wins.

`LM_EVAL_SEMSOFT_AUTOLOAD=0` turns it off. `semsoft run …` calls `arm` itself and needs no start-up
file. (Python 3.18 will ignore code in `.pth` files, PEP 829; the entry points remain.)
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import sys
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

SWITCH = "LM_EVAL_SEMSOFT_AUTOLOAD"

# The same pairs as the entry points of group `lm_eval.models` in pyproject.toml (a test compares).
# Strings, not classes: the harness imports the module when a run asks for the model.
MODELS = {
    "semsoft-hf": "lm_eval_semsoft.models.semsoft_hf:SemsoftHF",
    "semsoft-csr": "lm_eval_semsoft.models.semsoft_csr:SemsoftCSR",
}

# What became of each of the two steps in this process: for `semsoft doctor` and for tests.
report: dict[str, str] = {}

logger = logging.getLogger(__name__)


def autoload() -> None:
    """Arm the plugin unless the user turned it off: all that the start-up file calls."""
    if os.environ.get(SWITCH, "1").strip().lower() not in {"0", "false", "no", "off"}:
        arm()


def arm() -> None:
    """Watch for the harness's two modules; extend at once what is imported already."""
    if is_armed():
        return
    sys.meta_path.insert(0, _Watcher())
    for name, extend in _EXTENSIONS.items():
        module = sys.modules.get(name)
        # A module in the middle of its own import has no registry and no TaskManager yet.
        if module is not None and not getattr(module.__spec__, "_initializing", False):
            _extend(module, extend)


def is_armed() -> bool:
    """Whether this interpreter extends the harness when it imports it."""
    return any(isinstance(finder, _Watcher) for finder in sys.meta_path)


def task_path() -> Path:
    """The folder of our task YAMLs.

    It is inside the package in a wheel and, through a link, in a source checkout; beside the
    package in a checkout on a system without links.

    Raises:
        FileNotFoundError: this installation has no task folder.
    """
    package = Path(__file__).resolve().parent
    for folder in (package / "task_configs", package.parent / "task_configs"):
        if folder.is_dir():
            return folder.resolve()
    raise FileNotFoundError(
        f"the task folder of lm-eval-semsoft is missing (expected {package / 'task_configs'}): "
        "install the package again"
    )


class _Watcher:
    """Meta-path finder that finds nothing itself: it adds our step to two modules' loading."""

    def __init__(self) -> None:
        self._searching: set[tuple[str, int]] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # Another finder may ask all finders too, this one included: answer each question once.
        question = (name, get_ident())
        if name not in _EXTENSIONS or question in self._searching:
            return None
        self._searching.add(question)
        try:
            spec = self._ask_the_others(name, path, target)
        finally:
            self._searching.discard(question)
        if spec is not None:
            _extend_after_loading(spec, _EXTENSIONS[name])
        return spec

    def _ask_the_others(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    return spec
        return None


def _extend_after_loading(spec: ModuleSpec, extend: Callable[[ModuleType], str]) -> None:
    """Let the spec's own loader do its work, then ours."""
    load = getattr(spec.loader, "exec_module", None)
    if load is None:
        return

    def exec_module(module: ModuleType) -> None:
        load(module)
        # A loader may serve several modules (a zip archive's does); ours is only this one.
        if module.__name__ == spec.name:
            _extend(module, extend)

    spec.loader.exec_module = exec_module  # type: ignore[union-attr, method-assign]


def _extend(module: ModuleType, extend: Callable[[ModuleType], str]) -> None:
    """Take one step. Whatever goes wrong in it, the harness must work as if we were not there."""
    try:
        report[module.__name__] = extend(module)
    except Exception as problem:
        report[module.__name__] = f"failed: {problem!r}"
        logger.warning(
            "lm-eval-semsoft could not extend %s (%r), so semsoft-hf or its tasks may be missing; "
            "`semsoft doctor` tells more, %s=0 turns the attempt off",
            module.__name__,
            problem,
            SWITCH,
        )


def _register_models(models: ModuleType) -> str:
    """Put our names into the harness's model registry, the way it does with its own."""
    from lm_eval.api import registry

    if hasattr(registry, "load_plugins"):
        return "left to the harness, which reads entry points"
    for name, target in MODELS.items():
        if name not in registry.model_registry:
            registry.model_registry.register(name, target=target)
    return "registered " + ", ".join(MODELS)


def _extend_task_manager(manager: ModuleType) -> str:
    """Make every `TaskManager` that takes the default tasks search our folder too."""
    if hasattr(manager, "discover_plugin_task_paths"):
        return "left to the harness, which reads entry points"
    ours = task_path()
    if not hasattr(manager.TaskManager.__init__, "_semsoft"):
        manager.TaskManager.__init__ = _with_our_tasks(manager.TaskManager.__init__, ours)
    return f"searches {ours}"


def _with_our_tasks(original: Callable[..., None], ours: Path) -> Callable[..., None]:
    """Wrap `TaskManager.__init__` so that the search path of default tasks includes `ours`."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            call = signature.bind(self, *args, **kwargs)
        except TypeError:  # a wrong call: the harness's own error is the right one
            return original(self, *args, **kwargs)
        if not call.arguments.get("include_defaults", True):
            return original(self, *args, **kwargs)
        theirs = call.arguments.get("include_path")
        call.arguments["include_path"] = _search_path(ours, theirs)
        original(*call.args, **call.kwargs)
        if hasattr(self, "include_path"):
            self.include_path = theirs  # as the caller gave it, so that nobody sees us here

    __init__._semsoft = True  # type: ignore[attr-defined]
    return __init__


def _search_path(
    ours: Path, theirs: str | Path | list[str | Path] | tuple[str | Path, ...] | None
) -> list[str | Path]:
    """Our folder, then the user's: later ones win. Ours is left out if one of theirs holds it."""
    if not theirs:
        return [ours]
    paths = list(theirs) if isinstance(theirs, (list, tuple)) else [theirs]
    if any(ours.is_relative_to(Path(path).resolve()) for path in paths):
        return paths
    return [ours, *paths]


_EXTENSIONS = {
    "lm_eval.models": _register_models,
    "lm_eval.tasks.manager": _extend_task_manager,
}
