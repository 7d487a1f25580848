"""Run lessons and exercises in JupyterLab in a headless browser, as a person would, and compare what is shown.

Each notebook, two at a time: open it, look at its stored outputs, choose "Restart Kernel and Run All Cells", wait for
the end, save. The saved outputs must equal the stored ones, and the page must show them. Where the parameters cell
names a sentence, another one is typed in and the new run must follow it. All on copies in build/browser/, with
JupyterLab settings of their own; screenshots and JupyterLab's log are there afterwards.
"""

import argparse
import asyncio
import difflib
import os
import pprint
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import nbformat
import psutil
from jupyter_server.serverapp import list_running_servers
from nbformat import NotebookNode
from playwright.async_api import Error as BrowserError
from playwright.async_api import Locator, Page, async_playwright
from run_notebooks import NOTEBOOKS, ROOT, coalesce, find_lessons

from attention_core import load_sentence

BUILD = ROOT / "build" / "browser"
COPIES, OWN = BUILD / "notebooks", BUILD / "jupyter"
SENTENCE, OTHER_SENTENCE = "journey", "attention"
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-component-update", "--disable-sync"]
QUIET = '{"fetchNews": "false", "checkForUpdates": false}'  # else JupyterLab asks whether it may fetch news

WAITING = "[...document.querySelectorAll('.jp-InputPrompt')].some(prompt => prompt.textContent.includes('*'))"
STATUS = "#jp-main-statusbar"
# Of each cell the page's printed text, its pictures with the description below each, and errors.
SHOWN = """cells => cells.map(cell => ({
  errors: cell.querySelectorAll('[data-mime-type$="stderr"], [data-mime-type$="error"]').length,
  text: [...cell.querySelectorAll('.jp-RenderedText.jp-OutputArea-output pre')].map(pre => pre.textContent).join(''),
  pictures: [...cell.querySelectorAll('.jp-RenderedImage img')].map(img => {
    const caption = img.closest('.jp-OutputArea-child').nextElementSibling?.querySelector('.jp-RenderedMarkdown');
    const [picture, below] = [img, caption].map(element => element?.getBoundingClientRect());
    return {caption: caption?.textContent.trim() ?? null, loaded: img.naturalWidth > 0 && picture.height > 0,
            below: below ? below.height > 10 && below.top >= picture.bottom && below.top < picture.bottom + 40 : false};
  }),
}))"""
# The cells with code or prints that are wider than the page: code is then cut off, a print is wrapped.
TOO_WIDE = """cells => cells.flatMap((cell, i) =>
  [...cell.querySelectorAll('.cm-scroller, .jp-OutputArea-output pre')].some(text => {
    text.style.whiteSpace = 'pre';
    try { return text.scrollWidth > text.clientWidth; } finally { text.style.whiteSpace = ''; }
  }) ? [i] : [])"""
# JupyterLab lays out what comes into view, so the first scroll may miss.
CENTRE = """async element => { for (let i = 0; i < 5; i++) {
  element.scrollIntoView({block: 'center'});
  await new Promise(resolve => requestAnimationFrame(() => requestAnimationFrame(resolve)));
}}"""


class BrowserTestError(Exception):
    """What the browser shows is not what it should be: rule, expected, actual."""


def require(expected: object, actual: object, rule: str) -> None:
    if expected != actual:
        lines = [pprint.pformat(value, width=110).splitlines() for value in (expected, actual)]
        difference = difflib.unified_diff(*lines, "expected", "actual", n=0, lineterm="")
        raise BrowserTestError("\n  ".join([rule, *difference]))


def outputs(cell: NotebookNode) -> list[NotebookNode]:
    return coalesce(cell.outputs) if cell.cell_type == "code" else []


def as_text(output: NotebookNode) -> object:
    """What an output says, with pictures left out: their bytes may differ on another machine."""
    if "data" not in output:
        return {key: value for key, value in output.items() if key in ("name", "text", "ename", "evalue")}
    return {mime: "picture" if mime.startswith("image/") else data for mime, data in output.data.items()}


def compare_saved(stored: NotebookNode, saved: NotebookNode) -> None:
    require([cell.id for cell in stored.cells], [cell.id for cell in saved.cells], "saving must keep the cells")
    for before, after in zip(stored.cells, saved.cells, strict=True):
        expected, actual = ([c.get("execution_count"), *map(as_text, outputs(c))] for c in (before, after))
        require(expected, actual, f"cell {before.id}: count and outputs must equal the stored ones")


