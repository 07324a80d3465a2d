"""Strikes at what is around the workers, in namespaces of their own: a disk that takes nothing, a bad network."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from swell.errors import ConfigError

SURROUNDINGS = {
    "disk": "the file system of the run folder is full for some seconds",
    "readonly": "the file system of the run folder is read-only for some seconds",
    "delay": "the network between the workers is slow for some seconds",
    "drop": "the network between the workers loses packets for some seconds",
    "partition": "the network between the workers is down for some seconds",
}
NETWORK = ("delay", "drop", "partition")
_HELD = "ballast"
_NETEM = {"delay": "netem delay 50ms 20ms", "drop": "netem loss 10%"}
# Where the kernel has no netem: a queue that is slow, and one that is so short that packets are lost.
_SIMPLE = {"delay": "tbf rate 4mbit burst 64kb latency 200ms", "drop": "tbf rate 4mbit burst 64kb latency 1ms"}


def enter_namespaces(arguments: Sequence[str], *, run_dir: Path, disk_mb: int) -> int:
    """Run ``python -m swell`` with these arguments in its own network and over its own disk; returns its status.

    Nothing outside is touched. The run folder is a file system in memory, gone afterwards.
    """
    refused = namespaces_refused()
    if refused:
        raise ConfigError(
            f"kinds has some of {', '.join(SURROUNDINGS)}; expected a system that allows namespaces ({refused}). "
            f"Leave them out, or ask the machine's administrator for user namespaces."
        )
    run_dir.mkdir(parents=True, exist_ok=True)
    mount = f'mount -t tmpfs -o size={disk_mb}m none "$0"'
    line = _unshare("sh", "-c", f'ip link set lo up && {mount} && exec "$@"', str(run_dir.resolve()))
    return subprocess.call([*line, sys.executable, "-m", "swell", *arguments])


def namespaces_refused() -> str:
    """Why disk and network cannot be struck on this machine; empty where they can."""
    missing = [name for name in ("unshare", "ip", "tc", "mount") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} is missing"
    done = subprocess.run(_unshare("true"), capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr.strip()


def _unshare(*command: str) -> list[str]:
    return ["unshare", "--user", "--map-root-user", "--mount", "--net", *command]


def refuse_impossible(kinds: Sequence[str]) -> None:
    """Try what the kernel has to support, inside the namespaces; ``ConfigError`` if it does not."""
    for kind in ("delay", "drop"):
        begin, end = _slow(kind)
        if kind in kinds and not begin():
            raise ConfigError(f"kinds has {kind}; expected a kernel whose tc has netem or tbf. Leave it out.")
        end()


@contextmanager
def struck(kind: str, run_dir: Path) -> Iterator[None]:
    """Inside the block the disk takes nothing, or the network is bad."""
    begin, end = {"disk": _fill_disk, "readonly": _lock_disk, "partition": _cut}.get(kind, _slow)(kind, run_dir)
    try:
        begin()
        yield
    finally:
        end()


Strike = tuple[Callable[[], object], Callable[[], object]]  # how it begins and how it ends


def _fill_disk(_: str, run_dir: Path) -> Strike:
    ballast = run_dir / _HELD

    def make_room() -> None:
        with contextlib.suppress(OSError):
            ballast.unlink()

    return lambda: _fill(ballast), make_room


def _lock_disk(_: str, run_dir: Path) -> Strike:
    """A read-only view of the folder over the folder: what is opened by its path from now on cannot be written.

    The file system itself cannot be made read-only while somebody has a file of it open for writing.
    """
    folder = str(run_dir.resolve())

    def lock() -> None:
        if _tell("mount", "--bind", folder, folder):
            _tell("mount", "-o", "remount,bind,ro", folder)

    return lock, lambda: _tell("umount", "--lazy", folder)


def _cut(*_: object) -> Strike:
    return lambda: _tell("ip", "link", "set", "lo", "down"), lambda: _tell("ip", "link", "set", "lo", "up")


def _slow(kind: str, *_: object) -> Strike:
    queue = ("tc", "qdisc", "add", "dev", "lo", "root")
    return (
        lambda: _tell(*queue, *_NETEM[kind].split()) or _tell(*queue, *_SIMPLE[kind].split()),
        lambda: _tell("tc", "qdisc", "del", "dev", "lo", "root"),
    )


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
