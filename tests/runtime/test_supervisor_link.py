"""A worker whose supervisor is gone comes to an end, whatever it waits for."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys

import pytest

from swell.supervisor.channel import Channel

WORKER = """
import socket, sys, time
from swell.runtime.supervisor_link import SupervisorLink
from swell.supervisor.channel import Channel

link = SupervisorLink(Channel(socket.socket(fileno=int(sys.argv[1]))), 1, beat_s=0.05)
heeds = sys.argv[2] == "heeds"
cut = []
link.on_orphaned = lambda: cut.append(True)
print("waits", flush=True)
with link.main.waiting():
    while not (heeds and cut):
        link.main.poll()
        time.sleep(0.02)
print("cut loose", len(cut), flush=True)
time.sleep(1.0)  # as long as saving takes
print("saved", flush=True)
"""


@pytest.mark.parametrize("heeds", [True, False])
def test_a_worker_that_waits_is_cut_loose_and_ended_if_it_waits_again(heeds: bool) -> None:
    near, far = socket.socketpair()
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(far.fileno()), "heeds" if heeds else "waits on"],
        pass_fds=[far.fileno()],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    far.close()
    assert worker.stdout is not None
    assert worker.stdout.readline() == "waits\n"
    Channel(near).send({"say": "patience", "grace_s": 0.8, "stall_s": None})
    near.close()
    out, err = worker.communicate(timeout=120)
    if heeds:
        assert (worker.returncode, out) == (0, "cut loose 1\nsaved\n")
    else:
        assert (worker.returncode, out) == (-signal.SIGKILL, "")
        assert "the supervisor is gone and this worker has waited for others" in err
