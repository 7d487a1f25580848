"""What `make run` does where the disk is full, the folder read-only, a kernel dies or a parameter is wrong."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
import run_notebooks
from in_process import as_before
from nbformat.v4 import new_code_cell, new_notebook
from run_notebooks import ROOT, find_lessons

pytestmark = pytest.mark.slow

MOUNTS = sys.platform == "linux" and os.geteuid() == 0
WRONG_VALUES: dict[str, list[Any]] = {
    "int": [-1, 0.5, "text", True, None, 2**64],
    "float": [-0.1, 1.0, "half", None, float("nan")],
    "str": ["a sentence that is not there", "../journey", 7, None],
}


def write(path: Path, *sources: str) -> Path:
    cells = [new_code_cell(source, id=f"cell-{number}") for number, source in enumerate(sources)]
    path.write_bytes(run_notebooks.to_bytes(run_notebooks.normalise(new_notebook(cells=cells))))
    return path


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- where nothing can be stored ---------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, of 64 KB, in memory."""
    if not MOUNTS:
        pytest.skip("only root on Linux can mount a small disk")
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no disk can be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_full_disk_is_reported_and_nothing_is_lost(small_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [write(small_disk / "small.ipynb", "print(1)"), write(small_disk / "large.ipynb", "print('x' * 100_000)")]
    before = files(small_disk)
    assert run_notebooks.main([str(path) for path in paths]) == 2
    assert "error: cannot store the notebooks: [Errno 28] No space left on device" in capsys.readouterr().err
    assert files(small_disk) == before


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """On a disk of its own for root, who may write into every folder; else by the folder's mode."""

    def change(how: str) -> None:
        if os.path.ismount(folder):
            subprocess.run(["mount", "-o", f"remount,{how}", folder], check=True)
        else:
            folder.chmod({"ro": 0o555, "rw": 0o755}[how])

    change("ro")
    try:
        yield
    finally:
        change("rw")


def test_a_read_only_folder_is_reported_and_nothing_is_lost(
    request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if os.name != "posix":
        pytest.skip("a folder's mode does not keep its owner from writing")
    folder = request.getfixturevalue("small_disk") if MOUNTS else tmp_path
    path = write(folder / "small.ipynb", "print(1)")
    before = files(folder)
    with read_only(folder):
        assert run_notebooks.main([str(path)]) == 2
    error = capsys.readouterr().err
    assert "error: cannot store the notebooks: " in error
    assert "Read-only file system" in error or "Permission denied" in error
    assert files(folder) == before


# --- kernels that die --------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix", reason="POSIX signals and limits")
def test_a_kernel_that_dies_is_reported_with_notebook_and_cell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The system kills a process that is out of memory with SIGKILL."""
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_AS, (2**32, 2**32))"
    paths = [
        write(tmp_path / "exited.ipynb", "n = 1", "import os\nos._exit(0)"),
        write(tmp_path / "killed.ipynb", "n = 1", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"),
        write(tmp_path / "memory.ipynb", limit, "much = bytearray(2**33)"),
    ]
    before = files(tmp_path)
    assert run_notebooks.main([str(path) for path in paths]) == 1
    error = capsys.readouterr().err
    assert files(tmp_path) == before
    for path in paths[:2]:
        assert f"{path.name}, cell 2, id cell-1: import os" in error
    assert error.count("The kernel died in this cell") == 2
    assert f"{paths[2].name}, cell 2, id cell-1: much = bytearray(2**33)" in error
    assert "MemoryError" in error
    assert "3 of 3 notebooks failed; no file was changed" in error


# --- wrong parameters of the lessons -----------------------------------------------------------------------------


@pytest.mark.parametrize("lesson", find_lessons(), ids=lambda path: path.stem)
def test_every_wrong_parameter_is_named_in_the_first_cells(lesson: Path) -> None:
    cells = [cell.source for cell in nbformat.read(lesson, as_version=4).cells if cell.cell_type == "code"]
    for name, kind in run_notebooks.known_parameters(lesson).items():
        for value in WRONG_VALUES[kind]:
            with as_before(lesson.parent):
                said = first_error(cells[:2], {name: value})
            clear = name in said or (kind == "str" and ("sentence" in said))
            assert said.startswith(("ValueError", "TypeError")), f"{name}={value!r}: {said or 'no error'}"
            assert clear, f"{name}={value!r}: {said}"


def first_error(cells: list[str], parameters: dict[str, Any]) -> str:
    """The error of the first cells, with these parameters set after the first."""
    names: dict[str, Any] = {"__name__": "lesson"}
    try:
        for cell in cells:
            exec(cell, names)
            names |= parameters
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_papermill_stops_at_a_wrong_parameter(tmp_path: Path) -> None:
    lesson = next(path for path in find_lessons() if path.name.startswith("01"))
    command = [sys.executable, "-m", "papermill", str(lesson), str(tmp_path / "out.ipynb"), "--no-progress-bar"]
    done = subprocess.run(
        [*command, "-p", "sentence", "moon", "--cwd", str(lesson.parent)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "ValueError: unknown sentence 'moon'; known: " in done.stderr
    executed = nbformat.read(tmp_path / "out.ipynb", as_version=4).cells
    assert [cell.execution_count for cell in executed if cell.get("execution_count")][-1] <= 3


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        (["-p", "sentense", "journey"], "error: a parameter must be one that a selected notebook has: got 'sentense'"),
        (["-p", "d_out", "two"], "error: a parameter must have its notebook's type: d_out expects int, got 'two'"),
        (["-p", "seed", "1.5"], "error: a parameter must have its notebook's type: seed expects int, got '1.5'"),
    ],
)
def test_make_run_refuses_a_wrong_parameter_before_it_starts(
    parameters: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_notebooks.main([*parameters, "--out", str(tmp_path / "out")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
