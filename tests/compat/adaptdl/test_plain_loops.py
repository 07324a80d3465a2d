"""A loop written for AdaptDL trains as plain PyTorch would on the whole batch, whatever is done in it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import LBFGS, SGD, Adam, AdamW, SparseAdam

import swell.compat.adaptdl as adaptdl
from swell import rules
from swell.compat.adaptdl.session import current_session
from swell.core.events import Stepped
from swell.errors import LoopError
from tests.compat.adaptdl.scenario import Points, loader, mean_loss, open_run, plain, sgd, train, weights
from tests.job.scenario import largest_relative_error, make_model


def penalty(model: nn.Module) -> torch.Tensor:
    return 0.01 * sum((p**2).sum() for p in model.parameters())  # type: ignore[return-value]


@pytest.mark.parametrize("autoscale", [None, 64], ids=["fixed", "split by measuring"])
def test_the_weights_are_those_of_plain_pytorch(autoscale: int | None) -> None:
    model, optimizer, wrapped = open_run()
    data = loader(autoscale=autoscale)
    for _ in adaptdl.torch.remaining_epochs_until(2):
        train(wrapped, optimizer, data)
    assert largest_relative_error(weights(model), plain(steps=12)) < 1e-12


def test_a_penalty_on_the_parameters_is_weighed_once_while_gradients_accumulate() -> None:
    model, optimizer, wrapped = open_run()
    train(wrapped, optimizer, loader(autoscale=64), penalty=penalty)
    assert largest_relative_error(weights(model), plain(steps=6, penalty=penalty)) < 1e-12


def test_two_backward_passes_over_a_batch_add_up() -> None:
    """AdaptDL C3: two backward() calls for a batch halved its gradients."""
    model, optimizer, wrapped = open_run()
    for x, y, _ in loader(autoscale=64):
        optimizer.zero_grad()
        mean_loss(wrapped, x, y).backward()
        penalty(wrapped).backward()
        optimizer.step()
    assert largest_relative_error(weights(model), plain(steps=6, penalty=penalty)) < 1e-12


def test_zero_grad_anywhere_in_the_loop_loses_nothing() -> None:
    model, optimizer, wrapped = open_run()
    for x, y, _ in loader(autoscale=64):
        mean_loss(wrapped, x, y).backward()
        optimizer.step()
        wrapped.zero_grad()
        optimizer.zero_grad(set_to_none=False)
    assert largest_relative_error(weights(model), plain(steps=6)) < 1e-12


def test_the_gradient_of_the_whole_batch_is_clipped() -> None:
    model, optimizer, wrapped = open_run()
    for x, y, _ in loader(autoscale=64):
        optimizer.zero_grad()
        mean_loss(wrapped, x, y).backward()
        wrapped.clip_grad_norm_(0.3)
        optimizer.step()
    assert largest_relative_error(weights(model), plain(steps=6, clip=0.3)) < 1e-12


@pytest.mark.parametrize("make", [lambda m: LBFGS(m.parameters(), lr=0.1, max_iter=3), sgd], ids=["LBFGS", "SGD"])
def test_a_closure_sees_the_whole_batch_and_its_loss_is_returned(make: Any) -> None:
    """AdaptDL C9: ``optimizer.step(closure)`` divided by zero, and dropped the loss."""
    model, optimizer, wrapped = open_run(make)
    losses = []
    for x, y, _ in loader(autoscale=64):

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = mean_loss(wrapped, x, y)  # noqa: B023 - as users write it
            loss.backward()
            return loss

        losses.append(optimizer.step(closure))  # type: ignore[arg-type, call-overload]
    twin = make_model()
    own, points = make(twin), Points(48)
    for step in range(6):

        def whole() -> torch.Tensor:
            own.zero_grad()
            rows = slice(step * 8, step * 8 + 8)  # noqa: B023
            loss = mean_loss(twin, points.x[rows], points.y[rows])
            loss.backward()
            return loss

        own.step(whole)
    assert largest_relative_error(weights(model), weights(twin)) < 1e-9
    assert sum(loss is not None for loss in losses) == 6  # one a step: a batch that only accumulates has none yet


def test_a_gradient_scaler_loses_no_batch_while_gradients_accumulate() -> None:
    """AdaptDL C4: a ``GradScaler`` unscaled earlier batches again and again."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)  # type: ignore[attr-defined]
    model, optimizer, wrapped = open_run(mp_scaler=scaler)
    for x, y, _ in loader(autoscale=64):
        optimizer.zero_grad()
        scaler.scale(mean_loss(wrapped, x, y)).backward()
        scaler.step(optimizer)
        scaler.update()
    assert largest_relative_error(weights(model), plain(steps=6)) < 1e-12


