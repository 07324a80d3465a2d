"""The wrapping optimizer: weighs and adds up a step's gradients, measures them, and updates once at the step's end."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from swell.core.counts import whole_number
from swell.core.protocols import Rule
from swell.core.types import Factors
from swell.errors import ConfigError
from swell.integrations.keras.control import NAMES, Control, control
from swell.integrations.keras.hyperparameters import moving, scaled
from swell.integrations.keras.metric import has_second_moment, squared_norms


@keras.saving.register_keras_serializable(package="swell")
class ElasticOptimizer(keras.optimizers.Optimizer):
    """Any Keras optimizer, updating once a global batch however many passes that batch is computed in.

    ``Elastic.optimizer`` makes it. Each call of ``apply`` is one pass with mean gradients ``g_j`` of ``b_j`` samples.
    They are added with weights ``w_j = b_j / B``; with the last pass the sum goes to ``inner``, which clips, decays and
    updates as it always does and whose ``iterations`` therefore counts real updates: schedules and Adam's bias
    correction stay right. How many passes and which weights is data (one small variable), never part of a compiled
    step, so it may change from step to step.

    Without an ``Elastic`` at work, as after ``keras.saving.load_model``, every ``steps`` passes of equal weight are one
    step; with 1 of them this behaves as ``inner``. ``inner`` is the optimizer itself: take it back whenever you like.
    Saved state is ``inner``'s alone.
    """

    def __init__(self, inner: Any, *, name: str = "swell", measured: bool = True, steps: int = 1) -> None:
        super().__init__(learning_rate=0.0, name=name)
        inner = keras.optimizers.get(inner)
        _require_plain(inner)
        self.inner = inner
        self.measured = bool(measured)
        self.steps = whole_number(steps, name="steps")
        self.preconditioned = False
        self.moving: frozenset[str] = frozenset()
        self._told = control([1 / self.steps] * self.steps, Factors(), effective_step=1.0)
        self._here = 0  # the pass we are at, on the host; what eager torch goes by
        self._exchange: Any = None
        self.followed = False  # whether an Elastic is at work

    def follow(self, rule: Rule, *, preconditioned: bool, exchange: Any = None) -> None:
        """Be ready for a rule's factors and for the figures it looks at; call it before the first step is compiled."""
        self.moving = moving(rule, self.inner)
        self.preconditioned = preconditioned and self.measured
        self._exchange = exchange
        self.followed = True

    def build(self, variables: Any) -> None:
        """Create the accumulators and the small variables beside the inner optimizer's own."""
        if self.built:
            return
        variables = list(variables)
        self._check_super_called()
        wide = "float64" if keras.config.floatx() == "float64" else "float32"
        with keras.name_scope(self.name):
            self._control = self._add_small((len(NAMES),), wide, "control", self._told.numbers())
            self._place = self._add_small((), "int32", "place")
            self._small = self._add_small((2,), wide, "small_squares")  # plain, and in the optimizer's metric
            self._figures = self._add_small((4,), wide, "figures")  # of the last step: small squares, big squares
            self._sums = [self.add_variable_from_reference(v, name="sum") for v in variables]
            if not self.inner.built:
                self.inner.build(variables)
        super().build(variables)

    def _add_small(self, shape: tuple[int, ...], dtype: str, name: str, start: Sequence[float] | None = None) -> Any:
        # A start value is an initializer and no assignment, which TensorFlow would trace if it builds within a step.
        begin = "zeros" if start is None else lambda shape, dtype=None: ops.convert_to_tensor(list(start), dtype=dtype)
        return self.add_variable(shape, begin, dtype, name=name, aggregation="only_first_replica")

    @property
    def variables(self) -> list[Any]:
        """Own variables first, then the inner optimizer's."""
        return [*self._variables, *self.inner.variables]

    # One pass

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Add one pass's gradients; update with the last of the step."""
        variables = self._trainable_variables if trainable_variables is None else list(trainable_variables)
        if not self.built:
            self.build(variables)
        pairs = [(g, v) for g, v in zip(grads, variables, strict=True) if g is not None]
        if not pairs:
            raise ConfigError("no variable has a gradient. Compile the model with a loss that depends on its weights.")
        gradients, variables = [ops.convert_to_tensor(g) for g, _ in pairs], [v for _, v in pairs]
        backend = keras.backend.backend()
        if backend == "tensorflow":
            from swell.integrations.keras.tensorflow_replicas import across_replicas

            across_replicas(self, gradients, variables)
        elif backend == "torch":
            from swell.integrations.keras.torch_gradients import eagerly

            eagerly(self.take, gradients, variables, self.update)
        else:
            self.take(gradients, variables, self.update)

    def stateless_apply(self, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        """The same without side effects: new trainable variables and new optimizer variables."""
        mapping = [
            *zip(self._trainable_variables, trainable_variables, strict=True),
            *zip(self.variables, optimizer_variables, strict=True),
        ]
        with keras.StatelessScope(state_mapping=mapping) as scope:
            self.apply(grads)
        return (
            [scope.get_current_value(v) for v in self._trainable_variables],
            [scope.get_current_value(v) for v in self.variables],
        )

    def take(self, gradients: list[Any], variables: list[Any], update: Any) -> None:
        """Weigh, measure and add; ``update`` is called with the sums, the variables and what was told, at the end."""
        told = self._read_control()
        place = self._here if self.on_host else self._place.value
        weight, first, last = self._reading(told, place)
        sums = [self._sums[self._get_variable_index(v)] for v in variables]
        if self.measured:
            squares = squared_norms(self.inner, gradients, variables, preconditioned=self.preconditioned)
            self._small.assign(_weighted(self._small, ops.stack(squares), weight, first))
        if self.on_host:
            from swell.integrations.keras.torch_gradients import add

            add(sums, gradients, weight=weight, first=first)
            self._here = 0 if last else self._here + 1
            if last:
                update(sums, variables, told)
            return
        for held, gradient in zip(sums, gradients, strict=True):
            held.assign(_weighted(held, gradient, weight, first))
        self._place.assign(ops.where(last, 0, place + 1))
        if keras.backend.backend() == "jax":
            self._update_stateless(last, sums, variables, told)
        else:
            ops.cond(last, lambda: update(sums, variables, told), lambda: None)

    def update(self, sums: list[Any], variables: list[Any], told: dict[str, Any]) -> None:
        """Measure the whole gradient and let the inner optimizer apply it, with the rule's factors held on it."""
        if self._exchange is not None:
            self._exchange.sum([*[s.value for s in sums], self._small.value])
        values = [s.value for s in sums]
        if self.measured:
            self.measure(values, variables)
        with scaled(self.inner, told, self.moving, self.inner.iterations):
            self.inner.apply(values, variables)

    def measure(self, values: list[Any], variables: list[Any]) -> None:
        """Take the squared norm of the whole step's gradient."""
        squares = squared_norms(self.inner, values, variables, preconditioned=self.preconditioned)
        small = ops.convert_to_tensor(self._small)
        self._figures.assign(ops.concatenate([small, ops.cast(ops.stack(squares), small.dtype)]))

    def _update_stateless(self, last: Any, sums: list[Any], variables: list[Any], told: dict[str, Any]) -> None:
        """JAX traces both branches of a condition, so nothing may be assigned inside: values go in, values come out."""
        inner, everything = self.inner, self._trainable_variables
        state = [v.value for v in inner.variables]
        weights = [v.value for v in everything]
        iterations = inner.iterations.value
        small, figures, known = self._small.value, self._figures.value, [s.value for s in sums]
        by_index = dict(zip(map(self._get_variable_index, variables), known, strict=True))
        values = [by_index.get(self._get_variable_index(v)) for v in everything]

        def updated() -> Any:
            mapping = list(zip(inner.variables, state, strict=True))
            measured = figures
            with keras.StatelessScope(state_mapping=mapping):
                if self.measured:
                    found = squared_norms(inner, known, variables, preconditioned=self.preconditioned)
                    measured = ops.concatenate([small, ops.cast(ops.stack(found), small.dtype)])
            with scaled(inner, told, self.moving, iterations):
                new_weights, new_state = inner.stateless_apply(state, values, weights)
            return [measured, *new_weights, *new_state]

        result = ops.cond(last, updated, lambda: [figures, *weights, *state])
        for variable, value in zip([self._figures, *everything, *inner.variables], result, strict=True):
            variable.assign(value)

    def _read_control(self) -> dict[str, Any]:
        if self.on_host:
            return dict(zip(NAMES, self._told.numbers(), strict=True))
        return {name: self._control.value[i] for i, name in enumerate(NAMES)}

    def _reading(self, told: dict[str, Any], place: Any) -> tuple[Any, Any, Any]:
        """This pass's weight, and whether it is the first and the last of its step."""
        if self.on_host:
            weight = told["weight_1" if place < told["end_1"] else "weight_2" if place < told["end_2"] else "weight_3"]
            return weight, place == 0, place + 1 >= told["count"]
        at = ops.cast(place, told["count"].dtype)
        late = ops.where(at < told["end_2"], told["weight_2"], told["weight_3"])
        return ops.where(at < told["end_1"], told["weight_1"], late), at < 0.5, at + 1 >= told["count"]

    @property
    def on_host(self) -> bool:
        """Whether steps run eagerly, so that weights and places are plain numbers: on torch."""
        return keras.backend.backend() == "torch"

    def tell(self, told: Control, write: Callable[[Any, Any], None] | None = None) -> None:
        """Say how the coming step is laid out and scaled; ``write`` reaches a variable while ``fit`` runs."""
        if told != self._told and not self.on_host:
            (write or (lambda variable, value: variable.assign(value)))(self._control, np.asarray(told.numbers()))
        self._told = told

    def begin_step(self) -> None:
        """Forget a step that was left halfway, on the host."""
        self._here = 0

    # What a Keras optimizer offers, taken from the inner one

    @property
    def learning_rate(self) -> Any:
        """The base learning rate, without the rule's factor; set it as ever."""
        return self.inner.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.inner.learning_rate = value

    @property
    def iterations(self) -> Any:
        """Updates made so far."""
        return self.inner.iterations

    def scale_loss(self, loss: Any) -> Any:
        return self.inner.scale_loss(loss)

    def finalize_variable_values(self, var_list: Any) -> None:
        self.inner.finalize_variable_values(var_list)

    def save_own_variables(self, store: Any) -> None:
        self.inner.save_own_variables(store)

    def load_own_variables(self, store: Any) -> None:
        self.inner.load_own_variables(store)

    def get_config(self) -> dict[str, Any]:
        inner = keras.saving.serialize_keras_object(self.inner)
        return {"name": self.name, "inner": inner, "measured": self.measured, "steps": self.steps}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> ElasticOptimizer:
        config = dict(config)
        inner = keras.saving.deserialize_keras_object(config.pop("inner"), custom_objects=custom_objects)
        return cls(inner, **config)

    @property
    def second_moment(self) -> bool:
        """Whether gradients can be measured in the optimizer's own metric."""
        return has_second_moment(self.inner)


def _weighted(held: Any, new: Any, weight: Any, first: Any) -> Any:
    """``weight * new``, added to what is held unless it is the first of its step."""
    weight = weight if isinstance(weight, float) else ops.cast(weight, held.dtype)
    added = ops.cast(new, held.dtype) * weight
    if isinstance(first, bool):
        return added if first else held.value + added
    return ops.where(first, added, held.value + added)


def _require_plain(inner: Any) -> None:
    if isinstance(inner, ElasticOptimizer):
        raise ConfigError("this optimizer is wrapped already. Give the plain Keras optimizer, here `optimizer.inner`.")
    if isinstance(inner, keras.optimizers.LossScaleOptimizer):
        raise ConfigError(
            "LossScaleOptimizer skips single passes, which would leave a global batch incomplete. Give the optimizer "
            "inside it and train in bfloat16 (keras.config.set_dtype_policy('mixed_bfloat16')), which needs no scaling."
        )
    if getattr(inner, "gradient_accumulation_steps", None):
        raise ConfigError(
            f"gradient_accumulation_steps={inner.gradient_accumulation_steps} on the optimizer would accumulate a "
            "second time. Leave it out: swell lays out each global batch in as many passes as `micro` asks for."
        )
