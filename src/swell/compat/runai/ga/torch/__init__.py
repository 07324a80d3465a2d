"""Gradient accumulation for PyTorch: ``runai.ga.torch.optim``."""

from __future__ import annotations

from swell.compat.runai.ga.torch import optim

__all__ = ["optim"]
