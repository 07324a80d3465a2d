"""Which loop trains, what an epoch is, and what a restart does: loops that are done are not run again."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import swell.compat.adaptdl as adaptdl
from swell.compat.adaptdl.session import current_session
from swell.errors import LoopError
from tests.compat.adaptdl.scenario import Points, Writer, loader, mean_loss, open_run, train


def evaluate(wrapped: Any, data: Any) -> list[int]:
    wrapped.eval()
    with torch.no_grad():
        return [i for _, _, index in data for i in index.tolist()]


def test_every_pass_has_every_sample_once_and_a_seed_chooses_the_order() -> None:
    """AdaptDL C7: the user's seed was ignored."""
    orders = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        _, optimizer, wrapped = open_run()
        data = loader(41, shuffle=True)
        orders.append([train(wrapped, optimizer, data) for _ in adaptdl.torch.remaining_epochs_until(2)])
        adaptdl.close()
    assert all(sorted(indices) == list(range(41)) for run in orders for indices in run)
    assert orders[0] == orders[1] != orders[2] and orders[0][0] != orders[0][1]


def test_only_the_loader_that_is_trained_with_is_the_training_loader() -> None:
    _, optimizer, wrapped = open_run()
    judged, trained = loader(), loader()
    assert sorted(evaluate(wrapped, judged)) == list(range(48))
    assert not judged.training and not trained.training
    train(wrapped, optimizer, trained)
    assert trained.training and not judged.training
    wrapped.train()
    assert len([batch for batch in judged]) == 6  # with gradients enabled, but another loader trains
    assert sorted(evaluate(wrapped, trained)) == list(range(48))


def test_a_loader_may_be_iterated_twice_in_an_epoch() -> None:
    """AdaptDL C6: a loader used twice in an epoch lost its place."""
    _, optimizer, wrapped = open_run()
    data = loader(41)
    for _ in adaptdl.torch.remaining_epochs_until(1):
        assert sorted(train(wrapped, optimizer, data)) == sorted(train(wrapped, optimizer, data)) == list(range(41))


def test_an_autoscaled_epoch_is_worth_an_epoch_at_the_initial_batch() -> None:
    _, optimizer, wrapped = open_run()
    data = loader(n=44, autoscale=44)
    for epoch in adaptdl.torch.remaining_epochs_until(3):
        train(wrapped, optimizer, data)
        progress = wrapped.gns.get_progress()
        assert (epoch + 1) * 6 <= progress < (epoch + 1) * 6 + wrapped.gain  # six batches of 8, the last one short
    assert current_session().job.samples == pytest.approx(3 * 44, abs=8)  # type: ignore[union-attr]


def test_an_epoch_that_was_left_is_not_finished_and_continues() -> None:
    """AdaptDL C16: ``break`` and exceptions finished the epoch."""
    _, optimizer, wrapped = open_run()
    data = loader(48)
    first: list[int] = []
    for epoch in adaptdl.torch.remaining_epochs_until(2):
        assert adaptdl.torch.current_epoch() == epoch
        for x, y, index in data:
            first += index.tolist()
            mean_loss(wrapped, x, y).backward()
            optimizer.step()
            if len(first) == 16:
                break
        break
    assert adaptdl.torch.finished_epochs() == 0 and adaptdl.torch.current_epoch() is None
    epochs = [(epoch, train(wrapped, optimizer, data)) for epoch in adaptdl.torch.remaining_epochs_until(2)]
    assert [epoch for epoch, _ in epochs] == [0, 1] and epochs[0][1] == []  # its loop was left, so it is done
    assert sorted(epochs[1][1]) == list(range(48))


def test_loops_over_epochs_follow_one_another_and_are_not_nested() -> None:
    _, optimizer, wrapped = open_run()
    data = loader()
    epochs = [epoch for epoch in adaptdl.torch.remaining_epochs_until(2) if train(wrapped, optimizer, data)]
    epochs += [epoch for epoch in adaptdl.torch.remaining_epochs_until(4) if train(wrapped, optimizer, data)]
    assert epochs == [0, 1, 2, 3]
    for _ in adaptdl.torch.remaining_epochs_until(5):
        with pytest.raises(LoopError, match="remaining_epochs_until"):
            next(iter(adaptdl.torch.remaining_epochs_until(6)))
        break


def test_a_loop_inside_a_loop_is_refused_and_the_outer_one_goes_on() -> None:
    """AdaptDL C17: the error for a nested loop broke the outer one."""
    _, optimizer, wrapped = open_run()
    data, other = loader(), loader()
    samples = 0
    for x, y, _ in data:
        with pytest.raises(LoopError, match="AdaptiveDataLoader"):
            list(other)
        assert adaptdl.torch.current_dataloader() is data._elastic
        mean_loss(wrapped, x, y).backward()
        optimizer.step()
        samples += len(y)
    assert samples == 48 and adaptdl.torch.current_dataloader() is None


