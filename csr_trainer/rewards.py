"""Rewards of GRPO: Calibration with Semantic Reward, and its baselines.

Formulas are pure functions of arrays. The classes around them are what TRL calls: picklable, and
with one interface (`Reward.__call__`).

| name | reward of rollout j | what it needs |
|---|---|---|
| ``csr`` | right_j + lambda(t) · r_cal(j) | whole groups |
| ``calibration`` | r_cal(j) | whole groups |
| ``rlvr`` | right_j | nothing |
| ``rlcr`` | format, accuracy and Brier score of a told probability | replies in tags |
| ``rd`` | log score of a told confidence, 0 to 10 | replies ``Answer: …, Confidence: …`` |

Sources: CSR, arXiv 2605.15588; RLCR, arXiv 2507.16806; Rewarding Doubt, arXiv 2503.02623.
"""

from __future__ import annotations

import dataclasses
import math
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from csr_trainer.groups import gather, whole_groups
from csr_trainer.schedule import Blocks, Schedule, progress_of
from lm_eval_semsoft.core.bootstrap import UndefinedMetricWarning
from lm_eval_semsoft.core.errors import check_choice
from lm_eval_semsoft.judges import DEFAULT, SAME, Judge
from lm_eval_semsoft.judges.text import clean
from lm_eval_semsoft.tasks.right import judge_named, reference_of, right_answers
from lm_eval_semsoft.tasks.verbal_formats import Verbal, parse_tags, parse_ten

Floats = NDArray[np.float64]

EPS = 1e-6  # our choice; with a hard judge it cancels out

# --- formulas ------------------------------------------------------------------------------------


def pairwise(judge: Judge, question: str, completions: Sequence[str]) -> Floats:
    """J(C_i, C_j), float64 [G, G]: symmetric, 1 on the diagonal, which nothing reads."""
    return judge.matrices([question], [completions])[0]


def calibration_reward(agree: ArrayLike, right: ArrayLike, eps: float = EPS) -> Floats:
    """The calibration reward of each rollout of a group, float64 [G] in [-1, 0].

        r_cal(j) = - 1/(G-1) · sum over i != j of BCE(J(C_j, C_i), J(C_j, C*)) / -ln eps
        BCE(p, y) = - y ln max(p, eps) - (1 - y) ln max(1 - p, eps)

    A right rollout (y = 1) is rewarded for agreeing with the others of its group, a wrong one for
    differing from them. Judgments of 0 or 1 make an unclipped BCE 0 or infinite; clipped and
    divided by -ln eps, its largest value, it is 0 or 1, so that for a hard judge

        r_cal(j) = - (share of the others on which J(C_j, C_i) != J(C_j, C*)), whatever eps is.

    Source: arXiv 2605.15588; it does not publish the clip.

    Args:
        agree: [G, G], J of pairs in [0, 1], symmetric; the diagonal is not read.
        right: [G], J against the right answer, in [0, 1]; NaN (nobody knows) gives NaN.
        eps: in (0, 0.5].

    Returns:
        [G]. A group of one has nobody to agree with: 0, with an `UndefinedMetricWarning`.

    Raises:
        ValueError: shapes or values are not as above.

    >>> calibration_reward([[1, 1, 0], [1, 1, 0], [0, 0, 1]], [1, 1, 0]).tolist()
    [-0.5, -0.5, 0.0]
    """
    p, y = _group(agree, right)
    if not 0 < eps <= 0.5:
        raise ValueError(f"eps={eps!r} must be above 0 and at most 0.5.")
    if len(y) == 1:
        warnings.warn(
            "calibration reward: a group of one rollout has no agreement; its reward is 0",
            UndefinedMetricWarning,
            stacklevel=2,
        )
    if len(y) < 2:
        return np.zeros(len(y))
    # Logs to the base 1/eps, so that the clip is exactly -1 and a hard match exactly 0.
    same, other = (np.log(np.maximum(q, eps)) / -math.log(eps) for q in (p, 1 - p))
    reward = y[:, None] * same + (1 - y[:, None]) * other
    np.fill_diagonal(reward, 0.0)
    scaled: Floats = reward.sum(axis=1) / (len(y) - 1)
    return np.clip(scaled, -1.0, 0.0) + 0.0  # rounding; and no -0.0


