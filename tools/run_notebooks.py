"""Execute notebooks with papermill and store their outputs.

Without arguments every lesson, exercise and solution is executed and its stored outputs are regenerated in place.
Nothing is written before all of them have succeeded, and only files whose bytes changed are replaced. With --out
the executed copies go to another folder; other parameters (-p) need that. Each notebook has a kernel process of
its own, started with the interpreter that runs this tool and working in the notebook's folder.
"""

import argparse
import ast
import logging
import os
import re
import shutil
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import nbformat
import papermill
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpecManager
from nbclient.exceptions import DeadKernelError
from nbformat import NotebookNode
from papermill.exceptions import PapermillExecutionError
from tqdm import tqdm
from traitlets import default

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
NOTEBOOK_METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
CHECKED_TYPES = {"int": (int,), "float": (float, int), "bool": (bool,), "str": (str,)}
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
ANSI_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class RunError(Exception):
    """The run cannot start or its results cannot be stored; the message is for the person at the terminal."""


class Stopped(BaseException):
    """The run was interrupted by a signal."""

    def __init__(self, signum: int) -> None:
        self.signum = signum


@dataclass
class Job:
    source: Path
    target: Path
    before: bytes
    notebook: NotebookNode
    parameters: dict[str, Any] = field(default_factory=dict)
    cell: tuple[int, NotebookNode] | None = None  # the cell that is being executed, and its place
    after: bytes | None = None
    problem: str | None = None
    seconds: float = 0.0

    @property
    def changed(self) -> bool:
        return not self.target.is_file() or self.target.read_bytes() != self.after


class Kernel(AsyncKernelManager):
    """A kernel of this interpreter, whatever other kernels are installed."""

    alive: ClassVar["weakref.WeakSet[Kernel]"] = weakref.WeakSet()

    @default("kernel_spec_manager")
    def _only_this_interpreter(self) -> KernelSpecManager:
        return KernelSpecManager(kernel_dirs=[])

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.alive.add(self)

    @classmethod
    def kill_all(cls) -> None:
        """Kill the processes of all kernels; the threads that wait for them notice it within a second."""
        for kernel in list(cls.alive):
            process = getattr(kernel.provisioner, "process", None)
            if process is not None:
                process.kill()


# --- choosing notebooks and parameters ---------------------------------------------------------------------------


def find_lessons(folder: Path = NOTEBOOKS) -> list[Path]:
    return sorted(folder.glob("[0-9][0-9]_*.ipynb"))


def find_notebooks(folder: Path = NOTEBOOKS) -> list[Path]:
    exercises, solutions = sorted(folder.glob("exercises/*.ipynb")), sorted(folder.glob("solutions/*.ipynb"))
    return find_lessons(folder) + exercises + solutions


def parse_value(text: str) -> Any:
    """The value that `papermill -p NAME TEXT` would pass: True, False, None, an int, a float, else the text."""
    if text in ("True", "False", "None"):
        return ast.literal_eval(text)
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def known_parameters(path: Path) -> dict[str, str]:
    """The parameters of a notebook, with the type that its hint or its default names."""
    escaped = str(path).replace("{", "{{").replace("}", "}}")  # papermill formats paths
    return {name: _type_of(known) for name, known in papermill.inspect_notebook(escaped).items()}


def _type_of(known: dict[str, str]) -> str:
    if known["inferred_type_name"] != "None":
        return known["inferred_type_name"]
    try:
        return type(ast.literal_eval(known["default"])).__name__
    except (ValueError, SyntaxError):
        return "unknown"


def choose_parameters(given: dict[str, str], known: dict[Path, dict[str, str]]) -> dict[Path, dict[str, Any]]:
    """Of the given parameters, those that each notebook has, as values of the notebook's types."""
    everywhere = sorted({name for types in known.values() for name in types})
    for name in given:
        if name not in everywhere:
            listed = ", ".join(everywhere) or "none"
            raise RunError(f"a parameter must be one that a selected notebook has: got {name!r}, known: {listed}")
    return {
        path: {name: typed_value(name, text, types[name]) for name, text in given.items() if name in types}
        for path, types in known.items()
    }


def typed_value(name: str, text: str, type_name: str) -> Any:
    value = text if type_name == "str" else parse_value(text)
    expected = CHECKED_TYPES.get(type_name)
    fits = expected is None or (isinstance(value, expected) and (type_name == "bool" or not isinstance(value, bool)))
    if not fits:
        raise RunError(
            f"a parameter must have its notebook's type: {name} expects {type_name}, "
            f"got {text!r}, which is {type(value).__name__}"
        )
    return value


def make_jobs(sources: Iterable[Path], out: Path | None) -> list[Job]:
    jobs = [_make_job(source.resolve(), out) for source in dict.fromkeys(sources)]
    if out is None:
        return jobs
    if out.resolve().is_relative_to(NOTEBOOKS):
        raise RunError(f"--out must name a folder outside {_shown(NOTEBOOKS)}, got {_shown(out.resolve())}")
    targets = [job.target for job in jobs]
    for job in jobs:
        if targets.count(job.target) > 1 or job.target in [other.source for other in jobs]:
            raise RunError(f"--out must give every copy a file of its own, got {_shown(job.target)} for two notebooks")
    return jobs


