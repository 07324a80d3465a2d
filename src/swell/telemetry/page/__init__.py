"""The page that shows runs: uPlot draws the charts, everything else is ours; no build step and no network."""

from swell.telemetry.page.page import licence, page

__all__ = ["licence", "page"]
