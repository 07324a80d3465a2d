"""Strikes at what is around the workers, in namespaces of their own: the disk fills up, the network slows or breaks."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from swell.errors import ConfigError

SURROUNDINGS = {
    "disk": "the file system of the run folder is full for some seconds",
    "delay": "the network between the workers is slow for some seconds",
    "drop": "it loses a tenth of its packets",
    "partition": "it loses all of them",
}
NETWORK = ("delay", "drop", "partition")
_HELD = "ballast"
_NETEM = {"delay": "netem delay 50ms 20ms", "drop": "netem loss 10%"}
_SLOW = "tbf rate 4mbit burst 64kb latency 200ms"  # where the kernel has no netem


def enter_namespaces(arguments: Sequence[str], *, run_dir: Path, disk_mb: int) -> int:
    """Run ``python -m swell`` with these arguments in its own network and over its own disk; returns its status.

    Nothing outside is touched. The run folder is a file system in memory, gone afterwards.
    """
    needed = [name for name in ("unshare", "ip", "mount") if shutil.which(name) is None]
    probe = _unshare("true")
    done = None if needed else subprocess.run(probe, capture_output=True, text=True, check=False)
    if done is None or done.returncode != 0:
        why = f"{', '.join(needed)} is missing" if done is None else done.stderr.strip()
        raise ConfigError(
            f"kinds has some of {', '.join(SURROUNDINGS)}; expected a system that allows namespaces ({why}). "
            f"Leave them out, or ask the machine's administrator for user namespaces."
        )
    run_dir.mkdir(parents=True, exist_ok=True)
    mount = f'mount -t tmpfs -o size={disk_mb}m none "$0"'
    line = _unshare("sh", "-c", f'ip link set lo up && {mount} && exec "$@"', str(run_dir.resolve()))
    return subprocess.call([*line, sys.executable, "-m", "swell", *arguments])


def _unshare(*command: str) -> list[str]:
    return ["unshare", "--user", "--map-root-user", "--mount", "--net", *command]


def refuse_impossible(kinds: Sequence[str]) -> None:
    """Try what the kernel has to support, inside the namespaces; ``ConfigError`` if it does not."""
    if "drop" in kinds:
        if not _tell("tc", "qdisc", "add", "dev", "lo", "root", *_NETEM["drop"].split()):
            raise ConfigError("kinds has drop; expected a kernel and a tc with netem. Leave it out.")
        _tell("tc", "qdisc", "del", "dev", "lo", "root")


@contextmanager
def struck(kind: str, run_dir: Path) -> Iterator[None]:
    """Inside the block the disk is full, or the network is bad."""
    if kind == "disk":
        try:
            _fill(run_dir / _HELD)
            yield
        finally:
            with contextlib.suppress(OSError):
                (run_dir / _HELD).unlink()
    elif kind == "partition":
        _tell("ip", "link", "set", "lo", "down")
        try:
            yield
        finally:
            _tell("ip", "link", "set", "lo", "up")
    else:
        way = ("tc", "qdisc", "add", "dev", "lo", "root")
        if not _tell(*way, *_NETEM[kind].split()):
            _tell(*way, *_SLOW.split())
        try:
            yield
        finally:
            _tell("tc", "qdisc", "del", "dev", "lo", "root")


def _fill(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        for size in (2**20, 2**12):
            with contextlib.suppress(OSError):
                while True:
                    os.write(descriptor, bytes(size))
    finally:
        os.close(descriptor)


def _tell(*command: str) -> bool:
    return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0
