"""`--model semsoft-csr --model_args checkpoint=DIR`: a model that `csr_trainer` has trained.

Everything of `semsoft-hf` works on it. An adapter is merged into the base model's weights, so that
fingerprints, readouts, caches and the output embeddings of Semantic Softmax are the trained
model's.

How a question was put in training is part of the checkpoint. The harness passes `checkpoint=` on to
its tasks, and those of open questions (`tasks.sampled`) put their questions in that way without
another argument: chat template, system message, solved examples. Other tasks know nothing of it;
for them this class says so where their prompts come without the template (`--apply_chat_template`).
"""

from __future__ import annotations

import logging
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.models.utils_hf import get_dtype

from lm_eval_semsoft.engine.checkpoint import Checkpoint, CheckpointError, read
from lm_eval_semsoft.engine.fingerprint import model_fingerprint

from .semsoft_hf import SemsoftHF

logger = logging.getLogger(__name__)

_OTHER_WEIGHTS = ("peft", "delta", "autogptq", "gptqmodel", "gguf_file", "subfolder")
_QUANTISED = ("load_in_4bit", "load_in_8bit", "quantization_config")
_PROBE = "?"  # a message that no template changes


class SemsoftCSR(SemsoftHF):
    """A checkpoint of `csr_trainer`.

    Args:
        checkpoint: its folder, the one with `csr_config.json`.
        pretrained: where the base model of an adapter lies, if no longer where the checkpoint says;
            its weights must be the same.
        **kwargs: all else that `semsoft-hf` takes.

    Raises:
        ValueError: an argument that does not go with a checkpoint; as CheckpointError: no
            checkpoint, a damaged one, or another base model than the one that was trained.
    """

    _model: Any

    def __init__(
        self, checkpoint: str | None = None, pretrained: Any = None, **kwargs: Any
    ) -> None:
        if not checkpoint:
            raise ValueError(
                "semsoft-csr needs checkpoint=<folder>, one that csr_trainer wrote; a model that "
                "was not trained is for --model semsoft-hf."
            )
        self.checkpoint = read(str(checkpoint))
        self.folder = Path(checkpoint).expanduser()
        self._check_arguments(pretrained, kwargs)
        self._warned: set[str | None] = set()
        kwargs.setdefault("tokenizer", str(self.folder))
        if self.checkpoint.kind == "full":
            super().__init__(str(self.folder), **kwargs)
            return
        base = self.checkpoint.base
        if pretrained is None and base.revision is not None:
            kwargs.setdefault("revision", base.revision)
        super().__init__(pretrained or base.model, **kwargs)

    def _check_arguments(self, pretrained: Any, kwargs: dict[str, Any]) -> None:
        if given := [name for name in _OTHER_WEIGHTS if kwargs.get(name)]:
            raise ValueError(
                f"{given[0]}={kwargs[given[0]]!r} does not go with checkpoint=, which says itself "
                "what its weights are: leave it out."
            )
        if self.checkpoint.kind == "full":
            if pretrained is not None:
                raise ValueError(
                    f"pretrained={pretrained!r} does not go with a full checkpoint, which has all "
                    "weights: leave it out."
                )
            return
        if pretrained is not None and not isinstance(pretrained, str):
            raise ValueError("pretrained= must name the base model of an adapter: a path or an id.")
        if given := [name for name in _QUANTISED if kwargs.get(name)]:
            raise ValueError(
                f"{given[0]}={kwargs[given[0]]!r} is not possible with an adapter, which is "
                "merged into the weights: use dtype=bfloat16."
            )
        if find_spec("peft") is None:
            raise CheckpointError(
                f"checkpoint={str(self.folder)!r} is a LoRA adapter, which needs peft: install it "
                'with `pip install "lm-eval-semsoft[train]"`.'
            )

    # -- weights -----------------------------------------------------------------------------------

    def _create_model(self, pretrained: str, *args: Any, **kwargs: Any) -> None:
        """Load the base as it is stored, compare, and merge the adapter in the dtype of the run."""
        if self.checkpoint.kind == "full":
            super()._create_model(pretrained, *args, **kwargs)
            return
        wanted = kwargs.pop("dtype", "auto")
        super()._create_model(pretrained, *args, dtype=self.checkpoint.base.dtype, **kwargs)
        self._check_base(pretrained)
        if wanted != "auto":
            self._model = self._model.to(get_dtype(wanted))
        self._model = merged(self._model, self.folder)

    def _check_base(self, pretrained: str) -> None:
        expected, found = self.checkpoint.base.fingerprint, model_fingerprint(self._model)
        if found != expected:
            raise CheckpointError(
                f"The base model {pretrained!r} is not the one that was trained: its weights have "
                f"the fingerprint {found}, and the checkpoint {str(self.folder)!r} was trained on "
                f"{self.checkpoint.base.model!r} with {expected}; name that one with pretrained=."
            )

    def _name(self) -> str:
        return str(self.folder)

    # -- prompts -----------------------------------------------------------------------------------

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """As `semsoft-hf`, after a look at whether the prompts are of the kind that was trained."""
        self._look_at_prompts(requests)
        return super().generate_until(requests, disable_tqdm)

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """As `semsoft-hf`, after a look at whether the prompts are of the kind that was trained."""
        self._look_at_prompts(requests)
        return super().loglikelihood(requests, disable_tqdm)

    def _look_at_prompts(self, requests: list[Instance]) -> None:
        """Warn once of each task whose prompts differ in kind from those of training."""
        if getattr(self.tokenizer, "chat_template", None) is None:
            return
        messages = [{"role": "user", "content": _PROBE}]
        ending = self.apply_chat_template(messages).rpartition(_PROBE)[2]
        trained_on_chats = self.checkpoint.prompt.kind == "chat"
        for request in requests:
            task, context = request.task_name, str(request.args[0])
            is_chat = bool(ending) and ending.strip() in context
            if is_chat == trained_on_chats or task in self._warned or self.rank != 0:
                continue
            self._warned.add(task)
            logger.warning(
                "%s: the checkpoint was trained on %s, and this task's prompts come %s it: %s.",
                task,
                "prompts in the chat template" if trained_on_chats else "plain text",
                "without" if trained_on_chats else "in a chat template, unlike",
                "add --apply_chat_template" if trained_on_chats
                else "leave --apply_chat_template out",
            )  # fmt: skip

    # -- what the results say about this run -------------------------------------------------------

    def get_model_info(self) -> dict[str, Any]:
        """That of `semsoft-hf` and, under `csr`, what the checkpoint says of itself."""
        return {**super().get_model_info(), "csr": _summary(self.checkpoint)}


def merged(base: Any, folder: Path) -> Any:
    """The base model with the adapter of a checkpoint merged into its weights."""
    from peft import PeftModel

    model = PeftModel.from_pretrained(base, str(folder))
    return model.merge_and_unload(safe_merge=True)


def _summary(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "kind": checkpoint.kind,
        "base": vars(checkpoint.base),
        "prompt": vars(checkpoint.prompt),
        "step": checkpoint.step,
        "reward": dict(checkpoint.reward),
        "seeds": dict(checkpoint.seeds),
    }
