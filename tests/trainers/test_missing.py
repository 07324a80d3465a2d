"""What a user is told whose environment lacks the other library; this file runs without any of them."""

from __future__ import annotations

import importlib
import sys

import pytest

from swell.errors import DependencyError

NAMES = {
    "swell.transformers": ("Trainer", "transformers", "[transformers]"),
    "swell.accelerate": ("Accelerator", "accelerate", "[accelerate]"),
}


@pytest.mark.parametrize("module", NAMES)
def test_a_missing_extra_is_named_with_its_command(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, package, extra = NAMES[module]
    home = importlib.import_module(module.replace("swell.", "swell.integrations."))
    monkeypatch.delitem(vars(home), name, raising=False)
    monkeypatch.setitem(sys.modules, package, None)  # importing it raises ModuleNotFoundError
    with pytest.raises(DependencyError, match=rf"{package} is not installed.*pip install '\.\{extra[:-1]}\]'"):
        getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("module", NAMES)
def test_a_name_that_is_not_there_is_answered_with_those_that_are(module: str) -> None:
    with pytest.raises(AttributeError, match=f"'Tariner'; it offers .*{NAMES[module][0]}"):
        importlib.import_module(module).Tariner  # noqa: B018
