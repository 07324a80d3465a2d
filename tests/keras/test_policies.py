"""Every policy and combinator of the core moves the batch of a Keras model exactly, and what it decided is logged."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

import types

import keras
import numpy as np
import pytest

import swell
import swell.keras
from swell.core.types import Layout
from swell.policies import COMBINATORS, POLICIES, observation_from_dict, replay
from swell.telemetry import read_events
from tests.keras.toy import Heard, data, difference, loss, model, train_whole

RAMP = swell.Ramp(4, 12, over=48, unit="samples", multiple=4)
MADE = {
    "fixed": lambda _: swell.Fixed(8, base=4),
    "goodput": lambda _: swell.Goodput(4, max=12, micro=4),
    "late_switch": lambda _: swell.LateSwitch(4, to=12, at=0.5),
    "noise_scale": lambda _: swell.RoundTo(swell.NoiseScale(4, max=12), multiple=4),
    "norm_test": lambda _: swell.RoundTo(swell.NormTest(4, max=12), multiple=4),
    "ramp": lambda _: RAMP,
    "schedule": lambda _: swell.Schedule([(0, 4), (24, 12)]),
    "seesaw": lambda _: swell.Seesaw(4, max=12),
    "trace": lambda folder: str(folder / "trace.csv"),
    "at_epoch_ends": lambda _: swell.AtEpochEnds(RAMP),
    "clamp": lambda _: swell.Clamp(RAMP, high=8),
    "dwell": lambda _: swell.Dwell(RAMP, samples=24),
    "hysteresis": lambda _: swell.Hysteresis(RAMP, change=0.6),
    "round_to": lambda _: swell.RoundTo(RAMP, multiple=8),
    "round_to_replicas": lambda _: swell.RoundToReplicas(RAMP, micro=4),
}


def test_each_of_the_cores_policies_and_combinators_is_here():
    assert set(MADE) == set(POLICIES) | set(COMBINATORS)


@pytest.mark.parametrize("name", MADE)
def test_a_policy_moves_the_batch_and_every_step_is_exact(name, tmp_path):
    if name == "late_switch" and keras.backend.backend() != "tensorflow":
        pytest.skip("Keras loads the first batch before it says how many epochs there are")
    (tmp_path / "trace.csv").write_text("step,batchsize\n" + "".join(f"{i},{4 * (1 + i % 3)}\n" for i in range(20)))
    x, y = data(48)
    elastic = swell.keras.Elastic(batch=MADE[name](tmp_path), micro=4, rule="constant", directory=tmp_path)
    network = model()
    network.compile(optimizer=elastic.optimizer("sgd"), loss=loss())
    network.fit(elastic.data(x, y), epochs=2, callbacks=[elastic], verbose=0)
    assert elastic.samples == 96
    events = list(read_events(tmp_path / "events.jsonl"))
    sizes = [event.global_batch for event in events if event.kind == "step"]
    assert sum(sizes) == 96
    assert difference(network.get_weights(), train_whole(model(), "sgd", x, y, sizes, epochs=2)) < 2e-6
    assert all(one.logged == one.recomputed for one in replay(elastic.policy, events))
    # Three of these find no noise to go by so soon, and Keras has no schedule that a seesaw could follow.
    moved = name not in ("fixed", "goodput", "noise_scale", "norm_test", "seesaw")
    assert any(event.kind == "batch" for event in events) == (moved or name == "fixed")


class _Tick(keras.callbacks.Callback):
    """A clock by which every pass takes ten milliseconds, however many samples it has."""

    def __init__(self):
        super().__init__()
        self.now = 0.0

    def on_train_batch_end(self, batch, logs=None):
        self.now += 0.01


def test_goodput_chooses_larger_batches_where_they_cost_no_more_time(tmp_path, monkeypatch):
    x, _ = data(512)
    y = (x @ np.random.default_rng(5).normal(size=(5, 3))).argmax(axis=1)
    tick = _Tick()
    monkeypatch.setattr("swell.integrations.keras.training.time", types.SimpleNamespace(perf_counter=lambda: tick.now))
    policy = swell.Goodput(base=16, max=64, micro=(4, 64), price=4.0)
    elastic = swell.keras.Elastic(batch=policy, micro=32, rule="adascale", directory=tmp_path)
    network = model()
    network.compile(optimizer=elastic.optimizer(keras.optimizers.SGD(0.001)), loss=loss())
    network.fit(elastic.data(x, y), epochs=4, callbacks=[tick, elastic], verbose=0)
    events = list(read_events(tmp_path / "events.jsonl"))
    chosen = [event for event in events if event.kind == "batch"]
    assert elastic.samples == 2048
    assert max(event.after for event in chosen) > 16
    assert all(one.logged == one.recomputed for one in replay(policy, events))
    assert policy.explain(observation_from_dict(chosen[0].seen)).reasons
    assert max(event.micro_batch for event in events if event.kind == "step") == 32  # not 64
    kinds = [event.kind for event in events]
    assert kinds[0] == "run" and kinds[-1] == "run_end" and kinds.count("epoch_begin") == kinds.count("epoch") == 4


class _SmallerPasses:
    """A batch that stays, laid out in smaller passes after 24 samples."""

    base = 8

    def batch(self, seen):
        return 8

    def layout(self, seen):
        return Layout(global_batch=8, micro_batch=4 if seen.samples < 24 else 2)


def test_a_change_of_the_micro_batch_alone_is_logged_and_can_be_replayed():
    x, y = data(48)
    heard, policy = Heard(), _SmallerPasses()
    elastic = swell.keras.Elastic(batch=policy, sinks=[heard])
    network = model()
    network.compile(optimizer=elastic.optimizer("sgd"), loss=loss())
    network.fit(elastic.data(x, y), callbacks=[elastic], verbose=0)
    changes = [event for event in heard.events if event.kind == "batch"]
    assert [(e.step, e.before, e.after, e.micro_before, e.micro_after) for e in changes] == [(3, 8, 8, 4, 2)]
    assert [one.same for one in replay(policy, heard.events)] == [True]
    assert [event.micro_batch for event in heard.events if event.kind == "step"] == [4, 4, 4, 2, 2, 2]


def test_events_go_to_whoever_listens_with_the_base_rate_of_a_schedule():
    x, y = data(24)
    heard = Heard()
    elastic = swell.keras.Elastic(batch=8, base=4, rule="linear", sinks=[heard], statistics=False)
    network = model()
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    network.compile(optimizer=elastic.optimizer(keras.optimizers.SGD(schedule)), loss=loss())
    network.fit(elastic.data(x, y), callbacks=[elastic], verbose=0)
    steps = [event for event in heard.events if event.kind == "step"]
    assert [event.lr[0] for event in steps] == pytest.approx([0.1, 0.05, 0.025])
    assert [event.lr_factor[0] for event in steps] == [2.0, 2.0, 2.0]
    assert [event.metrics["loss"] > 0 for event in heard.events if event.kind == "epoch"] == [True]
