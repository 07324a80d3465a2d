"""The trainer of the older documentation: bounds, gains, schedules, clipping and restarts as that page promises."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, Adam

import swell.compat.adaptdl as adaptdl
from swell import rules
from swell.compat.adaptdl import AdaptDLTorchTrainer
from swell.compat.adaptdl.local_batch import LocalBatch
from swell.compat.adaptdl.session import current_session
from swell.errors import ConfigError, LoopError, PlanError
from tests.compat.adaptdl.scenario import Points, mean_loss, plain, sgd, weights
from tests.job.scenario import largest_relative_error, make_model
from tests.workers import run_processes


def test_eighty_on_eight_replicas_allow_ten_and_not_eleven() -> None:
    assert LocalBatch(16, 80, None).range_on(8) == (1, 10)


def test_a_lower_bound_of_100_with_a_maximum_of_1000_cannot_run_on_eleven_replicas() -> None:
    assert LocalBatch(128, 1000, (100, 400)).range_on(10) == (100, 100)
    with pytest.raises(PlanError, match="10 replicas"):
        LocalBatch(128, 1000, (100, 400)).range_on(11)


@given(
    batch=st.integers(1, 500), most=st.none() | st.integers(1, 4000), replicas=st.integers(1, 40),
    bounds=st.none() | st.tuples(st.integers(1, 300), st.integers(0, 300)), global_batch=st.integers(1, 5000),
)  # fmt: skip
def test_local_batches_keep_every_bound(
    batch: int, most: int | None, replicas: int, bounds: tuple[int, int] | None, global_batch: int
) -> None:
    bounds = None if bounds is None else (bounds[0], bounds[0] + bounds[1])
    local_batch = LocalBatch(batch, most, bounds)
    try:
        local = local_batch.near(global_batch, replicas)
    except PlanError:
        assert most is not None and replicas * (bounds or (1, 1))[0] > most
        return
    assert local >= 1 and (most is None or local * replicas <= most)
    assert bounds is None or bounds[0] <= local <= bounds[1]
    assert local_batch.elastic == (most is not None or bounds is not None)


@pytest.mark.parametrize(
    "settings", [(0, None, None), (8, 0, None), (8, None, (5, 3)), (8, None, 5), (8.5, None, None)], ids=str
)
def test_bounds_that_can_never_work_are_refused(settings: Any) -> None:
    with pytest.raises(ConfigError):
        AdaptDLTorchTrainer(*settings)


def run_alone(
    trainer: AdaptDLTorchTrainer, make: Any = sgd, *, steps: int = 6, clip: float | None = None
) -> tuple[nn.Module, Any]:
    model, points = make_model(), Points(48)
    optimizer = make(model)
    trainer.program_reentry(model, optimizer, None)
    local = trainer.get_local_bsz()
    for step in range(steps):
        rows = torch.arange(step * local, (step + 1) * local) % 48
        optimizer.zero_grad()
        mean_loss(model, points.x[rows], points.y[rows]).backward()
        if clip is not None:
            trainer.clip_grad_norm_(clip)
        optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("clip", [None, 0.2])
def test_one_replica_trains_with_the_default_batch_and_still_measures_the_gain(clip: float | None) -> None:
    trainer = AdaptDLTorchTrainer(8, 512, (2, 4))
    model, optimizer = run_alone(trainer, clip=clip)
    assert trainer.get_local_bsz() == 8
    assert largest_relative_error(weights(model), plain(steps=6, clip=clip)) < 1e-12
    assert optimizer.predict_gain(1.0) == 1 and type(optimizer) is SGD
    assert 1 <= optimizer.predict_gain(8.0) <= 8 and trainer.learner.noise.plain.observations == 5  # type: ignore[union-attr]
    trainer.close()
    assert not {"step", "predict_gain", "update_scale"} & set(vars(optimizer))


def test_the_scale_can_be_set_by_hand_and_each_group_gets_its_own_gain() -> None:
    def two_groups(model: Any) -> SGD:
        return SGD([{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.01}], lr=0.05)

    trainer = AdaptDLTorchTrainer(8)
    model, optimizer = run_alone(trainer, two_groups)
    optimizer.update_scale(4.0, 1)
    used: list[list[float]] = []
    optimizer.register_step_pre_hook(lambda o, *_: used.append([g["lr"] for g in o.param_groups]))
    points = Points(48)
    mean_loss(model, points.x[:32], points.y[:32]).backward()
    optimizer.step()
    factors = [lr / base for lr, base in zip(used[0], (0.05, 0.01), strict=True)]
    assert all(1 <= factor <= 4 for factor in factors) and factors[0] != factors[1]
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.01]
    with pytest.raises(ConfigError, match="replica"):
        optimizer.update_scale(4.0, 3)


def test_other_optimizers_get_the_rule_that_suits_them() -> None:
    trainer = AdaptDLTorchTrainer(8)
    run_alone(trainer, lambda m: Adam(m.parameters(), lr=0.01), steps=12)
    assert trainer.learner is not None and trainer.learner.rule == rules.auto_by_gain("Adam")
    assert trainer.learner.noise.metric.observations > 0


def test_calls_out_of_order_are_refused() -> None:
    with pytest.raises(LoopError, match="program_reentry"):
        AdaptDLTorchTrainer(8).get_local_bsz()
    trainer = AdaptDLTorchTrainer(8)
    _, optimizer = run_alone(trainer)
    with pytest.raises(ConfigError, match="closure"):
        optimizer.step(lambda: 0.0)


def test_a_run_continues_with_the_next_epoch_its_schedule_and_its_gain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADAPTDL_CHECKPOINT_PATH", str(tmp_path))

    def program(stop_at: int | None) -> Any:
        model, points = make_model(), Points(48)
        optimizer = sgd(model)
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 3], 0.1)
        trainer = AdaptDLTorchTrainer(8, max_batch_size=64)
        state = trainer.program_reentry(model, optimizer, schedule)
        epochs = []
        for epoch in range(state.epoch, 4):
            for step in range(6):
                rows = slice(step * 8, step * 8 + 8)
                optimizer.zero_grad()
                mean_loss(model, points.x[rows], points.y[rows]).backward()
                optimizer.step()
            schedule.step()
            epochs.append(epoch)
            if epoch == stop_at:
                os.kill(os.getpid(), signal.SIGTERM)
            trainer.step(epoch, loss=1.0)
        adaptdl.close()
        return epochs, state, optimizer.param_groups[0]["lr"], weights(model), trainer.predict_gain(4.0)

    with pytest.raises(SystemExit) as ended:
        program(stop_at=1)
    assert ended.value.code == 143
    adaptdl.close()
    epochs, state, lr, result, gain = program(stop_at=None)
    assert epochs == [2, 3] and state.resumed and state.metrics == {"loss": 1.0}
    assert lr == pytest.approx(0.05 * 0.01) and gain > 1

    def twin(model: nn.Module) -> SGD:
        optimizer = SGD(model.parameters(), lr=0.05, momentum=0.5)
        count = iter(range(100))
        optimizer.register_step_post_hook(
            lambda o, *_: o.param_groups[0].update(lr={11: 0.005, 17: 0.0005}.get(next(count), o.param_groups[0]["lr"]))
        )
        return optimizer

    assert largest_relative_error(result, plain(steps=24, make_optimizer=twin)) < 1e-12


def test_a_rule_by_the_dual_norm_is_refused_with_what_to_use_instead() -> None:
    model = make_model()
    with pytest.raises(
        ConfigError, match=r"AdaptDLTorchTrainer does not measure gradients in a dual norm.*Use AdamScale"
    ):
        AdaptDLTorchTrainer(8, rule="dualscale").program_reentry(model, SGD(model.parameters(), lr=0.1))
    adaptdl.close()


def train_together(max_batch_size: int | None, bounds: Any, stale: bool) -> dict[str, Any]:
    import warnings

    model, points = make_model(seed=int(os.environ["RANK"]) + 3), Points(48)  # rank 0's weights are taken
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.5)
    trainer = AdaptDLTorchTrainer(8, max_batch_size, bounds, rule="linear")
    trainer.program_reentry(model, optimizer)
    rank, replicas = current_session().collective.rank, trainer.replicas
    sizes, losses = [], []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for epoch in range(2):
            local = trainer.get_local_bsz() if epoch == 0 or not stale else sizes[-1]
            sizes.append(local)
            for start in range(0, 48 - replicas * local + 1, replicas * local):
                rows = slice(start + rank * local, start + (rank + 1) * local)
                optimizer.zero_grad()
                mean_loss(model, points.x[rows], points.y[rows]).backward()
                optimizer.step()
            trainer.step(epoch)
    adaptdl.close()
    messages = [str(w.message) for w in caught if "get_local_bsz" in str(w.message)]
    return {
        "sizes": sizes,
        "weights": weights(model),
        "losses": losses,
        "warned": messages,
        "gain": trainer.predict_gain(4),
    }


@pytest.mark.distributed
def test_replicas_use_equal_batches_and_take_the_steps_one_process_would() -> None:
    results = run_processes(2, train_together, None, None, False)
    assert all(result["sizes"] == [4, 4] and not result["warned"] for result in results)
    for result in results:
        assert largest_relative_error(result["weights"], plain(steps=12)) < 1e-12
        assert 1 < result["gain"] <= 4


@pytest.mark.distributed
def test_elastic_batches_agree_keep_their_bounds_and_a_stale_one_is_noticed() -> None:
    results = run_processes(3, train_together, 16, (2, 6), True)
    assert len({tuple(result["sizes"]) for result in results}) == 1
    assert all(2 <= size <= 5 for size in results[0]["sizes"])  # 3 * 5 <= 16 < 3 * 6
    assert all(len(result["warned"]) == 1 and "epoch 1" in result["warned"][0] for result in results)


@pytest.mark.parametrize(("most", "batch"), [(4, 4), (64, 8), (None, 8)])
def test_the_maximum_holds_on_one_replica_too(most: int | None, batch: int) -> None:
    trainer = AdaptDLTorchTrainer(8, most)
    model = make_model()
    state = trainer.program_reentry(model, sgd(model), None)
    assert (state.local_bsz, trainer.get_local_bsz()) == (batch, batch)
