"""Lightning's Trainer and Fabric: one strategy that keeps the global batch on any workers, and lets a policy move it.

``import swell.lightning`` is the same. Lightning itself is imported when a name of this package is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swell.integrations.lazy import on_first_use

__all__ = ["Strategy"]


__getattr__ = on_first_use(
    __name__,
    {"Strategy": "strategy"},
    needs={"lightning": "Lightning"},
    hint=("expected lightning 2.6 or newer for {name}. Run pip install '.[lightning]' in a checkout of swell."),
)


if TYPE_CHECKING:
    from swell.integrations.lightning.strategy import Strategy
