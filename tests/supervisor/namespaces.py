"""Small file systems for tests that strike a disk for real, in a mount namespace of their own."""

from __future__ import annotations

import functools
import shutil
import subprocess


@functools.cache
def why_not() -> str:
    """Why no file system can be mounted here; empty where it can."""
    if shutil.which("unshare") is None:
        return "needs unshare"
    done = subprocess.run(in_namespace("true", mount="mount -t tmpfs none /mnt"), capture_output=True, text=True)
    return "" if done.returncode == 0 else f"may not mount a file system: {done.stderr.strip()}"


def in_namespace(*command: str, mount: str) -> list[str]:
    """The command line of a command that sees what the shell command ``mount`` mounts, and nobody else does."""
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh", *command]
