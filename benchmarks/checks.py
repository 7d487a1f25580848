"""How long make test takes, against what starting its kernels and importing torch in them takes: make bench-checks.

    python benchmarks/checks.py

Both at the same parallelism, one worker for each core. Nothing is checked here; make test does that.
"""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted(path for path in (ROOT / "notebooks").rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts)
WORKERS = os.cpu_count() or 1


def start_and_import(_: Path) -> None:
    cell = nbformat.v4.new_code_cell("import torch")
    NotebookClient(nbformat.v4.new_notebook(cells=[cell]), kernel_name="python3").execute()


def seconds_of_starting() -> float:
    os.environ["OMP_NUM_THREADS"] = "1"  # as in the test run
    started = time.perf_counter()
    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(start_and_import, NOTEBOOKS))
    return time.perf_counter() - started


def seconds_of_pytest(*arguments: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "pytest", "--quiet", *arguments], cwd=ROOT, check=True, capture_output=True)
    return time.perf_counter() - started


def main() -> None:
    starting = seconds_of_starting()
    print(f"starting {len(NOTEBOOKS)} kernels and importing torch, {WORKERS} at a time: {starting:.0f} s")
    for name, arguments in (("the notebooks alone", ["notebooks"]), ("make test", [])):
        taken = seconds_of_pytest(*arguments)
        print(f"{name}: {taken:.0f} s, {taken / starting:.2f} times as long")


if __name__ == "__main__":
    main()
