"""`--dry-run`: what would be trained, how much memory it takes, and what it is rewarded for now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from csr_trainer.groups import whole_groups
from csr_trainer.schedule import Blocks

if TYPE_CHECKING:
    from csr_trainer.train import Prepared

SHOWN_GROUPS, SHOWN_CHARACTERS = 2, 60
_MB = 2**20


@dataclass(frozen=True)
class Memory:
    """Bytes that a process needs at least, without sharding.

    Attributes:
        weights: of the model.
        training: gradients and Adam's two moments of what is trained.
        rollouts: keys and values of a block's rollouts while they are made.
        activations: of one forward-backward pass.
    """

    weights: int
    training: int
    rollouts: int
    activations: int

    @property
    def total(self) -> int:
        """Rollouts and activations are not there at the same time."""
        return self.weights + self.training + max(self.rollouts, self.activations)


def memory_of(
    model: Any, tokens: int, rows_per_pass: int, rows: int, checkpointing: bool
) -> Memory:
    """An estimate, from shapes alone; allocators and vLLM take more.

    Activations are counted as 34 bytes a token, hidden unit and layer at two bytes a number
    (Korthikanti et al. 2022, without the part that attention scores take), scaled to the dtype;
    with checkpointing a layer's input alone is kept, and one layer's activations.

    Args:
        model: that is trained, its adapter included.
        tokens: of a prompt and its completion.
        rows_per_pass: completions in one forward-backward pass.
        rows: rollouts that one process makes at once.
        checkpointing: of gradients.
    """
    parameters = list(model.parameters())
    weights = sum(p.numel() * p.element_size() for p in parameters)
    trained = sum(p.numel() * (p.element_size() + 8) for p in parameters if p.requires_grad)
    config = model.config.get_text_config()
    layers, hidden = int(config.num_hidden_layers), int(config.hidden_size)
    heads = int(config.num_attention_heads)
    width = int(getattr(config, "head_dim", None) or hidden // heads)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    size = parameters[0].element_size()
    keys_and_values = 2 * layers * kv_heads * width * size * tokens * rows
    layer = 34 * size // 2 * hidden * tokens * rows_per_pass
    kept = (
        layers * hidden * size * tokens * rows_per_pass + layer if checkpointing else layers * layer
    )
    return Memory(weights, trained, keys_and_values, kept)


def show(prepared: Prepared) -> None:
    """Print groups, memory and first rewards; every process makes its rollouts, one prints."""
    trainer, settings, console = prepared.trainer, prepared.settings, prepared.console
    args = trainer.args
    blocks = Blocks.of(args)
    rollouts = trainer.first_rollouts()
    if not trainer.is_world_process_zero():
        return
    groups = whole_groups([r["row_id"] for r in rollouts], settings.num_generations)
    per_step = len(groups) * blocks.accumulation / blocks.passes
    count = trainer.accelerator.num_processes
    own = args.per_device_train_batch_size * args.steps_per_generation
    console.print(
        f"Model: {prepared.base.model}, {'LoRA' if settings.is_adapter else 'all weights'}, "
        f"prompts as {prepared.prompt.kind}\n"
        f"Reward: {settings.reward}, judge {settings.judge}; questions: {prepared.questions:,} of "
        f"{settings.dataset}\n"
        f"Groups: {len(groups)} of G = {settings.num_generations} rollouts in a block, "
        f"{own} rollouts in each of {count} process(es); a block lasts {blocks.passes} passes, "
        f"{per_step:g} groups to an optimiser step",
        soft_wrap=True,
    )
    memory = memory_of(
        trainer.accelerator.unwrap_model(trainer.model),
        _longest_prompt(trainer) + settings.completion_length,
        args.per_device_train_batch_size,
        own,
        bool(args.gradient_checkpointing),
    )
    console.print(
        f"Memory of a process, about: {memory.total / _MB:,.0f} MB = weights "
        f"{memory.weights / _MB:,.0f}, gradients and optimiser {memory.training / _MB:,.0f}, and "
        f"the larger of rollouts {memory.rollouts / _MB:,.0f} and activations "
        f"{memory.activations / _MB:,.0f}",
        soft_wrap=True,
    )
    console.print("First rewards (no step is done):")
    for line in lines_of(rollouts, groups[:SHOWN_GROUPS]):
        console.print(line, soft_wrap=True)


def _longest_prompt(trainer: Any) -> int:
    """Tokens of the longest of the first prompts."""
    prompts = trainer.train_dataset[:64]["prompt"]
    ids, *_ = trainer._tokenize_prompts(list(prompts))
    return max(map(len, ids))


def lines_of(rollouts: Sequence[Mapping[str, Any]], groups: Sequence[Sequence[int]]) -> list[str]:
    """Rollouts of groups and their rewards, a line each."""
    lines = []
    for group in groups:
        lines.append(f"  {rollouts[group[0]]['row_id']}")
        for place in group:
            own = rollouts[place]
            parts = {k: v for k, v in own.items() if isinstance(v, float) and k != "reward"}
            named = ", ".join(f"{name} {value:.2f}" for name, value in parts.items())
            text = " ".join(str(own.get("answer") or own["completion"]).split())
            lines.append(f"    {own['reward']:+.3f}  ({named})  {text[:SHOWN_CHARACTERS]}")
    return lines
