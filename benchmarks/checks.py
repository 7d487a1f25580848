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
import psutil
from nbclient import NotebookClient

os.environ["OMP_NUM_THREADS"] = "1"  # as in the test run

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted(path for path in (ROOT / "notebooks").rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts)
WORKERS = psutil.cpu_count(logical=False) or os.cpu_count() or 1  # as many as pytest starts


def start_and_import(_: Path) -> None:
    cell = nbformat.v4.new_code_cell("import torch")
    notebook = nbformat.v4.new_notebook(cells=[cell])
    client = NotebookClient(notebook, kernel_name="python3", shutdown_kernel="immediate")  # as nbval does
    client.execute(stderr=subprocess.DEVNULL)


def seconds_of_starting() -> float:
    started = time.perf_counter()
    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(start_and_import, NOTEBOOKS))
    return time.perf_counter() - started


def seconds_of(*command: str) -> float:
    started = time.perf_counter()
    done = subprocess.run([sys.executable, *command], cwd=ROOT, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return time.perf_counter() - started


def main() -> None:
    starting = seconds_of_starting()
    print(f"starting {len(NOTEBOOKS)} kernels and importing torch, {WORKERS} at a time: {starting:.0f} s", flush=True)
    for name, command in (
        ("the notebooks alone", ("-m", "pytest", "notebooks")),
        ("the same, each kernel from nothing", ("-m", "pytest", "notebooks", "--fresh-kernels")),
        ("make test, every test", ("tools/run_tests.py", "--all")),
        ("make test again, nothing changed", ("tools/run_tests.py",)),
    ):
        taken = seconds_of(*command)
        print(f"{name}: {taken:.0f} s, {taken / starting:.2f} times as long", flush=True)


if __name__ == "__main__":
    main()
