from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swell.checkpoint import Checkpoint, Store, inspect
from swell.checkpoint.manifest import FILE_NAME, from_json, sealed, to_json
from swell.errors import CheckpointError, ConfigError
from tests.checkpoint.states import same, states


def state_at(step: int) -> dict[str, Any]:
    return {"model": {"weight": torch.full((3,), float(step))}, "loop": {"step": step}}


def saved(store: Store, step: int, **fields: Any) -> Checkpoint:
    return store.save(state_at(step), samples=10 * step, step=step, **fields)


@settings(max_examples=20)
@given(state=st.dictionaries(st.text(min_size=1, max_size=5), states, max_size=4))
def test_what_is_loaded_is_what_was_saved(state: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    store = Store(tmp_path_factory.mktemp("run"))
    store.save(state, samples=7, step=1)
    loaded = store.load_newest()
    assert loaded is not None
    checkpoint, parts = loaded
    assert same(parts, state)
    assert (checkpoint.samples, checkpoint.step) == (7, 1)


def test_a_new_run_has_no_checkpoint(tmp_path: Path) -> None:
    store = Store(tmp_path / "new")
    assert store.newest() is None
    assert store.load_newest() is None
    assert store.all() == []
    assert not (tmp_path / "new").exists(), "looking leaves no trace"


def test_the_manifest_describes_the_checkpoint(tmp_path: Path) -> None:
    checkpoint = saved(Store(tmp_path, run_id="abc"), 4, world_size=3, name="best")
    manifest = json.loads((checkpoint.path / FILE_NAME).read_text())
    assert manifest["format"] == 1
    assert manifest["run_id"] == "abc"
    assert (manifest["samples"], manifest["step"], manifest["world_size"]) == (40, 4, 3)
    assert manifest["name"] == "best"
    assert set(manifest["versions"]) == {"swell", "torch", "numpy", "python"}
    assert [(part["name"], part["files"][0]["path"]) for part in manifest["parts"]] == [
        ("model", "model.pt"),
        ("loop", "loop.pt"),
    ]
    assert from_json(to_json(checkpoint.manifest), where="") == checkpoint.manifest


def test_a_part_is_a_file_that_torch_alone_can_read(tmp_path: Path) -> None:
    module = torch.nn.Linear(2, 2)
    checkpoint = Store(tmp_path).save({"model": module.state_dict()}, samples=0, step=0)
    assert same(torch.load(checkpoint.path / "model.pt", weights_only=True), module.state_dict())


def test_parts_may_have_any_name(tmp_path: Path) -> None:
    state = {name: {"name": name} for name in ["A", "a", "../up", ".hidden", "x" * 300, "x" * 301, "ü/ö", "manifest"]}
    store = Store(tmp_path / "run")
    checkpoint = store.save(state, samples=0, step=0)
    assert store.load(checkpoint) == state
    assert os.listdir(tmp_path) == ["run"]


def test_one_part_can_be_loaded_alone(tmp_path: Path) -> None:
    store = Store(tmp_path)
    checkpoint = saved(store, 2)
    assert store.load(checkpoint, parts=["loop"]) == {"loop": {"step": 2}}
    with pytest.raises(CheckpointError, match=r"'ema'.*loop, model"):
        store.load(checkpoint, parts=["ema"])


def test_the_newest_is_the_last_saved_even_when_the_run_was_set_back(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for step in (10, 20, 5):
        saved(store, step)
    newest = Store(tmp_path).newest()
    assert newest is not None and newest.step == 5


def test_the_same_step_can_be_saved_twice(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first, second = saved(store, 3), saved(store, 3)
    assert first.path != second.path
    assert store.newest() == second


def test_the_last_k_and_the_named_ones_are_kept(tmp_path: Path) -> None:
    store = Store(tmp_path, keep=2)
    names = {1: "start", 3: "best", 5: "best"}
    for step in range(1, 9):
        saved(store, step, name=names.get(step))
    assert [(checkpoint.step, checkpoint.name) for checkpoint in store.all()] == [
        (1, "start"),
        (5, "best"),
        (7, None),
        (8, None),
    ]
    best = store.named("best")
    assert best is not None and best.step == 5
    assert store.named("other") is None


@settings(max_examples=20)
@given(
    keep=st.integers(1, 3),
    names=st.lists(st.sampled_from([None, None, "a"]), max_size=5),
    torn=st.sets(st.integers(0, 4)),
)
def test_the_newest_complete_checkpoint_is_never_deleted(
    keep: int, names: list[str | None], torn: set[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = Store(tmp_path_factory.mktemp("run"), keep=9, on_warning=lambda message: None)
    paths = [saved(store, step, name=name).path for step, name in enumerate(names)]
    for step in torn & set(range(len(names))):
        os.truncate(paths[step] / "model.pt", 10)
    complete = [path for step, path in enumerate(paths) if step not in torn]
    store.keep = keep
    store.prune()
    assert [checkpoint.path for checkpoint in store.all()][-keep:] == complete[-keep:]


def test_keeping_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="keep"):
        Store(tmp_path, keep=0)


@pytest.mark.parametrize("field", ["samples", "step"])
def test_a_position_that_no_run_has_is_refused_before_anything_is_written(tmp_path: Path, field: str) -> None:
    store = Store(tmp_path)
    position: dict[str, Any] = {"samples": 1, "step": 1, field: -1}
    with pytest.raises(ConfigError, match=field):
        store.save(state_at(1), **position)
    assert not store.root.exists()


def test_a_run_finds_its_own_id_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    saved(store, 1)
    assert Store(tmp_path).run_id == store.run_id
    assert Store(tmp_path / "other").run_id != store.run_id


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    checkpoint = saved(Store(tmp_path, run_id="theirs"), 1)
    store = Store(tmp_path, run_id="ours")
    for attempt in (store.newest, store.load_newest, lambda: store.load(checkpoint)):
        with pytest.raises(CheckpointError, match=r"'theirs'.*'ours'"):
            attempt()


def test_saving_into_the_folder_of_another_run_deletes_none_of_its_checkpoints(tmp_path: Path) -> None:
    theirs = Store(tmp_path, run_id="theirs", keep=9)
    for step in range(5):
        saved(theirs, step)
    saved(Store(tmp_path, run_id="ours", keep=1), 9)
    assert len(theirs.all()) == 6


def test_a_checkpoint_of_a_newer_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    store = Store(tmp_path, on_warning=lambda message: None)
    path = saved(store, 1).path / FILE_NAME
    newer = {**json.loads(path.read_text()), "format": 2, "something": "new"}
    del newer["sha256"]
    path.write_text(sealed(newer))
    for attempt in (store.newest, store.load_newest, lambda: inspect(path.parent)):
        with pytest.raises(CheckpointError, match="format 2"):
            attempt()
    saved(store, 2)
    assert path.read_text() == sealed(newer)


def test_a_manifest_with_the_fields_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = saved(store, 1).path / FILE_NAME
    earlier = {**json.loads(path.read_text()), "model": {"weight": "float32[3]"}, "meta": {"accuracy": 0.5}}
    del earlier["sha256"]
    path.write_text(sealed(earlier))
    loaded = store.load_newest()
    assert loaded is not None and loaded[1]["loop"] == {"step": 1}


def test_a_state_that_cannot_be_held_leaves_no_trace(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first = saved(store, 1)
    with pytest.raises(CheckpointError, match=r"metrics\['best'\]"):
        store.save({"model": {}, "metrics": {"best": object()}}, samples=2, step=2)
    assert os.listdir(store.root) == [first.path.name]


def test_leftovers_of_a_dead_process_are_removed_and_the_draft_of_a_live_one_is_not(tmp_path: Path) -> None:
    store = Store(tmp_path)
    saved(store, 1)
    for name in (".writing-dead", ".deleting-dead"):
        (store.root / name).mkdir()
        (store.root / name / "model.pt").write_bytes(b"half")
    with Store(tmp_path).draft() as alive:
        saved(store, 2)
        assert alive.folder.exists()
        assert not [name for name in os.listdir(store.root) if name.endswith("-dead")]
