"""Ray: a run whose agents Ray places, a trainer in Ray Train's form, and a callback for Ray Train's own trainers.

``import swell.ray`` is the same. Ray itself is imported when a name of this package is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swell.integrations.lazy import on_first_use

__all__ = ["RayEngine", "SaveBeforeResize", "Trainer"]


__getattr__ = on_first_use(
    __name__,
    {"RayEngine": "engine", "Trainer": "trainer", "SaveBeforeResize": "save_before_resize"},
    needs={"ray": "Ray"},
    hint="expected ray 2.60 or newer for {name}. Run pip install '.[ray]' in a checkout of swell.",
)


if TYPE_CHECKING:
    from swell.integrations.ray.engine import RayEngine
    from swell.integrations.ray.save_before_resize import SaveBeforeResize
    from swell.integrations.ray.trainer import Trainer
