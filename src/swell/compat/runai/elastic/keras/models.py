"""``Model``: a Keras model that trains with exactly the global batch that ``init`` laid out."""

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
    ``fit`` takes the model's own arguments; if ``batch_size`` is among them, it must be ``runai.elastic.batch_size``.
    The learning rate stays as it is, as with Run:AI, because the global batch never changes.
    """

    def __init__(self, model: Any) -> None:
        if not isinstance(model, keras.Model):
            raise ConfigError(f"model is a {type(model).__name__}; expected a keras.Model. Wrap the model itself.")
        self.__dict__.update(model=model, _elastic=None)

    def compile(self, optimizer: Any = "rmsprop", *args: Any, **kwargs: Any) -> None:
        """Compile the model with the optimizer wrapped, so that it updates once a global batch."""
        callback = Elastic(batch=elastic.global_batch_size, micro=elastic.plan.micro_batch, rule="constant")
        self.__dict__["_elastic"] = callback
        self.model.compile(callback.optimizer(optimizer), *args, **kwargs)

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """Train; returns the history. If several processes train, each reads its own share."""
        if self._elastic is None:
            raise LoopError(
                "fit was called before compile; expected a compiled model. Call model.compile(optimizer, loss) first."
            )
        if len(args) > len(_FIT):
            raise ConfigError(
                f"fit got {len(args)} positional arguments; expected at most {', '.join(_FIT)}. Pass others by name."
            )
        arguments = {**dict(zip(_FIT, args, strict=False)), **kwargs}
        size = arguments.pop("batch_size", None)
        if size not in (None, elastic.batch_size):
            raise ConfigError(
                f"batch_size is {size}; expected {elastic.batch_size}, as the layout has it. Leave it out, or pass "
                "runai.elastic.batch_size."
            )
        return self._elastic.fit(self.model, **arguments)

    def fit_generator(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: Keras 3 has no such method, and a generator has no length."""
        raise LoopError(
            "fit_generator was called; expected fit, because Keras 3 has no fit_generator. Call model.fit(data) with "
            "arrays, a keras.utils.PyDataset or a tf.data.Dataset."
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["model"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["model"], name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)
