"""`manifest.json` of a readouts directory: whose readouts these are."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .parts import ForeignReadouts, atomically, first_line

FORMAT = 1  # of everything in the directory; another number is another program's
MANIFEST = "manifest.json"


@dataclass
class Manifest:
    """What a directory's readouts depend on, and what later questions need.

    Attributes:
        fingerprint: of weights, precision and K: readouts of another one are never served.
        about: name of the model and its tokenizer, K, layers, versions, the run's scoring; for
            people and as defaults of later commands.
        label_sets: name -> {labels, spelled, variants} (`core.semantic_softmax.LabelSet`).
        tasks: task -> {why_identity}: why neighbours do not vote there, or None.
    """

    fingerprint: str
    about: dict[str, Any] = field(default_factory=dict)
    label_sets: dict[str, dict[str, Any]] = field(default_factory=dict)
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """
        Raises:
            FileNotFoundError: there is none.
            ForeignReadouts: it cannot be read, or is not one of ours.
        """
        path = folder / MANIFEST
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if record.pop("format") != FORMAT:
                raise ValueError(f"it is not of format {FORMAT}")
            return cls(**record)._checked()
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(
                f"{folder} holds no readouts ({MANIFEST} is missing): run the evaluation with "
                f"--model_args …,readouts={folder} first."
            ) from None
        except OSError as error:
            raise ForeignReadouts(f"{path} cannot be read ({first_line(error)}).") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ForeignReadouts(
                f"{path} is damaged or was not written by this version of semsoft "
                f"({first_line(error)}): use another directory, or, if the readouts here are "
                "your own, delete this file and run the evaluation on them again (readouts of "
                "other models are told apart by their own fingerprints)."
            ) from error

    def _checked(self) -> Manifest:
        kinds = {"fingerprint": str, "about": dict, "label_sets": dict, "tasks": dict}
        for name, kind in kinds.items():
            if not isinstance(getattr(self, name), kind):
                raise ValueError(f"its {name!r} is not of the right kind")
        return self

    def write(self, folder: Path) -> None:
        record = {"format": FORMAT, **vars(self)}
        try:
            data = json.dumps(record, indent=1, ensure_ascii=False).encode()
        except UnicodeEncodeError:  # half a surrogate pair, from a path or a label
            data = json.dumps(record, indent=1).encode()
        atomically(folder / MANIFEST, lambda path: path.write_bytes(data))


def folder_of(given: object) -> Path:
    """The directory that `readouts=` names; it need not exist yet.

    Raises:
        ValueError: it names none, or something else is there.
        ForeignReadouts: what is there was not written by this program.
    """
    text = str(given).strip()
    if isinstance(given, bool) or not text:
        raise ValueError(f"readouts={given!r}: name a directory, such as readouts=readouts/gemma.")
    try:
        folder = Path(text).expanduser()
    except RuntimeError as error:  # "~nobody"
        raise ValueError(f"readouts={given}: {error}") from error
    for path in (folder, *folder.parents):
        if os.path.lexists(path):
            if not path.is_dir():
                raise ValueError(f"readouts={given}: {path} is there and is not a directory.")
            break
    if (folder / MANIFEST).exists():
        Manifest.read(folder)
    return folder
