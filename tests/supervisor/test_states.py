"""The supervisor's care for states on several disks: who may begin, what is copied where, what is set aside."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from swell.checkpoint.state_folder import DiskStates
from swell.supervisor.places import HERE, Node, Places
from swell.supervisor.run_dir import RunDir
from swell.supervisor.saved_state import SavedState
from swell.supervisor.state_link import receive_state, send_state
from swell.supervisor.states import StateOptions, States
from tests.checkpoint.test_copies import save


class Machine:
    """Another machine: its disk, and an agent that does what it is told over a socket pair."""

    def __init__(self, folder: Path, node: int) -> None:
        self.folder, self.node = folder / f"disk-{node}", node
        self.disk = DiskStates(self.folder)

    def names(self) -> list[str]:
        return [state.name for state in self.disk.states()]


class Head:
    """The head's states with machines that obey at once; ``turn`` is one turn of its loop."""

    def __init__(self, folder: Path, *, machines: int = 2, **options: Any) -> None:
        self.folder = folder / "head"
        self.disk = DiskStates(self.folder)
        self.machines = {node: Machine(folder, node) for node in range(1, machines + 1)}
        self.places = Places([Node(HERE, "head", 1)])
        self.log: list[str] = []
        self.troubles: dict[str, str] = {}
        self.fails: Callable[[int], bool] = lambda node: False
        run_dir = RunDir(self.folder)
        run_dir.control.mkdir(parents=True, exist_ok=True)
        self.states = States(
            StateOptions(folder=DiskStates, **options),
            run_dir,
            self.places,
            patience_s=5.0,
            order=self._order,
            log=self.log.append,
            trouble=self.troubles.__setitem__,
        )
        self.states.begin()

    def join(self, node: int) -> None:
        while node not in self.places.nodes:
            self.places.join(f"machine {len(self.places.nodes)}", 1)
        self.states.invite(node)
        self.report(node)

    def report(self, node: int) -> None:
        held = [state.to_message() for state in self.machines[node].disk.states()]
        self.states.reported(node, {"shared": False, "held": held})

    def turn(self, times: int = 20) -> None:
        for _ in range(times):
            self.states.look(time.monotonic())
            time.sleep(0.03)

    def _order(self, node: int, order: Mapping[str, Any]) -> None:
        machine = self.machines[node]
        if order["say"] in ("send state", "fetch state") and not self.fails(node):
            near, far = socket.socketpair()
            threading.Thread(target=self._carry, args=(machine, order, far)).start()
            self.states.link(order["ticket"], near)
        elif order["say"] == "set aside states":
            machine.disk.set_aside(order["names"])
        elif order["say"] == "remove states":
            machine.disk.remove(order["names"])

    def _carry(self, machine: Machine, order: Mapping[str, Any], end: socket.socket) -> None:
        with end:
            assert end.recv(1) == b"+"
            if order["say"] == "send state":
                send_state(end, machine.disk, SavedState.from_message(order["state"]))
            else:
                receive_state(end, machine.disk)


def newest(disk: DiskStates) -> str:
    return disk.states()[-1].name


def test_a_run_without_states_begins_at_once(tmp_path: Path) -> None:
    head = Head(tmp_path)
    assert head.states.may_begin(HERE)
    head.join(1)
    assert head.states.may_begin(1)


def test_a_machine_that_has_not_said_what_it_has_is_waited_for(tmp_path: Path) -> None:
    head = Head(tmp_path)
    head.places.join("machine 1", 1)
    head.states.invite(1)
    assert not head.states.may_begin(HERE)
    head.states.lost(1)
    assert head.states.may_begin(HERE)


def test_the_newest_state_comes_from_the_machine_that_has_it_and_goes_to_who_begins(tmp_path: Path) -> None:
    save(tmp_path / "head", 1)
    save(tmp_path / "disk-1", 1, 2, 3)
    _same_first(tmp_path)
    head = Head(tmp_path, machines=3, copies=2)
    for node in (1, 2, 3):
        head.join(node)
    assert not head.states.may_begin(3), "it has none"
    head.turn()
    assert newest(head.disk) == head.machines[3].names()[-1] == head.machines[1].names()[-1]
    assert head.states.may_begin(3) and head.machines[2].names() == []
    assert any("the run goes on from it" in line for line in head.log)


