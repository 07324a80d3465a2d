"""Train with whatever workers you have: the batch size changes during the run, and the learning rate follows.

>>> import swell
>>> layout = swell.plan(256, 2, max_micro=64)
>>> layout.accumulation
2

A name is loaded when it is first used, so ``import swell`` is quick and ``import swell.core`` never needs torch.
``docs/public.md`` lists what is public.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swell.lazy_names import lazy_names
from swell.version import __version__

# The one table of public names: each under the module that offers it.
_HOMES = {
    "swell.job": ("Job",),
    "swell.checkpoint.cadence": ("Cadence",),
    "swell.checkpoint.weights": ("load_weights",),
    "swell.loop.statistics": ("Statistics",),
    "swell.runtime.notices": ("Notices",),
    "swell.runtime.world": ("open_world",),
    "swell.noise": ("NoiseMeasurement", "noise_scale"),
    "swell.core.planning": ("plan", "feasible_replicas"),
    "swell.core.types": ("Factors", "Moments", "Observation", "ScaleState"),
    "swell.policies": (
        "AtEpochEnds",
        "Clamp",
        "Dwell",
        "Fixed",
        "Goodput",
        "Hysteresis",
        "LateSwitch",
        "NoiseScale",
        "NormTest",
        "Ramp",
        "RoundTo",
        "RoundToReplicas",
        "Schedule",
        "Seesaw",
        "Trace",
    ),
    "swell.rules": (
        "AdaScale",
        "AdamSDE",
        "AdamScale",
        "Constant",
        "KeepAverageTime",
        "KeepDecayTime",
        "LEGW",
        "Linear",
        "Root",
    ),
}
_MODULES = frozenset(
    {"accelerate", "core", "errors", "keras", "lightning", "policies", "ray", "rules", "telemetry", "transformers"}
)
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = ["__version__", *sorted(_HOME_OF), *sorted(_MODULES)]  # pyright: ignore[reportUnsupportedDunderAll]
__getattr__, __dir__ = lazy_names(__name__, {**_HOME_OF, **{name: f"swell.{name}" for name in _MODULES}})


# The same table for type checkers and editors; a test compares the two.
if TYPE_CHECKING:
    from swell import accelerate, core, errors, keras, lightning, policies, ray, rules, telemetry, transformers
    from swell.checkpoint.cadence import Cadence
    from swell.checkpoint.weights import load_weights
    from swell.core.planning import feasible_replicas, plan
    from swell.core.types import Factors, Moments, Observation, ScaleState
    from swell.job import Job
    from swell.loop.statistics import Statistics
    from swell.noise import NoiseMeasurement, noise_scale
    from swell.policies import (
        AtEpochEnds,
        Clamp,
        Dwell,
        Fixed,
        Goodput,
        Hysteresis,
        LateSwitch,
        NoiseScale,
        NormTest,
        Ramp,
        RoundTo,
        RoundToReplicas,
        Schedule,
        Seesaw,
        Trace,
    )
    from swell.rules import (
        LEGW,
        AdamScale,
        AdamSDE,
        AdaScale,
        Constant,
        KeepAverageTime,
        KeepDecayTime,
        Linear,
        Root,
    )
    from swell.runtime.notices import Notices
    from swell.runtime.world import open_world
