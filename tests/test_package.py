"""What ``import swell`` and ``import swell.telemetry`` offer: names that are loaded when they are first used."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import swell
import swell.telemetry

LAZY = {"swell": swell, "swell.telemetry": swell.telemetry}


@pytest.mark.parametrize(("package", "name"), [(package, name) for package in LAZY for name in LAZY[package].__all__])
def test_every_public_name_can_be_imported_from_the_package(package: str, name: str) -> None:
    assert getattr(LAZY[package], name) is not None
    assert name in dir(LAZY[package])


@pytest.mark.parametrize("package", LAZY)
def test_type_checkers_see_the_same_names_as_users(package: str) -> None:
    tree = ast.parse(Path(LAZY[package].__file__ or "").read_text())
    guarded = [node for node in tree.body if isinstance(node, ast.If)]
    listed = {
        alias.name
        for block in guarded
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert listed == {*LAZY[package].__all__} - {"__version__"}


def test_an_unknown_name_is_refused_with_a_list_of_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"'Jbo'.*Job"):
        swell.Jbo  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"'raed_events'.*read_events"):
        swell.telemetry.raed_events  # type: ignore[attr-defined]  # noqa: B018


def test_a_job_that_shows_nothing_loads_neither_charts_nor_pages() -> None:
    script = (
        "import sys, torch, swell; model = torch.nn.Linear(1, 1); "
        "job = swell.Job(batch=2, progress=None); job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1)); "
        "[job.step() for x in job.loader(torch.ones(4, 1)) if job.backward(model(x).sum()) is None]; job.close(); "
        "print(sorted({'rich', 'matplotlib', 'swell.telemetry.html_report'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", script]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_a_name_is_the_object_its_module_defines() -> None:
    assert swell.AdaScale is importlib.import_module("swell.rules").AdaScale
