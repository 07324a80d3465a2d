"""Guarantees 2, 3, 4 and 7 with real processes while workers fail at every point of a step, in every way there is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from swell.runtime.faults import KINDS, POINTS, fail_at
from tests.job.elastic_history import History, check, play

pytestmark = [pytest.mark.distributed, pytest.mark.slow]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of a run on one worker to which nothing happened, made once for each kind of training."""
    root, made = tmp_path_factory.mktemp("undisturbed"), set()

    def folder(options: dict[str, Any]) -> Path:
        name = json.dumps({key: options[key] for key in sorted(options) if key in ("closure", "two", "evaluate")})
        path = root / "".join(letter for letter in name if letter.isalnum())
        if name not in made:
            play(path, History(start=1, most=1, options=json.loads(name)))
            made.add(name)
        return path

    return folder


@pytest.mark.parametrize("votes", ["apart", "last", "only"])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("point", [point for point in POINTS if point != "load"])
def test_a_worker_killed_at_any_point_of_a_step_costs_that_step_only(
    tmp_path: Path, undisturbed: Any, point: str, rank: int, votes: str
) -> None:
    rank = 2 if point == "join" else 0 if point == "save" else rank
    faults = (fail_at(rank, 5, point), fail_at(rank, 16, point))
    history = History(start=2, resizes=((4, 3),), faults=faults, options={"votes": votes})
    happened = play(tmp_path, history)
    assert [record["point"] for record in happened] == [point] * len(happened) and happened
    assert all(record["kind"] == "kill" for record in happened)
    check(tmp_path, undisturbed({}))


@pytest.mark.parametrize(("rank", "votes"), [(0, "only"), (1, "only"), (0, "no bucket"), (1, "no bucket")])
def test_a_worker_killed_between_the_buckets_of_a_step_costs_that_step_only(
    tmp_path: Path, undisturbed: Any, rank: int, votes: str
) -> None:
    faults = (fail_at(rank, 6, "reduce"), fail_at(rank, 15, "reduce"))
    history = History(start=3, faults=faults, options={"bucket_bytes": 1, "votes": votes})
    assert [record["point"] for record in play(tmp_path, history)] == ["reduce", "reduce"]
    check(tmp_path, undisturbed({}))


@pytest.mark.parametrize("point", ["backward", "reduce", "commit"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "kill"])
def test_a_worker_may_fail_in_any_way(tmp_path: Path, undisturbed: Any, kind: str, point: str) -> None:
    happened = play(tmp_path, History(start=3, faults=(fail_at(1, 6, point, kind),)))
    assert [record["kind"] for record in happened] == [kind]
    check(tmp_path, undisturbed({}))


@pytest.mark.parametrize("kind", ["kill", "term", "exception", "exit", "oom"])
def test_a_data_loading_process_may_fail_in_any_way(tmp_path: Path, undisturbed: Any, kind: str) -> None:
    history = History(start=2, faults=(fail_at(1, 6, "load", kind),), options={"data_workers": 1})
    assert len(play(tmp_path, history)) == 1
    check(tmp_path, undisturbed({}))


def test_all_workers_lost_at_once_come_back_from_the_newest_checkpoint(tmp_path: Path, undisturbed: Any) -> None:
    faults = (fail_at(0, 14, "backward"), fail_at(1, 14, "backward"))
    assert len(play(tmp_path, History(start=2, most=2, faults=faults))) == 2
    check(tmp_path, undisturbed({}))


def test_a_run_stopped_and_resumed_between_faults_is_the_undisturbed_one(tmp_path: Path, undisturbed: Any) -> None:
    faults = (fail_at(0, 4, "save"), fail_at(1, 11, "reduce"), fail_at(0, 25, "reduce"))
    play(tmp_path, History(start=2, faults=faults, stops=(9, 20)))
    check(tmp_path, undisturbed({}))


@pytest.mark.parametrize("point", ["reduce", "backward"])
def test_a_step_by_closure_is_done_again_from_the_weights_it_began_with(
    tmp_path: Path, undisturbed: Any, point: str
) -> None:
    options = {"closure": True}
    history = History(start=3, faults=(fail_at(1, 5, point), fail_at(0, 13, point)), options=options)
    assert len(play(tmp_path, history)) == 2
    check(tmp_path, undisturbed(options))


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_an_optimizer_that_stepped_before_the_step_broke_does_not_step_twice(
    tmp_path: Path, undisturbed: Any, rank: int
) -> None:
    play(tmp_path, History(start=3, options={"two": True, "between": [rank, 7]}))
    assert (tmp_path / "between").exists()
    check(tmp_path, undisturbed({"two": True}))


@pytest.mark.parametrize(("rank", "votes"), [(0, "apart"), (1, "apart"), (1, "last"), (1, "only")])
def test_evaluations_in_and_after_an_epoch_stay_exact(tmp_path: Path, undisturbed: Any, rank: int, votes: str) -> None:
    options = {"evaluate": True, "votes": votes}
    faults = tuple(fail_at(rank, step, "reduce") for step in (4, 9, 14, 19, 24, 29))
    history = History(start=2, resizes=((3, 3), (8, 1), (13, 3), (23, 2)), faults=faults, options=options)
    play(tmp_path, history)
    check(tmp_path, undisturbed(options))
