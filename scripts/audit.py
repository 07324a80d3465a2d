"""Look for known vulnerabilities of what is installed: python scripts/audit.py; exits with 1 where one is found.

Without pip-audit, or where its data base cannot be reached, it says so and exits with 0: a check that needs the network
must not stop work without one.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import Any

_TIME_S = 120.0
IGNORED: dict[str, str] = {}  # vulnerability -> why it does not concern swell


def main() -> int:
    """Ask pip-audit and pass on what it found."""
    if importlib.util.find_spec("pip_audit") is None:
        return skipped("pip-audit is not installed")
    line = [sys.executable, "-m", "pip_audit", "--local", "--skip-editable", "--progress-spinner=off", "--format=json"]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=_TIME_S)
    except subprocess.TimeoutExpired:
        return skipped(f"the data base did not answer within {_TIME_S:g} s")
    try:
        report = json.loads(done.stdout)
    except ValueError:
        return skipped((done.stderr.strip().splitlines() or ["pip-audit gave no report"])[-1][:200])
    return told(report)


def skipped(reason: str) -> int:
    """Say why nothing was looked up."""
    print(f"swell: known vulnerabilities were not looked up: {reason}")
    return 0


def told(report: dict[str, Any]) -> int:
    """Print what was found; 1 if anything was."""
    found = 0
    for package in report.get("dependencies", []):
        for each in package.get("vulns", []):
            if each["id"] in IGNORED:
                continue
            found += 1
            fixes = " or ".join(each.get("fix_versions") or []) or "no version yet"
            print(f"swell: {package['name']} {package['version']} has {each['id']}; fixed in {fixes}", file=sys.stderr)
    if not found:
        print(f"swell: no known vulnerability in {len(report.get('dependencies', []))} installed packages")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
