"""Buckets of gradients that travel while others are computed: what fills them, who changes them, where they end."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from swell.gradients import buckets
from swell.gradients import overlap as overlapping
from swell.gradients.buckets import bucket_bytes, is_alone
from swell.gradients.gradient_sum import GradientSum
from swell.gradients.overlap import OverlappedSum, Pass
from swell.runtime.collective import TorchCollective
from tests.devices import needs_cuda
from tests.workers import run_processes


class Arrived:
    """A sum that is there at once."""

    def advance(self) -> None: ...

    def wait(self) -> None: ...

    def drop(self) -> None: ...


class Echo:
    """The exchange of a replica that is alone: every sum is what it was. Keeps what was begun."""

    rank, size = 0, 1

    def __init__(self) -> None:
        self.begun: list[Tensor] = []

    def begin_sum(self, tensor: Tensor, *, narrow: bool = False) -> Arrived:
        self.begun.append(tensor)
        return Arrived()

    def gather_text(self, text: str) -> list[str]:
        return [text]

    def sum_tensors(self, tensors: Any) -> None: ...


def network(width: int = 6, layers: int = 4) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(m for _ in range(layers) for m in (nn.Linear(width, width), nn.Tanh())), nn.Linear(width, 1))


def overlapped(model: nn.Module, collective: Any) -> OverlappedSum:
    gradients = GradientSum(torch.optim.SGD(model.parameters(), lr=0.1))
    return OverlappedSum(gradients, collective, list(reversed(range(len(gradients.parameters)))))


@pytest.fixture(params=["each at once", "with its bucket", "where it is"])
def small_buckets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients are moved into their bucket one by one, or together when it is full, or stay where they are."""
    monkeypatch.setattr(overlapping, "LARGE", 1 if request.param == "each at once" else 2**15)
    monkeypatch.setattr(buckets, "SINGLE_BYTES", 1 if request.param == "where it is" else 2**20)
    monkeypatch.setattr(buckets, "FEW_BYTES", 0)
    monkeypatch.setattr(buckets, "bucket_bytes", lambda number, total: min(64 << number, 128))


@settings(deadline=None, max_examples=60)
@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=12), first=st.integers(1, 64), growth=st.integers(0, 5))
def test_every_gradient_is_in_one_bucket_and_no_bucket_waits_once_it_is_full(
    sizes: list[int], first: int, growth: int
) -> None:
    most = first << growth
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buckets, "bucket_bytes", lambda number, total: min(first << number, most))
        parameters = nn.ParameterList([nn.Parameter(torch.ones(size)) for size in sizes])
        echo = Echo()
        overlap = overlapped(parameters, echo)
        overlap.arm(Pass(1.0))
        torch.stack([parameter.sum() for parameter in parameters]).sum().backward()
        overlap.send_rest(Pass(1.0))
    counts = [tensor.numel() for tensor in echo.begun]
    assert sum(counts) == sum(sizes)
    rest = list(reversed(sizes))
    for number, count in enumerate(counts):
        members = []
        while sum(members) < count:
            members.append(rest.pop(0))
        limit = min(first << number, most)
        assert 4 * sum(members[:-1]) < limit  # without the last one it was not full
        assert 4 * sum(members) >= limit or not rest


