"""``Model``: a Keras model that trains every global batch exactly, as ``init`` laid it out."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

from typing import Any

import keras

from swell.compat.runai import elastic
from swell.errors import ConfigError, LoopError
from swell.integrations.keras import Elastic

_FIT = ("x", "y", "batch_size", "epochs", "verbose", "callbacks")  # as Keras orders them


class Model:
    """A model whose ``compile`` and ``fit`` keep the global batch; everything else is the model's own.

    ``compile`` takes its optimizer as Keras does: positionally or by name, as an object, a name or a configuration.
    ``fit`` takes what the model's takes; its ``batch_size``, if given, is what ``runai.elastic.batch_size`` says, and
    another one is refused. The learning rate stays as it is: Run:AI's did, since its global batch never changed.
    """

    def __init__(self, model: Any) -> None:
        if not isinstance(model, keras.Model):
            raise ConfigError(
                f"Model was given a {type(model).__name__}; expected a keras.Model. Wrap the model itself."
            )
        self.__dict__.update(model=model, _elastic=None)

    def compile(self, optimizer: Any = "rmsprop", *args: Any, **kwargs: Any) -> None:
        """Compile the model with the optimizer wrapped, so that it updates once a global batch."""
        held = Elastic(batch=elastic.global_batch_size, micro=elastic.plan.micro_batch, rule="constant")
        self.__dict__["_elastic"] = held
        self.model.compile(held.optimizer(optimizer), *args, **kwargs)

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """Train; returns the history. Each process reads its own share, where several train."""
        if self._elastic is None:
            raise LoopError("fit was called before compile. Call model.compile(optimizer, loss) first.")
        if len(args) > len(_FIT):
            raise ConfigError(f"fit takes {', '.join(_FIT)} by position; give the others by name.")
        given = {**dict(zip(_FIT, args, strict=False)), **kwargs}
        size = given.pop("batch_size", None)
        if size not in (None, elastic.batch_size):
            raise ConfigError(
                f"batch_size={size}, but the layout has {elastic.batch_size}. Leave it out, or give "
                "runai.elastic.batch_size."
            )
        return self._elastic.fit(self.model, **given)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["model"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["model"], name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)
