"""Pictures of pages for the documentation, with numbers beside parts of a report. Needs Chromium.

    saddlepoint audit zoo:digits-pgd --eps 0.15 --n 60 --out runs/pictured
    python -m benchmarks.screenshots runs/pictured/report.html docs/report.png --numbers
    python -m benchmarks.screenshots runs/demo/index.html docs/demo.png --height 700

The numbers are those of docs/reading-a-report.md. A contact sheet shows the first screen of a page
on a phone, a tablet and a desktop, 390, 768 and 1280 pixels wide:

    python -m benchmarks.screenshots runs/pictured/report.html docs/report-light.png --sheet
    python -m benchmarks.screenshots runs/pictured/report.html docs/report-dark.png --sheet --dark
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
    "#clean-and-robust-accuracy": 2,
    "#robust-accuracy-by-radius": 3,
    "#robust-accuracy-by-attack": 3,
    "#cost": 4,
    "#warnings": 5,
    "#checklist": 6,
    "#comparisons": 7,
    "#published-results": 7,
    "#what-was-recognized": 8,
    "#adversarial-examples": 9,
    "#all-attacks": 10,
    "#loss-curves": 10,
    "#rejection-tradeoff": 10,
    "#margins": 10,
    "#robust-accuracy-by-class": 10,
    "#winning-attacks": 10,
    "#configuration": 10,
    "#reproduce-this-audit": 11,
    "#verify-without-this-library": 11,
}
SCREENS = ((390, 844), (768, 1024), (1280, 1024))  # width and height of a contact sheet's windows
_GAP = 24  # pixels around the screens of a contact sheet
_GRAY = {False: (214, 217, 222), True: (60, 66, 76)}  # behind the screens, by dark colors
_CIRCLE = (
    "display: inline-block; width: 1.9em; height: 1.9em; line-height: 1.9em; margin-right: .5em;"
    "border-radius: 50%; background: #b4530a; color: #fff; text-align: center; font-size: .85rem;"
    "font-weight: 700; flex: none"
)


def numbered(page: str) -> str:
    """The page with a number in a circle before each of its parts.

    Args:
        page: the HTML of a report.
    """
    rules = []
    for selector, number in NUMBERS.items():
        # The anchor of a folded section is beside its title.
        heading = f"section:is({selector}, :has({selector})) h2::before"
        part = f"{selector}::before" if selector.startswith(".") else heading
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
    _small(_screen(page, width, height, dark=dark)).save(picture, optimize=True)


def _screen(page: Path, width: int, height: int, *, dark: bool) -> Image.Image:
    chromium = shutil.which("chromium") or "chromium"
    with tempfile.TemporaryDirectory() as profile:
        picture = Path(profile) / "screen.png"
        subprocess.run(
            [
                chromium,
                *_FLAGS,
                f"--user-data-dir={profile}",
                f"--blink-settings=preferredColorScheme={0 if dark else 1}",
                f"--window-size={width},{height}",
                f"--screenshot={picture}",
                page.resolve().as_uri(),
            ],
            check=True,
            capture_output=True,
            timeout=300,
        )
        with Image.open(picture) as drawn:
            return drawn.convert("RGB")


def _small(picture: Image.Image) -> Image.Image:
    """The picture with 128 colors, of which small areas such as an orange bar keep theirs."""
    return picture.quantize(128, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)


def take_sheet(page: Path, picture: Path, *, dark: bool) -> None:
    """Write the first screens of a page at three widths beside each other.

    Args:
        page: the HTML file.
        picture: the PNG file.
        dark: prefer dark colors.
    """
    screens = [_screen(page, width, height, dark=dark) for width, height in SCREENS]
    wide = sum(screen.width + _GAP for screen in screens) + _GAP
    high = max(screen.height for screen in screens) + 2 * _GAP
    sheet = Image.new("RGB", (wide, high), _GRAY[dark])
    left = _GAP
    for screen in screens:
        sheet.paste(screen, (left, _GAP))
        left += screen.width + _GAP
    half = sheet.resize((wide // 2, high // 2), Image.Resampling.LANCZOS)
    _small(half).save(picture, optimize=True)


def main() -> None:
    """Read the command line and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--width", type=int, default=900)
    parser.add_argument("--height", type=int, default=3780)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--sheet", action="store_true", help="the first screen at three widths")
    parser.add_argument("--numbers", action="store_true", help="annotate the parts of a report")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        page = given.page
        if given.numbers:
            page = Path(folder) / "report.html"
            page.write_text(numbered(given.page.read_text()))
        if given.sheet:
            take_sheet(page, given.picture, dark=given.dark)
        else:
            take(page, given.picture, width=given.width, height=given.height, dark=given.dark)


if __name__ == "__main__":
    main()
