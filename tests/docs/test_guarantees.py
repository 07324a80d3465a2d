"""The page of guarantees names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))
ROWS = [row for row in PAGE.splitlines() if re.match(r"\| \d\. ", row)]


@pytest.mark.parametrize(("path", "test"), NAMED, ids=lambda value: str(value))
def test_every_test_that_is_named_exists(path: str, test: str) -> None:
    tree = ast.parse((ROOT / path).read_text())
    assert test in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_guarantee_has_a_row() -> None:
    assert [row[2] for row in ROWS] == list("12345678")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip(" *"))
def test_every_guarantee_names_a_property_test_and_a_test_with_real_processes(row: str) -> None:
    columns = row.split("|")[3:5]
    assert all("::" in column for column in columns)