def _make_job(source: Path, out: Path | None) -> Job:
    if source.suffix != ".ipynb" or not source.is_file():
        raise RunError(f"a notebook must be an .ipynb file that exists, got {_shown(source)}")
    below = source.relative_to(NOTEBOOKS) if source.is_relative_to(NOTEBOOKS) else Path(source.name)
    before = source.read_bytes()
    try:
        notebook = nbformat.reads(before.decode(), as_version=4)
        nbformat.validate(notebook)
    except (ValueError, nbformat.ValidationError) as error:
        raise RunError(f"{_shown(source)} is not a valid notebook: {_first_line(error)}") from None
    return Job(source, source if out is None else out.resolve() / below, before, notebook)


# --- executing ---------------------------------------------------------------------------------------------------


def execute(job: Job, stopping: threading.Event, bar: tqdm) -> None:
    """Execute one notebook and set its `after` or its `problem`. Runs in a thread, beside other notebooks."""

    def before_cell(cell: NotebookNode, cell_index: int) -> None:
        if stopping.is_set():
            raise DeadKernelError("stopped")
        job.cell = (cell_index, cell)

    def after_cell(**_: Any) -> None:
        with tqdm.get_lock():
            bar.update()

    start = time.monotonic()
    try:
        executed = papermill.execute_notebook(
            job.notebook,
            None,
            parameters=job.parameters,
            kernel_name="python3",
            language="python",
            progress_bar=False,
            # papermill's own cwd would change the directory of all threads
            resources={"metadata": {"path": str(job.source.parent)}},
            kernel_manager_class=Kernel,
            extra_arguments=["--IPKernelApp.log_level=ERROR"],  # else each kernel warns of its local TCP ports
            shutdown_kernel="immediate",
            record_timing=False,
            store_widget_state=False,
            coalesce_streams=True,
            on_cell_start=before_cell,
            on_cell_executed=after_cell,
        )
        job.after, job.problem = to_bytes(normalise(executed)), _unexecuted(executed)
    except PapermillExecutionError as error:
        job.problem = _reached(job) + "\n" + "\n".join(error.traceback)
    except DeadKernelError:
        job.problem = _reached(job) + "\nThe kernel died in this cell: it ran out of memory, or the cell ended it."
    except Exception as error:  # whatever befalls one notebook is that notebook's problem, not the run's
        job.problem = _reached(job) + f"\n{type(error).__name__}: {error}"
    job.seconds = time.monotonic() - start


def _unexecuted(notebook: NotebookNode) -> str | None:
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type == "code" and cell.source.strip() and cell.execution_count is None:
            return _place(index, cell) + "\nThis cell was not executed: the one before it ended the notebook."
    return None


def _reached(job: Job) -> str:
    return _place(*job.cell) if job.cell else "before its first cell"


def _place(index: int, cell: NotebookNode) -> str:
    return f"cell {index + 1}, id {cell.get('id')}: {_first_line(cell.source)}"


def normalise(notebook: NotebookNode) -> NotebookNode:
    """Drop what differs from run to run or from machine to machine; change the notebook in place and return it."""
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    notebook.metadata = nbformat.from_dict(NOTEBOOK_METADATA)
    for cell in notebook.cells:
        for key in ("papermill", "execution"):
            cell.metadata.pop(key, None)
        if not cell.metadata.get("tags"):
            cell.metadata.pop("tags", None)
        if "injected-parameters" in cell.metadata.get("tags", []):
            cell.id = "injected-parameters"
        if cell.cell_type == "code":
            cell.outputs = coalesce(cell.outputs)
    return notebook


def coalesce(outputs: Iterable[NotebookNode]) -> list[NotebookNode]:
    """Join what a cell wrote to one stream; the kernel splits it differently from run to run."""
    streams: dict[str, NotebookNode] = {}
    joined = []
    for output in outputs:
        first = streams.get(output.get("name", ""))
        if output.output_type != "stream" or first is None:
            joined.append(output)
            if output.output_type == "stream":
                streams[output.name] = output
        else:
            first.text += output.text
    return joined


def to_bytes(notebook: NotebookNode) -> bytes:
    nbformat.validate(notebook)
    return (nbformat.writes(notebook, indent=1) + "\n").encode()


# --- the run -----------------------------------------------------------------------------------------------------


def run(jobs: list[Job], workers: int) -> None:
    """Execute all jobs, with a line for each that is done and a bar over all code cells on a terminal."""
    cells = sum(_code_cells(job) for job in jobs)
    stopping = threading.Event()
    with tqdm(total=cells, unit="cell", leave=False, disable=None) as bar, ThreadPoolExecutor(workers) as pool:
        pending = {pool.submit(execute, job, stopping, bar): job for job in jobs}
        try:
            for job in _in_order_of_completion(pending):
                bar.write(_line(job))
                sys.stdout.flush()
        except BaseException:
            stopping.set()
            pool.shutdown(wait=False, cancel_futures=True)
            Kernel.kill_all()
            raise


