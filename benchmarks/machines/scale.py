"""The control plane with up to 10,000 simulated workers: what a change of the world takes, and how that grows.

The head's own parts run for real (places, membership, meeting, and every message encoded and decoded as on the wire);
workers are the messages that they would send. Times are the head's processor time. Writes scale.json beside itself.

    python benchmarks/machines/scale.py [--sizes 100,1000,10000] [--slots 8]
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from swell.core.ledger import Ledger
from swell.core.order import Shuffled
from swell.core.planning import plan
from swell.supervisor.actions import Action, Announce, Ask, Kill, Release, Start
from swell.supervisor.channel import encode
from swell.supervisor.decision_pace import DecisionPace
from swell.supervisor.meeting import Meeting
from swell.supervisor.membership import Membership
from swell.supervisor.places import Node, Places
from swell.supervisor.sizes import parse_sizes
from swell.supervisor.stall import Activity

TURN = 256  # messages that the head finds at one look at its connections
ADDRESS = "A" * 240  # what gloo tells of one worker, as text


class Head:
    """The supervisor without its sockets: takes lines, gives lines, counts both and the time between."""

    def __init__(self, most: int, slots: int) -> None:
        self.slots, self.now, self.spent_s = slots, 0.0, 0.0
        self.members = Membership(parse_sizes(f"1:{most}"), target=most, places=Places([Node(0, "head", 0)]))
        self.meeting, self.pace = Meeting(), DecisionPace()
        self.lines_in = self.lines_out = self.bytes_out = self.addresses_out = 0
        self.buffer = bytearray()
        self.started: list[int] = []
        self.ended: list[int] = []  # workers that were told to go

    def timed(self, work: Callable[[], Any]) -> Any:
        began = time.process_time()
        result = work()
        self.spent_s += time.process_time() - began
        return result

    def join_nodes(self, count: int) -> list[int]:
        nodes = [self.members.places.join(f"node {number}", self.slots) for number in range(count)]
        self.timed(lambda: self.do(self.members.tick(self.now)))
        return nodes

    def lose_node(self, node: int) -> None:
        self.members.places.lose(node)
        self.timed(lambda: self.do(self.members.fit(self.now)))

    def hear(self, messages: Iterable[dict[str, Any]]) -> None:
        """Lines arrive, ``TURN`` of them at a time; after each turn the head decides."""
        lines = [json.dumps({"say": "heard", "member": m["member"], "message": m}).encode() for m in messages]
        self.lines_in += len(lines)
        for first in range(0, len(lines), TURN):
            self.now += 0.01
            self.timed(lambda first=first: self._turn(lines[first : first + TURN]))
        self.timed(self.decide)  # no more messages come: the next look

    def _turn(self, lines: list[bytes]) -> None:
        members = self.members
        members.held = True
        for line in lines:
            message = json.loads(line)["message"]
            member, word = message["member"], message["say"]
            if word == "beat":
                actions = members.beat(member, message["progress"], self.now, Activity.from_message(message))
            elif word == "ready":
                actions = members.ready(member, self.now)
            elif word == "formed":
                actions = members.formed(member, message["number"], self.now)
            elif word == "joined":
                actions = members.joined(member, message["number"], self.now)
            elif word == "left":
                actions = members.left(member, message["number"], self.now)
            elif word == "exited":
                actions = members.exited(member, message["code"], self.now)
            else:
                self.meeting.take(member, message)
                actions = []
            self.do(actions)
        members.held = False
        if not self.pace.wait_s(time.process_time()):
            self.decide()
        for _, news in self.meeting.news():  # one line, the same for every node
            line = encode({"say": "send", "members": None, "message": news})
            for _ in members.places.nodes:
                self.buffer = bytearray(line)
                self.lines_out += 1
                self.addresses_out += len(line)

    def decide(self) -> None:
        began = time.process_time()
        self.do(self.members.tick(self.now))
        self.pace.decided(began=began, ended=time.process_time())

    def _to_nodes(self, orders: dict[int, dict[str, Any]]) -> None:
        for order in orders.values():
            self.lines_out += 1
            self.bytes_out += len(json.dumps(order).encode()) + 1

    def do(self, actions: list[Action]) -> None:
        workers = self.members.workers
        for action in actions:
            if isinstance(action, Start):
                self.started.append(action.member)
                self._to_nodes({action.node: {"say": "start", "member": action.member, "slot": action.slot}})
            elif isinstance(action, Announce):
                generation = action.generation
                self.meeting.open(generation.number)
                calls: dict[int, list[Any]] = {}
                for member, call in generation.calls(workers):
                    calls.setdefault(workers[member].node, []).append((member, call.to_message()))
                self._to_nodes({node: {"say": "each", "messages": told} for node, told in calls.items()})
            elif isinstance(action, (Ask, Release, Kill)):
                if not isinstance(action, Ask) or action.notice.leave:
                    self.ended.append(action.member)
                self._to_nodes({0: {"say": "send", "members": [action.member], "message": {"say": "notice"}}})

    def form(self, *, leaving_from: int | None = None) -> None:
        """Every member forms the newest generation: it leaves the last one, sets its address, and has formed it."""
        newest = self.members.generation
        if leaving_from is not None:
            self.hear({"say": "left", "member": m, "number": leaving_from} for m in newest.members)
        self.hear({"say": "joined", "member": m, "number": newest.number} for m in newest.members)
        self.hear(
            {"say": "set", "member": m, "number": newest.number, "key": f"0//cpu//0/{rank}", "value": ADDRESS}
            for rank, m in enumerate(newest.members)
        )
        self.hear({"say": "formed", "member": m, "number": newest.number} for m in newest.members)

    def all_ready(self) -> None:
        started, self.started = self.started, []
        self.hear({"say": "ready", "member": member} for member in started)

    def all_left(self) -> None:
        ended, self.ended = self.ended, []
        self.hear({"say": "exited", "member": member, "code": 0} for member in ended)

    def counted(self, work: Callable[[], object]) -> dict[str, float]:
        """What one change costs the head."""
        before = (self.spent_s, self.lines_in, self.lines_out, self.bytes_out, self.addresses_out)
        work()
        names = ("head_s", "lines_in", "lines_out", "bytes_out", "addresses_out")
        after = (self.spent_s, self.lines_in, self.lines_out, self.bytes_out, self.addresses_out)
        return {name: round(b - a, 6) for name, a, b in zip(names, before, after, strict=True)}


def measure(workers: int, slots: int) -> dict[str, Any]:
    """Start, grow, lose and shrink a run of that size."""
    head = Head(2 * workers, slots)
    found: dict[str, Any] = {"workers": workers, "nodes": workers // slots}

    def start() -> None:
        head.join_nodes(workers // slots)
        head.all_ready()
        head.form()

    found["start"] = head.counted(start)
    size = len(head.members.generation.members)
    assert size == workers // slots * slots, size

    def join() -> None:
        number = head.members.generation.number
        head.join_nodes(1)
        head.all_ready()
        head.form(leaving_from=number)

    found["node joins"] = head.counted(join)
    assert len(head.members.generation.members) == size + slots

    def lose() -> None:
        number = head.members.generation.number
        head.lose_node(next(iter(head.members.places.nodes)) + 1)
        head.form(leaving_from=number)

    found["node lost"] = head.counted(lose)
    assert len(head.members.generation.members) == size

    def kill() -> None:
        number = head.members.generation.number
        victim = head.members.generation.members[size // 2]
        head.hear([{"say": "exited", "member": victim, "code": -9}])
        head.form(leaving_from=number)
        number = head.members.generation.number
        head.all_ready()
        head.form(leaving_from=number)

    found["worker killed and replaced"] = head.counted(kill)
    assert len(head.members.generation.members) == size

    def halve() -> None:
        number = head.members.generation.number
        head.timed(lambda: head.do(head.members.resize(size // 2, head.now)))
        head.form(leaving_from=number)
        head.all_left()

    found["resize to half"] = head.counted(halve)
    assert len(head.members.generation.members) == size // 2 == len(head.members.workers)

    head.timed(lambda: head.do(head.members.resize(size, head.now)))
    head.all_ready()
    head.form()
    members = head.members.generation.members
    beat = {"say": "beat", "progress": 1, "doing": "training", "steps": 9, "waiting": False, "still_s": 0.0}
    beats = [{**beat, "idle": False, "usual_s": 0.1, "member": member} for member in members]
    found["one second of heartbeats"] = head.counted(lambda: head.hear(beats))
    ticks = head.counted(lambda: [head.timed(lambda: head.do(head.members.tick(head.now))) for _ in range(10)])
    found["one second of looking"] = {"head_s": ticks["head_s"]}
    found["plan and shares"] = {"head_s": pure_parts(workers)}
    found["head_bytes"] = memory(workers, slots)
    return found


def memory(workers: int, slots: int) -> int:
    """What the head holds of a run of that size."""
    tracemalloc.start()
    head = Head(2 * workers, slots)
    head.join_nodes(workers // slots)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return held


def pure_parts(workers: int) -> float:
    """What each worker computes for itself at a change: the plan of the batch, and where its samples of a step are."""
    began = time.process_time()
    layout = plan(4 * workers, workers, max_micro=4)
    ledger = Ledger(100 * workers, seed=0)
    span = ledger.next_span(layout.global_batch)
    assert span is not None
    Shuffled(100 * workers, seed=0, epoch=0).indices(span[0], span[0] + 4)
    return round(time.process_time() - began, 6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="100,1000,10000")
    parser.add_argument("--slots", type=int, default=8)
    args = parser.parse_args()
    rows = [measure(int(size), args.slots) for size in args.sizes.split(",")]
    changes = [name for name, value in rows[0].items() if isinstance(value, dict)]
    print(f"{'head seconds':28}" + "".join(f"{row['workers']:>12,}" for row in rows) + "   grows as n^")
    for name in changes:
        times = [row[name]["head_s"] for row in rows]
        growth = math.log(times[-1] / times[-2]) / math.log(rows[-1]["workers"] / rows[-2]["workers"])
        print(f"{name:28}" + "".join(f"{seconds:12.4f}" for seconds in times) + f"   {growth:.2f}")
    for name in ("node joins", "node lost"):
        for what in ("bytes_out", "addresses_out"):
            told = "orders" if what == "bytes_out" else "addresses"
            print(f"{name}, MB {told}".ljust(28) + "".join(f"{row[name][what] / 1e6:12.2f}" for row in rows))
    print(f"{'memory, MB':28}" + "".join(f"{row['head_bytes'] / 1e6:12.2f}" for row in rows))
    facts = {"date": time.strftime("%Y-%m-%d"), "python": platform.python_version(), "machine": platform.machine()}
    result = {**facts, "slots": args.slots, "rows": rows}
    Path(__file__).with_name("scale.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
