"""A backward pass on one GPU runs in the calling thread and computes what it computes in torch's own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

import swell
from swell.job.backward_thread import has_one_gpu, in_this_thread
from tests.devices import needs_cuda

is_handed_over = torch._C._is_multithreading_enabled


def on(*devices: str) -> Any:
    return [SimpleNamespace(device=torch.device(device)) for device in devices]


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        (["cuda:0", "cuda:0"], True),
        (["cuda:1"], True),
        (["cuda:0", "cuda:1"], False),
        (["cuda:0", "cpu"], False),
        (["cpu", "cpu"], False),
        ([], False),
    ],
)
def test_one_gpu_is_one_device_of_all_parameters(devices: list[str], expected: bool) -> None:
    assert has_one_gpu(nn.Linear(2, 2), on(*devices)) is expected


def test_a_model_with_copies_on_several_gpus_has_not_one() -> None:
    model = nn.Sequential(nn.DataParallel(nn.Linear(2, 2)))
    assert not has_one_gpu(model, on("cuda:0"))


def test_pieces_of_a_model_are_not_a_whole_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swell.job.backward_thread.is_sharded", lambda parameter: True)
    assert not has_one_gpu(nn.Linear(2, 2), on("cuda:0"))


@pytest.mark.parametrize("before", [True, False])
def test_what_the_script_had_set_comes_back(before: bool) -> None:
    with torch.autograd.set_multithreading_enabled(before):
        with in_this_thread(True):
            assert not is_handed_over()
        assert is_handed_over() is before
        with pytest.raises(ValueError, match="in the pass"), in_this_thread(True):
            raise ValueError("in the pass")
        assert is_handed_over() is before
        with in_this_thread(False):
            assert is_handed_over() is before


def steps(
    model: nn.Module, *, device: str = "cpu", micro: int = 8, loss_of: Callable[[nn.Module, Tensor], Tensor]
) -> swell.Job:
    """Four steps of a job."""
    inputs = torch.randn(32, 6, generator=torch.Generator().manual_seed(1)).to(device)
    job = swell.Job(batch=8, micro=micro, statistics=False, progress=False, device=device)
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    loader = job.loader(TensorDataset(inputs), shuffle=False)
    for _ in job.epochs(1):
        for (x,) in loader:
            job.backward(loss_of(model, x))
            job.step()
    return job


@pytest.mark.parametrize("one_gpu", [True, False])
def test_the_pass_alone_is_kept_in_the_calling_thread(one_gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swell.job.learner.has_one_gpu", lambda model, parameters: one_gpu)
    model, seen = nn.Linear(6, 1), list[tuple[str, bool]]()

    def loss_of(model: nn.Module, x: Tensor) -> Tensor:
        seen.append(("forward", is_handed_over()))
        return model(x).square().mean()

    model.weight.register_hook(lambda gradient: seen.append(("backward", is_handed_over())))
    steps(model, loss_of=loss_of)
    assert seen == [("forward", True), ("backward", not one_gpu)] * 4


def test_a_pass_that_fails_leaves_torch_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swell.job.learner.has_one_gpu", lambda model, parameters: True)
    model = nn.Linear(6, 1)

    def fail(gradient: Tensor) -> None:
        raise ValueError("in the hook")

    model.weight.register_hook(fail)
    with pytest.raises(ValueError, match="in the hook"):
        steps(model, loss_of=lambda model, x: model(x).square().mean())
    assert is_handed_over()


def test_parameters_that_are_added_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    monkeypatch.setattr("swell.job.learner.has_one_gpu", lambda model, parameters: counts.append(len(parameters)))
    model, more = nn.Linear(6, 1), nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job = swell.Job(batch=8, statistics=False, progress=False)
    job.wrap(model, optimizer)
    loader = job.loader(TensorDataset(torch.ones(16, 6)))
    for _ in job.epochs(1):
        for (x,) in loader:
            job.backward((model(x) * more).mean())
            if job.step() and job.steps == 1:
                optimizer.add_param_group({"params": [more]})
    assert counts == [2, 3]


class Deep(nn.Module):
    """Layers whose outputs are computed again in the backward pass, by a backward pass inside of it where reentrant."""

    def __init__(self, *, reentrant: bool, depth: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Tanh()) for _ in range(depth)]
        )
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = x.requires_grad_()
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=self.reentrant)  # pyright: ignore[reportAssignmentType]
        return x


class Nested(nn.Module):
    """Each layer is recomputed inside of the recomputation of the one around it: deeper than torch goes in a thread."""

    def __init__(self, depth: int = 80) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((6,), 1.01))
        self.depth = depth

    def forward(self, x: Tensor) -> Tensor:
        return self.at(self.depth, x.requires_grad_())

    def at(self, depth: int, x: Tensor) -> Tensor:
        x = torch.sin(x * self.scale)
        return x if depth == 0 else checkpoint(self.at, depth - 1, x, use_reentrant=True)  # type: ignore[return-value]


class OnAStream(nn.Module):
    """A part of the model runs on a stream of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 512), nn.Linear(512, 1)
        self.stream = torch.cuda.Stream() if torch.cuda.is_available() else None

    def forward(self, x: Tensor) -> Tensor:
        assert self.stream is not None
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            hidden = self.first(x).sigmoid()
        torch.cuda.current_stream().wait_stream(self.stream)
        return self.second(hidden)


KINDS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: nn.Sequential(nn.Linear(6, 64), nn.BatchNorm1d(64), nn.Dropout(0.3), nn.Linear(64, 1)),
    "recomputed": lambda: Deep(reentrant=False),
    "recomputed, reentrant": lambda: Deep(reentrant=True),
    "nested": Nested,
    "on a stream": OnAStream,
    "compiled": lambda: torch.compile(nn.Sequential(nn.Linear(6, 64), nn.GELU(), nn.Linear(64, 1))),  # type: ignore
}


@needs_cuda
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # in a recomputation, which then has them
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:TensorFloat32")  # of torch's compiler
@pytest.mark.parametrize("micro", [8, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_on_a_gpu_the_weights_are_those_of_torchs_own_thread(
    kind: str, micro: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights: list[list[Tensor]] = []
    for here in (True, False):
        if not here:
            monkeypatch.setattr("swell.job.learner.has_one_gpu", lambda model, parameters: False)
        torch.manual_seed(0)
        model = KINDS[kind]().cuda().train()
        threads: set[int] = set()
        next(model.parameters()).register_hook(lambda gradient, seen=threads: seen.add(threading.get_ident()))
        steps(model, device="cuda", micro=micro, loss_of=lambda model, x: model(x).square().mean())
        weights.append([value.detach().clone() for value in [*model.parameters(), *model.buffers()]])
        if kind != "nested":  # the innermost passes run in threads that torch keeps for them
            assert (threads == {threading.get_ident()}) is here
    for ours, theirs in zip(*weights, strict=True):
        assert torch.equal(ours, theirs)
