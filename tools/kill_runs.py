"""Kill `make run` at random moments, and see that every notebook is then the old or the new one, whole.

It works on copies in a folder of its own. Each kill is followed by a look at every file; afterwards one run must
succeed, and its files must be those of a run that nobody disturbed.
"""

import argparse
import contextlib
import functools
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import nbformat
from run_notebooks import ROOT, find_lessons

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


def clear_outputs(path: Path) -> bytes:
    """Make the notebook one that a run changes."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    nbformat.write(notebook, path)
    return path.read_bytes()


def run(paths: list[Path]) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "tools" / "run_notebooks.py"), *map(str, paths)]
    # in the background a shell lets its programs ignore SIGINT
    listen = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, preexec_fn=listen
    )


def state(path: Path, old: bytes, new: bytes) -> str:
    there = path.read_bytes() if path.is_file() else b""
    return "old" if there == old else "new" if there == new else "broken"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--notebooks", type=int, default=3, help="how many lessons a run executes")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    generator = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        sources = find_lessons()[: options.notebooks]
        paths = [Path(folder) / source.name for source in sources]
        for source, path in zip(sources, paths, strict=True):
            shutil.copy(source, path)
        old = {path: clear_outputs(path) for path in paths}
        start = time.monotonic()
        with run(paths) as process:
            print(process.communicate()[0], end="")
        whole, new = time.monotonic() - start, {path: path.read_bytes() for path in paths}
        print(f"an undisturbed run takes {whole:.1f} s; {options.kills} kills follow")
        return kill_all(options.kills, generator, whole, old, new)


def wait_for(process: subprocess.Popen[str], seconds: float) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=seconds)


def wait_for_storing(process: subprocess.Popen[str], folder: Path) -> None:
    """Until the first new file is written beside the old ones."""
    while process.poll() is None and not any(folder.glob(f".*.{process.pid}.tmp")):
        time.sleep(0)


def kill_all(kills: int, generator: random.Random, whole: float, old: dict[Path, bytes], new: dict[Path, bytes]) -> int:
    paths, found = list(old), Counter[str]()
    for number in range(kills):
        for path in paths:
            path.write_bytes(old[path])
        sent = SIGNALS[number % len(SIGNALS)]
        while_storing = number // len(SIGNALS) % 3 == 2
        moment = generator.uniform(0, 0.9 * whole)
        with run(paths) as process:
            if while_storing:
                wait_for_storing(process, paths[0].parent)
                time.sleep(generator.uniform(0, 0.01))
            else:
                wait_for(process, moment)
            when = "storing" if while_storing else f"{moment:.1f} s"
            ended = process.poll() is not None
            process.send_signal(sent)
            after = "it had ended" if ended else f"exit code {process.wait(timeout=60)}"
            process.stdout.close()
        states = Counter(state(path, old[path], new[path]) for path in paths)
        found.update(states)
        print(f"{number + 1:3}  {sent.name:<8} at {when:>8}: {after:<15} {dict(states)}", flush=True)
    with run(paths) as process:
        process.communicate()
    last = all(state(path, old[path], new[path]) == "new" for path in paths)
    left = [path.name for path in paths[0].parent.iterdir() if path not in paths and path.name != "__pycache__"]
    print(f"{kills} kills: {dict(found)}; the next run {'succeeds' if last and process.returncode == 0 else 'FAILS'}")
    print(f"left over: {', '.join(left) or 'nothing'}")
    return 0 if not found["broken"] and last and process.returncode == 0 and not left else 1


if __name__ == "__main__":
    sys.exit(main())
