"""The ``swell`` command as a whole: help, version, errors."""

from __future__ import annotations

import subprocess
import sys

import pytest

import swell
from swell.cli import COMMANDS, main
from swell.cli.command import Command
from swell.errors import PlanError


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """A command ``fail`` that raises whatever was put into the list."""
    raised: list[BaseException] = []

    def run(args: object) -> int:
        raise raised.pop()

    command = Command(summary="fail", description="Fails.", example="swell fail", options=lambda parser: None, run=run)
    monkeypatch.setitem(COMMANDS, "fail", command)
    return raised


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Usage: swell")
    assert all(f"  {name} " in shown and command.summary in shown for name, command in COMMANDS.items())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([name, "--help"])
    assert left.value.code == 0
    assert COMMANDS[name].example in capsys.readouterr().out
    assert COMMANDS[name].example.startswith(f"swell {name}")


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert (left.value.code, capsys.readouterr().out) == (0, f"swell {swell.__version__}\n")


@pytest.mark.parametrize("line", [["frobnicate"], ["plan"], ["plan", "--batch", "many"], ["plan", "--bat", "8"]])
def test_a_mistyped_line_is_answered_by_one_line_and_status_2(
    line: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(line)
    shown = capsys.readouterr()
    assert (left.value.code, shown.out) == (2, "")
    assert shown.err.count("\n") == 1
    assert "--help" in shown.err


def test_an_error_of_swell_is_one_line_without_a_traceback(
    failing: list[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    failing.append(PlanError("no layout\n  for 3 replicas"))
    assert main(["fail"]) == 2
    assert capsys.readouterr().err == "swell fail: no layout for 3 replicas\n"


def test_an_interrupt_leaves_quietly(failing: list[BaseException], capsys: pytest.CaptureFixture[str]) -> None:
    failing.append(KeyboardInterrupt())
    assert main(["fail"]) == 130
    assert capsys.readouterr().err == "swell fail: interrupted\n"


def test_a_bug_keeps_its_traceback(failing: list[BaseException]) -> None:
    failing.append(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        main(["fail"])


def test_python_dash_m_swell_is_the_same_command() -> None:
    done = subprocess.run([sys.executable, "-m", "swell", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"swell {swell.__version__}\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", ["plan --batch 64", "--help"])
def test_a_reader_that_has_seen_enough_is_no_error(command: str, unbuffered: str) -> None:
    line = f"PYTHONUNBUFFERED={unbuffered} {sys.executable} -m swell {command} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