def _group(agree: ArrayLike, right: ArrayLike) -> tuple[Floats, Floats]:
    p, y = np.array(agree, dtype=np.float64), np.asarray(right, dtype=np.float64)
    if y.ndim != 1 or p.shape != (len(y), len(y)):
        raise ValueError(
            f"agree and right have the shapes {list(p.shape)} and {list(y.shape)}; "
            "they must be [G, G] and [G]."
        )
    np.fill_diagonal(p, 1.0)
    if not ((p >= 0) & (p <= 1)).all() or ((y < 0) | (y > 1)).any():
        raise ValueError("agree and right must hold values from 0 to 1.")
    if not np.array_equal(p, p.T):
        raise ValueError("agree must be symmetric.")
    return p, y


def csr(agree: ArrayLike, right: ArrayLike, lam: float, eps: float = EPS) -> Floats:
    """r(j) = right_j + lam · r_cal(j), float64 [G]; arguments as `calibration_reward`.

    Source: arXiv 2605.15588.
    """
    return rlvr(right) + lam * calibration_reward(agree, right, eps)


def rlvr(right: ArrayLike) -> Floats:
    """r(j) = right_j, float64 [n]: nothing but a verified answer counts."""
    return np.array(right, dtype=np.float64)


def rlcr(well_formed: ArrayLike, right: ArrayLike, told: ArrayLike) -> Floats:
    """RLCR: r = .5 + .5 · right + .5 · (1 - (right - q)²), 0 for a bad format; float64 [n].

    Source: arXiv 2507.16806; the halves, and 0 for a bad format, are those of its code.

    Args:
        well_formed: [n] booleans.
        right: [n], 0 or 1; NaN gives NaN.
        told: [n] probabilities q in [0, 1]; not read where the format is bad.
    """
    ok, y, q = (np.asarray(a, dtype=np.float64) for a in (well_formed, right, told))
    return np.where(ok > 0, 0.5 + 0.5 * y + 0.5 * (1 - (y - q) ** 2), 0.0)


RD_CLIP = 0.001
RD_SCALE = 10.0
RD_BAD_FORMAT = -30.0
RD_RIGHT = 0.25


def rd(well_formed: ArrayLike, right: ArrayLike, told: ArrayLike) -> Floats:
    """Rewarding Doubt: the log score of a told confidence, float64 [n].

        q = clip(told, .001, .999)
        s = right · ln q + (1 - right) · ln(1 - q)
        r = 10 · ((s - low) / (ln .999 - low) + right / 4), low = ln(.001) / 2

    and -30 for a bad format. The best score is so mapped to 10 (12.5 where the answer is right) and
    the worst to about -10. Source: arXiv 2503.02623; this scaling, the quarter for a right answer
    and -30 = 3 times the scale are those of its public code (pasta99/RewardingDoubt). GRPO divides
    by the spread of a group, so that only the ratios matter.

    Args:
        well_formed: [n] booleans.
        right: [n], 0 or 1; NaN gives NaN.
        told: [n], confidence ÷ 10; not read where the format is bad.
    """
    ok, y, told_q = (np.asarray(a, dtype=np.float64) for a in (well_formed, right, told))
    q = np.clip(told_q, RD_CLIP, 1 - RD_CLIP)
    low, high = math.log(RD_CLIP) / 2, math.log(1 - RD_CLIP)
    score = y * np.log(q) + (1 - y) * np.log(1 - q)
    scaled = RD_SCALE * ((score - low) / (high - low) + RD_RIGHT * y)
    return np.where(ok > 0, scaled, RD_BAD_FORMAT)


# --- texts ---------------------------------------------------------------------------------------

_TAG = re.compile(r"<(/?)(think|answer|analysis|confidence)>")
_TAGS_IN_ORDER = [
    (slash, tag) for tag in ("think", "answer", "analysis", "confidence") for slash in ("", "/")
]


