"""One command tries another Python, in an environment of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")


def commands(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What make would run, without running it."""
    own = ("PYTHON", "MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS")  # these tests may run under make themselves
    environment = {name: value for name, value in os.environ.items() if name not in own}
    return subprocess.run(["make", "-n", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)


def test_a_named_python_has_its_own_environment_and_leaves_the_usual_one_alone() -> None:
    made = commands("test-fast", "check", f"PYTHON={sys.executable}").stdout.replace(sys.executable, "")
    assert f".venv-{VERSION}/bin/python -m pytest" in made and f".venv-{VERSION}/bin/pyright" in made
    assert ".venv/" not in made


def test_without_a_name_the_usual_environment_is_used() -> None:
    made = commands("test-fast").stdout
    assert ".venv/bin/python -m pytest" in made and ".venv-" not in made


def test_the_keras_tests_follow() -> None:
    assert f".venv-keras-{VERSION}/bin/python" in commands("test-keras", f"PYTHON={sys.executable}").stdout
    assert ".venv-keras/bin/python" in commands("test-keras").stdout


def test_the_tests_inside_other_trainers_follow() -> None:
    assert f".venv-trainers-{VERSION}/bin/python" in commands("test-trainers", f"PYTHON={sys.executable}").stdout
    assert ".venv-trainers/bin/python" in commands("test-trainers").stdout


def test_the_tests_with_ray_follow() -> None:
    assert f".venv-ray-{VERSION}/bin/python" in commands("test-ray", f"PYTHON={sys.executable}").stdout
    assert ".venv-ray/bin/python" in commands("test-ray").stdout


def test_a_python_that_does_not_exist_is_named() -> None:
    refused = commands("test-fast", "PYTHON=no-such-python")
    assert refused.returncode != 0 and "PYTHON is no-such-python; expected" in refused.stderr
