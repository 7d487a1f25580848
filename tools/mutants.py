"""Mutation testing with mutmut: does a test notice each small change of the package? make mutants

Two passes, each in a copy of the project below build/mutants/. In the first every mutant of attention_core meets the
unit tests that call the mutated function; in the second, the lessons alone, whose outputs must stay as stored. A mutant
of the first pass that no test notices must be listed in tests/mutants.toml with the reason. The second pass is a count
and a list: what a lesson cannot notice, such as the words of an error, is for the unit tests.

    python tools/mutants.py [unit|lessons] [PATTERN ...]

A pattern, as in `attention_core.masks.*`, limits a pass to the mutants whose names fit.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path

from mutmut.configuration import reset_config
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.stats import status_by_exit_code

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build" / "mutants"
LISTED = ROOT / "tests" / "mutants.toml"
COPIED = ("attention_core", "data", "notebooks", "tests", "tools", "conftest.py", "README.md")
UNIT_TESTS = ("functional", "masks", "dropout", "modules", "tiled", "properties", "published", "data", "plots")
SELECTED = {
    "unit": [f"tests/test_{name}.py" for name in UNIT_TESTS],
    "lessons": ["tests/lessons_in_process.py"],
}
# What mutmut's own wrappers around each function make fail, whatever the mutant
LEFT_OUT = "not compiled and not signature and not docstring"
SETTINGS = """\
[tool.mutmut]
source_paths = ["attention_core"]
do_not_mutate = ["attention_core/exercises/*"]
also_copy = ["data", "notebooks", "tools", "conftest.py", "README.md"]
pytest_add_cli_args = ["-k", "{left_out}"]
pytest_add_cli_args_test_selection = {selected}
[tool.pytest.ini_options]
pythonpath = ["tools"]
"""


@dataclass(frozen=True)
class Mutant:
    function: str  # attention_core.masks.causal_mask
    removed: str
    added: str
    status: str


def prepare(name: str) -> Path:
    """A copy of the project's tracked files, with mutmut's settings for this pass."""
    folder = BUILD / name
    shutil.rmtree(folder, ignore_errors=True)
    tracked = subprocess.run(["git", "ls-files", *COPIED], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for path in tracked.splitlines():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, folder / path)
    settings = SETTINGS.format(left_out=LEFT_OUT, selected=[path for path in SELECTED[name] if (ROOT / path).exists()])
    (folder / "pyproject.toml").write_text(settings, "utf-8")
    return folder


def run(folder: Path, patterns: list[str]) -> None:
    command = [sys.executable, "-m", "mutmut", "run", *patterns]
    subprocess.run(command, cwd=folder, check=True, env=os.environ | {"OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"})


def results(folder: Path) -> list[Mutant]:
    found = []
    with chdir(folder):
        reset_config()
        for meta in sorted(Path("mutants").rglob("*.meta")):
            data = SourceFileMutationData(path=meta.relative_to("mutants").with_suffix(""))
            data.load()
            for name, exit_code in data.exit_code_by_key.items():
                status = status_by_exit_code[exit_code]
                if status == "not checked":
                    continue
                function = name.rpartition("__mutmut_")[0].replace(".x_", ".").replace("xǁ", "").replace("ǁ", ".")
                removed, added = ("", "") if status == "killed" else changed_lines(name)
                found.append(Mutant(function, removed, added, status))
    return found


def changed_lines(name: str) -> tuple[str, str]:
    lines = get_diff_for_mutant(name).splitlines()
    sides = ([line[1:].strip() for line in lines if line[:1] == sign and line[:3] != 3 * sign] for sign in "-+")
    removed, added = ("\n".join(side) for side in sides)
    return removed, added


def reasons() -> dict[tuple[str, str, str], str]:
    """Why a mutant that no test notices changes nothing that a caller could see."""
    listed = tomllib.loads(LISTED.read_text("utf-8"))["mutant"] if LISTED.exists() else []
    return {(entry["function"], entry["removed"], entry["added"]): entry["why"] for entry in listed}


def report(name: str, mutants: list[Mutant]) -> int:
    """Print the counts and the mutants that were not noticed; return how many of them have no listed reason."""
    counts = Counter(mutant.status for mutant in mutants)
    print(f"{name}: {len(mutants)} mutants: " + ", ".join(f"{count} {status}" for status, count in counts.items()))
    unnoticed = [mutant for mutant in mutants if mutant.status not in ("killed", "timeout", "segfault")]
    if name == "lessons":
        for function, count in Counter(mutant.function for mutant in unnoticed).items():
            print(f"  {count:4} not noticed in {function}")
        return 0
    known = reasons()
    unexplained = [mutant for mutant in unnoticed if (mutant.function, mutant.removed, mutant.added) not in known]
    for mutant in unexplained:
        print(f"\n{mutant.function} ({mutant.status})\n- {mutant.removed}\n+ {mutant.added}")
    listed = len(unnoticed) - len(unexplained)
    print(f"{name}: {listed} not noticed for a listed reason, {len(unexplained)} without one")
    return len(unexplained)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("passes", nargs="?", choices=SELECTED, help="default: both")
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="limit to mutants whose names fit")
    options = parser.parse_args()
    unexplained = 0
    for name in [options.passes] if options.passes else list(SELECTED):
        folder = prepare(name)
        run(folder, options.patterns)
        unexplained += report(name, results(folder))
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
