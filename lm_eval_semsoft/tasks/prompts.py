"""Tasks with fixed examples, and with an instruction that only chat models get.

The study of human-aligned uncertainty (arXiv 2605.30675) shows a base model nothing but two solved
questions, and tells an instruct model what to do in the system message. In the harness a
``description`` would reach both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from lm_eval.api.samplers import ContextSampler
from lm_eval.api.task import ConfigurableTask
from lm_eval.utils import hash_string

import lm_eval_semsoft
from lm_eval_semsoft.engine import checkpoint
from lm_eval_semsoft.engine.checkpoint import PromptTemplate


@dataclass(frozen=True)
class Recorded:
    """How questions were put to a checkpoint in training.

    Attributes:
        template: what `csr_config.json` says.
        tokenizer: a name or folder; its chat template is the one.
    """

    template: PromptTemplate
    tokenizer: str

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> Recorded | None:
        """That of the model argument ``checkpoint``; None without one.

        Raises:
            CheckpointError: see `engine.checkpoint.read`.
        """
        folder = metadata.get("checkpoint")
        if not folder or not (Path(str(folder)).expanduser() / checkpoint.FILE).is_file():
            return None  # some other model's argument of that name
        tokenizer = str(metadata.get("tokenizer") or Path(str(folder)).expanduser())
        return cls(checkpoint.read(str(folder)).prompt, tokenizer)

    @property
    def is_chat(self) -> bool:
        """Did the prompts go through a chat template?"""
        return self.template.kind == "chat"

    @cached_property
    def _tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.tokenizer)

    def render(self, messages: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A chat as text, as the harness's `hf` model renders it."""
        text: str = self._tokenizer.apply_chat_template(
            messages,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )
        return text


class InstructedTask(ConfigurableTask):
    """A task from a YAML (``class: !function …``) with a system message under chat templates.

    ``--system_instruction`` replaces it.

    Attributes:
        recorded: how questions were put to the checkpoint that is evaluated, if the task asks for
            that: then its chat template and its system message are used without
            ``--apply_chat_template``.
    """

    instruction: ClassVar[str] = ""
    form: ClassVar[str] = ""  # of replies, as `PromptTemplate.form`
    recorded: Recorded | None = None
    is_chat = False  # is the prompt that is being built one of a chat template

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        # The harness hands over the whole YAML, and its own class knows no "class".
        super().__init__(config={k: v for k, v in (config or {}).items() if k != "class"})

    def ask_as_recorded(self, config: dict[str, Any]) -> None:
        """Put questions as they were put to the checkpoint of the run, if it evaluates one.

        Args:
            config: of the task, before the harness's class gets it; ``num_fewshot`` is changed.
        """
        self.recorded = Recorded.of(config.get("metadata") or {})
        if self.recorded is not None and self.recorded.template.form == self.form:
            # None is 0, unless --num_fewshot says otherwise; 0 in a YAML cannot be overridden.
            config["num_fewshot"] = self.recorded.template.num_fewshot or None

    def build_all_requests(
        self, *, cache_requests: bool = False, tokenizer_name: str = "", **kwargs: Any
    ) -> None:
        """The requests of all documents, as the harness builds them.

        With ``--cache_requests`` it would serve those of other options, data or ``--gen_kwargs``,
        since it names them by task, shots and tokenizer alone: so all of these go into that name.
        """
        if cache_requests:
            config, docs = self.config, list(self.eval_docs)
            asked = [lm_eval_semsoft.__version__, config.metadata, config.generation_kwargs, docs]
            asked_for = hash_string(json.dumps(asked, default=repr, sort_keys=True))
            tokenizer_name = f"{tokenizer_name}-{asked_for[:16]}"
        super().build_all_requests(
            cache_requests=cache_requests, tokenizer_name=tokenizer_name, **kwargs
        )

    def fewshot_context(
        self,
        doc: dict[str, Any],
        num_fewshot: int,
        system_instruction: str | None = None,
        apply_chat_template: bool = False,
        **kwargs: Any,
    ) -> Any:
        """The prompt of a document, as the harness builds it."""
        recorded = self.recorded
        if recorded is not None and recorded.is_chat:
            if system_instruction is None and recorded.template.form == self.form:
                system_instruction = recorded.template.instruction
            if not apply_chat_template:
                apply_chat_template = True
                kwargs |= {"chat_template": recorded.render, "fewshot_as_multiturn": True}
        self.is_chat = apply_chat_template
        if apply_chat_template and system_instruction is None:
            system_instruction = self.instruction
        return super().fewshot_context(
            doc,
            num_fewshot,
            system_instruction=system_instruction,
            apply_chat_template=apply_chat_template,
            **kwargs,
        )


class FixedExamples(ContextSampler):
    """The first ``n`` examples of the task's list, the same for every document."""

    df: Sequence[dict[str, Any]]

    def sample(
        self, n: int, eval_doc: Any = None, df: Any = None, **kwargs: Any
    ) -> Sequence[Mapping[str, Any]]:
        """The first `n` examples.

        Raises:
            ValueError: there are fewer.
        """
        if n > len(self.df):
            raise ValueError(
                f"num_fewshot={n} is too large: this task has {len(self.df)} fixed examples; "
                f"use 0 to {len(self.df)}."
            )
        return self.df[:n]
