"""What a job says of itself: where it stands, on how many replicas, and what its latest step was like."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from swell.core.counts import whole_number
from swell.core.goodput import Outlook
from swell.core.protocols import Collective
from swell.core.types import NoiseEstimate
from swell.errors import ConfigError
from swell.policies.decision import predicted_outlook
from swell.runtime.collective import Alone
from swell.runtime.world import World

if TYPE_CHECKING:
    from swell.core.ledger import Ledger
    from swell.job.ending import Ending
    from swell.job.stepping import Stepping
    from swell.job.trainee import Trainee
    from swell.job.training_loader import TrainingLoader
    from swell.loop.pace import Pace

ALONE = Alone()


class Figures:
    """The part of :class:`swell.Job` that only looks."""

    _world: World
    _pace: Pace
    _ending: Ending
    _stepping: Stepping
    _trainees: list[Trainee]
    _loader: TrainingLoader | None

    @property
    def _ledger(self) -> Ledger:
        raise AssertionError("a job has one")

    @property
    def collective(self) -> Collective:
        """What the present replicas speak over; a newcomer is by itself until the loop begins."""
        return self._world.collective if self._world.joined else ALONE

    @property
    def rank(self) -> int:
        """This replica's number, from 0."""
        return self.collective.rank

    @property
    def replicas(self) -> int:
        """How many replicas there are now."""
        return self.collective.size

    @property
    def is_main(self) -> bool:
        """Whether this replica writes files and prints."""
        return self.rank == 0

    @property
    def device(self) -> torch.device:
        """The device this replica should compute on."""
        return self._world.device

    @property
    def steps(self) -> int:
        """Optimizer steps committed."""
        return self._pace.step

    @property
    def samples(self) -> int:
        """Samples committed, over all epochs."""
        return self._ledger.samples if self._loader is not None else 0

    @property
    def progress(self) -> float:
        """Accumulated base-equivalent steps."""
        return self._pace.progress

    @property
    def global_batch(self) -> int:
        """The global batch that was chosen last, in samples; the last step of an epoch may have had fewer."""
        return self._pace.batch

    @property
    def noise(self) -> NoiseEstimate | None:
        """What is known of the gradient's noise; None until a step was measured."""
        return self._trainees[0].chosen_estimate() if self._trainees else None

    @property
    def gain(self) -> float:
        """How many base steps the latest step was worth."""
        return self._ending.gain

    @property
    def lr_factors(self) -> tuple[float, ...]:
        """What the learning rate of each parameter group was multiplied by in the latest step."""
        return tuple(factor.lr for factor in self._ending.factors)

    @property
    def ema_power(self) -> float:
        """The exponent for a model average's decay in the latest step: use ``decay ** job.ema_power``."""
        return self._ending.factors[0].ema_power if self._ending.factors else 1.0

    def speedup(self, replicas: int | Iterable[int]) -> dict[int, float]:
        """How much faster the run would go on other numbers of replicas, relative to now; 0 where no batch fits.

        For schedulers that ask what another worker would bring. With a policy that weighs it this is goodput at the
        best batch there, otherwise samples a second at the present batch. Empty until a few steps were timed.
        """
        return {count: there.speedup for count, there in self._outlook(replicas).items()}

    def speedup_errors(self, replicas: int | Iterable[int]) -> dict[int, float]:
        """How far, relatively, each ``speedup`` may be off: 0.5 for half as much more or less (a standard deviation).

        A few per cent where such a world was measured; much where its links were never seen.
        """
        return {count: there.error for count, there in self._outlook(replicas).items()}

    def _outlook(self, replicas: int | Iterable[int]) -> dict[int, Outlook]:
        given = replicas if isinstance(replicas, Iterable) else (replicas,)
        if isinstance(given, str):
            raise ConfigError(f"replicas={replicas!r} is text: give a number of replicas, or several, as [1, 2, 4].")
        sizes = [whole_number(count, name="replicas") for count in given]
        return predicted_outlook(self._pace.policy, self._stepping.observe(self._ledger), sizes)
