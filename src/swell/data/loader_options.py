"""The arguments of ``torch.utils.data.DataLoader`` that feeds and streams take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from swell.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """Arguments of ``DataLoader`` with its names, meanings and defaults.

    Raises ``ConfigError`` for those that cannot work. ``DataLoader`` refuses others when it is made.

    >>> LoaderOptions(num_workers=2).arguments()["num_workers"]
    2
    """

    collate_fn: Callable[[list[Any]], Any] | None = None
    num_workers: int = 0
    prefetch_factor: int | None = None
    pin_memory: bool = False
    persistent_workers: bool = False
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: Any = None
    generator: torch.Generator | None = None
    timeout: float = 0
    pin_memory_device: str = ""
    in_order: bool = True

    def __post_init__(self) -> None:
        if not self.in_order:
            raise ConfigError("in_order is False; expected True, because samples must keep their order. Leave it out.")
        if self.num_workers == 0 and (self.persistent_workers or self.prefetch_factor is not None):
            raise ConfigError(
                f"persistent_workers is {self.persistent_workers} and prefetch_factor is {self.prefetch_factor}, but "
                "num_workers is 0; expected workers. Give num_workers of at least 1, or leave the others out."
            )

    def arguments(self) -> dict[str, Any]:
        """Arguments for a ``DataLoader``; ``in_order`` is its default."""
        return {name: value for name, value in vars(self).items() if name != "in_order"}
