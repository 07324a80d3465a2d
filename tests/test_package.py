"""What ``import swell`` offers."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import swell


@pytest.mark.parametrize("name", swell.__all__)
def test_every_public_name_can_be_imported_from_the_package(name: str) -> None:
    assert getattr(swell, name) is not None
    assert name in dir(swell)


def test_type_checkers_see_the_same_names_as_users() -> None:
    tree = ast.parse(Path(swell.__file__).read_text())
    guarded = [node for node in tree.body if isinstance(node, ast.If)]
    listed = {
        alias.name
        for block in guarded
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert {*listed, "__version__"} == set(swell.__all__)


def test_an_unknown_name_is_refused_with_a_list_of_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"'Jbo'.*Job"):
        swell.Jbo  # type: ignore[attr-defined]  # noqa: B018


def test_a_name_is_the_object_its_module_defines() -> None:
    assert swell.AdaScale is importlib.import_module("swell.rules").AdaScale
