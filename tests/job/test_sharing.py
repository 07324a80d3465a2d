"""Data that the script makes itself: computed once for all replicas, kept for those that come later, never mixed."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, TensorDataset

import swell
from swell.errors import CheckpointError, ConfigError, DisagreementError, LoopError
from swell.job.shared_values import START, SharedValues
from tests.data.buffered import Buffered
from tests.job.scenario import make_model, mean_loss
from tests.workers import run_workers

N = 24


class Rollouts(Dataset[Any]):
    """What the script collected, overwritten in every epoch."""

    def __init__(self) -> None:
        self.x, self.y = torch.zeros(N, 6, dtype=torch.float64), torch.zeros(N, dtype=torch.float64)

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        return self.x[index], self.y[index], index

    def fill(self, rows: Any) -> None:
        self.x.copy_(rows["x"])
        self.y.copy_(rows["y"])


def collect(calls: list[int], epoch: int) -> dict[str, Any]:
    calls.append(epoch)
    return {"x": torch.randn(N, 6, dtype=torch.float64), "y": torch.randn(N, dtype=torch.float64)}


def reinforce(
    collective: Any, folder: str | None = None, stop_after: int | None = None, share: bool = True
) -> dict[str, Any]:
    torch.manual_seed(2)
    job = swell.Job(folder, batch=8, micro=2, rule="constant", save=None, progress=False)
    model, data = make_model(), Rollouts()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.05))
    loader = job.loader(data, shuffle=True)
    calls: list[int] = []
    told: list[Any] = []
    for epoch in job.epochs(3):
        rows = job.share(partial(collect, calls, epoch)) if share else collect(calls, epoch)
        data.fill(rows)
        rows["x"].zero_()  # the value is this replica's own
        for x, y, _ in loader:
            job.backward(mean_loss(model, x, y))
            if job.step():
                told.append(job.share(lambda: (job.rank, job.steps)))
                if job.steps == stop_after:
                    job.save()
                    break
        if job.steps == stop_after:
            break
        told.append(job.share(partial("end of {}".format, epoch)))
    weights = [p.detach().clone() for p in model.parameters()]
    return {"calls": calls, "told": told, "weights": weights}


def test_a_value_is_computed_once_at_each_place_and_given_back() -> None:
    alone = reinforce(None)
    assert alone["calls"] == [0, 1, 2]
    ends = [(0, step) if isinstance(step, int) else step for step in (1, 2, 3, "end of 0", 4, 5, 6, "end of 1")]
    assert alone["told"][:8] == ends


@pytest.mark.distributed
@pytest.mark.parametrize("world", [2, 3])
def test_every_replica_gets_what_the_first_one_computed(world: int) -> None:
    replicas, alone = run_workers(world, reinforce), reinforce(None)
    assert [replica["calls"] for replica in replicas] == [[0, 1, 2], *[[]] * (world - 1)]
    for replica in replicas:
        assert replica["told"] == alone["told"]
        for one, other in zip(replica["weights"], alone["weights"], strict=True):
            torch.testing.assert_close(one, other)


def parts(collective: Any) -> list[Any]:
    job = swell.Job(batch=8, micro=2, rule="constant", progress=False)
    model = make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.05))
    loader = job.loader(Rollouts())
    gathered: list[Any] = []
    for _ in job.epochs(1):
        for x, y, _ in loader:
            job.backward(mean_loss(model, x, y))
            if job.step():
                part = {"rank": collective.rank, "values": torch.full((collective.rank + 1,), job.steps)}
                gathered.append(job.engine.sharing.gather_parts(part))
    job.close()
    return gathered


@pytest.mark.distributed
@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_replica_gets_the_parts_of_all_in_their_order(world: int) -> None:
    for gathered in run_workers(world, parts):
        assert [[part["rank"] for part in each] for each in gathered] == [list(range(world))] * 3
        for step, each in enumerate(gathered, start=1):
            assert [part["values"].tolist() for part in each] == [[step] * (rank + 1) for rank in range(world)]


@pytest.mark.distributed
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_a_run_resumed_in_an_epoch_trains_on_what_was_shared_in_it(before: int, after: int, tmp_path: Path) -> None:
    run_workers(before, reinforce, str(tmp_path / "run"), 4)  # in the second epoch
    resumed = run_workers(after, reinforce, str(tmp_path / "run"), None)
    assert resumed[0]["calls"] == [2], "what was collected for the second epoch was kept"
    for one, other in zip(resumed[0]["weights"], reinforce(None)["weights"], strict=True):
        torch.testing.assert_close(one, other)


def made_apart(collective: Any) -> None:
    reinforce(collective, None, None, False)


@pytest.mark.distributed
def test_replicas_that_collect_apart_are_refused() -> None:
    with pytest.raises(DisagreementError, match=r"the content of the data set.*job\.share\(function\).*job\.register"):
        run_workers(2, made_apart)


def apart(collective: Any, fingerprint: str | None, stream_seeds: tuple[int, int] | None = None) -> int:
    torch.manual_seed(collective.rank)
    job = swell.Job(batch=4, progress=False)
    model = make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01))
    if stream_seeds is not None:
        dataset = Buffered(40, seed=stream_seeds[collective.rank])
        loader = job.loader(dataset, collate_fn=lambda rows: torch.zeros(len(rows), 6).double())
    else:
        options: dict[str, Any] = {} if fingerprint is None else {"fingerprint": fingerprint}
        loader = job.loader(TensorDataset(torch.randn(40, 6, dtype=torch.float64)), **options)
    for _ in job.epochs(1):
        for batch in loader:
            x = batch[0] if stream_seeds is None else batch
            job.backward(model(x).square().mean())
            job.step()
    job.close()
    return job.samples


@pytest.mark.distributed
def test_data_from_another_seed_is_refused_unless_it_is_said_to_be_the_same() -> None:
    with pytest.raises(DisagreementError, match="rank 1 has another than rank 0"):
        run_workers(2, apart, None)
    assert run_workers(2, apart, "a cache") == [40, 40]


@pytest.mark.distributed
@pytest.mark.parametrize(("seeds", "position"), [((1, 2), 0), ((0, 1), 1)])
def test_a_stream_in_another_order_is_refused_on_several_replicas(seeds: tuple[int, int], position: int) -> None:
    with pytest.raises(DisagreementError, match=rf"the sample at position {position}:.*shuffle\(seed=0"):
        run_workers(2, apart, None, seeds)


def failing(collective: Any) -> None:
    job = swell.Job(batch=4, progress=False)
    model = make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01))
    job.loader(TensorDataset(torch.zeros(8, 6)))
    for _ in job.epochs(1):
        expected = ZeroDivisionError if job.rank == 0 else LoopError
        with pytest.raises(expected, match="division by zero"):
            job.share(lambda: 1 / 0)
        return


@pytest.mark.distributed
def test_a_function_that_fails_fails_on_every_replica() -> None:
    run_workers(2, failing)


def test_where_and_what_cannot_be_shared_is_said() -> None:
    job = swell.Job(batch=4, micro=2, progress=False)
    model = make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01))
    loader = job.loader(TensorDataset(torch.zeros(8, 6, dtype=torch.float64)))
    with pytest.raises(LoopError, match=r"outside the loop over job\.epochs"):
        job.share(lambda: 1)
    for _ in job.epochs(1):
        with pytest.raises(ConfigError, match="function is a int"):
            job.share(1)  # type: ignore[arg-type]
        with pytest.raises(CheckpointError, match="value"):
            job.share(lambda: object())
        for (x,) in loader:
            with pytest.raises(LoopError, match="in the middle of a step"):
                job.share(lambda: 1)
            job.backward(model(x).square().mean())
            job.step()
    with pytest.raises(ConfigError, match="fingerprint is 3"):
        other = swell.Job(batch=4)
        other.loader(TensorDataset(torch.zeros(8)), fingerprint=3)


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([START, "8", "16"])), max_size=12))
def test_only_what_can_be_asked_for_again_is_kept(places: list[tuple[int, str]]) -> None:
    shared = SharedValues()
    for number, (epoch, where) in enumerate(sorted(places)):
        position = "0" if where == START else where
        shared.keep((epoch, where, number), number, position=position)
        again = SharedValues()
        again.load_state_dict(shared.state_dict(epoch=epoch, position=position))
        kept = [at for at in ((e, w, n) for n, (e, w) in enumerate(sorted(places))) if at in again]
        assert all(at[0] == epoch and at[1] in (START, position) for at in kept)
        assert again.get((epoch, where, number)) == number
