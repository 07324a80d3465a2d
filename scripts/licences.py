"""Check the licence of every installed package: python scripts/licences.py; exits with 1 where one does not suit."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata

# Licences that allow use beside an Apache-2.0 library without conditions on it. Weak copyleft is allowed for packages
# that are only used, not linked into swell or shipped with it.
ALLOWED = (
    "apache", "bsd", "mit", "isc", "psf", "python software foundation", "zlib", "hpnd", "unlicense", "0bsd", "cc0",
    "public domain", "mpl", "mozilla", "lgpl", "lesser general", "boost", "bsl-1", "ncsa", "historical permission",
)  # fmt: skip
REFUSED = re.compile(r"\b(agpl|affero|gpl(?!.*exception)|sspl|busl|commons clause|proprietary)", re.IGNORECASE)
# Packages whose metadata names no licence, or one by a name of its own; each was looked up by hand.
KNOWN = re.compile(
    r"^(nvidia-.*|cuda-.*|triton)$"
)  # proprietary run-time libraries that torch brings along on CUDA machines


def stated(fields: Mapping[str, str | list[str] | None]) -> str:
    """What a package's metadata says of its licence: the expression, the classifiers, or the first line of the text."""
    expression = str(fields.get("License-Expression") or "")
    classifiers = [c for c in fields.get("Classifier") or () if c.startswith("License ::")]
    names = ", ".join(c.rpartition(" :: ")[2] for c in classifiers if c != "License :: OSI Approved")
    text = str(fields.get("License") or "").strip()
    return expression or names or (text.splitlines()[0] if text else "")


def problem(name: str, licence: str) -> str | None:
    """Why the licence of a package is not accepted; None if it is."""
    if KNOWN.match(name.lower()):
        return None
    if not licence:
        return "states no licence; look it up, and add the package to KNOWN if it suits"
    choices = [choice for choice in re.split(r"\s+OR\s+", licence) if not REFUSED.search(_without_lesser(choice))]
    if not choices:
        return f"is under {licence!r}, which does not suit; replace the package"
    if not any(word in choice.lower() for choice in choices for word in ALLOWED):
        return f"is under {licence!r}, which is not on the list; read it, and add it to ALLOWED if it suits"
    return None


def _without_lesser(licence: str) -> str:
    return re.sub(r"lgpl|lesser general public", "", licence, flags=re.IGNORECASE)


def installed() -> Iterable[tuple[str, str]]:
    """Name and licence of every installed package."""
    for package in metadata.distributions():
        fields = package.metadata
        values = {key: fields.get(key) for key in ("License-Expression", "License")}
        yield fields["Name"], stated({**values, "Classifier": fields.get_all("Classifier") or []})


def main() -> int:
    """Print each package whose licence does not suit."""
    packages = sorted(set(installed()), key=lambda package: package[0].lower())
    problems = [f"{name} {why}" for name, licence in packages if (why := problem(name, licence)) is not None]
    for line in problems:
        print(f"swell: {line}", file=sys.stderr)
    if not problems:
        print(f"swell: the licences of {len(packages)} installed packages suit")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
