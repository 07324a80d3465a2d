"""The running statistics of batch norm span the same samples whatever the batch is and however it is cut.

All rows are alike, so a running mean tells how many samples it has seen and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import swell
from swell.core.types import Observation
from tests.workers import run_workers

BASE, ROWS = 4, 96


@dataclass(frozen=True)
class Listed:
    """Batches by the step, over and over."""

    batches: tuple[int, ...]
    base: int = BASE

    def batch(self, seen: Observation) -> int:
        return self.batches[seen.step % len(self.batches)]


class Network(nn.Module):
    def __init__(self, momentum: float | None) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(3, momentum=momentum), nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(x))

    @property
    def mean(self) -> Tensor:
        assert self.norm.running_mean is not None
        return self.norm.running_mean.clone()


def network(momentum: float | None = 0.1) -> Network:
    torch.manual_seed(0)
    return Network(momentum).double()


def data(rows: int = ROWS) -> TensorDataset:
    return TensorDataset(torch.full((rows, 3, 2), 5.0, dtype=torch.float64))


def plain_mean(rows: int = ROWS, *, epochs: int = 1, momentum: float | None = 0.1) -> Tensor:
    """The running mean after a plain loop at the base batch."""
    model = network(momentum)
    for _ in range(epochs):
        for part in data(rows).tensors[0].split(BASE):
            model(part)
    return model.mean


def means(model: Network, *, batch: Any, rows: int = ROWS, epochs: int = 1, **job_settings: Any) -> list[Tensor]:
    """The running mean after each step of a job."""
    if isinstance(batch, int):
        job_settings["base"] = BASE
    job = swell.Job(batch=batch, **{"micro": ROWS, "rule": "linear", "progress": False, **job_settings})
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    loader, found = job.loader(data(rows), shuffle=True), []
    for _ in job.epochs(epochs):
        for (x,) in loader:
            job.backward(model(x).mean())
            if job.step():
                found.append(model.mean)
    job.close()
    return found


@settings(max_examples=25, deadline=None)
@given(batches=st.lists(st.integers(1, 40), min_size=1, max_size=6), micro=st.integers(1, 40))
def test_any_path_of_batches_ends_where_the_base_run_does(batches: list[int], micro: int) -> None:
    found = means(network(), batch=Listed(tuple(batches)), micro=micro)
    torch.testing.assert_close(found[-1], plain_mean(), rtol=1e-9, atol=0)


@pytest.mark.parametrize("rows", [ROWS, ROWS + 3])
def test_a_short_last_batch_counts_as_in_the_base_run(rows: int) -> None:
    found = means(network(), batch=2 * BASE, rows=rows, epochs=2)
    torch.testing.assert_close(found[-1], plain_mean(rows, epochs=2), rtol=1e-9, atol=0)


@pytest.mark.parametrize("momentum", [0.01, 0.5, 1.0])
def test_any_momentum_is_followed(momentum: float) -> None:
    found = means(network(momentum), batch=6 * BASE)
    torch.testing.assert_close(found[-1], plain_mean(momentum=momentum), rtol=1e-9, atol=0)


@pytest.mark.parametrize(
    ("momentum", "job_settings"),
    [
        pytest.param(0.1, {"rule": "constant", "statistics": False}, id="a rule that changes nothing"),
        pytest.param(None, {"statistics": False}, id="a mean over all batches"),
        pytest.param(0.1, {"batch": BASE}, id="the base batch"),
    ],
)
def test_where_nothing_follows_a_step_moves_it_by_its_own_momentum(
    momentum: float | None, job_settings: dict[str, Any]
) -> None:
    found = means(network(momentum), **{"batch": 6 * BASE, **job_settings})
    by_hand = network(momentum)
    for _ in found:
        by_hand(data(8).tensors[0])
    torch.testing.assert_close(found[-1], by_hand.mean, rtol=1e-12, atol=0)


def test_a_rule_around_constant_lets_them_follow() -> None:
    rule = swell.KeepAverageTime(swell.Constant())
    torch.testing.assert_close(means(network(), batch=24, rule=rule)[-1], plain_mean(), rtol=1e-9, atol=0)


class CountsOnNoise:
    """A rule of a script, for a policy that leaves the base batch only when the noise is known."""

    def factors(self, state: swell.ScaleState) -> swell.Factors:
        assert state.scale == 1 or state.moments is not None
        return swell.Factors(ema_power=state.scale)

    def gain(self, state: swell.ScaleState) -> float:
        return 1.0


def test_a_rule_that_counts_on_a_known_noise_is_not_asked_without() -> None:
    found = means(network(), batch=BASE, rule=CountsOnNoise())
    torch.testing.assert_close(found[-1], plain_mean(), rtol=1e-12, atol=0)


def test_outside_of_the_loop_every_norm_has_its_own_momentum() -> None:
    model = network(0.2)
    job = swell.Job(batch=6 * BASE, base=BASE, micro=ROWS, rule="linear", statistics=False, progress=False)
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    loader, inside = job.loader(data()), []
    for _ in job.epochs(2):
        assert model.norm.momentum == 0.2
        with pytest.raises(ZeroDivisionError):
            for (x,) in loader:
                inside.append(model.norm.momentum)
                job.backward(model(x).mean())
                job.step()
                if job.steps == 3:
                    raise ZeroDivisionError
            raise ZeroDivisionError
        assert model.norm.momentum == 0.2
    job.close()
    assert inside == pytest.approx([1 - 0.8**6] * len(inside))


def test_a_momentum_that_the_script_sets_is_taken_as_its_own() -> None:
    model = network()
    job = swell.Job(batch=Listed((8, 8, 16, 16)), micro=ROWS, rule="linear", statistics=False, progress=False)
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    used, loader = [], job.loader(data())
    for _ in job.epochs(1):
        for (x,) in loader:
            if job.steps == 1:
                model.norm.momentum = 0.3
            used.append(model.norm.momentum)
            job.backward(model(x).mean())
            job.step()
    job.close()
    assert used[:3] == pytest.approx([1 - 0.9**2, 0.3, 1 - 0.7**4])
    assert model.norm.momentum == 0.3


def counting(seen: list[int]) -> Callable[..., Any]:
    def compiler(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        seen.append(1)
        return graph.forward

    return compiler


@pytest.mark.parametrize("whole", [True, False], ids=["the model", "a function of the script"])
def test_compiled_code_is_not_compiled_again_for_another_momentum(whole: bool) -> None:
    model, compiled = network(), []
    compiler = counting(compiled)
    run: Any = torch.compile(model if whole else lambda x: model(x), backend=compiler, dynamic=True)
    job = swell.Job(batch=Listed((BASE, BASE, 24, 8)), micro=ROWS, rule="linear", statistics=False, progress=False)
    job.wrap(run if whole else model, torch.optim.SGD(model.parameters(), lr=1e-3))
    loader = job.loader(data())
    for _ in job.epochs(1):
        for (x,) in loader:
            job.backward(run(x).mean())
            job.step()
            assert model.norm.momentum == 0.1
    job.close()
    assert len(compiled) == 1


def on_replicas(collective: Any, batches: list[int], micro: int) -> Tensor:
    return means(network(), batch=Listed(tuple(batches)), micro=micro)[-1]


@pytest.mark.distributed
@pytest.mark.parametrize("replicas", [2, 3, 5])
def test_replicas_end_where_the_base_run_does(replicas: int) -> None:
    for mean in run_workers(replicas, on_replicas, [8 * replicas, 24, 11 * replicas], 8):
        torch.testing.assert_close(mean, plain_mean(), rtol=1e-9, atol=0)
