"""The checks of what is installed: licences that suit pass, others fail, and no network is no failure."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "licence",
    [
        "Apache-2.0",
        "BSD License",
        "MIT",
        "MIT OR GPL-3.0-only",
        "LGPL-2.1-or-later",
        "Mozilla Public License 2.0 (MPL 2.0)",
        "PSF-2.0",
        "GNU Lesser General Public License v3 (LGPLv3)",
    ],
)
def test_licences_that_suit_pass(licence: str) -> None:
    assert loaded("licences").problem("package", licence) is None


@pytest.mark.parametrize(
    "licence",
    ["", "AGPL-3.0", "GPL-3.0-only", "GNU Affero General Public License v3", "SSPL-1.0", "Something of our own"],
)
def test_other_licences_are_named(licence: str) -> None:
    assert loaded("licences").problem("package", licence)


def test_the_licence_is_read_from_any_field_that_may_hold_it() -> None:
    stated = loaded("licences").stated
    assert stated({"License-Expression": "MIT", "License": "BSD"}) == "MIT"
    assert stated({"Classifier": ["License :: OSI Approved :: MIT License", "Topic :: X"]}) == "MIT License"
    assert stated({"License": "Apache 2.0\nlong text"}) == "Apache 2.0"


def test_what_is_installed_here_suits() -> None:
    subprocess.run([sys.executable, str(SCRIPTS / "licences.py")], check=True)


def test_a_vulnerability_fails_the_check_and_a_missing_network_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    audit = loaded("audit")
    weak = {"name": "old", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]}
    assert audit.told({"dependencies": [weak]}) == 1
    assert "old 1 has CVE-1; fixed in 2" in capsys.readouterr().err
    assert audit.told({"dependencies": [{"name": "new", "version": "2", "vulns": []}]}) == 0
    assert audit.skipped("no network") == 0


def test_a_data_base_that_cannot_be_reached_is_said_and_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    audit = loaded("audit")
    monkeypatch.setattr(audit.importlib.util, "find_spec", lambda name: object())
    failed = subprocess.CompletedProcess([], 1, stdout="", stderr="Traceback\nConnectionError: no route to host")
    monkeypatch.setattr(audit.subprocess, "run", lambda *_, **__: failed)
    assert audit.main() == 0
    assert "not looked up: ConnectionError: no route to host" in capsys.readouterr().out
