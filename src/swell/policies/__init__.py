"""Which global batch the next step takes. A policy is a pure function of the observation, so a log can be replayed.

``POLICIES`` holds those that decide, ``COMBINATORS`` those that wrap another one. ``as_policy`` makes a policy of
whatever a user gives, and ``find`` asks what it can do besides choosing a batch.

Names are loaded when they are first used: a run has one policy, and most have a small one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swell.lazy_names import lazy_names

_HOMES = {
    "abilities": ("find",),
    "catalog": ("COMBINATORS", "POLICIES"),
    "coerce": ("UserPolicy", "as_policy"),
    "combinators": ("AtEpochEnds", "Clamp", "Dwell", "Hysteresis", "RoundTo", "RoundToReplicas"),
    "decision": ("checked_batch", "chosen_layout", "explanation", "is_finished"),
    "fixed": ("Fixed",),
    "goodput": ("Goodput",),
    "late_switch": ("LateSwitch",),
    "noise_scale": ("NoiseScale",),
    "norm_test": ("NormTest",),
    "one_pass": ("OnePass",),
    "ramp": ("Ramp",),
    "replayed": ("Replayed", "observation_from_dict", "observation_to_dict", "replay"),
    "schedule": ("Schedule",),
    "seesaw": ("Seesaw",),
    "trace": ("Trace",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

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

__getattr__, __dir__ = lazy_names(__name__, {name: f"swell.policies.{home}" for name, home in _HOME_OF.items()})

if TYPE_CHECKING:
    from swell.policies.abilities import find
    from swell.policies.catalog import COMBINATORS, POLICIES
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
    from swell.policies.replayed import Replayed, observation_from_dict, observation_to_dict, replay
    from swell.policies.schedule import Schedule
    from swell.policies.seesaw import Seesaw
    from swell.policies.trace import Trace
