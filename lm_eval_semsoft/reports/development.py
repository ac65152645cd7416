"""Which documents may serve to fit temperatures: others of the same task, model and label set."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from lm_eval_semsoft.core.errors import listed

from .readings import Readings, take


def match_dev(readings: Sequence[Readings], dev: Sequence[Readings]) -> list[Readings | None]:
    """Which development documents belong to which directory.

    In their order if there are as many and the models agree, else by model.

    Raises:
        ValueError: development documents of a model that is not compared, or of one that is
            compared more than once without as many `dev` as `readings`.
    """
    models = [r.source.manifest["fingerprint"] for r in readings]
    dev_models = [d.source.manifest["fingerprint"] for d in dev]
    if models == dev_models:
        return list(dev)
    out: list[Readings | None] = [None] * len(readings)
    for own, model in zip(dev, dev_models, strict=True):
        places = [i for i, other in enumerate(models) if other == model]
        if not places:
            raise ValueError(
                f"{own.source.folder} holds readouts of another model, precision or K "
                f"({own.source.model}) than {listed([str(r.source.folder) for r in readings])}: a "
                "temperature must be fitted on the same model."
            )
        if len(places) > 1 or out[places[0]] is not None:
            raise ValueError(
                f"{own.source.folder} could belong to several directories, or several to one: give "
                "one --dev per directory, in the order of the directories."
            )
        out[places[0]] = own
    return out


# Fields of a document that are not what the model reads.
_NOT_TEXT = {"id", "source", "label", "labels", "answer", "answerKey", "target", "gold"}


def usable_dev(readings: Readings, dev: Readings) -> tuple[Readings, int]:
    """The development documents whose text is not evaluated, and how many were left out.

    Raises:
        ValueError: another model, task or label set; a document that is evaluated; none is left.
    """
    here, there = readings.source.folder, dev.source.folder
    if dev.source.manifest["fingerprint"] != readings.source.manifest["fingerprint"]:
        raise ValueError(
            f"{there} holds readouts of another model, precision or K ({dev.source.model}) than "
            f"{here} ({readings.source.model}): a temperature must be fitted on the same model."
        )
    if dev.task != readings.task:
        raise ValueError(
            f"{there} holds task {dev.task}, {here} holds {readings.task}: a temperature must be "
            "fitted on the same task."
        )
    if (dev.labels, dev.label_set) != (readings.labels, readings.label_set):
        raise ValueError(
            f"The documents in {there} do not have the labels of those in {here}: a temperature "
            "must be fitted on the same label set."
        )
    texts, dev_texts = texts_of(readings), texts_of(dev)
    evaluated = set(zip(readings.keys, texts, strict=True))
    both = [k for k, text in zip(dev.keys, dev_texts, strict=True) if (k, text) in evaluated]
    if both:
        raise ValueError(
            f"{len(both)} of the {dev.n} development documents in {there} are evaluated in {here} "
            f"(such as {both[0]!r}): a temperature that was fitted on evaluated documents proves "
            "nothing; use another split."
        )
    known = {*texts, *readings.prompts}
    fresh = [
        i
        for i, (text, prompt) in enumerate(zip(dev_texts, _prompts(dev), strict=True))
        if text not in known and prompt not in known
    ]
    if not fresh:
        raise ValueError(
            f"The text of every development document in {there} is evaluated in {here}."
        )
    # The same model has the same output embeddings: there is no need to read them twice.
    return replace(take(dev, fresh), source=readings.source), dev.n - len(fresh)


def texts_of(readings: Readings) -> list[str]:
    """What each document's fields say, without its key, its labels and where it is from."""
    prompts = _prompts(readings)
    return [_text(doc) or prompt for doc, prompt in zip(readings.docs, prompts, strict=True)]


def identities(readings: Readings) -> list[tuple[str, str]]:
    """Key and text of each document: together they say which one it is."""
    return list(zip(readings.keys, texts_of(readings), strict=True))


def _text(doc: object) -> str:
    """All text in a document as one string, "" if there is none."""
    if not isinstance(doc, dict):
        return json.dumps(doc)
    own = {k: _stripped(v) for k, v in doc.items() if k not in _NOT_TEXT and _has_text(v)}
    return json.dumps(own, sort_keys=True) if own else ""


def _has_text(value: object) -> bool:
    if isinstance(value, (list, dict)):
        return any(map(_has_text, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str)


def _stripped(value: object) -> object:
    if isinstance(value, list):
        return [_stripped(item) for item in value]
    return value.strip() if isinstance(value, str) else value


def _prompts(readings: Readings) -> Sequence[str]:
    return readings.prompts or [""] * readings.n
