"""What replicas average besides gradients: the floating-point buffers of a model, such as batch-norm statistics."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from swell.core.protocols import Collective


class ModelBuffers:
    """Finds the buffers in every step: modules are looked for now and then, the tensors they hold each time.

    They are looked for where a script may have added some, at the same moments on every replica: in another world, at
    the start of a pass over the data, and with new parameters.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._world: Collective | None = None
        self._owners: list[dict[str, Tensor | None]] = []

    def look_again(self) -> None:
        """Look for modules before the next step."""
        self._world = None

    def find(self, world: Collective) -> Sequence[Tensor]:
        """Each buffer once, in the order of ``model.buffers()``."""
        if self._world is not world:
            self._world, self._owners = world, [module._buffers for module in self._model.modules()]
        found = [buffer for owner in self._owners for buffer in owner.values()]
        return list({id(b): b for b in found if b is not None and b.is_floating_point()}.values())
