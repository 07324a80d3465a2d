"""Clipping where scripts clip, between backward() and step(), clips the gradient of the whole global batch."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_  # as many scripts import it
from torch.optim import SGD

import swell.compat.adaptdl as adaptdl
from swell.compat.adaptdl import AdaptDLTorchTrainer
from swell.compat.adaptdl.session import current_session
from swell.errors import ConfigError
from tests.compat.adaptdl.scenario import Points, loader, mean_loss, open_run, plain, sgd, weights
from tests.job.scenario import largest_relative_error, make_model
from tests.workers import run_processes

LIMIT = 0.3


class Same(adaptdl.torch.scaling_rules.ScalingRuleBase):
    """The learning rate as it is, for the short last batch too."""

    def scale_lr(self, scale: float) -> float:
        return 1.0


def clip(how: str, wrapped: nn.Module) -> Any:
    if how == "by its module":
        return nn.utils.clip_grad_norm_(wrapped.parameters(), LIMIT)
    if how == "by its name":
        return clip_grad_norm_(list(wrapped.module.parameters()), max_norm=LIMIT)  # type: ignore[arg-type, union-attr]
    if how == "by value":
        return nn.utils.clip_grad_value_(wrapped.parameters(), LIMIT / 4)
    return wrapped.clip_grad_norm_(LIMIT)  # type: ignore[operator]


def train(how: str, n: int = 48, autoscale: int | None = None) -> tuple[list[torch.Tensor], list[float]]:
    model, optimizer, wrapped = open_run(scaling_rule=Same())
    norms = []
    for x, y, _ in loader(n, autoscale=autoscale):
        optimizer.zero_grad()
        mean_loss(wrapped, x, y).backward()
        norm = clip(how, wrapped)
        optimizer.step()
        norms.append(norm)
    result = weights(model)
    adaptdl.close()
    return result, [float(norm) for norm in norms if norm is not None]


def twin(how: str, n: int = 48) -> tuple[list[torch.Tensor], list[float]]:
    """One process, plain PyTorch, the short last batch included."""
    model, points = make_model(), Points(n)
    optimizer, norms = sgd(model), []
    for start in range(0, n, 8):
        optimizer.zero_grad()
        mean_loss(model, points.x[start : start + 8], points.y[start : start + 8]).backward()
        if how == "by value":
            nn.utils.clip_grad_value_(model.parameters(), LIMIT / 4)
        else:
            norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), LIMIT)))
        optimizer.step()
    return weights(model), norms


WAYS = ["by its module", "by its name", "by value", "by the model"]


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("autoscale", [None, 64], ids=["fixed", "split by measuring"])
def test_clipping_is_that_of_plain_pytorch(how: str, autoscale: int | None) -> None:
    result, norms = train(how, autoscale=autoscale)
    expected, whole = twin(how)
    assert largest_relative_error(result, expected) < 1e-12
    assert max(whole, default=1.0) > LIMIT and (autoscale or norms == pytest.approx(whole, rel=1e-9))


@pytest.mark.distributed
@pytest.mark.parametrize("n", [48, 41], ids=["even", "a tail of one sample"])
def test_two_replicas_clip_the_gradient_one_process_would_clip(n: int) -> None:
    for how in ("by its name", "by value"):
        expected, whole = twin(how, n)
        for rank, (result, norms) in enumerate(run_processes(2, train, how, n)):
            assert largest_relative_error(result, expected) < 1e-12
            assert norms == pytest.approx(whole[: len(norms)], rel=1e-9)  # the norm of all, once the step is done
            assert len(norms) == len(whole) - (rank == 1 and n == 41 and how == "by its name")


def test_other_gradients_are_clipped_at_once_and_torch_gets_its_functions_back() -> None:
    before = nn.utils.clip_grad_norm_
    _, optimizer, wrapped = open_run()
    assert nn.utils.clip_grad_norm_ is not before and clip_grad_norm_ is not before
    own = nn.Parameter(torch.ones(4))
    own.grad = torch.ones(4)
    assert float(clip_grad_norm_([own], 1.0)) == 2 and own.grad.norm() == pytest.approx(1.0, abs=1e-5)
    with pytest.raises(ConfigError, match="parameters"):
        clip_grad_norm_([own, *wrapped.parameters()], 1.0)
    frozen = nn.Parameter(torch.ones(1))
    clip_grad_norm_([frozen, *wrapped.parameters()], 1.0)
    adaptdl.close()
    assert nn.utils.clip_grad_norm_ is before and clip_grad_norm_ is before
    assert not optimizer._optimizer_step_pre_hooks


def test_what_is_measured_is_not_clipped() -> None:
    results = []
    for how in ("by the model", None):
        _, optimizer, wrapped = open_run(lambda m: SGD(m.parameters(), lr=0.0))
        for x, y, _ in loader(autoscale=64):
            mean_loss(wrapped, x, y).backward()
            if how is not None:
                clip(how, wrapped)
            optimizer.step()
        results.append((wrapped.gns.sqr_avg(), wrapped.gns.var_avg()))
        adaptdl.close()
    assert results[0] == pytest.approx(results[1]) and results[0][1] > 0


def test_after_an_overflow_nothing_of_the_lost_batch_is_clipped() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)  # type: ignore[attr-defined]
    model, optimizer, wrapped = open_run(mp_scaler=scaler)
    for number, (x, y, _) in enumerate(loader()):
        optimizer.zero_grad()
        loss = scaler.scale(mean_loss(wrapped, x, y))
        (loss * torch.inf if number == 0 else loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(wrapped.parameters(), 1e-9 if number == 0 else LIMIT)
        scaler.step(optimizer)
        scaler.update()
    assert largest_relative_error(weights(model), plain(steps=6, clip=LIMIT)) < 1e-9


def train_with_the_older_trainer() -> list[torch.Tensor]:
    model, points = make_model(seed=int(os.environ["RANK"]) + 3), Points(48)
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.5)
    trainer = AdaptDLTorchTrainer(8, rule="linear")
    trainer.program_reentry(model, optimizer)
    local, rank = trainer.get_local_bsz(), current_session().collective.rank
    for start in range(0, 48, 8):
        rows = slice(start + rank * local, start + (rank + 1) * local)
        optimizer.zero_grad()
        mean_loss(model, points.x[rows], points.y[rows]).backward()
        clip_grad_norm_(model.parameters(), LIMIT)
        optimizer.step()
    adaptdl.close()
    return weights(model)


@pytest.mark.distributed
def test_the_older_trainer_clips_the_gradient_of_all_replicas_too() -> None:
    for result in run_processes(2, train_with_the_older_trainer):
        assert largest_relative_error(result, plain(steps=6, clip=LIMIT)) < 1e-12
