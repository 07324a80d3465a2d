from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from swell.checkpoint import Store, load_weights
from swell.checkpoint.shard_files import ShardReader
from swell.errors import CheckpointError
from tests.checkpoint import sharded_replicas as replicas
from tests.checkpoint.states import same
from tests.workers import run_workers

pytestmark = pytest.mark.distributed


FILES = ["__0_0.distcp", "__1_0.distcp", "index.json", ".metadata"]
FAILURES = [(0, "begun"), (1, "shards"), (0, "part model"), (0, "synced")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


def run(world: int, calls: dict[str, tuple[str, tuple[Any, ...]]]) -> dict[str, list[Any]]:
    """Each call's result on every replica."""
    results = run_workers(world, replicas.run_in_turn, calls, timeout_s=240.0)
    return {name: [replica_results[name] for replica_results in results] for name in calls}


@pytest.fixture(scope="module")
def two(folder: Path) -> dict[str, list[Any]]:
    """Two replicas save, also beside training and on failing disks, and load what they saved."""
    saved = folder / "sharded"
    return run(
        2,
        {
            "save": ("save", (saved,)),
            "save beside": ("save_beside_training", (folder / "beside",)),
            "resume": ("resume", (saved,)),
            "resume stepped": ("resume", (saved, True)),
            "another model": ("load_into_another_model", (saved,)),
            "unnamed": ("load_without_naming_the_optimizer", (saved,)),
            "save learners": ("save_learners", (folder / "learners",)),
            **{f"damaged {file}": ("load_damaged", (saved, file)) for file in FILES},
            **{
                f"failing {rank} {point}": ("save_on_a_failing_disk", (folder / f"failing {point}", rank, point))
                for rank, point in FAILURES
            },
        },
    )


@pytest.fixture(scope="module")
def one(folder: Path, two: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """One replica saves a whole model, and loads the shards of two."""
    return run(
        1,
        {
            "save whole": ("save_whole", (folder / "whole",)),
            "resume": ("resume", (folder / "sharded",)),
            "resume whole": ("resume", (folder / "sharded", False, False)),
        },
    )


@pytest.fixture(scope="module")
def three(folder: Path, two: dict[str, list[Any]], one: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Three replicas load what two saved, what they saved beside training first, and what one saved whole."""
    beside = Store(folder / "beside", run_id="run").all()
    for checkpoint in beside[1:]:
        shutil.rmtree(checkpoint.path)
    return run(
        3,
        {
            "resume": ("resume", (folder / "sharded",)),
            "resume beside": ("resume", (folder / "beside",)),
            "resume whole": ("resume", (folder / "whole",)),
        },
    )


@pytest.fixture
def losses(two: dict[str, list[Any]]) -> list[float]:
    """The losses of the two replicas after they had saved."""
    first, second = two["save"]
    assert first == second
    return first


@pytest.mark.parametrize("world", ["one", "two", "three"])
def test_what_two_replicas_saved_any_number_goes_on_with(
    world: str, losses: list[float], request: pytest.FixtureRequest
) -> None:
    for resumed, sharded, group in request.getfixturevalue(world)["resume"]:
        torch.testing.assert_close(resumed, losses, rtol=1e-12, atol=0)
        assert sharded
        assert group["initial_lr"] == 0.05 and group["betas"] == (0.8, 0.9), "base values are kept"
        assert group["lr"] == pytest.approx(0.05 * 0.9**3)


def test_an_optimizer_that_has_already_stepped_is_overwritten(two: Any, losses: list[float]) -> None:
    for resumed, _, _ in two["resume stepped"]:
        torch.testing.assert_close(resumed, losses, rtol=1e-12, atol=0)


def test_shards_can_be_loaded_into_a_whole_model(one: Any, losses: list[float]) -> None:
    ((resumed, sharded, _),) = one["resume whole"]
    torch.testing.assert_close(resumed, losses, rtol=1e-12, atol=0)
    assert not sharded


def test_a_whole_model_can_be_loaded_into_shards(one: Any, three: Any, losses: list[float]) -> None:
    torch.testing.assert_close(one["save whole"][0], losses, rtol=1e-12, atol=0)
    for resumed, sharded, _ in three["resume whole"]:
        torch.testing.assert_close(resumed, losses, rtol=1e-12, atol=0)
        assert sharded


def test_saving_beside_training_disturbs_none_of_its_messages(two: Any, losses: list[float]) -> None:
    (_, agreed, _, _), _ = two["save beside"]
    for went_on, started, reports, messages in two["save beside"]:
        torch.testing.assert_close(went_on, losses, rtol=1e-12, atol=0)
        assert started == agreed and started[0], "replicas agree which saves are left out"
        assert len(reports) == sum(started)
        assert not messages


def test_saving_beside_training_takes_the_state_of_the_moment(three: Any, losses: list[float]) -> None:
    for resumed, _, _ in three["resume beside"]:
        torch.testing.assert_close(resumed, losses, rtol=1e-12, atol=0)


@pytest.mark.usefixtures("two")
def test_the_manifest_covers_every_file_of_every_replica(folder: Path) -> None:
    (checkpoint,) = Store(folder / "sharded", run_id="run").all()
    named = {entry.path for entry in checkpoint.manifest.files} | {"manifest.json"}
    assert named == {
        path.relative_to(checkpoint.path).as_posix() for path in checkpoint.path.rglob("*") if path.is_file()
    }
    assert {f"shards/{file}" for file in FILES} < named
    assert checkpoint.manifest.world_size == 2


def test_the_weights_of_a_sharded_model_are_loaded_whole_in_one_process(two: Any, folder: Path) -> None:
    for weights in two["save learners"]:
        loaded = load_weights(folder / "learners", "best", index=1)
        assert same(dict(loaded), weights)


@pytest.mark.usefixtures("two")
def test_shards_are_refused_by_a_plain_store(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="ShardedStore"):
        Store(folder / "sharded", run_id="run").load_newest()


@pytest.mark.parametrize("file", FILES)
def test_a_flipped_byte_in_any_shard_is_noticed_by_all(two: Any, file: str) -> None:
    for message in two[f"damaged {file}"]:
        assert message.startswith("DamagedCheckpointError:") and f"shards/{file}" in message


def test_another_model_is_refused_on_every_replica(two: Any) -> None:
    for message in two["another model"]:
        assert "model['0.weight'] of shape [7, 4]" in message and "Build the model" in message


def test_the_optimizer_of_tensors_without_a_layout_is_asked_for(two: Any) -> None:
    for message in two["unnamed"]:
        assert "optimizer['state'][0]['exp_avg']" in message and "name the optimizer" in message


@pytest.mark.parametrize(("rank", "point"), FAILURES)
def test_a_disk_that_fails_one_replica_fails_the_save_on_all_and_costs_nothing_else(
    two: Any, rank: int, point: str
) -> None:
    for message, complete, names in two[f"failing {rank} {point}"]:
        assert "no space is left on the disk" in message
        assert complete == [2]
        assert names == ["000001-samples2-step2"], "nothing half-written remains"


@pytest.mark.usefixtures("two")
def test_an_index_that_points_elsewhere_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "sharded", tmp_path, dirs_exist_ok=True)
    (checkpoint,) = Store(tmp_path, run_id="run").all()
    path = checkpoint.path / "shards" / "index.json"
    index = json.loads(path.read_text())
    index["places"][0][3] = "../../../elsewhere.distcp"
    path.write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="elsewhere"):
        ShardReader(checkpoint).tensors()
