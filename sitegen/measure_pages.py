"""Measure the built site in a browser: which code blocks overflow, and which pages scroll sideways.

`python -m sitegen.measure_pages` after `make docs`. It needs Chromium, and ends with 1 if something overflows.

A page in the browser loads each page of the site in a frame, and posts its measurements to a local server.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_LIMIT_S = 300
_FRAME = "/measure.html"
# The script opens closed tabs and details, because hidden blocks have no width. It disables transitions.
_SCRIPT = """<!doctype html><body style="margin:0"><iframe style="border:0;height:900px"></iframe><script>
const [pages, widths] = DATA;
const frame = document.querySelector("iframe");
async function measured(page) {
  frame.style.width = widths[0] + "px";
  await new Promise((loaded) => { frame.onload = loaded; frame.src = "/" + page; });
  const inner = frame.contentDocument, found = [];
  const shown = inner.createElement("style");
  shown.textContent = "* { transition: none !important } .md-typeset .tabbed-block { display: block !important }";
  inner.head.append(shown);
  inner.querySelectorAll("details").forEach((each) => { each.open = true; });
  for (const width of widths) {
    frame.style.width = width + "px";
    const root = inner.documentElement, blocks = [...inner.querySelectorAll("pre > code")];
    const wide = blocks.filter((each) => each.scrollWidth > each.clientWidth);
    const starts = wide.map((each) => each.textContent.trim().split("\\n")[0].slice(0, 60));
    found.push({page, width, blocks: blocks.length, overflowing: starts, sideways: root.scrollWidth > width});
  }
  return found;
}
(async () => {
  const found = [];
  for (const page of pages) found.push(...await measured(page));
  await fetch("/", {method: "POST", body: JSON.stringify(found)});
})().catch((error) => fetch("/", {method: "POST", body: JSON.stringify(String(error))}));
</script>"""


@dataclass(frozen=True)
class Layout:
    """A page at a width in CSS pixels. blocks: number of its code blocks. overflowing: the first lines of overflowing
    blocks. sideways: whether the page itself scrolls sideways.
    """

    page: str
    width: int
    blocks: int
    overflowing: tuple[str, ...]
    sideways: bool


def browser() -> str | None:
    """The path of Chromium or Chrome; None if there is none."""
    return next((found for name in _BROWSERS if (found := shutil.which(name))), None)


def measure(site: Path, widths: Sequence[int], program: str) -> list[Layout]:
    """Measure all pages of a built site at these widths, with this browser; raises TimeoutError after five minutes."""
    pages = sorted(str(file.relative_to(site)) for file in site.rglob("*.html"))
    script = _SCRIPT.replace("DATA", json.dumps([pages, list(widths)]))
    found: Queue[Any] = Queue()
    with _served(site, script, found) as address, _opened(program, address + _FRAME, 1600, 1000):
        try:
            answer = found.get(timeout=_LIMIT_S)
        except Empty:
            raise TimeoutError(f"{program} has not measured {len(pages)} pages in {_LIMIT_S} s") from None
    if isinstance(answer, str):
        raise RuntimeError(f"{program} has not measured the pages: {answer}")
    return [Layout(**{**each, "overflowing": tuple(each["overflowing"])}) for each in answer]


@contextmanager
def _served(site: Path, script: str, found: "Queue[Any]") -> Iterator[str]:
    """The address of a server that serves the site and the measuring page."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=str(site), script=script, found=found))
    thread = Thread(target=server.serve_forever, name="site", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def _opened(program: str, address: str, width: int, height: int) -> Iterator[None]:
    """A browser without a window that loads a page."""
    # As root, Chromium starts only without its sandbox. It loads only pages of this project.
    flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        size = f"--window-size={width},{height}"
        command = [program, *flags, size, "--remote-debugging-port=0", f"--user-data-dir={profile}", address]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield
        finally:
            process.terminate()
            process.wait()


class _Handler(SimpleHTTPRequestHandler):
    """Serves the site and the measuring page, and puts the posted measurements into `found`."""

    def __init__(self, *args: Any, script: str, found: "Queue[Any]", **keywords: Any) -> None:
        self._script, self._found = script, found
        super().__init__(*args, **keywords)

    def do_GET(self) -> None:
        """Serve a file of the site, except the search index. Building the search would take most of the time."""
        if self.path == _FRAME:
            self._answer(200, self._script.encode())
        elif self.path.startswith("/search/"):
            self._answer(404, b"")
        else:
            with suppress(BrokenPipeError):
                super().do_GET()

    def do_POST(self) -> None:
        """Receive the measurements."""
        self._found.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self._answer(200, b"")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Nothing."""


def report(layouts: Sequence[Layout]) -> Iterator[str]:
    """A line for each page with a fault and for each overflowing block, then a summary for each width."""
    for each in layouts:
        if each.overflowing or each.sideways:
            page = " The page scrolls sideways." if each.sideways else ""
            yield f"{each.page} at {each.width} px: {len(each.overflowing)} of {each.blocks} blocks overflow.{page}"
            yield from (f"    {start}" for start in each.overflowing)
    for width in dict.fromkeys(each.width for each in layouts):
        own = [each for each in layouts if each.width == width]
        blocks, wide = sum(each.blocks for each in own), sum(len(each.overflowing) for each in own)
        sideways = sum(each.sideways for each in own)
        yield f"{width} px: {wide} of {blocks} code blocks overflow, {sideways} of {len(own)} pages scroll sideways"


def main() -> int:
    """Print a line for each page with a fault, and a summary for each width."""
    parser = argparse.ArgumentParser(prog="python -m sitegen.measure_pages", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--site", type=Path, default=Path("build/site"), help="folder of the built site")
    parser.add_argument("--widths", type=int, nargs="+", default=[1440, 390], help="widths of the window in CSS pixels")
    arguments = parser.parse_args()
    program = browser()
    if program is None:
        parser.error(f"expected one of these programs on the path: {', '.join(_BROWSERS)}: install Chromium")
    if not (arguments.site / "index.html").exists():
        parser.error(f"expected a built site in {arguments.site}: run `make docs`")
    layouts = measure(arguments.site, arguments.widths, program)
    sys.stdout.writelines(f"{line}\n" for line in report(layouts))
    widest = max(arguments.widths)
    return int(any(each.sideways or (each.width == widest and each.overflowing) for each in layouts))


if __name__ == "__main__":
    sys.exit(main())
