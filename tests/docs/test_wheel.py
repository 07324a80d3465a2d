"""The built wheel, with nothing but the packages it asks for, runs the quickstart in an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import venv
from collections.abc import Iterator
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.docs.pages import ROOT, blocks

pytestmark = pytest.mark.slow

EXTRAS = ("torch", "report")  # those the quickstart tells the reader to install


def required(package: Distribution, extras: tuple[str, ...]) -> Iterator[Requirement]:
    """What the metadata of a distribution asks for here, with these of its extras."""
    for text in package.requires or ():
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement


def closure(package: Distribution, extras: tuple[str, ...]) -> dict[str, Distribution]:
    """Every installed distribution that it needs, directly or not."""
    needed: dict[str, Distribution] = {}
    open_requirements = list(required(package, extras))
    while open_requirements:
        requirement = open_requirements.pop()
        if requirement.name not in needed:
            needed[requirement.name] = distribution(requirement.name)
            open_requirements += required(needed[requirement.name], tuple(requirement.extras))
    return needed


def link(package: Distribution, folder: Path) -> None:
    """Make what the distribution installed importable from ``folder``, and nothing else."""
    for top in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
        target = Path(str(package.locate_file(top)))
        if not (folder / top).exists():
            (folder / top).symlink_to(target)


def run(*line: str | Path, cwd: Path) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    environment |= {"MPLBACKEND": "Agg"}
    done = subprocess.run(line, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment in which the wheel and what it asks for are installed, and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    options = ["--no-deps", "--no-index"]
    subprocess.run([*pip, "wheel", *options, "--no-build-isolation", "-w", folder, ROOT], check=True)
    (wheel,) = folder.glob("*.whl")

    home = folder / "environment"
    venv.create(home, with_pip=False)
    subprocess.run([*pip, "--python", home / "bin" / "python", "install", *options, wheel], check=True)
    (site,) = home.glob("lib/python*/site-packages")
    (metadata,) = site.glob("swell-*.dist-info")
    linked = folder / "dependencies"
    linked.mkdir()
    for package in closure(PathDistribution(metadata), EXTRAS).values():
        link(package, linked)
    (site / "dependencies.pth").write_text(f"{linked}\n")
    return home


def test_the_wheel_runs_the_quickstart_in_an_empty_folder(environment: Path, tmp_path: Path) -> None:
    script = tmp_path / "script" / "quickstart.py"
    script.parent.mkdir()
    code = [textwrap.dedent(block["code"]) for block in blocks(ROOT / "docs" / "quickstart.md")]
    script.write_text("\n".join([*code, "print(swell.__file__)"]))
    empty = tmp_path / "empty"
    empty.mkdir()
    lines = run(environment / "bin" / "python", script, cwd=empty).splitlines()
    assert Path(lines[-1]).is_relative_to(environment)
    assert {path.name for path in empty.iterdir()} == {"runs", "quickstart.png"}


def test_the_wheel_brings_the_command_line(environment: Path, tmp_path: Path) -> None:
    assert "samples a replica" in run(environment / "bin" / "swell", "plan", "--batch", "256", cwd=tmp_path)


def test_the_wheel_brings_its_types_and_its_digits(environment: Path) -> None:
    (package,) = environment.glob("lib/python*/site-packages/swell")
    assert (package / "py.typed").exists()
    assert (package / "demo" / "digits.npz").exists()
