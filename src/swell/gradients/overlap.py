"""Gradients summed over replicas in buckets, each sent as soon as the last backward pass of a step has filled it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from swell.core.protocols import OverlappingCollective, PendingSum
from swell.gradients.buckets import Bucket, Buckets, keep_freed_memory
from swell.gradients.carried_numbers import CarriedNumbers, room_for
from swell.gradients.gradient_sum import ABSENT, DENSE, SPARSE, GradientSum

LARGE = 2**15  # elements of a gradient on the CPU that is moved into its bucket before that is full


@dataclass(frozen=True)
class Pass:
    """What the last backward pass of a step is worth, for measuring what it leaves."""

    multiplier: float = 0.0
    measure: bool = False
    preconditioned: bool = False
    samples: int = 0


class OverlappedSum:
    """Sums the gradients of one optimizer over replicas while they are computed.

    Every replica sends the same buckets in the same order in every step, also one without samples, without some of the
    gradients, or whose share failed: what is missing travels as zeros. So a bucket that is not complete here holds back
    the later ones until ``send_rest``, and nothing is agreed on beforehand. Gradients are copied into the bucket once
    and stay there: ``.grad`` is a view of it when the optimizer steps.

    Where the gradients are small, the last bucket waits from the second step of a world on for numbers of each replica,
    and takes them along: ``send_rest`` only fills it, and ``carrier`` sends it.

    Errors of sending are kept and raised by ``send_rest``, so that none comes out of a backward pass.
    """

    def __init__(
        self,
        gradients: GradientSum,
        collective: OverlappingCollective,
        order: Sequence[int],
        *,
        narrow: bool = False,
        numbers: int = 0,
    ) -> None:
        self._gradients, self.collective = gradients, collective
        self._narrow = narrow  # whether float32 gradients travel in bfloat16
        self._parameters = gradients.parameters
        room = room_for(numbers, replicas=collective.size) if numbers and not narrow else 0
        self._layout = Buckets(self._parameters, room=room)
        self._lay_out(order)
        if any(parameter.is_cpu for parameter in self._parameters):
            keep_freed_memory()
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._hook(index))
            for index, parameter in enumerate(self._parameters)
            if parameter.requires_grad
        ]
        self._next = 0  # the bucket to send next
        self._armed: Pass | None = None
        self._error: Exception | None = None
        self.extra = False  # whether gradients came after their bucket was sent
        self.active = False  # whether a pass of this step was armed, on this replica and on all that are at its place
        self._order: list[int] | None = None  # in which gradients become ready; None until it is agreed on
        self._in_order = False  # whether the buckets follow it
        self.eager = True  # whether buckets are sent before the step; not where the user's loop changes gradients there
        self.passes = 1  # backward passes over the last micro-batch of the step before
        self.ready: list[int] = []  # parameters in the order in which the latest armed pass reached them
        self.carrier: CarriedNumbers | None = None  # what sends the last bucket, with numbers of each replica

    def _lay_out(self, order: Sequence[int]) -> None:
        self._buckets = self._layout.in_order(order)
        self._bucket_of: dict[int, Bucket] = {index: b for b in self._buckets for index in b.indices}
        self._alone = len(self._buckets)  # those that are sent as soon as they are full

    def _hook(self, index: int) -> Callable[[Tensor], None]:
        parameter = self._parameters[index]
        large = parameter.is_cpu and parameter.numel() >= LARGE and not self._layout.is_single(index)

        def reached(parameter: Tensor) -> None:
            if self._armed is None:
                return
            self.ready.append(index)
            bucket = self._bucket_of[index]
            bucket.missing -= 1
            if bucket.missing == 0:
                self._send_complete()
            elif large and not self._armed.measure and not self._gradients.has_sums:
                _move(parameter, bucket.views[bucket.indices.index(index)])  # otherwise later, with all of the bucket

        return reached

    @property
    def begun(self) -> bool:
        """Whether buckets of this step are under way."""
        return self._next > 0

    def arm(self, last: Pass) -> None:
        """The backward pass that comes now is the last of the step, as far as is known: send what it completes."""
        if not self.eager or self._next or not self._hooks:
            return
        self._armed, self.ready, self.active = last, [], True
        for bucket in self._buckets:
            bucket.missing = bucket.watched

    def disarm(self) -> None:
        """The pass is over."""
        self._armed = None

    def hold(self) -> None:
        """One more backward pass comes although buckets are under way: its gradients are added to them afterwards."""
        for bucket in self._buckets[: self._next]:
            for index in bucket.indices:
                self._parameters[index].grad = None
            self.extra = True

    def touched(self) -> bool:
        """Whether somebody changed gradients that are under way; from then on none is sent before the step."""
        for bucket in self._buckets[: self._next]:
            held = self.extra or all(
                self._parameters[i].grad is view or view.dtype != self._parameters[i].dtype or code == ABSENT
                for i, view, code in zip(bucket.indices, bucket.views, bucket.codes, strict=True)
            )
            if not held or bucket.flat._version != bucket.version:
                self.eager = False
                return True
        return False

    def _send_complete(self) -> None:
        while self._next < self._alone and self._error is None:
            bucket = self._buckets[self._next]
            if bucket.missing > 0 or bucket.watched < len(bucket.indices):
                return
            assert self._armed is not None
            self._send(bucket, self._armed)

    def _send(self, bucket: Bucket, last: Pass) -> None:
        try:
            _fill(bucket, self._gradients, last)
            narrow = self._narrow and bucket.flat.dtype == torch.float32
            bucket.flight = self.collective.begin_sum(bucket.flat, narrow=narrow)
            bucket.version = bucket.flat._version
            self._next += 1
        except Exception as error:  # raised in the step, where a lost peer is answered
            self._error = error

    def send_rest(self, last: Pass) -> None:
        """Send every bucket that is not under way yet; raises what went wrong with those before.

        One that carries numbers is only filled: it leaves with them.
        """
        self._armed = None
        self.send_all_but_last(last)
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self.carrier is not None:
            _fill(self._buckets[-1], self._gradients, last)
            self.active = True

    def send_all_but_last(self, last: Pass) -> None:
        """Send every bucket that carries no numbers and is not under way yet."""
        while self._next < self._alone and self._error is None:
            self._send(self._buckets[self._next], last)

    @property
    def irregular(self) -> bool:
        """Whether a gradient that was sent is absent or sparse here, or some came after their bucket was sent."""
        return self.extra or any(code != DENSE for bucket in self._buckets for code in bucket.codes)

    def _agreed_codes(self) -> list[str]:
        """Per parameter the widest kind of gradient that any replica has, and last whether any has extra ones."""
        codes = [ABSENT] * len(self._parameters)
        for bucket in self._buckets:
            for index, code in zip(bucket.indices, bucket.codes, strict=True):
                codes[index] = code
        texts = self.collective.gather_text("".join([*codes, DENSE if self.extra else ABSENT]))
        return [DENSE if DENSE in kinds else max(kinds) for kinds in zip(*texts, strict=True)]

    def wait(self) -> None:
        """Wait until all buckets have arrived; raises ``WorldError`` if a replica was lost."""
        flights = self._take_flights()
        for flight in flights:
            flight.advance()
        for flight in flights:
            flight.wait()

    def drop(self) -> None:
        """Let what is under way arrive, and forget it: every replica does, or this one leaves the step."""
        for flight in self._take_flights():
            flight.drop()

    def _take_flights(self) -> list[PendingSum]:
        flights = [bucket.flight for bucket in self._buckets if bucket.flight is not None]
        for bucket in self._buckets:
            bucket.flight = None
        return flights

    def end(self) -> None:
        """The step is over on this replica: the next one begins with no bucket under way."""
        self._next, self.extra, self._armed, self._error, self.active = 0, False, None, None, False
        for bucket in self._buckets:
            bucket.let_go()

    def cancel(self) -> None:
        """The step is left: complete what is under way, because the other replicas expect it, and forget it.

        They expect a bucket that carries numbers with the next numbers that they exchange.
        """
        self.send_rest(Pass())
        if self.carrier is not None:
            self.carrier.ahead = True
        self.drop()
        self.end()

    @torch.no_grad()
    def release(self, *, irregular: bool, share: float) -> None:
        """Leave the sums in ``.grad``, multiplied by ``share``; ``irregular`` if any replica is.

        In the first step the replicas also agree on the order in which gradients become ready.
        """
        codes = self._agreed_codes() if irregular else [DENSE] * len(self._parameters) + [ABSENT]
        if self._order is None:
            self._order = _agreed_order(self.collective, self.ready, len(self._parameters))
        if codes[-1] != ABSENT:
            self._add_extra()
        if share != 1:
            torch._foreach_mul_([bucket.flat for bucket in self._buckets], share)
        for bucket in self._buckets:
            for index, view in zip(bucket.indices, bucket.views, strict=True):
                parameter = self._parameters[index]
                if codes[index] == ABSENT:
                    parameter.grad = None
                elif codes[index] == SPARSE:
                    parameter.grad = view.to(parameter.dtype).to_sparse(1)
                else:
                    parameter.grad = view if view.dtype == parameter.dtype else view.to(parameter.dtype)

    def settle(self) -> None:
        """Between the first two steps of a world, on every replica: make the buckets in the order that was agreed on.

        From here on the last of a small network's carries numbers. If it is the only one, none is sent from a hook.
        """
        if self._in_order or self._order is None:
            return
        self._in_order = True
        self._lay_out(self._order)
        room = self._buckets[-1].extended
        if room is not None:
            self.carrier = CarriedNumbers(self._buckets, room, self.collective)
            self._alone -= 1
            if self._alone == 0:
                self.close()

    def _add_extra(self) -> None:
        """Sum what came after the buckets were sent, and add it."""
        for bucket in self._buckets:
            extra = torch.zeros_like(bucket.flat)
            pieces = extra.split([view.numel() for view in bucket.views])
            for index, view, piece in zip(bucket.indices, bucket.views, pieces, strict=True):
                gradient = self._parameters[index].grad
                if gradient is not None and gradient is not view and self.extra:
                    piece.as_strided(view.size(), view.stride()).add_(gradient.to_dense())
            self.collective.sum_tensors([extra])
            bucket.flat += extra

    def close(self) -> None:
        """Take the hooks off the parameters."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


def _agreed_order(collective: OverlappingCollective, ready: Sequence[int], count: int) -> list[int]:
    """The order in which gradients became ready on the first replica; those that it did not reach come last."""
    (first, *_) = collective.gather_text(" ".join(map(str, ready)))
    reached = [int(index) for index in first.split()]
    rest = [index for index in reversed(range(count)) if index not in set(reached)]
    return [*dict.fromkeys(reached), *rest]


@torch.no_grad()
def _fill(bucket: Bucket, gradients: GradientSum, last: Pass) -> None:
    """Put this replica's gradients where they will travel."""
    bucket.take_place(in_place=not gradients.has_sums)
    bucket.codes = gradients.pack(
        bucket.indices,
        bucket.views,
        weight=last.multiplier,
        measure=last.measure,
        preconditioned=last.preconditioned,
        samples=last.samples,
    )


def _move(parameter: Tensor, view: Tensor) -> None:
    """Move a gradient to where it travels; the next one is then computed in the memory that it had, which is warm."""
    gradient = parameter.grad
    if gradient is None or gradient.is_sparse or gradient.requires_grad or gradient.dtype != view.dtype:
        return
    view.copy_(gradient)
    parameter.grad = view