@pytest.mark.usefixtures("small_buckets")
def test_buckets_leave_during_the_backward_pass_and_hold_its_gradients() -> None:
    model, echo = network(), Echo()
    plain = torch.autograd.grad(model(torch.ones(2, 6)).sum(), list(model.parameters()))
    overlap = overlapped(model, echo)
    overlap.arm(Pass(1.0))
    model(torch.ones(2, 6)).sum().backward()
    assert len(echo.begun) > 3
    overlap.disarm()
    overlap.send_rest(Pass(1.0))
    overlap.wait()
    overlap.release(irregular=False, share=1.0)
    for parameter, gradient in zip(model.parameters(), plain, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, gradient)
        assert any(
            parameter.grad.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr() for flat in echo.begun
        )


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    single=st.integers(4, 200),
    order=st.randoms(use_true_random=False),
)
def test_a_large_gradient_is_a_bucket_by_itself_and_leaves_room_for_the_others(
    sizes: list[int], single: int, order: Any
) -> None:
    indices = list(range(len(sizes)))
    order.shuffle(indices)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buckets, "SINGLE_BYTES", single)
        patch.setattr(buckets, "FEW_BYTES", 0)
        made = buckets.Buckets([nn.Parameter(torch.ones(size)) for size in sizes]).in_order(indices)
    assert sorted(index for bucket in made for index in bucket.indices) == sorted(indices)
    place = {index: number for number, index in enumerate(indices)}
    ends = [max(place[index] for index in bucket.indices) for bucket in made]
    assert ends == sorted(ends)  # each leaves when its last gradient is there
    for bucket in made:
        large = [4 * sizes[index] >= single for index in bucket.indices]
        assert not any(large) or len(large) == 1
        assert (bucket.single is not None) is any(large)
    shared = [bucket.flat for bucket in made if bucket.single is None]
    assert len({flat.data_ptr() for flat in shared}) == len(shared)  # no two in one place
    assert all(flat.untyped_storage().nbytes() <= 4 * (sum(sizes) + 64 * len(sizes)) for flat in shared)


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    single=st.integers(4, 200),
    most=st.integers(1, 400),
    order=st.randoms(use_true_random=False),
)
def test_the_last_bucket_has_room_for_numbers_that_no_other_bucket_uses(
    sizes: list[int], single: int, most: int, order: Any
) -> None:
    indices = list(range(len(sizes)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buckets, "SINGLE_BYTES", single)
        patch.setattr(buckets, "FEW_BYTES", 0)
        patch.setattr(buckets, "bucket_bytes", lambda number, total: most)
        layout = buckets.Buckets([nn.Parameter(torch.ones(size)) for size in sizes], room=7)
        layout.in_order(indices)
        order.shuffle(indices)
        made = layout.in_order(indices)  # again, within the same memory
    assert [bucket.extended is None for bucket in made[:-1]] == [True] * (len(made) - 1)
    assert (made[-1].extended is None) is all(bucket.single is not None for bucket in made)  # these are all small
    for number, bucket in enumerate(made):
        bucket.flat.fill_(number)
    if made[-1].extended is not None:
        room = made[-1].extended[made[-1].flat.numel() :]
        assert room.numel() == 7
        made[-1].extended.fill_(-1)
        assert made[-1].flat.eq(-1).all()
    for number, bucket in enumerate(made[:-1]):
        assert bucket.flat.eq(number).all()
        assert bucket.blank().eq(0).all() and bucket.blank().numel() == sum(sizes[index] for index in bucket.indices)


def test_a_bucket_that_is_not_small_carries_numbers_only_where_it_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "LEAST_BYTES", 100)
    large, rest = nn.Parameter(torch.ones(2**19)), [nn.Parameter(torch.ones(2**18)) for _ in range(4)]
    layout = buckets.Buckets([large, *rest], room=7)
    assert layout.in_order([0, 1, 2, 3, 4])[-1].extended is not None
    first, last = layout.in_order([1, 2, 3, 4, 0])[:1], layout.in_order([1, 2, 3, 4, 0])[-1]
    assert last.single is large and last.extended is None
    assert first[0].extended is None


LIKE = nn.Parameter(torch.ones(4, 3))


@pytest.mark.parametrize(
    ("gradient", "alone"),
    [
        (lambda: torch.ones(4, 3), True),
        (lambda: torch.ones(20)[2:14].view(4, 3).data, True),  # a part of memory that nobody else uses
        (lambda: SHARED.view(4, 3), False),
        (lambda: torch.ones(()).expand(4, 3), False),
        (lambda: torch.ones(3, 4).t(), False),  # other replicas may hold theirs in another order
        (lambda: torch.ones(4, 3, dtype=torch.float64), False),
        (lambda: torch.ones(4, 3).to_sparse(), False),
        (lambda: torch.ones(4, 3).to_mkldnn(), False),
        (lambda: torch.ones(4, 3, requires_grad=True) * 2, False),
        (lambda: torch.complex(torch.ones(4, 3), torch.ones(4, 3)).conj().imag, False),
    ],
)
def test_a_gradient_travels_where_it_is_only_in_memory_of_its_own(gradient: Callable[[], Tensor], alone: bool) -> None:
    assert is_alone(gradient(), LIKE) is alone


SHARED = torch.ones(12)


def test_memory_is_not_its_own_while_somebody_else_can_read_it() -> None:
    gradient = torch.ones(4, 3)
    other = gradient[1:]
    assert not is_alone(gradient, LIKE)
    del other
    assert is_alone(gradient, LIKE)


def test_a_gradient_that_is_still_read_in_the_same_pass_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "SINGLE_BYTES", 1)
    monkeypatch.setattr(buckets, "FEW_BYTES", 0)

    class Twice(torch.autograd.Function):
        """Hands one tensor to the first parameter, and a view of it to the second one."""

        @staticmethod
        def forward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
            return first.sum() + second.sum()

        @staticmethod
        def backward(ctx: Any, *given: Tensor) -> tuple[Tensor, Tensor]:
            gradient = given[0] * torch.arange(12.0)
            return gradient, gradient.view(4, 3)

    parameters = nn.ParameterList([nn.Parameter(torch.ones(12)), nn.Parameter(torch.ones(4, 3))])

    class Doubling(Echo):
        def begin_sum(self, tensor: Tensor, *, narrow: bool = False) -> Arrived:
            tensor.data.mul_(2)
            return super().begin_sum(tensor)

    overlap = overlapped(parameters, Doubling())
    overlap.arm(Pass(1.0))
    Twice.apply(*parameters).backward()  # pyright: ignore
    overlap.disarm()
    overlap.send_rest(Pass(1.0))
    overlap.release(irregular=False, share=1.0)
    for parameter in parameters:
        assert parameter.grad is not None and parameter.grad.flatten().tolist() == [2.0 * n for n in range(12)]


