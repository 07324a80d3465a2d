"""The tables of the reference have the arguments, defaults, methods and figures of the objects they describe."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import swell
from swell.loop.metrics import Metrics
from tests.docs.pages import ROOT, code_in, section, tables

REFERENCE = ROOT / "docs" / "reference.md"
GOODPUT = ROOT / "docs" / "goodput.md"
ARGUMENTS = {
    "swell.Job": (REFERENCE, "## swell.Job", swell.Job),
    "swell.Cadence": (REFERENCE, "## swell.Cadence", swell.Cadence),
    "swell.Statistics": (REFERENCE, "## swell.Statistics", swell.Statistics),
    "swell.Notices": (REFERENCE, "## swell.Notices", swell.Notices),
    "swell.open_world": (REFERENCE, "## swell.open_world", swell.open_world),
    "swell.Goodput": (GOODPUT, "## Arguments", swell.Goodput),
}
FOR_FACADES = {"engine"}  # what swell.compat builds on; no user of a job needs it


def documented(rows: list[list[str]]) -> Iterator[tuple[str, Any]]:
    """Names and defaults of a table whose rows are: argument, default, meaning."""
    for argument, default, _ in rows:
        (name,), value = code_in(argument), code_in(default)
        yield name, ast.literal_eval(value[0]) if value else inspect.Parameter.empty


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_table_has_the_arguments_in_their_order_with_their_defaults(name: str) -> None:
    page, heading, thing = ARGUMENTS[name]
    parameters = inspect.signature(thing).parameters.values()
    assert list(documented(tables(section(page, heading))[0])) == [(each.name, each.default) for each in parameters]


def call(owner: str, name: str, method: Callable[..., Any]) -> str:
    """How a method is written down: with the names and defaults of its parameters, without annotations."""
    _self, *parameters = inspect.signature(method).parameters.values()
    bare = [each.replace(annotation=inspect.Parameter.empty) for each in parameters]
    return f"{owner}.{name}{inspect.Signature(bare)}".replace("'", '"')


def test_the_methods_are_those_of_the_job_with_their_signatures() -> None:
    members = inspect.getmembers(swell.Job, inspect.isfunction)
    methods = {call("job", name, method) for name, method in members if not name.startswith("_")}
    users = {name: getattr(Metrics, name) for name in ("mean", "sum", "accuracy", "results")}
    methods |= {call("job.metrics", name, method) for name, method in users.items()}
    rows = [row for table in tables(section(REFERENCE, "## Methods")) for row in table]
    assert {code_in(row[0])[0] for row in rows} == methods


def test_the_figures_are_those_of_the_job() -> None:
    with swell.Job(batch=8, statistics=True) as job:
        figures = {name for name in dir(job) if not name.startswith("_") and not inspect.ismethod(getattr(job, name))}
    (rows,) = tables(section(REFERENCE, "## Figures"))
    assert {name for row in rows for name in code_in(row[0])} == {f"job.{name}" for name in figures - FOR_FACADES}
