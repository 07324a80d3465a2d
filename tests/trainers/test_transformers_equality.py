"""A run with Hugging Face's Trainer: the plain one's numbers on one process, and the same on any number of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trainers.transformers_worker import train
from tests.workers import run_processes

pytestmark = pytest.mark.distributed

FIXED = {"per_device_train_batch_size": 16, "num_train_epochs": 2, "train_sampling_strategy": "sequential"}


def settings(folder: Path, samples: int, **more: Any) -> dict[str, Any]:
    args = {"output_dir": str(folder), **FIXED, **more.pop("args", {})}
    return {"samples": samples, "args": args, **more}


def train_on(workers: int, chosen: dict[str, Any]) -> dict[str, Any]:
    """The result of the first of these workers, on which all agree."""
    if workers == 1:
        return run_processes(1, train, chosen, timeout_s=300, environ={"WORLD_SIZE": "1"})[0]
    results = run_processes(workers, train, chosen, timeout_s=300)
    assert [result["first"] for result in results] == [True] + [False] * (workers - 1)
    for result in results[1:]:
        assert result["digest"] == results[0]["digest"] and result["lr"] == results[0]["lr"]
    return results[0]


def near(one: dict[str, Any], other: dict[str, Any], digits: float = 1e-12) -> None:
    for a, b in zip(one["digest"], other["digest"], strict=True):
        assert abs(a - b) <= digits * max(abs(b), 1.0)


# The loss of Hugging Face's language models is computed in float32, whatever the model is in.
KINDS = {"numbers": ({}, 1e-12), "sentences": ({"own_loss": True}, 1e-12), "float32 loss": ({}, 1e-7)}


@pytest.mark.parametrize("kind", KINDS)
def test_at_a_fixed_batch_on_one_process_it_is_the_plain_trainer(tmp_path: Path, kind: str) -> None:
    more, digits = KINDS[kind]
    chosen = {"data": "numbers" if kind == "numbers" else "sentences", **more}
    plain = train(settings(tmp_path / "plain", 96, plain=True, **chosen))
    ours = train(settings(tmp_path / "ours", 96, **chosen))
    near(ours, plain, digits)
    assert ours["steps"] == plain["steps"] == 12 and ours["lr"] == plain["lr"]
    for mine, theirs in zip(ours["history"], plain["history"], strict=True):
        for name in {"grad_norm", "learning_rate", "epoch", "step", "total_flos"} & set(theirs):
            assert mine[name] == pytest.approx(theirs[name], rel=1e-6), name
        if "loss" in theirs:  # a mean over tokens, where the plain one's is a mean of the steps' means
            assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-6 if kind == "numbers" else 1e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_one_two_and_three_workers_give_the_same_weights(tmp_path: Path, kind: str) -> None:
    # 100 samples at a batch of 16: the last step has four, the shares of three workers are uneven.
    more, digits = KINDS[kind]
    evaluated = {"eval_strategy": "steps", "eval_steps": 3, "per_device_eval_batch_size": 4}
    args = {"per_device_train_batch_size": 4, **evaluated}
    chosen = {"data": "numbers" if kind == "numbers" else "sentences", **more, "eval": 21, "job": {"batch": 16}}
    alone, *others = [train_on(n, settings(tmp_path / str(n), 100, args=args, **chosen)) for n in (1, 2, 3)]
    assert alone["steps"] == 14
    for other in others:
        near(other, alone, digits)
        for name in ("loss", "eval_loss", "eval_mean", "eval_rows"):
            mine, theirs = ([line[name] for line in one["history"] if name in line] for one in (other, alone))
            assert mine == pytest.approx(theirs, rel=1e-6)
        assert other["evaluation"]["eval_loss"] == pytest.approx(alone["evaluation"]["eval_loss"], rel=1e-6)
