"""All rollouts of one question in one place, whatever process made them.

A group is G rollouts of one row of the data (its ``row_id``; texts of questions may repeat). TRL
calls a reward in every process with the rollouts of that process alone, and checks only that the
batch of *all* processes holds whole groups: with per_device_train_batch_size *
steps_per_generation not divisible by G, a group is split. So rollouts are gathered first, every
process looks at the groups of its own rollouts, and keeps its own rewards. A group that is not
whole even then is refused, by all processes alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class PartialGroup(ValueError):
    """A group of another size than G; the message has numbers that work."""


@dataclass(frozen=True)
class Gathered(Generic[T]):
    """Items of all processes, in the order of the processes.

    Attributes:
        items: of all processes.
        own: the part of them that this process gave.
        processes: how many there are.
    """

    items: list[T]
    own: slice
    processes: int


def gather(items: Sequence[T]) -> Gathered[T]:
    """Items of all processes; one process, or none of torch.distributed, has only its own.

    All processes must call this, each as often as the others. Items travel pickled between the
    processes of one run.
    """
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return Gathered(list(items), slice(0, len(items)), 1)
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, list(items))
    start = sum(map(len, parts[: dist.get_rank()]))
    everything = [item for part in parts for item in part]
    return Gathered(everything, slice(start, start + len(items)), len(parts))


def whole_groups(
    row_ids: Sequence[Any], size: int | None = None, processes: int = 1
) -> list[list[int]]:
    """Places of the members of each group, groups in the order of their first members.

    A row that comes k·G times (the end of an evaluation is filled up with its first rows) gives k
    groups, G members at a time in their order, as TRL sees them.

    Args:
        row_ids: of all rollouts.
        size: G; None: every row is one group, however many rollouts it has.
        processes: how many gave rollouts, for the message.

    Raises:
        PartialGroup: a row comes another number of times.

    >>> whole_groups(["a", "a", "b", "b"], 2)
    [[0, 1], [2, 3]]
    """
    members: dict[Any, list[int]] = {}
    for place, row_id in enumerate(row_ids):
        members.setdefault(row_id, []).append(place)
    if size is None:
        return list(members.values())
    for row_id, own in members.items():
        if len(own) % size:
            raise PartialGroup(
                f"num_generations={size}, but row {row_id!r} has {len(own)} of the {len(row_ids)} "
                f"rollouts of {processes} process(es): {fitting(size, processes)}."
            )
    groups = [own[i : i + size] for own in members.values() for i in range(0, len(own), size)]
    return sorted(groups, key=lambda group: group[0])


def fitting(size: int, processes: int = 1) -> str:
    """What must hold for whole groups, in words, with the least number that works."""
    least = next(n for n in range(1, size + 1) if n * processes % size == 0)
    return (
        f"per_device_train_batch_size * steps_per_generation * {processes} must be divisible by "
        f"{size}, so per_device_train_batch_size * steps_per_generation can be any multiple of "
        f"{least}; evaluation needs num_generations_eval={size} and per_device_eval_batch_size "
        f"any multiple of {least}"
    )
