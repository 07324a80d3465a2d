"""The policies that a text can name: those that decide, and those that wrap another one."""

from __future__ import annotations

from swell.policies.combinators import AtEpochEnds, Clamp, Dwell, Hysteresis, RoundTo, RoundToReplicas
from swell.policies.fixed import Fixed
from swell.policies.goodput import Goodput
from swell.policies.late_switch import LateSwitch
from swell.policies.noise_scale import NoiseScale
from swell.policies.norm_test import NormTest
from swell.policies.ramp import Ramp
from swell.policies.schedule import Schedule
from swell.policies.seesaw import Seesaw
from swell.policies.trace import Trace

POLICIES: dict[str, type] = {
    "fixed": Fixed,
    "goodput": Goodput,
    "late_switch": LateSwitch,
    "noise_scale": NoiseScale,
    "norm_test": NormTest,
    "ramp": Ramp,
    "schedule": Schedule,
    "seesaw": Seesaw,
    "trace": Trace,
}

COMBINATORS: dict[str, type] = {
    "at_epoch_ends": AtEpochEnds,
    "clamp": Clamp,
    "dwell": Dwell,
    "hysteresis": Hysteresis,
    "round_to": RoundTo,
    "round_to_replicas": RoundToReplicas,
}