def test_after_an_overflow_the_samples_come_again_and_sums_count_them_once() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)  # type: ignore[attr-defined]
    model = make_model().float()
    _, optimizer, wrapped = open_run(model=model, mp_scaler=scaler)
    stats, handed_out = adaptdl.torch.Accumulator(), 0
    for x, y, _ in loader():
        optimizer.zero_grad()
        scaler.scale(1e4 * mean_loss(wrapped, x.float(), y.float())).backward()
        scaler.step(optimizer)
        scaler.update()
        stats["samples"] += len(y)
        handed_out += len(y)
    with stats.synchronized():
        assert stats["samples"] == 48 < handed_out


def test_the_learning_rate_is_put_back_when_a_step_fails() -> None:
    """AdaptDL C20: a step that raised left the scaled learning rate behind."""
    _, optimizer, wrapped = open_run(scaling_rule=adaptdl.torch.scaling_rules.LinearScale())
    optimizer.register_step_pre_hook(lambda *_: (_ for _ in ()).throw(ArithmeticError("no")))
    with pytest.raises(ArithmeticError, match="no"):
        train(wrapped, optimizer, loader())
    assert optimizer.param_groups[0]["lr"] == 0.05


def test_frozen_parameters_stay_as_they_are() -> None:
    """AdaptDL C13: a frozen parameter was a ``RuntimeError`` in the constructor."""
    model = make_model()
    model[0].weight.requires_grad_(False)  # type: ignore[index]
    before = weights(model)[0]
    _, optimizer, wrapped = open_run(model=model)
    train(wrapped, optimizer, loader())
    assert torch.equal(weights(model)[0], before) and not torch.equal(weights(model)[1], weights(make_model())[1])


def test_sparse_gradients_are_taken() -> None:
    """AdaptDL C14: so was a sparse gradient in backward()."""
    model = nn.Sequential(nn.Embedding(48, 1, sparse=True)).double()
    _, optimizer, wrapped = open_run(lambda m: SparseAdam(list(m.parameters()), lr=0.1), model=model)
    before = weights(model)[0]
    for _, y, index in loader():
        ((wrapped(index).squeeze(-1) - y) ** 2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert torch.all(weights(model)[0] != before)


def test_a_parameter_group_added_later_is_trained_and_measured() -> None:
    """AdaptDL C24: parameters added later were measured by half."""
    model = make_model()
    _, optimizer, wrapped = open_run(lambda m: SGD(m[0].parameters(), lr=0.05), model=model)  # type: ignore[index]
    data = loader(autoscale=64)
    for epoch in adaptdl.torch.remaining_epochs_until(2):
        if epoch == 1:
            optimizer.add_param_group({"params": list(model[2].parameters())})  # type: ignore[index]
        train(wrapped, optimizer, data)
    assert not torch.equal(weights(model)[2], weights(make_model())[2])


def test_two_models_train_from_one_loader_as_in_a_gan() -> None:
    """AdaptDL C3 and C21: a GAN's losses halved its gradients, and its models overwrote each other's progress."""
    adaptdl.torch.init_process_group("gloo")
    one, other = make_model(), make_model(seed=4)
    first, second = sgd(one), sgd(other)
    wrap = adaptdl.torch.AdaptiveDataParallel
    net_d, net_g = wrap(one, first, name="netD"), wrap(other, second, name="netG")
    for x, y, _ in loader(autoscale=64):
        net_d.zero_grad()
        mean_loss(net_d, x, y).backward()
        mean_loss(net_d, x, -y).backward()
        first.step()
        net_g.zero_grad()
        (net_d(x).squeeze(-1) * net_g(x).squeeze(-1)).mean().backward()
        second.step()
    assert net_d.gns.get_progress() == net_g.gns.get_progress() == 6  # steps of the job, not the sum of both
    assert not torch.equal(weights(one)[0], weights(make_model())[0])
    assert not torch.equal(weights(other)[0], weights(make_model(seed=4))[0])


@pytest.mark.parametrize("optimizer", [Adam, AdamW])
def test_adam_is_measured_in_its_own_metric_by_default_and_keeps_its_moments(optimizer: Any) -> None:
    """AdaptDL C2 and C10: Adam got the noise of plain gradients, and lost its moments when the batch changed."""
    _, adam, wrapped = open_run(lambda m: optimizer(m.parameters(), lr=0.01))
    data = loader(n=256, autoscale=64)
    for _ in adaptdl.torch.remaining_epochs_until(1):
        train(wrapped, adam, data)
    learner = wrapped.learner
    assert learner.rule == rules.AdamScale() and learner.noise.metric.observations > 0
    steps = {float(state["step"]) for state in adam.state.values()}
    job = current_session().job
    assert job is not None and steps == {float(job.steps)}  # never set back


def test_other_optimizers_get_the_rule_that_suits_them() -> None:
    _, optimizer, wrapped = open_run(lambda m: torch.optim.Adadelta(m.parameters()))
    train(wrapped, optimizer, loader())
    assert wrapped.learner.rule == rules.auto_by_gain("Adadelta")


def test_the_optimizer_keeps_its_class_and_gets_its_own_step_back() -> None:
    _, optimizer, wrapped = open_run()
    assert type(optimizer) is SGD and "step" in vars(optimizer)
    train(wrapped, optimizer, loader())
    adaptdl.close()
    assert "step" not in vars(optimizer) and "_step_supports_amp_scaling" not in vars(optimizer)


@pytest.mark.parametrize("order", ["before", "after"])
def test_schedulers_made_before_or_after_wrapping_work_without_a_warning(order: str) -> None:
    adaptdl.torch.init_process_group("gloo")
    model = make_model()
    optimizer = sgd(model)
    step_lr = torch.optim.lr_scheduler.StepLR
    scheduler = step_lr(optimizer, 1, gamma=0.5) if order == "before" else None
    wrapped = adaptdl.torch.AdaptiveDataParallel(model, optimizer, scheduler)
    scheduler = scheduler or step_lr(optimizer, 1, gamma=0.5)
    data = loader()
    for _ in adaptdl.torch.remaining_epochs_until(2):
        train(wrapped, optimizer, data)
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05 / 4)


