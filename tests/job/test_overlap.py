"""Gradients that are summed while they are computed are those that are summed afterwards, whatever the loop does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import swell
from swell.gradients import buckets
from swell.gradients import overlap as overlapping
from swell.runtime.collective import TorchCollective
from tests.job.scenario import Points, largest_relative_error, make_model, mean_loss
from tests.workers import run_workers


class Branches(nn.Module):
    """Batch norm, an embedding with sparse gradients, and a branch that only some batches use."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(6, 5), nn.BatchNorm1d(5)
        self.rare, self.last = nn.Linear(5, 5), nn.Linear(5, 1)
        self.rows = nn.Embedding(50, 5, sparse=True)
        self.never = nn.Linear(3, 3)
        with torch.no_grad():
            generator = torch.Generator().manual_seed(1)
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
        self.double()

    def forward(self, x: Tensor, index: Tensor, *, rare: bool) -> Tensor:
        hidden = torch.tanh(self.norm(self.first(x))) + self.rows(index)
        if rare:
            hidden = hidden + self.rare(hidden)
        return self.last(hidden).squeeze(-1)


def once(job: swell.Job, loss: Callable[[], Tensor], step: int) -> None:
    job.backward(loss())


def twice_at_times(job: swell.Job, loss: Callable[[], Tensor], step: int) -> None:
    """One backward pass, then two, then one again: the second comes when gradients are under way."""
    value = loss()
    if step % 4 == 3:
        job.backward(value / 4, retain_graph=True)
        job.backward(value * 3 / 4)
    else:
        job.backward(value)


def weighted(job: swell.Job, loss: Callable[[], Tensor], step: int) -> None:
    job.backward(loss(), weight=1.0 + step % 3)


BODIES = {"once": once, "twice at times": twice_at_times, "weighted": weighted}


def train(
    collective: Any,
    body: str,
    overlaps: bool,
    batch: int,
    micro: int,
    dtype: str = "float64",
    exchange: str = "exact",
    votes: str = "apart",
) -> Any:
    buckets.CARRYING_BYTES = 0 if votes == "apart" else 2**20
    if votes != "only":  # several buckets, although the model is small
        buckets.bucket_bytes = lambda number, total: 64
        overlapping.LARGE = 8  # some gradients are moved into their bucket before it is full, some with it
        buckets.FEW_BYTES, buckets.SINGLE_BYTES = (
            0,
            240 - 40 * (collective.size % 2),
        )  # and a few, by the world, travel where they are
    TorchCollective.overlaps = property(lambda self: overlaps and self.size > 1)  # type: ignore[assignment,method-assign]
    job = swell.Job(
        batch=batch,
        micro=micro,
        rule="constant",
        progress=False,
        statistics=swell.Statistics(every=1),
        exchange=exchange,
    )
    model = Branches().to(getattr(torch, dtype))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    job.wrap(model, optimizer)
    gradients: list[list[Tensor | None]] = []

    def note(inner: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        gradients.append([None if p.grad is None else p.grad.to_dense().clone() for p in model.parameters()])

    optimizer.register_step_pre_hook(note)
    loader, early = job.loader(Points(45), shuffle=True), 0
    for _ in job.epochs(3):
        for x, y, index in loader:
            rare = int(index[0]) % 3 == 0

            def loss(x: Tensor = x, y: Tensor = y, index: Tensor = index, rare: bool = rare) -> Tensor:
                predicted = model(x.to(model.last.weight.dtype), index, rare=rare)
                return ((predicted.double() - y) ** 2).mean()

            if len(y) > 1:  # batch norm refuses a single sample
                model.train()
            else:
                model.eval()
            BODIES[body](job, loss, job.steps)
            overlap = job.engine.state.learners[0].early.overlap
            carries = overlap is not None and overlap.carrier is not None
            early += overlap is not None and overlap.begun if votes == "apart" else carries
            job.step()
    moments = job.noise.total if job.noise is not None else None
    result = gradients, [b.clone() for b in model.buffers()], moments, early, job.steps
    job.close()
    return result


def check_same(ours: Any, twin: Any, tolerance: float = 1e-12) -> None:
    assert len(ours[0]) == len(twin[0]) > 0
    for mine, other in zip(ours[0], twin[0], strict=True):
        assert [g is None for g in mine] == [g is None for g in other]
        present = [(a, b) for a, b in zip(mine, other, strict=True) if a is not None]
        assert largest_relative_error([a.double() for a, _ in present], [b.double() for _, b in present]) < tolerance
    for one, other in zip(ours[1], twin[1], strict=True):
        torch.testing.assert_close(one, other)
    assert ours[4] == twin[4]


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("world", "body", "batch", "micro"),
    [(2, "once", 7, 2), (3, "twice at times", 9, 3), (2, "weighted", 8, 4), (3, "once", 9, 2)],
)
def test_gradients_sent_early_are_those_sent_late(world: int, body: str, batch: int, micro: int) -> None:
    ours = run_workers(world, train, body, True, batch, micro)
    twins = run_workers(world, train, body, False, batch, micro)
    for mine, twin in zip(ours, twins, strict=True):
        check_same(mine, twin)
        assert twin[3] == 0
        if body != "twice at times":
            assert mine[2] is not None and mine[2].noise == pytest.approx(twin[2].noise, rel=1e-9)
    assert any(mine[3] > 3 for mine in ours)


