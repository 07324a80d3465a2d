"""A figure to draw on, in the style of all of swell's pictures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from swell.errors import DependencyError

# The colours of Okabe and Ito, which everyone can distinguish, also in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_INK, _FAINT = "#222222", "#d9d9d9"
_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": "#888888",
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _FAINT,
    "grid.linewidth": 0.6,
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "legend.frameon": False,
    "svg.fonttype": "none",
}


class Figure:
    """A figure that leaves matplotlib's global state alone; saved if its ``with`` block succeeds."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        rows: int,
        columns: int,
        size: tuple[float, float],
        heights: Sequence[float] | None = None,
    ) -> None:
        try:
            import matplotlib
            import matplotlib.figure
            from matplotlib.backends.backend_agg import FigureCanvasAgg
        except ImportError as error:
            raise DependencyError(
                "matplotlib is not installed; expected it for pictures of runs. Install it from a checkout of swell: "
                "pip install '.[report]'."
            ) from error
        self.path = Path(path)
        self._style = matplotlib.rc_context(_STYLE)
        self._style.__enter__()
        self._figure: Any = matplotlib.figure.Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(self._figure)
        grid = self._figure.subplots(rows, columns, sharex=columns == 1, squeeze=False, height_ratios=heights)
        self.axes: list[Any] = list(grid.flat)
        for axes in self.axes:
            axes.xaxis.set_major_formatter(_counts())
            axes.margins(x=0.01)

    def __enter__(self) -> Figure:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        try:
            if kind is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._figure.savefig(self.path, dpi=150)
        finally:
            self._style.__exit__(None, None, None)

    def title(self, text: str) -> None:
        """Set the line above the axes."""
        self._figure.suptitle(text, x=0.01, ha="left", fontsize=10, color="#555555")

    def legend(self, colours: Sequence[str], names: Sequence[str]) -> None:
        """Name the colours, below the axes."""
        from matplotlib.lines import Line2D

        marks = [Line2D([], [], color=colours[index % len(colours)], linewidth=2.5) for index in range(len(names))]
        self._figure.legend(marks, names, loc="outside lower center", ncols=min(3, len(names)))


def _counts() -> Any:
    from matplotlib.ticker import EngFormatter

    return EngFormatter(sep="")
