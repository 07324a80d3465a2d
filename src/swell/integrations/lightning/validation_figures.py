"""What one worker's part of a validation has given, and the figures of all parts together."""

# pyright: reportMissingImports=false
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from lightning.pytorch import LightningModule

from swell.errors import ConfigError
from swell.integrations.lightning.loops import LoggedFigures
from swell.integrations.lightning.metric_states import can_join, captured, join, metrics_of

WHOLE = "give swell.lightning.Strategy(validation='whole')"


class ValidationFigures:
    """The figures that ``self.log`` and torchmetrics have added up since this was made, at the start of a validation.

    Parts are added up here, before Lightning and the module's hooks compute anything from them.
    """

    def __init__(self, module: LightningModule, logged: LoggedFigures) -> None:
        self._metrics, self._logged = metrics_of(module), logged
        self._before = logged.names()  # logged at the start, by every worker alike
        self._held = {name: metric.update_count for name, metric in self._metrics.items()}

    def captured(self) -> dict[str, Any]:
        """This worker's part, and the reason why it cannot be one, if there is one."""
        updated = {name: each for name, each in self._metrics.items() if each.update_count != self._held[name]}
        refusal = next(filter(None, (self._refusal(name) for name in updated)), "")
        logged = {name: value for name, value in self._logged.captured().items() if name not in self._before}
        metrics = {} if refusal else {name: captured(metric) for name, metric in updated.items()}
        return {"refusal": refusal, "logged": logged, "metrics": metrics}

    def _refusal(self, name: str) -> str:
        if not can_join(self._metrics[name]):
            return (
                f"the metric {name} is a {type(self._metrics[name]).__name__}, whose parts do not give the whole; "
                f"expected states that are summed, compared or joined. Use another metric, or {WHOLE}."
            )
        if self._held[name]:
            return (
                f"the metric {name} held values when the validation began; expected it empty, because every worker's "
                f"values would be counted. Call reset() at the end of a validation, or log the metric itself."
            )
        return ""

    def join(self, parts: Sequence[dict[str, Any]]) -> None:
        """Take all workers' parts: what is computed from here on is of all samples."""
        refusals = [part["refusal"] for part in parts if part["refusal"]]
        if refusals:
            raise ConfigError(f"validation is 'split', and {refusals[0]}")
        names = [set(part["logged"]) for part in parts]
        missing = sorted(set.union(*names) - set.intersection(*names))
        if missing:
            raise ConfigError(
                f"validation is 'split', and some workers only have logged {', '.join(missing)}; expected every worker "
                f"to log the same figures. Log them for every batch, or {WHOLE}."
            )
        self._logged.join([part["logged"] for part in parts])
        for name, metric in self._metrics.items():
            states = [part["metrics"][name] for part in parts if name in part["metrics"]]
            if states:
                join(metric, states)


def check_agreement(logged: LoggedFigures, gather: Callable[[dict[str, float]], list[dict[str, float]] | None]) -> None:
    """Refuse a figure that workers do not agree on: a hook has made it from this worker's part of the data."""
    values = gather(logged.values())
    for other in values or ():
        for name, value in (values or [{}])[0].items():
            if name in other and not _same(value, other[name]):
                raise ConfigError(
                    f"{name} is {value:g} on one worker and {other[name]:g} on another; expected one figure, and "
                    f"validation is 'split': hooks see this worker's part of the batches. Log it in validation_step, "
                    f"or keep it in a metric of torchmetrics, or {WHOLE}."
                )


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-6) or (math.isnan(one) and math.isnan(other))
