"""Write docs/generated/events.md: a table of every kind of event, from the docstrings and comments of their classes.

python scripts/event_tables.py
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "swell" / "core" / "events.py"
PAGE = ROOT / "docs" / "generated" / "events.md"


def tables(source: str) -> str:
    """The page by the source of the events."""
    lines, parts = source.splitlines(), []
    for node in ast.parse(source).body:
        kinds = [word.value for word in node.keywords if word.arg == "kind"] if isinstance(node, ast.ClassDef) else []
        if not kinds or not isinstance(node, ast.ClassDef) or not isinstance(kinds[0], ast.Constant):
            continue
        rows = [
            f"### {kinds[0].value}",
            "",
            ast.get_docstring(node) or "",
            "",
            "| field | type | meaning |",
            "|---|---|---|",
        ]
        for field in node.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                comment = lines[field.lineno - 1].partition("  # ")[2].replace("|", "\\|")
                kind = ast.unparse(field.annotation).replace("|", "\\|")
                rows.append(f"| `{field.target.id}` | {kind} | {comment} |")
        parts.append("\n".join(rows))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(tables(SOURCE.read_text()))
