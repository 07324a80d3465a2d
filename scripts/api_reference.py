"""Write docs/generated/api.md: every public name with its signature and docstring.

python scripts/api_reference.py
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "generated" / "api.md"
TELEMETRY = ("read_events", "LogReader", "EventLog", "write_report", "draw_run", "draw_timeline", "compare")
SINKS = ("TensorBoardSink", "TrackerSink", "MlflowSink")
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def markdown(docstring: str | None) -> str:
    """A docstring as Markdown: its code, formulas and references are set as such."""
    text = inspect.cleandoc(docstring or "")
    text = re.sub(r":math:`([^`]+)`", r"`\1`", text)
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", text).replace("``", "`")
    lines, fence = [], ""
    for line in [*text.splitlines(), ""]:
        formula = line.strip().startswith(".. math::")
        code = line.startswith((">>>", "..."))
        if fence == "pycon" and not line.strip():
            lines.append("```")
            fence = ""
        if fence == "text" and line.strip() and not line.startswith(" "):
            lines += ["```", ""]
            fence = ""
        if not fence and (code or formula):
            fence = "pycon" if code else "text"
            lines.append(f"```{fence}")
        lines.append(line.replace(".. math::", "").rstrip() if formula else line)
    if fence:
        lines.append("```")
    return "\n".join(lines).strip()


def signature(thing: Any, name: str) -> str:
    """How it is called, without addresses and without types that say nothing to a reader."""
    try:
        given = inspect.signature(thing)
    except (TypeError, ValueError):
        return name
    parameters = [p.replace(annotation=inspect.Parameter.empty) for p in given.parameters.values() if p.name != "self"]
    text = str(given.replace(parameters=parameters, return_annotation=inspect.Signature.empty))
    return f"{name}{ADDRESS.sub('', text)}"


def members(cls: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that the class itself defines and describes."""
    for name, value in vars(cls).items():
        function = value.fget if isinstance(value, property) else value
        documented = inspect.isfunction(function) and function.__doc__
        if not name.startswith("_") and documented:
            yield name, value


def entry(name: str, thing: Any) -> str:
    """One name of the page."""
    parts = [f"### {name}", f"```text\n{signature(thing, name)}\n```", markdown(thing.__doc__)]
    if inspect.isclass(thing):
        for member, value in members(thing):
            called = member if isinstance(value, property) else signature(value, member)
            parts.append(f"**`.{called}`**: {markdown((value.fget if isinstance(value, property) else value).__doc__)}")
    return "\n\n".join(part for part in parts if part)


def page() -> str:
    """The whole page."""
    swell, telemetry = importlib.import_module("swell"), importlib.import_module("swell.telemetry")
    things = {f"swell.{name}": getattr(swell, name) for name in sorted(swell.__all__) if name != "__version__"}
    modules = {name for name, thing in things.items() if inspect.ismodule(thing)}
    parts = ["## swell", *(entry(name, thing) for name, thing in things.items() if name not in modules)]
    parts += ["## swell.telemetry"]
    parts += [entry(f"swell.telemetry.{name}", getattr(telemetry, name)) for name in (*TELEMETRY, *SINKS)]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
