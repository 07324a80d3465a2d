"""What replicas exchange before each update, so that all of them do the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from swell.core.protocols import Collective
from swell.errors import DisagreementError


class Vote(NamedTuple):
    """One replica's view of the step under way; all numbers, so that it travels in one small message."""

    learner: float  # which optimizer is about to step, or one of the words below
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
    seconds: float  # that the run has taken by this replica's clock
    last_s: float  # how long the step before took here; 0 where there was none
    clip: float  # the largest gradient norm asked for; 0 for none, -1 for a function
    fits: float  # the largest micro-batch that fits this replica's memory; infinite where that is not known
    overlaps: float  # 1 if this replica can sum gradients while it computes them, from the next step on
    on_host: float  # 1 if it has its losses on the host, so that votes can carry them, from the next step on
    loss: float  # its part of the step's mean loss, where votes carry it


class Signals(NamedTuple):
    """What a vote carries for the moment between two steps."""

    noticed: bool = False  # somebody asked the run to stop
    pending: bool = False  # another world was announced
    due: bool = False  # a checkpoint is due
    seconds: float = 0.0  # that the run has taken by the first replica's clock

    def __bool__(self) -> bool:
        return self.noticed or self.pending or self.due


class Verdict(NamedTuple):
    """What the votes of all replicas say together; the same on each of them."""

    learner: int  # which optimizer steps, or RESTING
    signals: Signals
    failed: str  # which replicas could not compute their share; empty where all could
    ran_out: bool  # whether memory ran out on any of them
    irregular: bool  # whether some gradient is missing or sparse on any of them
    weight: float  # the sum of explicit weights over all replicas
    weighted: bool  # whether weights are explicit
    layouts: Sequence[float]  # of the pending metrics
    last_s: float  # how long the step before took on the slowest replica
    clip: float  # what any of them clips by, as ``as_number`` gives it
    fits: float  # the largest micro-batch that fits the memory of all
    overlaps: bool = False  # whether all of them can sum gradients while they compute them
    on_host: bool = False  # whether all of them have their losses on the host
    loss: float = 0.0  # the step's mean loss, where votes carry it


Gather = Callable[[Sequence[float]], list[list[float]]]  # every replica's numbers, in rank order
NO_SIGNALS = Signals()
MEETING = -1  # what replicas do together between steps
LEAVING = -2  # the job is closed before its loop was over
FOLLOWING = -3  # this replica had no sample, and does what the others do
RESTING = -4  # the step ends here, and optimizers that have not stepped rest in it
_NOTHING = Vote(*[0.0 for _ in Vote._fields])


def hold(collective: Collective, vote: Vote, gather: Gather | None = None) -> Verdict:
    """Exchange votes, by ``gather`` if given; an error on each replica if they are not at the same place."""
    if collective.size == 1:
        return verdict_of([vote])
    votes = [Vote(*numbers) for numbers in (gather or collective.gather_numbers)(vote)]
    _agree_to_leave(votes)
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
    _agree_on_learner(votes)
    weighted = [v.weighted for v in votes if v.weighted >= 0]
    _agree("whether job.backward gets a weight", weighted, "Pass weight= on every replica, or on none.")
    return verdict_of(votes)


def alone(learner: int, signals: Signals, *, weight: float, weighted: bool, last_s: float, fits: float) -> Verdict:
    """The verdict of the only replica there is, about a step that went well; clip and metrics are its own affair."""
    return Verdict(learner, signals, "", False, False, weight, weighted, (), last_s, 0.0, fits)


def verdict_of(votes: Sequence[Vote]) -> Verdict:
    """A notice and another world count by any vote, a checkpoint by the first replica's clock."""
    all_of: Any = Vote._make(zip(*votes, strict=True))  # of each field, all replicas' values
    noticed, pending, due = any(all_of.noticed), any(all_of.pending), bool(votes[0].due)
    return Verdict(
        learner=int(next((each for each in all_of.learner if each != FOLLOWING), FOLLOWING)),
        signals=Signals(noticed, pending, due, votes[0].seconds),
        failed=_why_failed(votes) if any(all_of.failed) else "",
        ran_out=any(all_of.ran_out),
        irregular=any(all_of.irregular),
        weight=sum(all_of.weight),
        weighted=max(all_of.weighted) > 0,
        layouts=all_of.layout,
        last_s=max(all_of.last_s),
        clip=max(all_of.clip, key=abs),
        fits=min(all_of.fits),
        overlaps=all(all_of.overlaps),
        on_host=all(all_of.on_host),
        loss=sum(all_of.loss),
    )


def _why_failed(votes: Sequence[Vote]) -> str:
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


def meet(collective: Collective, gather: Gather, *, leaving: bool = False) -> None:
    """Make sure that every replica is about to do something together between steps, and none is about to train.

    Votes travel by ``gather``, as those of a step would. With ``leaving`` that something is the end of a job that is
    closed before its loop was over.
    """
    if collective.size > 1:
        hold(collective, _NOTHING._replace(learner=LEAVING if leaving else MEETING), gather)


def _agree_to_leave(votes: Sequence[Vote]) -> None:
    leavers = [rank for rank, vote in enumerate(votes) if vote.learner == LEAVING]
    if leavers and len(leavers) < len(votes):
        who = f"{'ranks' if len(leavers) > 1 else 'rank'} {', '.join(map(str, leavers))}"
        raise DisagreementError(
            f"{who} left the training loop (by break, return or job.close()) while others train; expected all replicas "
            f"to leave it after the same step. Decide by a value that is the same on all of them, such as "
            f"job.metrics.results()."
        )


def _agree_on_learner(votes: Sequence[Vote]) -> None:
    values = {rank: vote.learner for rank, vote in enumerate(votes) if vote.learner != FOLLOWING and not vote.failed}
    if len(set(values.values())) > 1:
        parts = (f"rank {r}: {'none, the step is over' if v == RESTING else f'{v:g}'}" for r, v in values.items())
        raise DisagreementError(
            f"replicas disagree about which optimizer steps ({', '.join(parts)}). Call job.step in the same order on "
            f"every replica, and let an optimizer rest by what all of them know, such as job.steps; a count that the "
            f"script keeps begins at 0 in a worker that joins."
        )


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