def completion_text(completion: Any) -> str:
    """The text of a completion as TRL gives it: a string, or messages, of which the last counts."""
    if isinstance(completion, str):
        return completion
    content = completion[-1].get("content") if completion else None
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content)
    return content or ""


def cut(text: str, until: Sequence[str]) -> str:
    """The text in front of the first stop string, as the harness cuts it."""
    for stop in until:
        text = text.partition(stop)[0]
    return text


def well_formed_tags(text: str) -> bool:
    """Are think, answer, analysis and confidence there, each pair of tags once and in this order,
    with nothing between the pairs, and can answer and confidence be read?"""
    found = list(_TAG.finditer(text))
    if [tag.groups() for tag in found] != _TAGS_IN_ORDER:
        return False
    edges = [0, *(place for tag in found for place in tag.span()), len(text)]
    between = [text[edges[i] : edges[i + 1]] for i in range(0, len(edges), 4)]
    return not any(map(str.strip, between)) and parse_tags(text).complete


def well_formed_ten(text: str) -> bool:
    """Can an answer and a confidence from 0 to 10 be read?"""
    return parse_ten(text).complete


# --- what TRL calls ------------------------------------------------------------------------------


class Rollout(NamedTuple):
    """One completion, and what it is judged by."""

    row_id: Any
    question: str
    text: str
    answers: tuple[str, ...]


Columns = Mapping[str, Sequence[str] | Floats]


class Parts(NamedTuple):
    """Of n rollouts.

    Attributes:
        reward: [n]; NaN where no answer is known.
        columns: name -> [n] values, for the table of completions and, as means, for the log.
        scalars: name -> value, for the log.
    """

    reward: Floats
    columns: Columns
    scalars: Mapping[str, float]


@dataclass
class Reward(ABC):
    """A reward function as TRL's GRPOTrainer calls it.

    Attributes:
        judge: of meanings: its name, or a judge. The name is resolved at the first call, and a
            process has one judge of a name; a judge that is handed over must be picklable for this
            to be picklable. Right and wrong are judged as the tasks do that evaluate
            (`tasks.right.reference_of`).
        until: stop strings: only the text in front of them is read. For a base model's prompt that
            is a line break, for a chat model nothing (`csr_trainer.data.stop_strings`).
    """

    judge: str | Judge = DEFAULT
    until: tuple[str, ...] = ()

    name: ClassVar[str]

    @property
    def __name__(self) -> str:  # what TRL's log calls it
        return self.name

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Any] | None = None,
        *,
        row_id: Sequence[Any],
        question: Sequence[str],
        answers: Sequence[Sequence[str]],
        trainer_state: Any = None,
        log_extra: Callable[[str, list[Any]], None] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """Rewards of the n rollouts of this process.

        TRL passes everything by name: n prompts and completions (strings, or lists of messages),
        the columns of the data set repeated for each rollout, the trainer's state and two loggers.

        Returns:
            [n]; None (TRL leaves the rollout out) where nobody knows a right answer.

        Raises:
            ValueError: the columns differ in length.
            PartialGroup: a group is not whole (rewards of groups only).
        """
        rollouts = [
            Rollout(row, asked, cut(completion_text(completion), self.until), tuple(golds))
            for row, asked, completion, golds in zip(
                row_id, question, completions, answers, strict=True
            )
        ]
        parts = self.parts(rollouts, trainer_state)
        if log_extra is not None:
            for name, values in parts.columns.items():
                log_extra(name, np.asarray(values).tolist())
        if log_metric is not None:
            for name, value in self.means(parts).items():
                log_metric(f"{self.name}/{name}", value)
        return [None if math.isnan(reward) else float(reward) for reward in parts.reward]

    @abstractmethod
    def parts(self, rollouts: Sequence[Rollout], trainer_state: Any) -> Parts:
        """Rewards and their raw components. Under several processes, all must call it together."""

    def means(self, parts: Parts) -> dict[str, float]:
        """What the log gets: means of numbers that are known, and scalars."""
        found = dict(parts.scalars)
        for name, values in parts.columns.items():
            if isinstance(values, np.ndarray) and not np.isnan(values).all():
                found[name] = float(np.nanmean(values))
        return found

    def resolved(self) -> Judge:
        """The judge.

        Raises:
            JudgeError: there is no such judge, or its model is missing.
        """
        return judge_named(self.judge) if isinstance(self.judge, str) else self.judge

    def reference(self) -> Judge:
        """The judge of right and wrong; errors as `resolved`."""
        if isinstance(self.judge, str):
            return judge_named(reference_of(self.judge, None))
        return self.judge

    def right(self, rollouts: Sequence[Rollout], texts: Sequence[str]) -> Floats:
        """Which answers are right, [n]: 1, 0, or NaN where nobody knows."""
        return np.array(
            right_answers(
                self.reference(),
                [rollout.question for rollout in rollouts],
                texts,
                [rollout.answers for rollout in rollouts],
            ),
            dtype=np.float64,
        )


