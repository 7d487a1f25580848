"""Run the checks of a folder of submitted notebooks, and write one CSV and a picture of the most frequent mistakes.

The folder holds one folder a student, with the student's exercise notebooks under their own names in it. Each notebook
runs in a process of its own, with a time limit. Results are kept after each notebook; a rerun does only what is new
or has changed.
"""

import argparse
import contextlib
import csv
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure
from tqdm import tqdm

from attention_core.exercises import EXERCISES

ROOT = Path(__file__).resolve().parent.parent
GRADE_ONE = ROOT / "tools" / "grade_one.py"
STATES = ("right", "wrong", "open")
LARGEST_NOTEBOOK = 20_000_000  # bytes
LARGEST_RESULT = 100_000  # bytes
LONGEST_MISTAKE = 120  # characters
MEMORY = 8 * 2**30  # bytes of address space for each notebook

# Everything read-only but a scratch folder; other processes and the network out of sight.
SANDBOX = """
cut -d ' ' -f 5 /proc/self/mountinfo | while read -r point; do
    mount -o remount,bind,ro "$(printf '%b' "$point")" 2>/dev/null
done
mount -t tmpfs -o size=64m scratch "$SCRATCH" || exit 1
mount -t proc proc /proc 2>/dev/null
cd "$SCRATCH" && exec "$@"
"""
NAMESPACES = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "--net", "--ipc"]
PROBE = """
import os, pathlib, socket, sys
for folder in sys.argv[2:]:
    try:
        (pathlib.Path(folder) / ".probe").write_text("")
        sys.exit(f"can write to {folder}")
    except OSError:
        pass
try:
    os.kill(int(sys.argv[1]), 0)
    sys.exit("can reach the grader's process")
except OSError:
    pass
pathlib.Path("probe").write_text("")
"""


@dataclass(frozen=True)
class Submission:
    student: str
    path: Path
    content: bytes

    @property
    def lesson(self) -> str:
        return self.path.name[:2]

    def key(self, checker: str) -> str:
        """What the result depends on: who, which notebook, its bytes, and the checker."""
        return f"{self.student}/{self.path.name}/{hashlib.sha256(self.content).hexdigest()}/{checker}"


def find_submissions(folder: Path) -> list[Submission]:
    lessons = {exercise.lesson for exercise in EXERCISES.values()}
    found = []
    for path in sorted(folder.glob("*/*.ipynb")):
        if path.name[:2] in lessons and path.is_file() and path.resolve().is_relative_to(folder.resolve()):
            with path.open("rb") as file:
                found.append(Submission(path.parent.name, path, file.read(LARGEST_NOTEBOOK + 1)))
    return found


def checker_digest() -> str:
    """Changes when the package or the grader changes, so that results of an older checker are not reused."""
    files = sorted([*ROOT.glob("attention_core/**/*.py"), GRADE_ONE])
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]


# --- one notebook ------------------------------------------------------------------------------------------------


def grade(submission: Submission, seconds: float, isolated: bool) -> dict[str, list[str]]:
    """The state and the mistake of each exercise of the submission's lesson."""
    names = [name for name, exercise in EXERCISES.items() if exercise.lesson == submission.lesson]
    if len(submission.content) > LARGEST_NOTEBOOK:
        return {name: ["broken", "the file is too large"] for name in names}
    output, problem = run_limited([sys.executable, "-I", str(GRADE_ONE)], submission.content, seconds, isolated)
    said = {} if problem else read_results(output)
    if said is None:
        problem = "the notebook ended its process"
    if problem:
        return {name: ["broken", problem] for name in names}
    return {name: (said or {}).get(name, ["open", ""]) for name in names}


def run_limited(command: list[str], given: bytes, seconds: float, isolated: bool) -> tuple[bytes, str]:
    """What the command wrote, and what went wrong with it."""
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as sink:
        source.write(given)
        source.seek(0)
        process = subprocess.Popen(
            confined(command) if isolated else command,
            stdin=source,
            stdout=sink,
            stderr=subprocess.DEVNULL,
            cwd=scratch,
            env=environment(scratch),
            start_new_session=True,
        )
        try:
            process.wait(seconds)
            problem = ""
        except subprocess.TimeoutExpired:
            problem = f"stopped after {seconds:g} s"
        finally:
            end(process)
        sink.seek(0)
        return sink.read(LARGEST_RESULT + 1), problem


def confined(command: list[str]) -> list[str]:
    limits = ["prlimit", f"--as={MEMORY}", f"--fsize={2**26}", "--core=0", "--"]
    return [*NAMESPACES, "sh", "-c", SANDBOX, "sandbox", *limits, *command]


