"""Sums over replicas: added anywhere, read where they are whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import swell.compat.adaptdl as adaptdl
from swell.compat.adaptdl.session import current_session
from swell.errors import LoopError, WorldError
from tests.compat.adaptdl.scenario import loader, mean_loss, open_run


def test_values_are_added_in_every_way_and_read_inside_synchronized() -> None:
    stats = adaptdl.torch.Accumulator(start=1)
    stats["start"] += 2
    stats["a"] += 1.5
    stats["a"] -= 0.5
    stats.update({"b": 2}, c=3)
    stats.subtract(c=1)
    stats += {"b": 1}
    stats -= {"a": 1}
    stats["t"] += torch.ones(2, requires_grad=True)
    stats["n"] += np.arange(3)
    with stats.synchronized():
        assert (stats["start"], stats["a"], stats["b"], stats["c"], stats["nothing"]) == (3, 0.0, 3, 2, 0)
        assert stats["t"].tolist() == [1, 1] and stats["n"].tolist() == [0, 1, 2]
        assert "a" in stats and len(stats) == 6 and set(stats) == {"start", "a", "b", "c", "t", "n"}
        stats["a"] = 7
        del stats["b"]
    stats["a"] += 1
    with stats.synchronized() as same:
        assert same is stats and stats["a"] == 8 and "b" not in stats


@pytest.mark.parametrize(
    "read",
    [
        lambda s: float(s["a"]), lambda s: s["a"] + 1, lambda s: 1 - s["a"], lambda s: s["a"] / 2, lambda s: s["a"] > 0,
        lambda s: f"{s['a']}", lambda s: str(s["a"]), lambda s: bool(s["a"]), lambda s: "a" in s, lambda s: len(s),
        lambda s: list(s), lambda s: s.pop("a"), lambda s: dict(s),
    ],
)  # fmt: skip
def test_reading_elsewhere_is_an_error_that_says_where_to_read(read: Any) -> None:
    stats = adaptdl.torch.Accumulator()
    stats["a"] += 1
    with pytest.raises(LoopError, match=r"synchronized\(\)"):
        read(stats)


def test_assigning_elsewhere_is_an_error_that_says_how_to_add() -> None:
    stats = adaptdl.torch.Accumulator()
    with pytest.raises(TypeError, match=r"stats\['a'\]"):
        stats["a"] = 1
    assert "synchronized" in repr(stats) and "synchronized" in repr(stats["a"])


def test_one_made_inside_a_loop_is_refused() -> None:
    _, optimizer, wrapped = open_run()
    with pytest.raises(LoopError, match="Accumulator"):
        for x, y, _ in loader():
            adaptdl.torch.Accumulator()
            mean_loss(wrapped, x, y).backward()
            optimizer.step()


def test_sums_of_an_epoch_can_be_read_after_all_epochs_and_take_no_room_in_checkpoints() -> None:
    """AdaptDL C15: ``synchronized()`` after the last epoch was a ``TypeError``."""
    stats: Any = None
    for _ in adaptdl.torch.remaining_epochs_until(3):
        stats = adaptdl.torch.Accumulator()
        stats["a"] += 2
        with stats.synchronized():
            assert stats["a"] == 2
    with stats.synchronized():
        assert stats["a"] == 2
    assert current_session().states.capture() == {}


def lose_a_replica(*_: Any) -> Any:
    raise WorldError("a replica was lost")


@pytest.mark.parametrize("repeated", [False, True])
def test_a_merge_that_fails_counts_nothing_and_loses_nothing(monkeypatch: pytest.MonkeyPatch, repeated: bool) -> None:
    stats, session = adaptdl.torch.Accumulator(), current_session()
    stats["a"] += 1
    session.sums.settle(keep=True)
    stats["a"] += 2  # in a batch that is repeated, or not
    with monkeypatch.context() as patch, pytest.raises(WorldError):
        patch.setattr("swell.compat.adaptdl.sums.gather_values", lose_a_replica)
        session.merge_sums()
    if repeated:
        session.sums.settle(keep=False)
    with stats.synchronized():
        assert stats["a"] == (1 if repeated else 3)


def test_a_replica_that_missed_the_end_of_a_merge_takes_over_the_sums_also_before_the_first_step() -> None:
    open_run()
    loader(autoscale=64)
    for _ in adaptdl.torch.remaining_epochs_until(1):  # joins the run
        stats, session = adaptdl.torch.Accumulator(), current_session()
        stats["a"] += 2
        state = session.state_dict()  # as another replica has it, after a merge with the 2 of this one
        state["merges"] += 1
        state["states"][stats.name]["results"] = {"a": 5}
        session.load_state_dict(state)
        with stats.synchronized():
            assert stats["a"] == 5
