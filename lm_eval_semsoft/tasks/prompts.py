"""Tasks with fixed examples, and with an instruction that only chat models get.

The study of human-aligned uncertainty (arXiv 2605.30675) shows a base model nothing but two solved
questions, and tells an instruct model what to do in the system message. In the harness a
``description`` would reach both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from lm_eval.api.samplers import ContextSampler
from lm_eval.api.task import ConfigurableTask
from lm_eval.utils import hash_string

import lm_eval_semsoft


class InstructedTask(ConfigurableTask):
    """A task from a YAML (``class: !function …``) with a system message under chat templates.

    ``--system_instruction`` replaces it.
    """

    instruction: ClassVar[str] = ""
    is_chat = False  # is the prompt that is being built one of a chat template

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        # The harness hands over the whole YAML, and its own class knows no "class".
        super().__init__(config={k: v for k, v in (config or {}).items() if k != "class"})

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
