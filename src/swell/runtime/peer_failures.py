"""Distinguish a lost peer from a mistake: which exceptions of torch mean that another worker is gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from swell.errors import WorldError

# gloo raises a bare RuntimeError, so only its text can be checked. Each phrase is from gloo, NCCL or c10d and unlikely
# in a model's own error.
_PHRASES = (
    "gloo/transport",
    "third_party/gloo",
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "broken pipe",
    "socket closed",
    "application timeout caused pair closure",
    "timed out waiting",
    "wait timeout",
    "nccl error",
    "nccl communicator was aborted",
    "process group has been aborted",
    "watchdog caught collective operation timeout",
    "collective operation timeout",
)


def is_peer_failure(error: BaseException) -> bool:
    """Whether ``error`` means that a worker was lost, and not that the model or the data are wrong.

    Use it on errors of ``backward`` under DDP, where a collective's error comes through autograd:

    >>> is_peer_failure(RuntimeError("[third_party/gloo/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4242"))
    True
    >>> is_peer_failure(RuntimeError("mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6)"))
    False
    """
    if isinstance(error, (WorldError, dist.DistError)):
        return True
    if not isinstance(error, RuntimeError):
        return False
    text = str(error).lower()
    return any(phrase in text for phrase in _PHRASES)


@contextmanager
def lost_peers_as_world_errors(activity: str) -> Iterator[None]:
    """Turn a lost peer inside the block into ``WorldError``; other errors pass unchanged."""
    try:
        yield
    except WorldError:
        raise
    except RuntimeError as error:
        if not is_peer_failure(error):
            raise
        raise WorldError(
            f"a worker was lost while {activity} ({reason_of(error)}); expected every worker to answer. Form the world "
            f"again and repeat the step; without `swell run`, restart the run: it resumes from its newest checkpoint."
        ) from error


def reason_of(error: BaseException) -> str:
    """The first line of an error's message, or of its cause's."""
    error = error.__cause__ or error
    lines = str(error).partition(". This is typically caused")[0].strip().splitlines()  # gloo adds advice
    return lines[0][:300] if lines else type(error).__name__