@dataclass
class RLVR(Reward):
    """right_j: reinforcement learning with verifiable rewards."""

    name: ClassVar[str] = "rlvr"

    def parts(self, rollouts: Sequence[Rollout], trainer_state: Any) -> Parts:
        """See `Reward.parts`."""
        texts = [clean(rollout.text) for rollout in rollouts]
        right = self.right(rollouts, texts)
        return Parts(rlvr(right), {"answer": texts, "right": right}, {})


@dataclass
class _OfGroups(Reward):
    """Rewards that compare the rollouts of a group.

    Attributes:
        num_generations: G, 2 or more; None: every row is one group.
        eps: clip of the BCE (`calibration_reward`).
        soft: take the judge's scores of pairs as probabilities, instead of only whether they reach
            `judges.SAME` (our choice: most judges' scores only rank). Right or wrong stays 0 or 1.

    Raises:
        ValueError: G is 1: there would be nothing to agree with.
    """

    num_generations: int | None = None
    eps: float = EPS
    soft: bool = False

    def __post_init__(self) -> None:
        if self.num_generations is not None and self.num_generations < 2:
            raise ValueError(
                f"num_generations={self.num_generations!r} must be at least 2: "
                "a rollout's agreement is with the others of its group."
            )
        if not 0 < self.eps <= 0.5:
            raise ValueError(f"eps={self.eps!r} must be above 0 and at most 0.5.")

    def weights(self, trainer_state: Any) -> tuple[float, float]:
        """What right_j and r_cal(j) count at this step."""
        raise NotImplementedError

    def parts(self, rollouts: Sequence[Rollout], trainer_state: Any) -> Parts:
        """See `Reward.parts`. All groups are judged in one batch."""
        gathered = gather(rollouts)
        everything = gathered.items
        groups = whole_groups(
            [rollout.row_id for rollout in everything], self.num_generations, gathered.processes
        )
        own = range(gathered.own.start, gathered.own.stop)
        groups = [group for group in groups if any(place in own for place in group)]
        texts = [clean(rollout.text) for rollout in everything]
        tables = self.resolved().matrices(
            [everything[group[0]].question for group in groups],
            [[texts[place] for place in group] for group in groups],
        )
        members = [place for group in groups for place in group]
        right = np.full(len(everything), math.nan)
        right[members] = self.right(
            [everything[place] for place in members], [texts[place] for place in members]
        )
        r_cal, agreement = np.full_like(right, math.nan), np.full_like(right, math.nan)
        for group, table in zip(groups, tables, strict=True):
            agree = table if self.soft else (table >= SAME).astype(np.float64)
            r_cal[group] = calibration_reward(agree, right[group], self.eps)
            agreement[group] = _mean_of_others(agree)
        weight, lam = self.weights(trainer_state)
        reward = weight * right + lam * r_cal
        mine = gathered.own
        columns: Columns = {
            "answer": texts[mine],
            "right": right[mine],
            "r_cal": r_cal[mine],
            "agreement": agreement[mine],
        }
        return Parts(reward[mine], columns, {"lambda": lam})


