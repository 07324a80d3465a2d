"""Write the README's pictures: what the report of the demo shows, in a headless Chromium.

    swell demo && python scripts/readme_pictures.py [swell-demo]

Needs Chromium (scripts/browser.sh) and the report extra.
"""

from __future__ import annotations

import base64
import io
import sys
import tempfile
from pathlib import Path

from PIL import Image

from swell.telemetry import write_report

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from tests.browser import Browser  # noqa: E402

IMAGES = ROOT / "docs" / "images"
WIDTH = 1000  # pixels
COLOURS = 96  # a chart needs few, and the file is a third as large
PICTURES = {  # file -> folders of the demo, first and last part of the page
    "report_elastic.png": (["elastic"], "#runs", "#chart-factor"),
    "report_ways.png": (["small", "large", "swell"], "#runs", "#chart-loss"),
}


def picture(browser: Browser, page: Path, first: str, last: str) -> Image.Image:
    """The part of a page from the top of one element to the bottom of another."""
    browser.open(page.as_uri())
    browser.until("document.querySelectorAll('.chart canvas').length === 7")
    browser.run("document.fonts.ready.then(() => true)")
    ends = [f"document.querySelector('{part}').getBoundingClientRect()" for part in (first, last)]
    top, bottom = browser.run(f"[{ends[0]}.top + scrollY - 8, {ends[1]}.bottom + scrollY]")
    clip = {"x": 0, "y": top, "width": WIDTH, "height": bottom - top, "scale": 1}
    data = browser.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]
    return Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")


def main() -> None:
    """Draw the runs of the demo in the folder that is given."""
    demo = Path(sys.argv[1] if len(sys.argv) > 1 else "swell-demo")
    with tempfile.TemporaryDirectory() as name, Browser(Path(name), width=WIDTH, height=1600) as browser:
        for file, (runs, first, last) in PICTURES.items():
            page = write_report([demo / run for run in runs], Path(name) / f"{file}.html")
            small = picture(browser, page, first, last).quantize(COLOURS, dither=Image.Dither.NONE)
            small.save(IMAGES / file, optimize=True)
            print(f"{IMAGES / file}: {(IMAGES / file).stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
