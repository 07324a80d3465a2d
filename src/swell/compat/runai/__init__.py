"""Run:AI's library: ``runai.elastic`` lays out one global batch on any number of devices, ``runai.ga`` accumulates.

``import swell.compat.runai as runai``, then ``runai.elastic.torch.init(...)`` and ``runai.ga.torch.optim.Optimizer``.
A framework is imported when its module is first used.
"""

from __future__ import annotations

from swell.compat.runai import elastic, ga

__all__ = ["elastic", "ga"]
