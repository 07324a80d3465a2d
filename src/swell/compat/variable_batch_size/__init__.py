"""ETH's variable_batch_size: train by a trace of batch sizes, to study how the learning rate should follow.

``import swell.compat.variable_batch_size as vbs``. A ``CustomSampler`` reads the trace, and an optimizer named after
its scaling rule accumulates or updates.
"""

from __future__ import annotations

from swell.compat.variable_batch_size.optimizer import CustomOptimizer
from swell.compat.variable_batch_size.rules import (
    AdaScaleOptimizer,
    ConstantOptimizer,
    LinearRuleMomentumOptimizer,
    LinearRuleOptimizer,
    RootRuleOptimizer,
)
from swell.compat.variable_batch_size.sampler import CustomSampler
from swell.compat.variable_batch_size.xla import XlaCollective

__all__ = [
    "AdaScaleOptimizer",
    "ConstantOptimizer",
    "CustomOptimizer",
    "CustomSampler",
    "LinearRuleMomentumOptimizer",
    "LinearRuleOptimizer",
    "RootRuleOptimizer",
    "XlaCollective",
]
