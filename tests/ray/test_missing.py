"""What a user is told whose environment has no Ray; this file runs without it."""

from __future__ import annotations

import importlib
import sys

import pytest

import swell.cli
from swell.errors import DependencyError


@pytest.fixture
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    home = importlib.import_module("swell.integrations.ray")
    for name in ("RayEngine", "SaveBeforeResize", "Trainer"):
        monkeypatch.delitem(vars(home), name, raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)  # importing it raises ModuleNotFoundError


@pytest.mark.parametrize("name", ["SaveBeforeResize", "Trainer"])
def test_a_missing_extra_is_named_with_its_command(name: str, without_ray: None) -> None:
    with pytest.raises(DependencyError, match=r"Ray is not installed.*pip install '\.\[ray\]'"):
        getattr(importlib.import_module("swell.ray"), name)


def test_the_command_names_it_too(without_ray: None, capsys: pytest.CaptureFixture[str], tmp_path: object) -> None:
    assert swell.cli.main(["run", "--engine", "ray", "--run-dir", f"{tmp_path}/run", __file__]) == 2
    assert "pip install '.[ray]'" in capsys.readouterr().err
