"""Before mkdocs builds the pages: write those that come from the source."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def on_pre_build(config: Any) -> None:
    """Write docs/generated/, and only what has changed, so that `mkdocs serve` does not build without end."""
    events, api, benchmarks = (
        runpy.run_path(str(HERE / name)) for name in ("event_tables.py", "api_reference.py", "benchmark_page.py")
    )
    pages = {events["PAGE"]: events["tables"](events["SOURCE"].read_text())}
    pages |= {script["PAGE"]: script["page"]() for script in (api, benchmarks)}
    for path, text in pages.items():
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
