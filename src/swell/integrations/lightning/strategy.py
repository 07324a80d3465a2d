"""The one class that users hold, for ``Trainer(strategy=...)`` and for ``Fabric(strategy=...)``."""

# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false
from __future__ import annotations

from pathlib import Path
from typing import Any

from swell.errors import ConfigError
from swell.integrations.lightning.fabric import FabricStrategy
from swell.integrations.lightning.trainer import TrainerStrategy

# What both libraries ask of a strategy with arguments or meanings of their own; a test compares it with theirs.
DIFFERENT = (
    "all_gather",
    "backward",
    "barrier",
    "batch_to_device",
    "broadcast",
    "load_checkpoint",
    "optimizer_step",
    "process_dataloader",
    "reduce_boolean_decision",
    "save_checkpoint",
    "teardown",
    "tensor_init_context",
)


class Strategy(TrainerStrategy, FabricStrategy):
    """Trains with whatever workers there are: one global batch on any number of them, moved by a policy.

    ``batch`` chooses the global batch of every step, as in :class:`swell.Job`, whose other arguments are taken too
    (``base``, ``rule``, ``statistics``, ``save``, ``keep``, ``seed``, ``sinks`` …). ``micro``, what one worker sends
    through the model at once, is the training loader's ``batch_size`` unless given. ``schedule`` says what moves the
    scheduler that ``fabric.setup(..., scheduler=...)`` is given: ``"progress"`` for one that the loop steps with the
    optimizer, ``"epoch"``, or ``"manual"``; a Trainer knows it.
    With ``validation="split"`` each worker of a Trainer validates a part of the batches, and the figures that
    ``validation_step`` logs are of all of them; by default each worker validates all.

        trainer = Trainer(strategy=swell.lightning.Strategy("runs/digits", batch=64))
        fabric = Fabric(strategy=swell.lightning.Strategy("runs/digits", batch=64))
    """

    def __init__(
        self,
        run_dir: str | Path | None = None,
        *,
        batch: Any,
        schedule: str = "progress",
        validation: str = "whole",
        **options: Any,
    ) -> None:
        if validation not in ("whole", "split"):
            raise ConfigError(
                f"validation is {validation!r}; expected 'whole' or 'split'. Give 'split' where each worker is to "
                f"validate a part of the batches, and 'whole' where each is to validate all of them."
            )
        self._prepare(run_dir, schedule, {"batch": batch, **options})
        self._prepare_trainer(validation)
        self._prepare_fabric()

    @property
    def _half(self) -> type[TrainerStrategy] | type[FabricStrategy]:
        """The half that speaks to the library which uses this object: a Trainer connects a module first of all."""
        return FabricStrategy if self.lightning_module is None else TrainerStrategy

    @property
    def world_size(self) -> int:
        """Fabric is told how many workers there are; Lightning that it is alone."""
        return self._half.world_size.fget(self)  # type: ignore[attr-defined]


def _of_its_half(name: str) -> Any:
    def call(self: Strategy, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._half, name)(self, *args, **kwargs)

    call.__name__, call.__doc__ = name, f"``{name}`` of the half that is used."
    return call


for _name in DIFFERENT:
    setattr(Strategy, _name, _of_its_half(_name))
