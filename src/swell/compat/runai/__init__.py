"""Run:AI's library: ``runai.elastic`` lays one global batch out on any number of devices, ``runai.ga`` accumulates.

``import swell.compat.runai as runai``, then ``runai.elastic.torch.init(...)`` and ``runai.ga.torch.optim.Optimizer``.
Frameworks are loaded when they are first named.
"""

from __future__ import annotations

from swell.compat.runai import elastic, ga

__all__ = ["elastic", "ga"]