def test_the_short_last_batch_counts_as_what_it_is() -> None:
    """AdaptDL C12: a short last batch counted as a full one."""
    _, optimizer, wrapped = open_run()
    data = loader(20)
    sizes = []
    for x, y, _ in data:
        sizes.append((data.current_batch_size, data.current_local_bsz, data.accumulation_steps, len(y)))
        mean_loss(wrapped, x, y).backward()
        optimizer.step()
    assert sizes == [(8, 8, 0, 8), (8, 8, 0, 8), (4, 4, 0, 4)]
    assert data.current_batch_size is None and len(data) == 3


def test_bounds_that_leave_out_the_initial_batch_are_refused() -> None:
    data = loader()
    for bounds in [{"max_batch_size": 7}, {"max_batch_size": 64, "local_bsz_bounds": (9, 64)},
                   {"max_batch_size": 64, "local_bsz_bounds": (1, 7)}, {"max_batch_size": 64, "local_bsz_bounds": 7},
                   {"max_batch_size": 8.5}]:  # fmt: skip
        with pytest.raises(ValueError):
            data.autoscale_batch_size(**bounds)
    data.autoscale_batch_size(64, local_bsz_bounds=(None, 16), gradient_accumulation=True)
    assert (data.max_batch_size, data.local_bsz_bounds) == (64, (None, 16))
    with pytest.raises(LoopError, match="training loader"):
        loader().autoscale_batch_size(64)


def test_attributes_that_scripts_read_are_those_of_a_data_loader() -> None:
    """AdaptDL's NCF example reads ``model._state.model``; others ask for a DataLoader and its sampler."""
    model, optimizer, wrapped = open_run()
    data = loader(20, shuffle=True, drop_last=True)
    assert isinstance(data, DataLoader) and isinstance(data, adaptdl.torch.AdaptiveDataLoaderMixin)
    assert (data.batch_size, data.drop_last, data.num_workers) == (8, True, 0)
    assert isinstance(data.sampler, adaptdl.torch.ElasticSampler) and sorted(data.sampler) == list(range(20))
    data.sampler.set_epoch(3)
    train(wrapped, optimizer, data)
    state = wrapped._state
    assert state.model is model and state.optimizer is optimizer and state.adp is wrapped
    assert (state.lr_scheduler, state.mp_scaler, state.name) == (None, None, "adaptdl-dataparallel")


def test_samplers_and_streams_are_refused_with_the_way_out() -> None:
    class Stream(IterableDataset):
        def __iter__(self) -> Any:
            return iter(range(3))

    with pytest.raises(ValueError, match="sampler"):
        adaptdl.torch.AdaptiveDataLoader(Points(4), sampler=[0, 1])
    with pytest.raises(ValueError, match="iterable"):
        adaptdl.torch.AdaptiveDataLoader(Stream())


def test_figures_go_to_tensorboard_under_the_names_they_had() -> None:
    _, optimizer, wrapped = open_run()
    data, writer = loader(autoscale=64), Writer()
    for x, y, _ in data:
        mean_loss(wrapped, x, y).backward()
        optimizer.step()
        data.to_tensorboard(writer, 0, "AdaptDL/Data")
        wrapped.to_tensorboard(writer, 0, tag_prefix="AdaptDL/Model/")
    assert {tag.rpartition("/")[2] for tag in writer.scalars} == {
        "Total_Batch_Size", "Local_Batch_Size", "Accumulation_Steps", "Gradient_Norm_Sqr", "Gradient_Variance", "Gain",
        "Learning_Rate_Factor", "Accum_Scale", "Accum_Count", "Progress",
    }  # fmt: skip
    assert writer.scalars["AdaptDL/Data/Total_Batch_Size"] == 8 and writer.scalars["AdaptDL/Model/Progress"] == 6


