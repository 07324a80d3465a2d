"""How many files and connections a process may have open at once."""

from __future__ import annotations

import resource
from contextlib import suppress

_ENOUGH = 65536  # more makes programs slow that go through all possible numbers


def raise_descriptor_limit() -> int:
    """Raise this process's limit of open descriptors as far as it may; the limit then. Its children inherit it.

    The usual 1024 are few for a run with many workers and data-loading processes, and a stranger who opens connections
    to it would use them up sooner.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
