"""What replicas exchange before each update, so that all of them do the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, fields

from swell.core.protocols import Collective
from swell.errors import DisagreementError


@dataclass(frozen=True)
class Vote:
    """One replica's view of the step under way; all numbers, so that it travels in one small message."""

    learner: float  # which optimizer is about to step; MEETING for what replicas do together between steps
    start: float
    batch: float
    failed: float  # 1 if this replica could not compute its share
    ran_out: float  # the micro-batch at which its memory ran out in this step; 0 where it did not
    irregular: float  # 1 if some gradient is missing or sparse here
    weight: float  # sum of explicit weights, or 0
    weighted: float  # 1 if explicit weights were given, -1 if this replica had no micro-batch
    layout: float  # of its pending metrics
    noticed: float  # 1 if this replica was asked to stop
    pending: float  # 1 if another world was announced
    due: float  # 1 if a checkpoint is due by this replica's clock
    last_s: float  # how long the step before took here; 0 where there was none
    clip: float  # the largest gradient norm asked for; 0 for none, -1 for a function
    fits: float  # the largest micro-batch that fits this replica's memory; infinite where that is not known


@dataclass(frozen=True, slots=True)
class Signals:
    """What a vote carries for the moment between two steps."""

    noticed: bool = False  # somebody asked the run to stop
    pending: bool = False  # another world was announced
    due: bool = False  # a checkpoint is due

    def __bool__(self) -> bool:
        return self.noticed or self.pending or self.due


NO_SIGNALS = Signals()
MEETING = -1
_FIELDS = [field.name for field in fields(Vote)]
_NOTHING = Vote(**dict.fromkeys(_FIELDS, 0.0))


def hold(collective: Collective, vote: Vote) -> list[Vote]:
    """Every replica's vote in rank order; an error on each of them if they are not at the same place."""
    if collective.size == 1:
        return [vote]
    votes = [Vote(*numbers) for numbers in collective.gather_numbers([getattr(vote, name) for name in _FIELDS])]
    _agree(
        "whether to train or to do something else",
        [float(v.learner == MEETING) for v in votes],
        "Call job.evaluation and job.save on every replica, after the loop over the loader, or in it after job.step; "
        "not before it, because workers that join begin with a training step, and not after the last, short step of an "
        "epoch, in which some replicas may have no part.",
    )
    _agree("the position in the data", [v.start for v in votes], "Pass the same data set and seed to every replica.")
    _agree(
        "the global batch",
        [v.batch for v in votes],
        "A policy must be a function of its observation alone: no randomness, no clock, no rank.",
    )
    _agree("which optimizer steps", [v.learner for v in votes], "Call job.step in the same order on every replica.")
    weighted = [v.weighted for v in votes if v.weighted >= 0]
    _agree("whether job.backward gets a weight", weighted, "Pass weight= on every replica, or on none.")
    return votes


def agreed_signals(votes: Sequence[Vote]) -> Signals:
    """A notice and another world by anybody's vote; a checkpoint by the first replica's clock."""
    return Signals(
        noticed=any(vote.noticed for vote in votes),
        pending=any(vote.pending for vote in votes),
        due=bool(votes[0].due),
    )


def why_failed(votes: Sequence[Vote]) -> str:
    """Which replicas could not compute their share, and at which micro-batch memory ran out where that was it."""
    reasons = []
    for size in sorted({vote.ran_out for vote in votes if vote.failed}, reverse=True):
        ranks = [rank for rank, vote in enumerate(votes) if vote.failed and vote.ran_out == size]
        who = f"{'ranks' if len(ranks) > 1 else 'rank'} {', '.join(map(str, ranks))}"
        where = f" on {who}" if len(votes) > 1 else ""
        ran_out = f"memory ran out at a micro-batch of {size:g} samples{where}"
        reasons.append(
            ran_out if size else f"{who} could not compute {'their shares' if len(ranks) > 1 else 'its share'}"
        )
    return ", ".join(reasons)


def meet(collective: Collective) -> None:
    """Make sure that every replica is about to do something together between steps, and none is about to train."""
    if collective.size > 1:
        hold(collective, dataclasses.replace(_NOTHING, learner=MEETING))


def _agree(what: str, values: Sequence[float], remedy: str) -> None:
    if len(set(values)) > 1:
        listed = ", ".join(f"rank {rank}: {value:g}" for rank, value in enumerate(values))
        raise DisagreementError(f"replicas disagree about {what} ({listed}). {remedy}")


def agree_on_text(collective: Collective, what: str, text: str, remedy: str) -> None:
    """Raise on every replica unless all gave the same text; says which ranks differ and where."""
    texts = collective.gather_text(text)
    different = [rank for rank, other in enumerate(texts) if other != texts[0]]
    if different:
        first = different[0]
        own, other = _first_difference(texts[0], texts[first])
        raise DisagreementError(
            f"replicas disagree about {what}: rank 0 has {own!r}, rank {first} has {other!r}"
            f"{f' ({len(different)} ranks differ from rank 0)' if len(different) > 1 else ''}. {remedy}"
        )


def _first_difference(one: str, other: str) -> tuple[str, str]:
    lines, others = one.split("\n"), other.split("\n")
    for a, b in zip(lines, others, strict=False):
        if a != b:
            return a, b
    longer = lines if len(lines) > len(others) else others
    extra = longer[min(len(lines), len(others))]
    return (extra, "nothing") if longer is lines else ("nothing", extra)


def as_number(clip: object) -> float:
    """A clip argument as a vote carries it."""
    return 0.0 if clip is None else -1.0 if callable(clip) else float(clip)  # pyright: ignore[reportArgumentType]
