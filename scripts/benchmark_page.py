"""Write docs/generated/benchmarks.md: what every benchmark found, from the pages beside the benchmarks.

python scripts/benchmark_page.py
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "generated" / "benchmarks.md"


def page() -> str:
    """One section for each benchmark, with its folder and the date of its last results."""
    parts = []
    for readme in sorted((ROOT / "benchmarks").glob("*/README.md")):
        title, _, text = readme.read_text().partition("\n")
        folder = readme.parent.relative_to(ROOT).as_posix()
        results = sorted(path.name for path in readme.parent.glob("*.json"))
        source = f"`{folder}`" + (f", results in {', '.join(f'`{name}`' for name in results)}" if results else "")
        changed = _changed_on(readme.parent)
        note = f"*{source}{f'; last measured or changed on {changed}' if changed else ''}.*"
        parts.append(f"#{title}\n\n{note}\n{_deeper(text)}")
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _deeper(text: str) -> str:
    """Headings one level down; links and pictures that lead out of the folder as the site has them."""
    text = re.sub(r"^(#+ )", r"#\1", text, flags=re.MULTILINE)
    text = text.replace("](../../docs/", "](")
    return re.sub(r"\[([^\]]+)\]\((?!https?:|#|images/|[\w-]+\.md)[^)]*\)", r"`\1`", text)


def _changed_on(folder: Path) -> str:
    line = ["git", "log", "-1", "--format=%cs", "--", str(folder)]
    try:
        return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())