async def compare_shown(cells: Locator, notebook: NotebookNode) -> None:
    """The page must show all that the notebook's cells print, every picture, and below it its description."""
    shown = await cells.evaluate_all(SHOWN)
    require(len(notebook.cells), len(shown), "the page must have all cells")
    for cell, actual in zip(notebook.cells, shown, strict=True):
        data = [output.get("data", {"text/plain": output.get("text")}) for output in outputs(cell)]
        captions = [bundle["text/markdown"].strip("*") for bundle in data if "text/markdown" in bundle]
        printed = "".join(bundle["text/plain"] for bundle in data if set(bundle) == {"text/plain"})
        pictures = [{"caption": caption, "loaded": True, "below": True} for caption in captions]
        expected = {"errors": 0, "text": printed, "pictures": pictures}
        require(expected, actual, f"cell {cell.id}: the page must show what the notebook holds")
        require(len(captions), sum("image/png" in bundle for bundle in data), f"cell {cell.id}: captions and pictures")


async def open_notebook(page: Page, url: str, path: Path) -> Locator:
    """Open a notebook in a workspace of its own; return its cells once all are there and the kernel is ready."""
    name = path.relative_to(COPIES).as_posix()
    await page.goto(f"{url}lab/workspaces/{name.replace('/', '-').removesuffix('.ipynb')}/tree/{name}")
    await page.locator(STATUS).get_by_text("(ipykernel) | Idle").wait_for()
    count = len(nbformat.read(path, as_version=4).cells)
    await page.wait_for_function("n => document.querySelectorAll('.jp-Notebook .jp-Cell').length === n", arg=count)
    return page.locator(".jp-Notebook .jp-Cell")


async def choose(page: Page, menu: str, *items: str) -> None:
    await page.get_by_role("menubar").get_by_text(menu, exact=True).click()
    for item in items:
        await page.locator(".lm-Menu-itemLabel").get_by_text(item, exact=True).click()


async def run_all(page: Page) -> None:
    await choose(page, "Kernel", "Restart Kernel and Run All Cells…")
    await page.locator(".jp-Dialog").get_by_role("button", name="Confirm Kernel Restart").click()
    await page.wait_for_function(WAITING)
    await page.wait_for_function(f"!{WAITING}", timeout=180_000)
    await page.locator(STATUS).get_by_text("(ipykernel) | Idle").wait_for()


async def save(page: Page, path: Path) -> NotebookNode:
    async with page.expect_response(lambda r: r.request.method == "PUT" and "/api/contents/" in r.url) as response:
        await page.keyboard.press("Control+s")
    require(True, (await response.value).ok, "saving must succeed")
    return nbformat.read(path, as_version=4)


