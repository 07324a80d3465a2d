"""Output inside a notebook: a piece of HTML below a cell that can be replaced by a newer one."""

from __future__ import annotations

import io
from collections.abc import Callable

from rich.console import Console, RenderableType

_WIDTH = 110  # columns
_FRAME = '<pre style="white-space:pre;overflow-x:auto;line-height:1.4;margin:0">{code}</pre>'

# Shows HTML below the running cell; the function that it returns replaces it.
ShowHtml = Callable[[str], Callable[[str], None]]


def show_html(html: str) -> Callable[[str], None]:
    """Show HTML below the running cell. Needs no widgets, so any front end of Jupyter will do."""
    from IPython.display import HTML, display  # type: ignore[import-not-found]  # only in a notebook

    handle = display(HTML(html), display_id=True)
    return lambda newer: handle.update(HTML(newer))


def as_html(content: RenderableType) -> str:
    """What rich would show on a terminal, as HTML with its colours."""
    options = {"force_jupyter": False, "color_system": "truecolor", "force_terminal": True, "_environ": {}}
    console = Console(file=io.StringIO(), record=True, width=_WIDTH, highlight=False, soft_wrap=True, **options)
    console.print(content, end="")
    return console.export_html(inline_styles=True, code_format=_FRAME)
