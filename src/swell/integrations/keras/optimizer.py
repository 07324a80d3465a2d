"""The wrapping optimizer: any Keras optimizer that updates once a global batch."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

from typing import Any

import keras
from keras import ops

from swell.core.counts import whole_number
from swell.core.protocols import Rule
from swell.core.types import Factors
from swell.errors import ConfigError
from swell.integrations.keras.processes import Processes
from swell.integrations.keras.step_control import step_control
from swell.integrations.keras.step_gradients import StepGradients


@keras.saving.register_keras_serializable(package="swell")
class ElasticOptimizer(keras.optimizers.Optimizer):
    """Any Keras optimizer, updating once a global batch, whatever the number of passes.

    ``Elastic.optimizer`` makes it. Each call of ``apply`` is one pass with mean gradients ``g_j`` of ``b_j`` samples.
    They are added with weights ``w_j = b_j / B``. With the last pass the sum goes to ``inner``, which clips, decays and
    updates as always and whose ``iterations`` therefore counts real updates: schedules and Adam's bias correction stay
    right. The number of passes and their weights are data (one small variable) and not part of a compiled step, so they
    may change from step to step.

    Without an ``Elastic``, as after ``keras.saving.load_model``, every ``steps`` passes of equal weight are one step;
    with ``steps=1`` it behaves as ``inner``. ``inner`` is the optimizer itself: you can take it back at any time. Saved
    state is ``inner``'s alone.
    """

    def __init__(self, inner: Any, *, name: str = "swell", measured: bool = True, steps: int = 1) -> None:
        super().__init__(learning_rate=0.0, name=name)
        inner = keras.optimizers.get(inner)
        _require_plain(inner)
        self.inner = inner
        self.measured = bool(measured)
        self.steps = whole_number(steps, name="steps")
        control = step_control([1 / self.steps] * self.steps, Factors(), effective_step=1.0)
        self.gradients = StepGradients(inner, control, measured=self.measured)
        self.followed = False  # whether an Elastic uses it

    def follow(self, rule: Rule, *, preconditioned: bool, processes: Processes) -> None:
        """Prepare for a rule's factors and for the figures it looks at; call it before the first step is compiled."""
        self.gradients.follow(rule, preconditioned=preconditioned, processes=processes)
        self.followed = True

    def build(self, variables: Any) -> None:
        """Create the sums and the small variables beside the inner optimizer's own."""
        if self.built:
            return
        variables = list(variables)
        self._check_super_called()
        with keras.name_scope(self.name):
            self.gradients.build(self, variables)
            if not self.inner.built:
                self.inner.build(variables)
        super().build(variables)

    @property
    def variables(self) -> list[Any]:
        """Own variables first, then the inner optimizer's."""
        return [*self._variables, *self.inner.variables]

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Add one pass's gradients; update with the last of the step."""
        variables = self._trainable_variables if trainable_variables is None else list(trainable_variables)
        if not self.built:
            self.build(variables)
        pairs = [(g, v) for g, v in zip(grads, variables, strict=True) if g is not None]
        if not pairs:
            raise ConfigError(
                "no variable has a gradient; expected a loss that depends on the model's weights. Compile the model "
                "with such a loss."
            )
        gradients, variables = [ops.convert_to_tensor(g) for g, _ in pairs], [v for _, v in pairs]
        backend = keras.backend.backend()
        if backend == "tensorflow":
            from swell.integrations.keras.tensorflow_replicas import add_across_replicas

            add_across_replicas(self.gradients, gradients, variables)
        elif backend == "torch":
            from swell.integrations.keras.torch_gradients import eagerly

            eagerly(self.gradients.add, gradients, variables, self.gradients.update)
        else:
            self.gradients.add(gradients, variables, self.gradients.update)

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

    # What a Keras optimizer offers, taken from the inner one

    @property
    def learning_rate(self) -> Any:
        """The base learning rate, without the rule's factor; it can be set as on any optimizer."""
        return self.inner.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.inner.learning_rate = value

    @property
    def iterations(self) -> Any:
        """Updates so far."""
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


def _require_plain(inner: Any) -> None:
    if isinstance(inner, ElasticOptimizer):
        raise ConfigError(
            "the optimizer is an ElasticOptimizer; expected a plain Keras optimizer. Give the one inside it: "
            "optimizer.inner."
        )
    if isinstance(inner, keras.optimizers.LossScaleOptimizer):
        raise ConfigError(
            "the optimizer is a LossScaleOptimizer; expected a plain one, because loss scaling skips single passes and "
            "leaves a global batch incomplete. Give the optimizer inside it and train in bfloat16, which needs no "
            "scaling: keras.config.set_dtype_policy('mixed_bfloat16')."
        )
    if getattr(inner, "gradient_accumulation_steps", None):
        raise ConfigError(
            f"gradient_accumulation_steps is {inner.gradient_accumulation_steps}; expected None, because the optimizer "
            "would accumulate a second time. Leave it out: swell computes each global batch in as many passes as "
            "`micro` asks for."
        )
