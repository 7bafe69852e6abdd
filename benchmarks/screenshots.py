"""Pictures of pages for the documentation, with numbers beside parts of a report. Needs Chromium.

    saddlepoint audit zoo:digits-pgd --eps 0.15 --n 60 --out runs/pictured
    python -m benchmarks.screenshots runs/pictured/report.html docs/report.png --numbers
    python -m benchmarks.screenshots runs/demo/index.html docs/demo.png --height 700

The numbers are those of docs/reading-a-report.md.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--hide-scrollbars",
)
# Which number a part of a report has in docs/reading-a-report.md.
NUMBERS = {
    ".verdict": 1,
    "#warnings": 2,
    "#checklist": 3,
    "#clean-and-robust-accuracy": 4,
    "#robust-accuracy-by-radius": 5,
    "#robust-accuracy-by-attack": 5,
    "#cost": 6,
    "#what-was-recognized": 7,
    "#loss-curves": 8,
    "#margins": 8,
    "#robust-accuracy-by-class": 8,
    "#adversarial-examples": 8,
    "#winning-attacks": 8,
    "#configuration": 8,
    "#reproduce-this-audit": 9,
    "#verify-without-this-library": 9,
}
_CIRCLE = (
    "display: inline-block; width: 1.6em; height: 1.6em; line-height: 1.6em; margin-right: .5em;"
    "border-radius: 50%; background: #b4530a; color: #fff; text-align: center; font-size: 1rem;"
    "font-weight: 700; flex: none"
)


def numbered(page: str) -> str:
    """The page with a number in a circle before each of its parts.

    Args:
        page: the HTML of a report.
    """
    rules = []
    for selector, number in NUMBERS.items():
        part = f"{selector}::before" if selector.startswith(".") else f"{selector} h2::before"
        rules.append(f'{part} {{ content: "{number}"; {_CIRCLE} }}')
    return page.replace("</head>", f"<style>{' '.join(rules)}</style></head>", 1)


def take(page: Path, picture: Path, *, width: int, height: int, dark: bool) -> None:
    """Write a picture of the first screen of a page.

    Args:
        page: the HTML file.
        picture: the PNG file.
        width: of the window, in pixels.
        height: of the window, in pixels.
        dark: prefer dark colors.
    """
    chromium = shutil.which("chromium") or "chromium"
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                chromium,
                *_FLAGS,
                f"--user-data-dir={profile}",
                f"--blink-settings=preferredColorScheme={0 if dark else 1}",
                f"--window-size={width},{height}",
                f"--screenshot={picture.resolve()}",
                page.resolve().as_uri(),
            ],
            check=True,
            capture_output=True,
            timeout=300,
        )
    with Image.open(picture) as drawn:
        drawn.convert("RGB").quantize(64).save(picture, optimize=True)


def main() -> None:
    """Read the command line and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--width", type=int, default=900)
    parser.add_argument("--height", type=int, default=2600)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--numbers", action="store_true", help="annotate the parts of a report")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        page = given.page
        if given.numbers:
            page = Path(folder) / "report.html"
            page.write_text(numbered(given.page.read_text()))
        take(page, given.picture, width=given.width, height=given.height, dark=given.dark)


if __name__ == "__main__":
    main()