class Run:
    """A program that is started several times in one folder, as AdaptDL's launcher does."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, autoscale: int | None = None) -> None:
        monkeypatch.setenv("ADAPTDL_CHECKPOINT_PATH", str(folder))
        self.autoscale = autoscale
        self.log: list[tuple[int, str, list[int]]] = []
        self.readings: list[tuple[int, float, float]] = []

    def start(self, *, stop_at: tuple[int, str, int] | None = None) -> int | None:
        """Run the program; ask it to stop at batch N of a loop. Returns its exit code."""
        _, optimizer, wrapped = open_run()
        train_set, test_set = loader(41, autoscale=self.autoscale), loader(13)
        first, second = loader(5), test_set
        try:
            for epoch in adaptdl.torch.remaining_epochs_until(2):
                for name, data in (("warm-up", first), ("train", train_set), ("test", second)):
                    stats = adaptdl.torch.Accumulator()
                    wrapped.train(name == "train")
                    for batch, (x, y, index) in enumerate(data):
                        self.log.append((epoch, name, index.tolist()))
                        if (epoch, name, batch) == stop_at:
                            os.kill(os.getpid(), signal.SIGTERM)
                        loss = mean_loss(wrapped, x, y)
                        if name == "train":
                            loss.backward()
                            optimizer.step()
                        stats["samples"] += len(y)
                        stats["first"] += float(y.sum())
                    with stats.synchronized():
                        self.readings.append((epoch, stats["samples"], stats["first"]))
        except SystemExit as ended:
            return ended.code  # type: ignore[return-value]
        finally:
            adaptdl.close()
        return None

    def samples(self) -> dict[tuple[int, str], list[int]]:
        indices: dict[tuple[int, str], list[int]] = {}
        for epoch, name, index in self.log:
            indices.setdefault((epoch, name), []).extend(index)
        return {key: sorted(value) for key, value in indices.items()}


@pytest.mark.parametrize(
    "stops",
    [[(0, "train", 2)], [(0, "test", 0)], [(0, "train", 0), (0, "test", 1), (1, "warm-up", 0), (1, "train", 5)]],
    ids=str,
)
def test_a_preempted_run_exits_with_143_and_goes_on_with_the_next_sample(
    stops: list[tuple[int, str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AdaptDL C6 and A3: loops that were done ran again, and on torch 2.6 and later nothing could be resumed."""
    run = Run(tmp_path, monkeypatch)
    for stop in stops:
        assert run.start(stop_at=stop) == 143
    assert run.start() is None
    sizes = {"warm-up": 5, "train": 41, "test": 13}
    assert run.samples() == {(e, name): list(range(n)) for e in range(2) for name, n in sizes.items()}
    last = {}
    for epoch, samples, total in run.readings:
        last.setdefault((epoch, samples), set()).add(total)
    assert {key[1] for key in last} == {5, 41, 13}, "a replayed block shows what it showed"
    assert all(len(totals) == 1 for totals in last.values())
    before = len(run.log)
    assert run.start() is None and len(run.log) == before, "a finished run has nothing left to do"


def test_a_notice_between_two_batches_of_a_step_waits_for_the_whole_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AdaptDL C5: gradients of samples that were counted got lost."""
    run = Run(tmp_path, monkeypatch, autoscale=41)
    assert run.start(stop_at=(0, "train", 0)) == 143  # the first step is split in two to be measured
    assert [len(index) for _, name, index in run.log if name == "train"] == [4, 4]
    assert run.start() is None
    trained = [i for epoch, name, index in run.log if name == "train" and epoch == 0 for i in index]
    assert sorted(trained[:41]) == list(range(41))


def test_the_epoch_of_tensor_datasets_with_workers_is_whole() -> None:
    _, optimizer, wrapped = open_run()
    data = adaptdl.torch.AdaptiveDataLoader(
        TensorDataset(Points(20).x, Points(20).y), batch_size=8, shuffle=True, num_workers=1
    )
    samples = 0
    for x, y in data:
        mean_loss(wrapped, x, y).backward()
        optimizer.step()
        samples += len(y)
    assert samples == 20


class Own(adaptdl.torch.AdaptiveDataLoaderMixin):
    """A loader that a user built on the helper, as AdaptDL's documentation of it shows."""

    def __init__(self, size: int, batch_size: int) -> None:
        super().__init__(batch_size)
        self.size = size

    def __iter__(self) -> Any:
        helper = self._elastic
        with helper.context():
            if helper.skipdone():
                return
            while (start := helper.current_index) is not None and start < self.size:
                with helper.profile(True):
                    yield list(range(start, min(start + helper._sync_local_bsz(), self.size)))
                helper.current_index = start + helper._sync_local_bsz()


def test_a_loader_of_ones_own_evaluates_and_is_resumed_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADAPTDL_CHECKPOINT_PATH", str(tmp_path))
    indices: list[int] = []

    def program(stop_after: int | None) -> None:
        _, optimizer, wrapped = open_run()
        data, own = loader(), Own(10, 4)
        for _ in adaptdl.torch.remaining_epochs_until(1):
            train(wrapped, optimizer, data)
            for batch, rows in enumerate(own):
                assert adaptdl.torch.current_dataloader() is own._elastic and own.current_batch_size == 4
                indices.extend(rows)
                if batch == stop_after:
                    os.kill(os.getpid(), signal.SIGTERM)
        assert adaptdl.torch.current_dataloader() is None and own.current_batch_size is None

    with pytest.raises(SystemExit) as ended:
        program(stop_after=0)
    assert ended.value.code == 143 and indices == [0, 1, 2, 3]
    adaptdl.close()
    program(stop_after=None)
    assert indices == list(range(10))
