"""What torch's ``Join`` context asks of an object that speaks to the other replicas on its own.

``Join`` lets replicas with fewer batches leave a loop early: it calls the hooks of those that left, once for every
batch of the others, so that no exchange waits for them.
"""

from __future__ import annotations

from torch.distributed.algorithms.join import Joinable, JoinHook

__all__ = ["JoinHook", "Joinable"]
