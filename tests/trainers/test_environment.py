"""The environment of these tests has what they are about."""

from __future__ import annotations

import importlib

import pytest


@pytest.mark.parametrize("name", ["transformers", "accelerate", "trl", "peft", "datasets", "lightning"])
def test_every_library_that_is_tested_with_is_there(name: str) -> None:
    assert importlib.import_module(name).__version__