def _code_cells(job: Job) -> int:
    written = sum(cell.cell_type == "code" and bool(cell.source.strip()) for cell in job.notebook.cells)
    return written + bool(job.parameters)


def _in_order_of_completion(pending: dict[Future[None], Job]) -> Iterator[Job]:
    todo = set(pending)
    while todo:
        # the timeout lets Windows notice Ctrl+C
        done, todo = wait(todo, timeout=0.5, return_when=FIRST_COMPLETED)
        for future in done:
            future.result()
            yield pending[future]


@contextmanager
def stoppable() -> Iterator[None]:
    """Turn the first SIGINT or SIGTERM into `Stopped` and ignore the next ones, so that it can clean up."""

    def stop(signum: int, frame: FrameType | None) -> None:
        ignore_signals()
        raise Stopped(signum)

    previous = {signum: signal.signal(signum, stop) for signum in STOP_SIGNALS}
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)


def ignore_signals() -> None:
    for signum in STOP_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)


def _line(job: Job) -> str:
    state = "FAILED" if job.problem else "changed" if job.changed else "unchanged"
    return f"{_shown(job.source):<50} {job.seconds:6.1f} s  {state}"


def store(jobs: list[Job]) -> int:
    """Write every changed notebook beside its target, then put all of them in place. Returns how many changed."""
    changed = [job for job in jobs if job.changed]
    temporary = {job.target: job.target.with_name(f".{job.target.name}.{os.getpid()}.tmp") for job in changed}
    try:
        for job in jobs:
            if job.target == job.source and job.source.read_bytes() != job.before:
                raise RunError(f"{_shown(job.source)} was edited during the run; no file was changed, run again")
            for left_over in job.target.parent.glob(f".{job.target.name}.*.tmp"):
                left_over.unlink()
        for job in changed:
            job.target.parent.mkdir(parents=True, exist_ok=True)
            _write(temporary[job.target], job)
        ignore_signals()  # from here on the run is done
        for target, written in temporary.items():
            os.replace(written, target)
    except OSError as error:
        raise RunError(f"cannot store the notebooks: {error}") from None
    finally:
        for written in temporary.values():
            with suppress(OSError):  # in a read-only folder even this fails; what failed first is reported
                written.unlink(missing_ok=True)
    return len(changed)


def _write(path: Path, job: Job) -> None:
    with path.open("wb") as file:
        file.write(job.after or b"")
        file.flush()
        os.fsync(file.fileno())
    if job.target.exists():
        shutil.copymode(job.target, path)


def _shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)


def _first_line(text: object) -> str:
    return next((line for line in str(text).splitlines() if line.strip()), "")


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    start = time.monotonic()
    logging.getLogger("papermill").setLevel(logging.CRITICAL)
    # each kernel gets its share of the cores: threads of several kernels that wait for each other cost minutes
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // options.jobs)))
    try:
        with stoppable():
            jobs = prepare(options)
            run(jobs, options.jobs)
            failed = [job for job in jobs if job.problem]
            if failed:
                report(failed)
                print(f"{len(failed)} of {len(jobs)} notebooks failed; no file was changed", file=sys.stderr)
                return 1
            updated = store(jobs)
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Stopped as stopped:
        print(f"stopped by {signal.Signals(stopped.signum).name}; no file was changed", file=sys.stderr)
        return 128 + stopped.signum
    seconds = time.monotonic() - start
    print(f"{len(jobs)} notebooks in {seconds:.1f} s: {len(jobs) - updated} unchanged, {updated} updated")
    return 0


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "notebooks", nargs="*", type=Path, metavar="NOTEBOOK", help="default: all; with -p: all lessons"
    )
    parser.add_argument("-p", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"), dest="parameters")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write executed copies there")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="notebooks at a time")
    options = parser.parse_args(arguments)
    if options.parameters and options.out is None:
        parser.error("-p needs --out FOLDER: the committed notebooks hold the outputs of the default parameters")
    if options.jobs < 1:
        parser.error(f"--jobs must be at least 1, got {options.jobs}")
    return options


def prepare(options: argparse.Namespace) -> list[Job]:
    sources = options.notebooks or (find_lessons() if options.parameters else find_notebooks())
    if not sources:
        raise RunError(f"there must be a notebook to execute, found none in {_shown(NOTEBOOKS)}")
    jobs = make_jobs(sources, options.out)
    if options.parameters:
        known = {job.source: known_parameters(job.source) for job in jobs}
        chosen = choose_parameters(dict(options.parameters), known)
        for job in jobs:
            job.parameters = chosen[job.source]
    return jobs


def report(failed: list[Job]) -> None:
    for job in failed:
        text = f"\n{_shown(job.source)}, {job.problem}\n"
        print(text if sys.stderr.isatty() else ANSI_COLOUR.sub("", text), file=sys.stderr)


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")
    sys.exit(main())
