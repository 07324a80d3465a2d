"""The gradients of one step: weighted and added pass by pass, measured, and applied with the last pass."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from swell.core.protocols import Rule
from swell.integrations.keras.gradient_norms import squared_norms
from swell.integrations.keras.hyperparameters import moved_by, scaled
from swell.integrations.keras.processes import OneProcess, Processes
from swell.integrations.keras.step_control import NAMES, StepControl


class StepGradients:
    """Adds the passes of a step up and lets the inner optimizer apply their sum.

    How many passes there are, what they weigh and which one is next is data in two small variables. On torch, where
    steps run eagerly, the host holds these numbers instead.
    """

    def __init__(self, inner: Any, control: StepControl, *, measured: bool) -> None:
        self.inner, self.measured = inner, measured
        self.preconditioned = False  # whether norms are taken in the optimizer's metric too
        self.moved: frozenset[str] = frozenset()  # hyper-parameters that a rule moves
        self._processes: Processes = OneProcess()
        self._control = control
        self._host_place = 0

    def follow(self, rule: Rule, *, preconditioned: bool, processes: Processes) -> None:
        """Prepare for a rule's factors and for the figures it looks at; call it before the first step is compiled."""
        self.moved = moved_by(rule, self.inner)
        self.preconditioned = preconditioned and self.measured
        self._processes = processes

    def build(self, optimizer: Any, variables: list[Any]) -> None:
        """Create the sums and the small variables, as variables of ``optimizer``."""
        wide = "float64" if keras.config.floatx() == "float64" else "float32"

        def small(shape: tuple[int, ...], dtype: str, name: str, start: Sequence[float] | None = None) -> Any:
            # An initializer and not an assignment: TensorFlow would trace an assignment if it builds within a step.
            zeros_or_start = "zeros" if start is None else lambda shape, dtype=None: ops.convert_to_tensor(start, dtype)
            return optimizer.add_variable(shape, zeros_or_start, dtype, name=name, aggregation="only_first_replica")

        self._vector = small((len(NAMES),), wide, "control", self._control.numbers())
        self._place = small((), "int32", "place")
        self._small = small((2,), wide, "small_squares")  # plain, and in the optimizer's metric
        self.figures = small((4,), wide, "figures")  # of the last step: small squares, big squares
        self._sums = [optimizer.add_variable_from_reference(v, name="sum") for v in variables]
        self._index_of = optimizer._get_variable_index
        self._all_variables = variables

    @property
    def on_host(self) -> bool:
        """Whether steps run eagerly, so that weights and places are plain numbers: on torch."""
        return keras.backend.backend() == "torch"

    def set_control(self, control: StepControl, write: Callable[[Any, Any], None] | None = None) -> None:
        """Set how the next step is laid out and scaled; ``write`` reaches a variable while ``fit`` runs."""
        if control != self._control and not self.on_host:
            (write or (lambda variable, value: variable.assign(value)))(self._vector, np.asarray(control.numbers()))
        self._control = control

    def restart(self, write: Callable[[Any, Any], None]) -> None:
        """Drop a step that was left halfway."""
        self._host_place = 0
        write(self._place, 0)

    def add(self, gradients: list[Any], variables: list[Any], update: Callable[..., None]) -> None:
        """Add one pass; with the last one ``update`` is called with the sums, the variables and the control."""
        control = self._read_control()
        place = self._host_place if self.on_host else self._place.value
        weight, first, last = self._weight_at(control, place)
        sums = [self._sums[self._index_of(v)] for v in variables]
        if self.measured:
            squares = squared_norms(self.inner, gradients, variables, preconditioned=self.preconditioned)
            self._small.assign(_weighted(self._small, ops.stack(squares), weight, first))
        if self.on_host:
            from swell.integrations.keras.torch_gradients import add

            add(sums, gradients, weight=weight, first=first)
            self._host_place = 0 if last else self._host_place + 1
            if last:
                update(sums, variables, control)
            return
        for total, gradient in zip(sums, gradients, strict=True):
            total.assign(_weighted(total, gradient, weight, first))
        self._place.assign(ops.where(last, 0, place + 1))
        if keras.backend.backend() == "jax":
            self._update_stateless(last, sums, variables, control)
        else:
            ops.cond(last, lambda: update(sums, variables, control), lambda: None)

    def update(self, sums: list[Any], variables: list[Any], control: dict[str, Any]) -> None:
        """Measure the whole gradient and let the inner optimizer apply it, with the rule's factors in place."""
        self._processes.sum([*[s.value for s in sums], self._small.value])
        values = [s.value for s in sums]
        self.measure(values, variables)
        with scaled(self.inner, control, self.moved, self.inner.iterations):
            self.inner.apply(values, variables)

    def measure(self, values: list[Any], variables: list[Any]) -> None:
        """Take the squared norm of the whole step's gradient, if steps are measured."""
        if self.measured:
            squares = squared_norms(self.inner, values, variables, preconditioned=self.preconditioned)
            small = ops.convert_to_tensor(self._small)
            self.figures.assign(ops.concatenate([small, ops.cast(ops.stack(squares), small.dtype)]))

    def _update_stateless(self, last: Any, sums: list[Any], variables: list[Any], control: dict[str, Any]) -> None:
        """JAX traces both branches of a condition, so nothing may be assigned inside: values go in, values come out."""
        inner, everything = self.inner, self._all_variables
        state = [v.value for v in inner.variables]
        weights = [v.value for v in everything]
        iterations = inner.iterations.value
        small, figures, totals = self._small.value, self.figures.value, [s.value for s in sums]
        by_index = dict(zip(map(self._index_of, variables), totals, strict=True))
        values = [by_index.get(self._index_of(v)) for v in everything]

        def updated() -> Any:
            mapping = list(zip(inner.variables, state, strict=True))
            new_figures = figures
            with keras.StatelessScope(state_mapping=mapping):
                if self.measured:
                    squares = squared_norms(inner, totals, variables, preconditioned=self.preconditioned)
                    new_figures = ops.concatenate([small, ops.cast(ops.stack(squares), small.dtype)])
            with scaled(inner, control, self.moved, iterations):
                new_weights, new_state = inner.stateless_apply(state, values, weights)
            return [new_figures, *new_weights, *new_state]

        result = ops.cond(last, updated, lambda: [figures, *weights, *state])
        for variable, value in zip([self.figures, *everything, *inner.variables], result, strict=True):
            variable.assign(value)

    def _read_control(self) -> dict[str, Any]:
        if self.on_host:
            return dict(zip(NAMES, self._control.numbers(), strict=True))
        return {name: self._vector.value[i] for i, name in enumerate(NAMES)}

    def _weight_at(self, control: dict[str, Any], place: Any) -> tuple[Any, Any, Any]:
        """The weight of the pass at a place, and whether it is the first and the last of its step."""
        if self.on_host:
            run = 1 if place < control["end_1"] else 2 if place < control["end_2"] else 3
            return control[f"weight_{run}"], place == 0, place + 1 >= control["count"]
        at = ops.cast(place, control["count"].dtype)
        late = ops.where(at < control["end_2"], control["weight_2"], control["weight_3"])
        return ops.where(at < control["end_1"], control["weight_1"], late), at < 0.5, at + 1 >= control["count"]


def _weighted(total: Any, new: Any, weight: Any, first: Any) -> Any:
    """``weight * new``, added to the total unless it is the first of its step."""
    weight = weight if isinstance(weight, float) else ops.cast(weight, total.dtype)
    added = ops.cast(new, total.dtype) * weight
    if isinstance(first, bool):
        return added if first else total.value + added
    return ops.where(first, added, total.value + added)