def test_mistakes_are_refused_in_the_users_words() -> None:
    with pytest.raises(LoopError, match="init_process_group"):
        adaptdl.torch.AdaptiveDataParallel(make_model(), sgd(make_model()))
    model, optimizer, wrapped = open_run()
    with pytest.raises(LoopError, match="init_process_group"):
        adaptdl.torch.init_process_group("gloo")
    with pytest.raises(ValueError, match="name"):
        adaptdl.torch.AdaptiveDataParallel(make_model(), sgd(make_model()))
    with pytest.raises(ValueError, match="mp_scaler"):
        adaptdl.torch.AdaptiveDataParallel(make_model(), sgd(make_model()), None, "netD")
    with pytest.raises(TypeError, match="devices"):
        adaptdl.torch.AdaptiveDataParallel(make_model(), sgd(make_model()), devices=[0])
    data = loader()
    with pytest.raises(LoopError, match=r"optimizer\.step"):
        for x, y, _ in data:
            mean_loss(wrapped, x, y).backward()
    with pytest.raises(LoopError, match="gradients"):
        for _ in data:
            optimizer.step()
    with pytest.raises(LoopError, match="twice"):
        for x, y, _ in data:
            mean_loss(wrapped, x, y).backward()
            optimizer.step()
            mean_loss(wrapped, x, y).backward()
            optimizer.step()
    model.eval()
    with pytest.raises(LoopError, match="evaluates"):
        for x, y, _ in data:
            mean_loss(wrapped, x, y).backward()
            optimizer.step()


def test_outside_an_adaptive_loader_the_optimizer_steps_plainly_and_says_so() -> None:
    model, optimizer, wrapped = open_run()
    points = Points(48)
    with pytest.warns(UserWarning, match="AdaptiveDataLoader"):
        for step in range(2):
            optimizer.zero_grad()
            mean_loss(wrapped, points.x[step * 8 : step * 8 + 8], points.y[step * 8 : step * 8 + 8]).backward()
            optimizer.step()
    assert largest_relative_error(weights(model), plain(steps=2)) < 1e-12


def test_the_log_has_every_step_and_invents_no_loss(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from swell.telemetry import LOG_NAME, read_events

    monkeypatch.setenv("ADAPTDL_CHECKPOINT_PATH", str(tmp_path))
    _, optimizer, wrapped = open_run()
    train(wrapped, optimizer, loader())
    adaptdl.close()
    steps = [event for event in read_events(tmp_path / LOG_NAME) if isinstance(event, Stepped)]
    assert len(steps) == 6 and all(event.loss is None for event in steps)