async def follow_other_sentence(cells: Locator, notebook: NotebookNode, path: Path) -> bool:
    """Where the parameters cell names a sentence, type another one: the next run must print other things.

    Its tokens too, where the stored outputs print those of the first sentence.
    """
    tagged = [i for i, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", [])]
    if not tagged or f'"{SENTENCE}"' not in notebook.cells[tagged[0]].source:
        require(False, path.parent == COPIES, f"a lesson must have a parameters cell with the sentence {SENTENCE!r}")
        return False
    await cells.nth(tagged[0]).get_by_text(f'"{SENTENCE}"').dblclick()
    await cells.page.keyboard.type(OTHER_SENTENCE)
    await run_all(cells.page)
    saved = await save(cells.page, path)
    require(True, f'"{OTHER_SENTENCE}"' in saved.cells[tagged[0]].source, "the parameters cell must be editable")
    await compare_shown(cells, saved)
    before, after = (printed(some) for some in (notebook, saved))
    require(True, after != before, "another sentence must give other outputs")
    tokens, other_tokens = (load_sentence(name)[0] for name in (SENTENCE, OTHER_SENTENCE))
    named = ", ".join(tokens) in before
    require(named, ", ".join(other_tokens) in after, f"the outputs must show the tokens {other_tokens}")
    return True


def printed(notebook: NotebookNode) -> str:
    return "".join(str(as_text(output)) for cell in notebook.cells for output in outputs(cell)).replace("'", "")


async def photograph(cells: Locator, notebook: NotebookNode, shot: str) -> None:
    """Take the page where the widest row of numbers is printed, and where the middle one of the pictures is."""
    shown = [outputs(cell) for cell in notebook.cells]
    texts = ["".join(output.get("text", "") for output in cell) for cell in shown]
    widths = [max(map(len, re.findall(r"\[[^][]*\]", text)), default=0) for text in texts]
    pictures = [i for i, cell in enumerate(shown) if any("image/png" in output.get("data", {}) for output in cell)]
    places = {"wide": widths.index(max(widths))} | ({"picture": pictures[len(pictures) // 2]} if pictures else {})
    for place, index in places.items():
        await cells.nth(index).evaluate(CENTRE)
        await cells.page.screenshot(path=f"{shot}-{place}.png")


async def check(page: Page, url: str, source: Path, shot: str) -> str:
    """Do all that is checked of one notebook; return what to remark about it."""
    path, stored = COPIES / source.relative_to(NOTEBOOKS), nbformat.read(source, as_version=4)
    cells = await open_notebook(page, url, path)
    await page.screenshot(path=f"{shot}-top.png")
    await compare_shown(cells, stored)
    await run_all(page)
    compare_saved(stored, await save(page, path))
    await compare_shown(cells, stored)
    await photograph(cells, stored, shot)
    too_wide = ", ".join(stored.cells[i].id for i in await cells.evaluate_all(TOO_WIDE))
    followed = await follow_other_sentence(cells, stored, path)
    if source == find_lessons()[-1]:
        await choose(page, "Settings", "Theme", "JupyterLab Dark")
        await page.locator("body[data-jp-theme-name='JupyterLab Dark']").wait_for(state="attached")
        await photograph(cells, stored, f"{shot}-dark")
    await choose(page, "Kernel", "Shut Down Kernel")
    await page.locator(STATUS).get_by_text("No Kernel").wait_for()
    return f"ok{f', follows {OTHER_SENTENCE!r}' * followed}{f', wider than the page: {too_wide}' * bool(too_wide)}"


@asynccontextmanager
async def jupyterlab() -> AsyncIterator[str]:
    """The address of a JupyterLab for the copies, with settings of its own; it and its kernels are gone at the end."""
    settings = OWN / "lab" / "user-settings"
    (settings / "@jupyterlab" / "apputils-extension").mkdir(parents=True)
    (settings / "@jupyterlab" / "apputils-extension" / "notification.jupyterlab-settings").write_text(QUIET)
    folders = {f"JUPYTER_{kind}_DIR": OWN for kind in ("CONFIG", "DATA", "RUNTIME")} | {"IPYTHONDIR": OWN / "ipython"}
    folders |= {"JUPYTERLAB_SETTINGS_DIR": settings, "JUPYTERLAB_WORKSPACES_DIR": OWN / "lab" / "workspaces"}
    environment = os.environ | {name: str(folder) for name, folder in folders.items()}
    environment["OMP_NUM_THREADS"] = "1"  # two kernels at a time, whose threads would wait for each other
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=0"]
    command += ["--IdentityProvider.token=", f"--ServerApp.root_dir={COPIES}"]
    with (BUILD / "jupyterlab.log").open("wb") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        while not (running := list(list_running_servers(str(OWN)))):
            require(None, server.poll(), f"JupyterLab must start; its log is {BUILD.relative_to(ROOT)}/jupyterlab.log")
            await asyncio.sleep(0.1)
        yield running[0]["url"]
    finally:
        with suppress(psutil.NoSuchProcess):
            for process in [*psutil.Process(server.pid).children(recursive=True), server]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        server.wait()


async def check_all(sources: list[Path], chromium: str) -> int:
    """Check the notebooks, with a line for each that is done; return how many failed."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asyncio.current_task().cancel)
    turn = asyncio.Semaphore(2)

    async def one(source: Path) -> bool:
        async with turn, await browser.new_page(viewport={"width": 1280, "height": 800}) as page:
            start, problem = time.monotonic(), ""
            shot = str(BUILD / "-".join(source.relative_to(NOTEBOOKS).with_suffix("").parts))
            page.set_default_timeout(60_000)
            try:
                remark = await check(page, url, source, shot)
            except (BrowserTestError, BrowserError) as error:
                remark, problem = "FAILED", f"\n{error}"
                with suppress(BrowserError):
                    await page.screenshot(path=f"{shot}-failed.png")
            seconds = time.monotonic() - start
            print(f"{source.relative_to(ROOT)!s:<46} {seconds:6.1f} s  {remark}{problem}", flush=True)
            return bool(problem)

    async with jupyterlab() as url, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_FLAGS)
        return sum(await asyncio.gather(*map(one, sources)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("notebooks", nargs="*", type=Path, metavar="NOTEBOOK", help="default: lessons and exercises")
    parser.add_argument("--if-available", action="store_true", help="without a browser, say so and succeed")
    options = parser.parse_args()
    chromium = next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)
    if chromium is None:
        print(f"{'skipped' if options.if_available else 'error'}: there is none of {', '.join(CHROMIUM_NAMES)}")
        return 0 if options.if_available else 2
    everything = find_lessons() + sorted(NOTEBOOKS.glob("exercises/*.ipynb"))
    sources = [path.resolve() for path in options.notebooks] or everything
    if not set(sources) <= set(everything):
        parser.error(f"notebooks must be lessons or exercises, got {', '.join(map(str, options.notebooks))}")
    shutil.rmtree(BUILD, ignore_errors=True)
    shutil.copytree(NOTEBOOKS, COPIES)
    start = time.monotonic()
    try:
        failed = asyncio.run(check_all(sources, chromium))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("stopped", file=sys.stderr)
        return 130
    except BrowserTestError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    seconds = time.monotonic() - start
    print(f"{len(sources)} notebooks in {seconds:.0f} s: {failed} failed; see {BUILD.relative_to(ROOT)}/")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
