"""Mutation testing with mutmut: does a test notice each small change of the package? make mutants

Two passes, each in a copy of the project below build/mutants/. In the first every mutant of attention_core meets the
unit tests that call the mutated function; in the second, the lessons alone, whose outputs must stay as stored. A mutant
of the first pass that no test notices must be listed in tests/mutants.toml with the reason. The second pass takes the
mutants that may change a number, not those of errors and checks, and ends with a list of what the lessons let pass.

    python tools/mutants.py [unit|lessons] [--only 'attention_core.masks.*'] [--again] [--minutes 10]

Mutants come in random order, so that a pass cut short by --minutes is a fair sample of all.
--again takes the mutants alone that the pass before let through: after new tests, a matter of minutes.
"""

import argparse
import fnmatch
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path

from mutmut.__main__ import copy_also_copy_files, copy_src_dir, create_mutants
from mutmut.configuration import reset_config
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build" / "mutants"
NUMBERS = ("functional", "masks", "dropout", "modules", "tiled")  # the modules that compute
NOTICED = ("killed", "timeout", "crashed")
LISTED = ROOT / "tests" / "mutants.toml"
COPIED = ("attention_core", "data", "notebooks", "tests", "tools", "conftest.py", "pyproject.toml", "README.md")
UNIT_TESTS = [
    "functional",
    "masks",
    "dropout",
    "modules",
    "tiled",
    "properties",
    "published",
    "plots",
    "package",
    "exercises",
]
SELECTED = {
    "unit": [f"tests/test_{name}.py" for name in UNIT_TESTS],
    "lessons": ["tests/lessons_in_process.py"],
}


@dataclass(frozen=True)
class Mutant:
    function: str  # attention_core.masks.causal_mask
    removed: str
    added: str
    status: str


def prepare(name: str) -> Path:
    """A copy of the project's tracked files, in which mutmut has generated its mutants."""
    folder = BUILD / name
    shutil.rmtree(folder, ignore_errors=True)
    tracked = subprocess.run(["git", "ls-files", *COPIED], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for path in tracked.splitlines():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, folder / path)
    with chdir(folder):
        reset_config()
        Path("mutants").mkdir()
        copy_src_dir()
        copy_also_copy_files()
        create_mutants(os.cpu_count() or 1)
    return folder


def let_through(folder: Path) -> set[tuple[str, str, str]]:
    """The mutants that no test noticed in the pass before."""
    statuses = json.loads((folder / "results.json").read_text("utf-8"))
    with chdir(folder):
        reset_config()
        unnoticed = [mutant for mutant, status in statuses.items() if status not in NOTICED]
        return {(function_of(mutant), *changed_lines(mutant)) for mutant in unnoticed}


def run(name: str, folder: Path, pattern: str, again: set[tuple[str, str, str]] | None, minutes: float) -> list[Mutant]:
    names, results = folder / "names.json", folder / "results.json"
    with chdir(folder):
        mutants = {mutant: changed_lines(mutant) for mutant in generated() if fnmatch.fnmatch(mutant, pattern)}
        if again is not None:
            mutants = {mutant: lines for mutant, lines in mutants.items() if (function_of(mutant), *lines) in again}
        if name == "lessons":
            mutants = {mutant: lines for mutant, lines in mutants.items() if about_numbers(mutant, *lines)}
    shuffled = list(mutants)
    random.Random(0).shuffle(shuffled)
    names.write_text(json.dumps(shuffled), "utf-8")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    command = [sys.executable, "tools/fork_per_mutant.py", str(names), str(results), str(minutes), *SELECTED[name]]
    subprocess.run(command, cwd=folder / "mutants", check=True, env=environment)
    statuses = json.loads(results.read_text("utf-8"))
    return [Mutant(function_of(mutant), *mutants[mutant], status) for mutant, status in statuses.items()]


def generated() -> Iterator[str]:
    """The names of all mutants, as mutmut wrote them down."""
    for meta in sorted(Path("mutants").rglob("*.meta")):
        data = SourceFileMutationData(path=meta.relative_to("mutants").with_suffix(""))
        data.load()
        yield from data.exit_code_by_key


def about_numbers(mutant: str, removed: str, added: str) -> bool:
    """Not one that changes what is refused or how that is said: a lesson passes nothing that is refused."""
    of_numbers = mutant.split(".")[1] in NUMBERS
    return of_numbers and not re.search(r"\braise\b|\bcheck_|^f?\"|Error\(", removed, re.MULTILINE)


def function_of(mutant: str) -> str:
    return mutant.rpartition("__mutmut_")[0].replace(".x_", ".").replace("xǁ", "").replace("ǁ", ".")


def changed_lines(mutant: str) -> tuple[str, str]:
    """The lines that the mutation took out and put in."""
    lines = get_diff_for_mutant(mutant).splitlines()
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
    print(
        f"{name}: {len(mutants)} mutants tried: " + ", ".join(f"{count} {status}" for status, count in counts.items())
    )
    unnoticed = [mutant for mutant in mutants if mutant.status not in NOTICED]
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
    parser.add_argument("--only", default="*", metavar="PATTERN", help="limit to mutants whose names fit")
    parser.add_argument("--again", action="store_true", help="only those that the pass before let through")
    parser.add_argument("--minutes", type=float, default=10**6, help="start no mutant of a pass after so many minutes")
    options = parser.parse_args()
    unexplained = 0
    for name in [options.passes] if options.passes else list(SELECTED):
        again = let_through(BUILD / name) if options.again else None
        unexplained += report(name, run(name, prepare(name), options.only, again, options.minutes))
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
