"""The running statistics of batch norm: their memory is kept in samples, whatever the batch and however it is cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from swell.job.compiled_models import compiled_frames, is_compiled
from swell.job.learner import Learner
from swell.rules.ema import averages_follow


@dataclass(slots=True)
class _Norm:
    module: _NormBase
    own: float  # the momentum that the script gave it
    now: float  # the one that it was given here

    def follow(self, power: float) -> None:
        """Give it another momentum; one that the script has set meanwhile is its own from here on."""
        if self.module.momentum != self.now:
            if self.module.momentum is None:
                return
            self.own = self.module.momentum
        self.now = self.module.momentum = self.own if power == 1 else 1 - (1 - self.own) ** power


class NormMemory:
    """Gives norms another momentum while the training loop runs; outside of it, every norm has its own.

    A forward pass in training mode moves a running statistic by its momentum, a tenth by default, so that it is an
    average over the latest ten batches or so. At several times the base batch those ten steps go back several times as
    far, over weights that have moved that much more: in the middle of a run the loss in evaluation mode was up to 4.5
    times the base run's. A running statistic is a model average like any other, and follows where the rule lets
    such averages follow (``Factors.ema_power``).
    """

    def __init__(self) -> None:
        self._learners: Sequence[Learner] = ()
        self._norms: list[_Norm] | None = None  # None until they are needed in the pass under way
        self._power = 1.0
        self._compiled = compiled_frames()

    def begin(self, learners: Sequence[Learner]) -> None:
        """A pass over the data begins."""
        self._learners, self._norms = learners, None

    def follow(self, base_steps: float, *, passes: int) -> None:
        """The next step has the samples of ``base_steps`` base batches, in ``passes`` forward passes here."""
        power = base_steps / max(passes, 1)
        # Compiled code is made for one momentum; with another it would be compiled again, and soon given up.
        if power != self._power and compiled_frames() == self._compiled:
            self._give(power)

    def end(self) -> None:
        """The loop was left: every norm has its own momentum again."""
        if self._power != 1:
            self._give(1.0)

    def _give(self, power: float) -> None:
        if self._norms is None:
            self._norms = self._find()
        for norm in self._norms:
            norm.follow(power)
        self._power = power

    def _find(self) -> list[_Norm]:
        """The norms of all models whose averages follow."""
        norms: dict[_NormBase, _Norm] = {}
        for learner in self._learners:
            own = {module: _Norm(module, momentum, momentum) for module, momentum in _averaging_norms(learner.model)}
            if own and averages_follow(learner.rule) and not is_compiled(learner.model):
                norms |= own
        return list(norms.values())


def _averaging_norms(model: nn.Module) -> Iterator[tuple[_NormBase, float]]:
    """The norms that keep running statistics, with their momentum; without one they are means of all batches."""
    for module in model.modules():
        if isinstance(module, _NormBase) and module.track_running_stats and module.momentum:
            yield module, module.momentum
