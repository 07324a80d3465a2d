"""What swell relies on in Lightning is still there; if a new release moves it, this file says what."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lightning.fabric.strategies import SingleDeviceStrategy as FabricBase
from lightning.pytorch.strategies import SingleDeviceStrategy as TrainerBase

import swell.lightning
from swell.errors import DependencyError
from swell.integrations.lightning import loops, metric_states
from swell.integrations.lightning.replica import Replica
from swell.integrations.lightning.strategy import DIFFERENT

PACKAGE = Path(loops.__file__).parent


def trainer() -> Any:
    return lightning.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)


def test_this_release_of_lightning_was_tried() -> None:
    release = ".".join(lightning.__version__.split(".")[:2])
    assert release in loops.TRIED, "read its loops, run these tests, and add it to swell.integrations.lightning.loops"


def test_every_private_name_is_there() -> None:
    assert loops.missing_names(trainer()) == []


def test_a_name_that_is_gone_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "_EPOCH_LOOP", ("_gone",))
    with pytest.raises(DependencyError, match=r"has no epoch_loop._gone; expected the loops of .*pip install"):
        loops.Loops(trainer())


def test_every_private_name_of_torchmetrics_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    metric_states.require_known_release()
    monkeypatch.setattr(metric_states, "_NAMES", ("_gone",))
    with pytest.raises(DependencyError, match=r"torchmetrics is .* no _gone; expected 1.8 or newer.*pip install"):
        metric_states.require_known_release()


def test_a_logged_figure_has_what_is_read_of_it() -> None:
    fitted = trainer()
    loop = fitted.fit_loop.epoch_loop.val_loop
    loop._results.log("validation_step", "loss", torch.tensor(3.0), batch_size=4)
    logged = loops.LoggedFigures(fitted)
    (sums,) = logged.captured().values()
    assert [float(each) for each in sums] == [12.0, 4.0] and logged.values() == {"loss": 3.0}
    logged.join(
        [
            {"validation_step.loss": [torch.tensor(12.0), torch.tensor(4)]},
            {"validation_step.loss": [torch.tensor(1.0), torch.tensor(1)]},
        ]
    )
    assert logged.values() == {"loss": pytest.approx(13 / 5)}


def test_private_names_of_lightning_are_touched_in_one_file_only() -> None:
    names = re.compile(
        r"\b(?:trainer|fit_loop|epoch_loop|plugin|precision_plugin|_trainer|module|val_loop|each)\._[a-z]\w*"
    )
    found = {path.name: names.findall(path.read_text()) for path in PACKAGE.glob("*.py")}
    assert {name for name, touched in found.items() if touched} == {"loops.py"}


def offered(base: type) -> dict[str, Any]:
    """What a library's strategy offers to those who call it, but not its constructor and registry."""
    return {
        name: inspect.getattr_static(base, name)
        for name in dir(base)
        if not name.startswith("_") and name != "register_strategies"
    }


def test_names_that_both_libraries_use_in_their_own_way_are_answered_by_the_right_half() -> None:
    fabric, of_trainer = offered(FabricBase), offered(TrainerBase)
    ours = set(vars(Replica))
    both = {name for name in fabric.keys() & of_trainer.keys() if inspect.isfunction(fabric[name])}
    assert both - ours <= set(DIFFERENT), "add these to DIFFERENT in swell.integrations.lightning.strategy"
    same = {"accelerator", "checkpoint_io", "launcher", "is_global_zero", "root_device"}
    assert {name for name in fabric.keys() & of_trainer.keys() if not inspect.isfunction(fabric[name])} <= same
    strategy = swell.lightning.Strategy(batch=8)
    assert isinstance(strategy, FabricBase) and isinstance(strategy, TrainerBase)