@pytest.mark.distributed
@pytest.mark.parametrize("votes", ["last", "only"])
@pytest.mark.parametrize(
    ("world", "body", "batch", "micro"),
    [(2, "once", 7, 2), (3, "twice at times", 9, 3), (2, "weighted", 8, 4), (5, "once", 9, 2)],
)
def test_gradients_that_carry_the_votes_are_those_sent_late(
    world: int, body: str, batch: int, micro: int, votes: str
) -> None:
    ours = run_workers(world, train, body, True, batch, micro, "float64", "exact", votes)
    twins = run_workers(world, train, body, False, batch, micro)
    for mine, twin in zip(ours, twins, strict=True):
        check_same(mine, twin)
        if body != "twice at times" or votes == "only":
            assert mine[2] is not None and mine[2].noise == pytest.approx(twin[2].noise, rel=1e-9)
        assert mine[3] > 0


@pytest.mark.distributed
def test_narrow_gradients_travel_and_are_added_up_in_float32() -> None:
    ours = run_workers(2, train, "once", True, 8, 4, "bfloat16")
    twins = run_workers(2, train, "once", False, 8, 4, "bfloat16")
    for mine, twin in zip(ours, twins, strict=True):
        check_same(mine, twin, tolerance=0.01)


@pytest.mark.distributed
@pytest.mark.parametrize("world", [2, 3])
def test_gradients_that_travel_in_bfloat16_are_nearly_exact_and_the_same_everywhere(world: int) -> None:
    ours = run_workers(world, train, "once", True, 9, 3, "float32", "bfloat16")
    twins = run_workers(world, train, "once", False, 9, 3, "float32", "exact")
    for mine, twin in zip(ours, twins, strict=True):
        first, other = mine[0][2], twin[0][2]  # steps drift apart as training goes on
        assert [g is None for g in first] == [g is None for g in other]
        present = [(a, b) for a, b in zip(first, other, strict=True) if a is not None]
        error = largest_relative_error([a for a, _ in present], [b for _, b in present])
        assert 0 < error < 0.02
    for mine in ours[1:]:
        for own, firsts in zip(mine[0], ours[0][0], strict=True):
            for a, b in zip(own, firsts, strict=True):
                assert (a is None and b is None) or (a is not None and b is not None and torch.equal(a, b))


def early_steps(collective: Any) -> list[bool]:
    buckets.bucket_bytes = lambda number, total: 64
    job = swell.Job(batch=8, micro=4, progress=False)
    model = make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.05))
    early = []
    for x, y, _ in job.loader(Points(24)):
        job.backward(mean_loss(model, x, y))
        overlap = job.engine.state.learners[0].early.overlap
        early.append(overlap is not None and overlap.begun)
        job.step()
    job.close()
    return early


@pytest.mark.distributed
@pytest.mark.parametrize("world", [2, 3])
def test_gradients_are_sent_early_from_the_first_step_on(world: int) -> None:
    for early in run_workers(world, early_steps):
        assert len(early) == 3 and all(early)