def _mean_of_others(agree: Floats) -> Floats:
    """Mean of each row without the diagonal; NaN in a group of one."""
    n = len(agree)
    if n < 2:
        return np.full(n, math.nan)
    mean: Floats = (agree.sum(axis=1) - np.diag(agree)) / (n - 1)
    return mean


@dataclass
class CSR(_OfGroups):
    """right_j + lambda(t) · r_cal(j).

    Attributes:
        schedule: lambda(t).
        blocks: of rollouts; `schedule.Blocks.of(args)` of the run's GRPOConfig.
    """

    schedule: Schedule = field(default_factory=Schedule)
    blocks: Blocks = field(default_factory=Blocks)

    name: ClassVar[str] = "csr"

    def weights(self, trainer_state: Any) -> tuple[float, float]:
        """1 and lambda(t)."""
        return 1.0, self.schedule(progress_of(trainer_state, self.blocks))


@dataclass
class CalibrationOnly(_OfGroups):
    """r_cal(j) alone: it has degenerate solutions, all different and always wrong for one."""

    name: ClassVar[str] = "calibration"

    def weights(self, trainer_state: Any) -> tuple[float, float]:
        """0 and 1."""
        return 0.0, 1.0


@dataclass
class _Verbal(Reward):
    """Rewards of a confidence that the model tells."""

    @staticmethod
    @abstractmethod
    def parse(text: str) -> Verbal:
        """Read a reply."""

    @staticmethod
    @abstractmethod
    def well_formed(text: str) -> bool:
        """Is the reply in the format?"""

    @staticmethod
    @abstractmethod
    def formula(well_formed: Floats, right: Floats, told: Floats) -> Floats:
        """The reward."""

    def parts(self, rollouts: Sequence[Rollout], trainer_state: Any) -> Parts:
        """See `Reward.parts`."""
        read = [self.parse(rollout.text) for rollout in rollouts]
        ok = np.array([self.well_formed(rollout.text) for rollout in rollouts], dtype=np.float64)
        told = np.array(
            [math.nan if v.confidence is None else v.confidence for v in read], dtype=np.float64
        )
        texts = [v.answer or "" for v in read]
        right = self.right(rollouts, texts)
        reward = self.formula(ok, right, told)
        # A bad format costs what it costs only where an answer is known: groups stay comparable.
        reward = np.where(np.isnan(right), math.nan, reward)
        columns: Columns = {
            "answer": texts,
            "right": right,
            "format": ok,
            "confidence": told,
            "brier": (right - told) ** 2,
        }
        return Parts(reward, columns, {})


@dataclass
class RLCR(_Verbal):
    """`rlcr` of replies in tags."""

    name: ClassVar[str] = "rlcr"
    parse = staticmethod(parse_tags)
    well_formed = staticmethod(well_formed_tags)
    formula = staticmethod(rlcr)


@dataclass
class RewardingDoubt(_Verbal):
    """`rd` of replies ``Answer: …, Confidence: …``."""

    name: ClassVar[str] = "rd"
    parse = staticmethod(parse_ten)
    well_formed = staticmethod(well_formed_ten)
    formula = staticmethod(rd)


REWARDS: dict[str, type[Reward]] = {
    kind.name: kind for kind in (CSR, RLVR, CalibrationOnly, RLCR, RewardingDoubt)
}


def reward_named(name: str, **options: Any) -> Reward:
    """A reward by its name; options that only other rewards have are left out.

    Raises:
        ValueError: there is no such reward, no reward has such an option, or an option has a value
            that is not allowed.
    """
    kind = REWARDS[check_choice("reward", name, tuple(REWARDS))]
    fields = {other: {own.name for own in dataclasses.fields(other)} for other in REWARDS.values()}
    for option in options:
        check_choice("option", option, sorted(set().union(*fields.values())))
    return kind(**{option: options[option] for option in options if option in fields[kind]})
