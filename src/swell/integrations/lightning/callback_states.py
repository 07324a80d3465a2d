"""The states of Lightning's callbacks in the run's checkpoints: whoever joins or resumes decides as the others do."""

# pyright: reportMissingImports=false
from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Trainer

from swell.checkpoint.encoding import decode, encode
from swell.errors import CheckpointError, ConfigError


class CallbackStates:
    """``state_dict`` of every callback: EarlyStopping's patience, ModelCheckpoint's best, your own."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._told: set[str] = set()

    def state_dict(self) -> dict[str, Any]:
        """Each callback's state under its key; one that holds more than plain values and tensors is left out."""
        states = {}
        for callback in self._trainer.callbacks:
            state = callback.state_dict()
            if state:
                try:
                    states[callback.state_key] = decode(encode(state, leaf=lambda where, tensor: tensor, where="state"))
                except (ConfigError, CheckpointError, TypeError) as error:
                    self._tell(callback.state_key, error)
        return states

    def _tell(self, key: str, error: Exception) -> None:
        if key not in self._told:
            self._told.add(key)
            warnings.warn(
                f"the state of the callback {key} is not saved with the run: {error}", UserWarning, stacklevel=2
            )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Give every callback its state back."""
        for callback in self._trainer.callbacks:
            if callback.state_key in state:
                callback.load_state_dict(dict(state[callback.state_key]))
