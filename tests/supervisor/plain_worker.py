"""A worker without torch, for tests of the supervisor alone: keeps to the protocol and forms every world at once.

plain_worker.py WHAT, where WHAT is train (until told to stop), finish, fail, hang, deaf (to notices), quit (status 0
without a word) or chatter (train, with much output).
"""

from __future__ import annotations

import os
import socket
import sys
import time

from swell.runtime.supervisor_link import SupervisorLink
from swell.supervisor.channel import Channel
from swell.supervisor.notice import EXIT_RESUME


def main(what: str) -> int:
    member = int(os.environ["SWELL_MEMBER"])
    print(f"hello from {member}")
    if what == "quit":
        return 0
    if what == "fail":
        print("something is wrong", file=sys.stderr)
        return 7
    channel = Channel(socket.socket(fileno=int(os.environ["SWELL_CHANNEL"])))
    link = SupervisorLink(channel, member, beat_s=float(os.environ["SWELL_BEAT_S"]))
    link.say("ready")
    number = 0
    began = time.monotonic()
    if what == "chatter":
        print("\n".join(f"line {i} {'-' * 200}" for i in range(20_000)), flush=True)
    while True:
        newest = link.newest
        if newest is None or newest.number > number:
            number = link.newer_than(number).number
            link.say("joined", number=number)
            link.say("formed", number=number)
        link.step()
        if what == "hang" and member == 1:
            os.kill(os.getpid(), 19)  # SIGSTOP
        if what == "finish" and time.monotonic() - began > 0.5:
            link.say("done")
            return 0
        if link.notice is not None and what != "deaf":
            print(f"told to stop by {link.notice.source}")
            return EXIT_RESUME
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