def environment(scratch: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT", "LANG") if name in os.environ}
    folders = dict.fromkeys(("HOME", "TMPDIR", "IPYTHONDIR", "MPLCONFIGDIR", "SCRATCH"), scratch)
    return {**kept, **folders, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def end(process: subprocess.Popen[bytes]) -> None:
    """End the process and all that it started."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def read_results(output: bytes) -> dict[str, list[str]] | None:
    """The results, if they have the form that grade_one.py gives them; a notebook may have written anything."""
    try:
        said = json.loads(output)
        return {
            name: [state, clean(mistake)]
            for name, (state, mistake) in said.items()
            if name in EXERCISES and state in STATES and isinstance(mistake, str)
        }
    except (ValueError, AttributeError, TypeError, RecursionError):
        return None


def clean(text: str) -> str:
    """One short printable line that no spreadsheet takes for a formula."""
    return "".join(character for character in text if character.isprintable())[:LONGEST_MISTAKE].lstrip("=+-@ ")


def isolation_problem(folders: list[Path]) -> str:
    """Why notebooks cannot be confined on this machine; empty where they can."""
    for tool in ("unshare", "prlimit", "mount"):
        if shutil.which(tool) is None:
            return f"{tool} is not there"
    with tempfile.TemporaryDirectory() as scratch:
        probe = [sys.executable, "-I", "-c", PROBE, str(os.getpid()), *map(str, folders)]
        result = subprocess.run(
            confined(probe), cwd=scratch, env=environment(scratch), capture_output=True, text=True, timeout=60
        )
    return "" if result.returncode == 0 else (result.stderr.strip().splitlines() or ["it could not be set up"])[-1]


# --- all notebooks -----------------------------------------------------------------------------------------------


def grade_all(submissions: list[Submission], out: Path, seconds: float, jobs: int, isolated: bool) -> dict[str, dict]:
    """The results by submission key: those kept from an earlier run, and the new ones, each kept as it comes."""
    checker = checker_digest()
    store = out / "results.jsonl"
    known = read_store(store)
    todo = [submission for submission in submissions if submission.key(checker) not in known]
    print(f"{len(submissions)} notebooks, {len(submissions) - len(todo)} of them graded before")
    with ThreadPoolExecutor(jobs) as pool, store.open("a", encoding="utf-8") as kept:
        pending = {pool.submit(grade, submission, seconds, isolated): submission for submission in todo}
        try:
            for future in tqdm(as_completed(pending), total=len(pending), unit="notebook", disable=None):
                key = pending[future].key(checker)
                known[key] = future.result()
                kept.write(json.dumps([key, known[key]]) + "\n")
                kept.flush()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return {submission.key(checker): known[submission.key(checker)] for submission in submissions}


def read_store(path: Path) -> dict[str, dict[str, list[str]]]:
    """What was kept; a last line that an interrupt cut off is left out."""
    known = {}
    for line in path.read_text("utf-8").splitlines() if path.exists() else []:
        try:
            key, results = json.loads(line)
            known[key] = results
        except ValueError:
            continue
    return known


def write_csv(submissions: list[Submission], results: dict[str, dict], path: Path) -> list[tuple[str, ...]]:
    checker = checker_digest()
    rows = [
        (clean(submission.student), name, state, mistake)
        for submission in submissions
        for name, (state, mistake) in results[submission.key(checker)].items()
    ]
    unfinished = path.with_suffix(".tmp")
    with unfinished.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("student", "exercise", "result", "mistake"))
        writer.writerows(rows)
    os.replace(unfinished, path)
    return rows


def draw_mistakes(rows: list[tuple[str, ...]], path: Path, most: int = 15) -> None:
    counts = Counter(f"{name}: {mistake}" for _, name, state, mistake in rows if state == "wrong").most_common(most)
    names, numbers = [name for name, _ in counts][::-1], [number for _, number in counts][::-1]
    figure = Figure(figsize=(9, 1.2 + 0.35 * max(1, len(counts))), layout="constrained")
    axes = figure.add_subplot()
    axes.barh(names, numbers, color="#0072B2")
    axes.bar_label(axes.containers[0])
    axes.set(title="The most frequent mistakes", xlabel="students")
    figure.savefig(path, dpi=100)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="one folder a student, with exercise notebooks in it")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "grades", help="default: build/grades")
    parser.add_argument("--seconds", type=float, default=60.0, help="time limit of a notebook; default 60")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="notebooks at a time")
    options = parser.parse_args(arguments)
    submissions = find_submissions(options.folder)
    if not submissions:
        print(f"no notebooks of the form STUDENT/NN_name.ipynb in {options.folder}", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    problem = isolation_problem([ROOT, options.folder.resolve(), options.out.resolve()])
    print(f"isolation: {f'a process for each notebook, no more ({problem})' if problem else 'full'}")
    results = grade_all(submissions, options.out, options.seconds, options.jobs, isolated=not problem)
    rows = write_csv(submissions, results, options.out / "grades.csv")
    draw_mistakes(rows, options.out / "mistakes.png")
    states = Counter(state for _, _, state, _ in rows)
    print(", ".join(f"{number} {state}" for state, number in states.most_common()))
    print(f"written: grades.csv and mistakes.png in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
