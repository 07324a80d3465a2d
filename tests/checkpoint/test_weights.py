from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from swell.checkpoint import Store, load_weights
from swell.errors import CheckpointError
from tests.checkpoint.states import same


def learner(seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5))
    return {"model": model.state_dict(), "optimizer": {"state": {}}}


def save(folder: Path, step: int, *, name: str | None = None, part: str = "learners") -> None:
    state = {"ledger": {"samples": step}, part: [learner(10 * step), learner(10 * step + 1)]}
    Store(folder, keep=9).save(state, samples=step, step=step, name=name)


@pytest.mark.parametrize("part", ["learners", "trainees"])
def test_the_newest_weights_are_loaded_as_they_were_saved(tmp_path: Path, part: str) -> None:
    for step in (1, 2):
        save(tmp_path, step, part=part)
    assert same(load_weights(tmp_path), learner(20)["model"])
    assert same(load_weights(str(tmp_path), index=1), learner(21)["model"])


def test_the_weights_of_a_name_are_its_newest(tmp_path: Path) -> None:
    for step, name in enumerate(["best", "best", "last", None]):
        save(tmp_path, step, name=name)
    assert same(load_weights(tmp_path, "best"), learner(10)["model"])


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(tmp_path: Path) -> None:
    for step in (1, 2):
        save(tmp_path, step)
    newest = Store(tmp_path).newest()
    assert newest is not None
    (newest.path / "learners.pt").write_bytes(b"torn")
    with pytest.warns(UserWarning, match="learners.pt"):
        assert same(load_weights(tmp_path), learner(10)["model"])


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere"):
        load_weights(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("name", [None, "best"])
def test_a_folder_without_a_checkpoint_is_named(tmp_path: Path, name: str | None) -> None:
    with pytest.raises(CheckpointError, match=r"run_dir is .*checkpoint"):
        load_weights(tmp_path, name)


def test_a_name_that_no_checkpoint_has_is_refused_with_those_there_are(tmp_path: Path) -> None:
    save(tmp_path, 1)
    with pytest.raises(CheckpointError, match="name is 'best'"):
        load_weights(tmp_path, "best")
    save(tmp_path, 2, name="start")
    save(tmp_path, 3, name="last")
    with pytest.raises(CheckpointError, match=r"name is 'best'.*'last', 'start'"):
        load_weights(tmp_path, "best")


@pytest.mark.parametrize("index", [2, -1])
def test_an_index_out_of_range_is_refused_with_the_range(tmp_path: Path, index: int) -> None:
    save(tmp_path, 1)
    with pytest.raises(CheckpointError, match=f"index is {index}; expected 0 to 1"):
        load_weights(tmp_path, index=index)


def test_a_checkpoint_that_no_job_saved_is_refused_with_its_parts(tmp_path: Path) -> None:
    Store(tmp_path).save({"model": {}, "loop": {}}, samples=0, step=0)
    with pytest.raises(CheckpointError, match="model, loop"):
        load_weights(tmp_path)
