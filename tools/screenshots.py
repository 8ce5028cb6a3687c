"""Takes the pictures of the page for README and documents, of jobs that `tests.page.samples` makes up.

    python tools/screenshots.py [FOLDER]

Needs Debian's chromium, playwright, and Pillow, which matplotlib brings. Writes four pictures to FOLDER, else to
`docs/pictures`: the list of jobs, a job in light and dark, and a stage.
"""

from __future__ import annotations

import shutil
import sys
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from arcbeam.page.serving import PageServer, PageSettings  # noqa: E402  # the path has the tests now
from arcbeam.page.sources import Listed  # noqa: E402
from tests.page import samples  # noqa: E402

_VIEWS = (
    ("jobs", "", "light"),
    ("job", "job/a", "light"),
    ("job-dark", "job/a", "dark"),
    ("stage", "job/a/stage/1", "light"),
)


def main(folder: Path) -> int:
    """Take the pictures. Return the exit status."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    if chromium is None:
        print("chromium is not here: apt-get install chromium", file=sys.stderr)
        return 1
    now = samples.now()
    ended = {"state": "FAILED", "why": "KeyError: 'user' in transform 'Sum'"}
    jobs = samples.Jobs(
        Listed("a", "/data/flights", samples.record(5, now)),
        Listed("b", "/data/clicks", samples.record(3, now - 400_000_000, name="clicks", driver=None, ended=ended)),
        Listed("c", "/data/words", samples.record(3, now - 90_000_000, name="words", driver=None, mode="drained")),
        plans={"a": samples.plan_of(5)},
        histories={"a": samples.history(now)},
    )
    with PageServer(jobs, PageSettings()) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, path, scheme in _VIEWS:
            page = browser.new_page(viewport={"width": 1000, "height": 300}, color_scheme=scheme)
            page.goto(server.address + path)
            page.locator("#contact", has_text="live").wait_for()
            shot = page.screenshot(full_page=True)
            # That many colours are enough, and half the size.
            Image.open(BytesIO(shot)).convert("RGB").quantize(160).save(folder / f"page-{name}.png", optimize=True)
            page.close()
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "pictures"))
