"""Which global batch the next step takes. A policy is a pure function of the observation, so a log can be replayed.

``POLICIES`` holds those that decide, ``COMBINATORS`` those that wrap another one. ``as_policy`` makes a policy of
whatever a user gives, and ``find`` asks what it can do besides choosing a batch.
"""

from __future__ import annotations

from swell.policies.abilities import find
from swell.policies.coerce import UserPolicy, as_policy
from swell.policies.combinators import AtEpochEnds, Clamp, Dwell, Hysteresis, RoundTo, RoundToReplicas
from swell.policies.decision import checked_batch, chosen_layout, explanation, is_finished
from swell.policies.fixed import Fixed
from swell.policies.goodput import Goodput
from swell.policies.late_switch import LateSwitch
from swell.policies.noise_scale import NoiseScale
from swell.policies.norm_test import NormTest
from swell.policies.one_pass import OnePass
from swell.policies.ramp import Ramp
from swell.policies.replay import Replayed, observation_from_dict, observation_to_dict, replay
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

__all__ = [
    "COMBINATORS",
    "POLICIES",
    "AtEpochEnds",
    "Clamp",
    "Dwell",
    "Fixed",
    "Goodput",
    "Hysteresis",
    "LateSwitch",
    "NoiseScale",
    "NormTest",
    "OnePass",
    "Ramp",
    "Replayed",
    "RoundTo",
    "RoundToReplicas",
    "Schedule",
    "Seesaw",
    "Trace",
    "UserPolicy",
    "as_policy",
    "checked_batch",
    "chosen_layout",
    "explanation",
    "find",
    "is_finished",
    "observation_from_dict",
    "observation_to_dict",
    "replay",
]
