"""Checkpoints: everything that a run cannot recompute, saved at once beside training, safe to load."""

from __future__ import annotations

from swell.checkpoint.cadence import Cadence, Mark
from swell.checkpoint.manifest import Manifest
from swell.checkpoint.reading import Checkpoint, inspect, verify
from swell.checkpoint.rng import capture_rng, restore_rng
from swell.checkpoint.saver import AsyncSaver, SaveReport
from swell.checkpoint.store import Store
from swell.checkpoint.transfer import empty_like, gather_values, pack, share_state, unpack
from swell.checkpoint.weights import load_weights

__all__ = [
    "AsyncSaver",
    "Cadence",
    "Checkpoint",
    "Manifest",
    "Mark",
    "SaveReport",
    "Store",
    "capture_rng",
    "empty_like",
    "gather_values",
    "inspect",
    "load_weights",
    "pack",
    "restore_rng",
    "share_state",
    "unpack",
    "verify",
]