def _same_first(folder: Path) -> None:
    """The head's state is a copy of the machine's first one."""
    source, target = DiskStates(folder / "disk-1"), DiskStates(folder / "head")
    target.remove([state.name for state in target.states()])
    first = source.states()[0]
    near, far = socket.socketpair()
    with near, far:
        thread = threading.Thread(target=lambda: send_state(near, source, first))
        thread.start()
        receive_state(far, target)
        thread.join()


def test_copies_follow_the_newest_and_only_the_last_three_stay(tmp_path: Path) -> None:
    head = Head(tmp_path)
    head.join(1)
    head.join(2)
    assert head.states.may_begin(HERE)
    for step in range(1, 7):
        save(head.folder, step)
        head.turn()
        head.report(1)
    assert head.machines[1].names() == [state.name for state in head.disk.states()][-3:]
    assert head.machines[2].names() == []
    facts = head.states.facts()
    assert facts["name"] == newest(head.disk) and facts["machines"] == ["head", "machine 1"]
    head.states.lost(1)  # with its disk
    head.turn()
    assert head.machines[2].names()[-1:] == [newest(head.disk)]


def test_a_state_from_which_the_run_did_not_go_on_is_set_aside(tmp_path: Path) -> None:
    save(tmp_path / "head", 1)
    save(tmp_path / "disk-1", 1, 2)
    _same_first(tmp_path)
    head = Head(tmp_path)
    assert head.states.may_begin(HERE), "nobody knows of the second"
    names = head.machines[1].names()
    head.join(1)
    assert head.machines[1].names() == names[:1]
    assert (head.machines[1].folder / "set-aside-1" / names[1]).is_dir(), "nothing is deleted"
    assert any(names[1] in line for line in head.log)


@pytest.mark.parametrize("from_here", [False, True])
def test_a_newer_state_that_is_known_to_be_elsewhere_is_waited_for(tmp_path: Path, from_here: bool) -> None:
    save(tmp_path / "disk-1", 1, 2)
    save(tmp_path / "head", 1)
    _same_first(tmp_path)
    run_dir = RunDir(tmp_path / "head")
    run_dir.control.mkdir()
    state = DiskStates(tmp_path / "disk-1").states()[-1]
    run_dir.write_whereabouts({"name": state.name, "number": state.number, "machines": ["node7"]})
    head = Head(tmp_path, from_here=from_here)
    assert head.states.may_begin(HERE) == from_here
    if not from_here:
        assert "node7" in head.troubles["states"] and "--from-here" in head.troubles["states"]
        head.join(1)
        head.turn()
        assert head.states.may_begin(HERE) and newest(head.disk) == state.name
        assert head.troubles["states"] == ""


def test_a_run_that_starts_over_uses_no_earlier_state(tmp_path: Path) -> None:
    save(tmp_path / "head", 1, 2)
    save(tmp_path / "disk-1", 1)
    head = Head(tmp_path, fresh=True)
    assert head.disk.states() == [] and (head.folder / "set-aside-1").is_dir()
    head.join(1)
    head.turn(3)
    assert head.machines[1].names() == [] and head.disk.states() == [] and head.states.may_begin(1)


def test_a_copy_that_fails_is_told_and_nothing_is_seen_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swell.supervisor.states._AGAIN_S", 0.1)
    monkeypatch.setattr("swell.supervisor.states._LINK_S", 0.2)
    save(tmp_path / "head", 1)
    head = Head(tmp_path)
    head.fails = lambda node: True
    head.join(1)
    head.turn()
    assert "not copied" in head.troubles["copy 1"] and head.machines[1].names() == []
    head.fails = lambda node: False
    head.turn()
    assert head.troubles["copy 1"] == "" and head.machines[1].names() == [newest(head.disk)]
    assert not head.states.unfinished()