def test_a_gradient_that_travelled_where_it_was_is_freed_with_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "SINGLE_BYTES", 1)
    monkeypatch.setattr(buckets, "FEW_BYTES", 0)
    model, echo = network(), Echo()
    overlap = overlapped(model, echo)
    overlap.arm(Pass(1.0))
    model(torch.ones(2, 6)).sum().backward()
    overlap.disarm()
    places = [parameter.grad.data_ptr() for parameter in model.parameters() if parameter.grad is not None]
    assert sorted(tensor.data_ptr() for tensor in echo.begun) == sorted(places)  # nothing was copied
    overlap.send_rest(Pass(1.0))
    overlap.wait()
    overlap.release(irregular=False, share=1.0)
    overlap.end()
    echo.begun.clear()
    gradients = [weakref.ref(parameter.grad) for parameter in model.parameters()]
    assert all(gradient() is not None for gradient in gradients)  # the optimizer finds them
    model.zero_grad()
    assert all(gradient() is None for gradient in gradients)


def clip(parameters: list[nn.Parameter]) -> None:
    nn.utils.clip_grad_norm_(parameters, 1e-3)


def scale_one(parameters: list[nn.Parameter]) -> None:
    assert parameters[3].grad is not None
    parameters[3].grad.mul_(0.5)


def replace_one(parameters: list[nn.Parameter]) -> None:
    assert parameters[2].grad is not None
    parameters[2].grad = parameters[2].grad.clone()


def clear_one(parameters: list[nn.Parameter]) -> None:
    parameters[0].grad = None


def read_all(parameters: list[nn.Parameter]) -> None:
    assert sum(float(p.grad.norm()) for p in parameters if p.grad is not None) > 0


@pytest.mark.usefixtures("small_buckets")
@pytest.mark.parametrize(
    ("change", "touched"), [(clip, True), (scale_one, True), (replace_one, True), (clear_one, True), (read_all, False)]
)
def test_gradients_that_are_changed_under_way_are_noticed(
    change: Callable[[list[nn.Parameter]], None], touched: bool
) -> None:
    model, echo = network(), Echo()
    overlap = overlapped(model, echo)
    overlap.arm(Pass(1.0))
    model(torch.ones(2, 6)).sum().backward()
    overlap.disarm()
    change(list(model.parameters()))
    assert overlap.touched() is touched
    assert overlap.eager is not touched
    overlap.send_rest(Pass())
    overlap.end()
    begun = len(echo.begun)
    overlap.arm(Pass(1.0))  # the next step: nothing leaves early any more where gradients were changed
    model(torch.ones(2, 6)).sum().backward()
    assert (len(echo.begun) == begun) is touched


@given(st.integers(0, 50), st.integers(0, 2**34))
def test_buckets_are_few_and_grow(number: int, total: int) -> None:
    size = bucket_bytes(number, total)
    assert buckets.LEAST_BYTES <= size <= buckets.LARGEST_BYTES
    assert size <= bucket_bytes(number + 1, total)
    assert bucket_bytes(0, total) <= buckets.FIRST_BYTES
    assert size <= max(total / buckets.PARTS, min(total / 2, buckets.WORTH_BYTES), buckets.LEAST_BYTES)


def sums_on_device(backend: str, steps: int) -> list[float]:
    """The largest error of several steps' summed gradients, in a group of this backend with CUDA tensors."""
    dist.init_process_group(backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    collective = TorchCollective(dist.group.WORLD, dist.new_group(backend="gloo"), "cuda")  # pyright: ignore
    buckets.bucket_bytes = lambda number, total: min(2**16 << number, 2**20)
    model = network(width=512, layers=6).cuda()
    overlap, errors = overlapped(model, collective), []
    for step in range(steps):
        inputs = [torch.randn(64, 512, generator=torch.Generator().manual_seed(step * size + r)) for r in range(size)]
        parts = [torch.autograd.grad(model(x.cuda()).sum(), list(model.parameters())) for x in inputs]
        model.zero_grad()
        overlap.arm(Pass(1.0))
        model(inputs[rank].cuda()).sum().backward()
        overlap.disarm()
        assert overlap.begun
        overlap.send_rest(Pass(1.0))
        overlap.wait()
        overlap.release(irregular=False, share=1.0)
        overlap.end()
        for parameter, of_all in zip(model.parameters(), zip(*parts, strict=True), strict=True):
            assert parameter.grad is not None
            expected = torch.stack(of_all).sum(0)
            errors.append(float((parameter.grad - expected).norm() / expected.norm()))
        torch.cuda.current_stream().synchronize()
    dist.destroy_process_group()
    return errors


@needs_cuda
@pytest.mark.parametrize(("backend", "world"), [("nccl", 1), ("gloo", 1), ("gloo", 2)])
def test_buckets_are_in_stream_order_on_a_device(backend: str, world: int) -> None:
    visible = {"CUDA_VISIBLE_DEVICES": "0"}
    for errors in run_processes(world, sums_on_device, backend, 8, environ=visible):
        assert max(errors) < 1e-4
