"""Execute every lesson and solution under several instruction sets and numbers of threads, and compare every digit.

One row a combination. With --torch VERSION it happens in an environment of its own, .venv-torch-VERSION, which is
made where it is not there. The exit code is 0 where every cell of every combination gave exactly what is stored.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
from run_notebooks import NOTEBOOKS, ROOT, find_notebooks

LOGS = ROOT / "build" / "portable"
ASKED = (
    "import torch; print(torch.__version__, torch.backends.cpu.get_cpu_capability(), torch.get_num_threads(), sep='|')"
)
# ATen's instruction set, and beside it those of the libraries that multiply its matrices; native leaves all alone
INSTRUCTION_SETS = {
    "default": {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
    },
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "native": {},
}
STEERED = {name for settings in INSTRUCTION_SETS.values() for name in settings}
DIFFERENCE = re.compile(r"^\s*E?\s*([+-] .*\d.*)$", re.MULTILINE)
ANSI_COLOUR = re.compile(r"#x1B\[[0-9;]*m|\x1b\[[0-9;]*m")


@dataclass
class Row:
    passed: int
    failed: int
    missing: int
    seconds: float
    moved: list[str]

    @property
    def same(self) -> bool:
        return self.passed > 0 and self.failed == self.missing == 0


def environment(instructions: str, threads: str) -> dict[str, str]:
    """The variables for one combination. A number of threads is always said, since the tests choose one otherwise."""
    count = "1" if threads == "one" else str(os.cpu_count() or 1)
    kept = {name: value for name, value in os.environ.items() if name not in STEERED}
    return kept | INSTRUCTION_SETS[instructions] | {"OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count}


def code_cells(paths: Iterable[Path]) -> int:
    notebooks = [nbformat.read(path, as_version=4) for path in paths]
    return sum(cell.cell_type == "code" for notebook in notebooks for cell in notebook.cells)


def compare(python: Path, paths: list[Path], instructions: str, threads: str) -> Row:
    """Run nbval over the notebooks; one at a time where each has all threads."""
    LOGS.mkdir(parents=True, exist_ok=True)
    report = LOGS / f"{python.parent.parent.name.lstrip('.')}-{instructions}-{threads}.xml"
    report.unlink(missing_ok=True)
    workers = "auto" if threads == "one" else "0"
    command = [str(python), "-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider", f"--numprocesses={workers}"]
    start = time.monotonic()
    done = subprocess.run(
        [*command, f"--junitxml={report}", *map(str, paths)],
        cwd=ROOT,
        env=environment(instructions, threads),
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - start
    report.with_suffix(".txt").write_text(done.stdout + done.stderr, encoding="utf-8")
    return read_report(report, code_cells(paths), seconds)


def read_report(report: Path, expected: int, seconds: float) -> Row:
    """What pytest's report says; cells that it does not tell about count as missing."""
    cases = list(ET.parse(report).iter("testcase")) if report.is_file() else []
    bad = [case for case in cases if any(case.find(kind) is not None for kind in ("failure", "error", "skipped"))]
    return Row(len(cases) - len(bad), len(bad), max(0, expected - len(cases)), seconds, list(moved(bad)))


def moved(cases: Iterable[ET.Element]) -> Iterator[str]:
    for case in cases:
        text = ANSI_COLOUR.sub("", "".join(child.text or "" for child in case))
        yield f"{case.get('classname')} {case.get('name')}"
        yield from (f"    {line}" for line in DIFFERENCE.findall(text))


def prepare(version: str) -> Path:
    """The interpreter of an environment with this version of torch and all else as pinned."""
    folder = ROOT / f".venv-torch-{version}"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    ready = folder / "installed"
    wanted = with_torch((ROOT / "requirements.txt").read_text("utf-8"), version)
    if ready.is_file() and ready.read_text("utf-8") == wanted:
        return python
    print(f"setting up {folder.name}; on Linux this downloads several GB", flush=True)
    if not python.is_file():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    requirements = ROOT / "build" / f"requirements-torch-{version}.txt"
    requirements.parent.mkdir(exist_ok=True)
    requirements.write_text(wanted, encoding="utf-8")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--requirement", str(requirements)], cwd=ROOT, check=True)
    ready.write_text(wanted, encoding="utf-8")
    return python


def with_torch(requirements: str, version: str) -> str:
    changed, count = re.subn(r"(?m)^torch==.*$", f"torch=={version}", requirements)
    if count != 1:
        raise ValueError(f"requirements.txt must pin torch in one line, found {count}")
    return changed


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--torch", metavar="VERSION", help="in an environment of its own, with this version of torch")
    parser.add_argument("--only", nargs=2, metavar=("INSTRUCTIONS", "THREADS"), help="one combination: avx2 all")
    options = parser.parse_args(arguments)
    combinations = [(name, threads) for name in INSTRUCTION_SETS for threads in ("one", "all")]
    if options.only:
        if tuple(options.only) not in combinations:
            parser.error(f"--only expects one of {combinations}, got {tuple(options.only)}")
        combinations = [tuple(options.only)]
    try:
        python = prepare(options.torch) if options.torch else Path(sys.executable)
    except (subprocess.CalledProcessError, ValueError, OSError) as error:
        print(f"error: the environment could not be made: {error}", file=sys.stderr)
        return 2
    paths = [path for path in find_notebooks() if path.parent != NOTEBOOKS / "exercises"]
    print(f"{len(paths)} notebooks, {code_cells(paths)} cells, compared exactly with what is stored\n")
    print(f"{'torch':<14}{'asked':<9}{'taken':<9}{'threads':>8}{'passed':>8}{'failed':>8}{'missing':>9}{'seconds':>9}")
    rows = [show(python, paths, *combination) for combination in combinations]
    same = sum(row.same for row in rows)
    print(f"\n{same} of {len(rows)} combinations give the stored digits; logs in {LOGS.relative_to(ROOT)}")
    return 0 if all(row.same for row in rows) else 1


def show(python: Path, paths: list[Path], instructions: str, threads: str) -> Row:
    asked = subprocess.run(
        [str(python), "-c", ASKED], env=environment(instructions, threads), capture_output=True, text=True, check=True
    )
    version, taken, used = asked.stdout.strip().split("|")
    row = compare(python, paths, instructions, threads)
    counts = f"{row.passed:>8}{row.failed:>8}{row.missing:>9}{row.seconds:>9.1f}"
    print(f"{version:<14}{instructions:<9}{taken.lower():<9}{used:>8}{counts}", flush=True)
    for line in row.moved:
        print(f"    {line}"[: shutil.get_terminal_size((160, 24)).columns], flush=True)
    return row


if __name__ == "__main__":
    sys.exit(main())
