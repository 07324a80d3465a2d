"""TensorBoard gets every figure of the events, over samples."""

from __future__ import annotations

import builtins
import math

import pytest

from swell.core.events import BatchChanged, Resized, Stepped
from swell.errors import DependencyError
from swell.telemetry import TensorBoardSink
from tests.telemetry.runs import a_run, stepped


def written(folder, events):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    sink = TensorBoardSink(folder)
    for event in events:
        sink.emit(event)
    sink.close()
    return accumulator.EventAccumulator(str(folder)).Reload()


def test_every_figure_of_a_step_is_a_scalar_over_samples(tmp_path):
    read = written(tmp_path, a_run())
    steps = [event for event in a_run() if isinstance(event, Stepped)]
    assert set(read.Tags()["scalars"]) == {
        "loss",
        "batch/global",
        "batch/micro",
        "batch/accumulation",
        "batch/replicas",
        "scale/gain",
        "scale/progress",
        "scale/lr",
        "scale/lr_factor",
        "noise/noise_scale",
        "speed/step_s",
        "speed/samples_per_s",
        "epoch/accuracy",
    }
    loss = read.Scalars("loss")
    assert [point.step for point in loss] == [step.samples for step in steps]
    assert [point.value for point in loss] == pytest.approx([step.loss for step in steps])
    assert [point.wall_time for point in loss] == pytest.approx([step.time for step in steps])
    assert [point.step for point in read.Scalars("epoch/accuracy")] == [1000, 2000, 3000]


def test_each_parameter_group_has_its_own_line_and_what_is_not_finite_is_left_out(tmp_path):
    events = [stepped(lr=(0.1, 0.2), lr_factor=(1.0, 2.0), loss=math.nan, noise_scale=math.inf, step_s=0.0)]
    tags = set(written(tmp_path, events).Tags()["scalars"])
    assert {"scale/lr/group_0", "scale/lr/group_1", "scale/lr_factor/group_1"} <= tags
    assert not {"loss", "noise/noise_scale", "speed/samples_per_s"} & tags


def test_decisions_and_resizes_are_written_as_text(tmp_path):
    events = [
        stepped(),
        BatchChanged(time=1.0, step=1, before=64, after=128, policy="Fixed(128)", seen={}),
        Resized(time=1.0, step=1, before=1, after=2, reason="a worker joined"),
    ]
    read = written(tmp_path, events)
    texts = {tag: read.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in read.Tags()["tensors"]}
    assert texts == {
        "batch/text_summary": "64 to 128 by Fixed(128)",
        "world/text_summary": "1 to 2 replicas: a worker joined",
    }


def test_without_tensorboard_the_error_names_what_to_install(tmp_path, monkeypatch):
    real = builtins.__import__

    def without_tensorboard(name, *rest):
        if "tensorboard" in name:
            raise ModuleNotFoundError("No module named 'tensorboard'", name="tensorboard")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_tensorboard)
    with pytest.raises(DependencyError, match=r"tensorboard.*pip install '\.\[torch,tensorboard\]'"):
        TensorBoardSink(tmp_path)
