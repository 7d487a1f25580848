"""The tool that regenerates the notebooks, on notebooks of a few lines."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
import run_notebooks
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

pytestmark = pytest.mark.slow

GOOD = [
    "word: str = 'is'  # a word\ntimes: int = 2\nshare: float = 0.5\nloud: bool = False",
    "print(word * times)",
    "loud",
]

Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Writes a notebook with the given code cells into the test's folder; the first is its parameters cell."""

    def write(name: str, *sources: str) -> Path:
        cells = [new_markdown_cell("# Title", id="title")]
        cells += [new_code_cell(source, id=f"cell-{number}") for number, source in enumerate(sources)]
        cells[1].metadata.tags = ["parameters"]
        path = tmp_path / name
        path.write_bytes(run_notebooks.to_bytes(run_notebooks.normalise(new_notebook(cells=cells))))
        return path

    return write


def outputs(path: Path) -> list[str]:
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    return ["".join(out.get("text") or out.data["text/plain"] for out in cell.outputs) for cell in cells]


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_outputs_are_stored_once_and_then_stay_the_same_bytes(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = make("first.ipynb", *GOOD), make("second.ipynb", "import os", "os.path.basename(os.getcwd())")
    assert run_notebooks.main([str(first), str(second)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert outputs(first) == ["", "isis\n", "False"]
    assert outputs(second) == ["", repr(tmp_path.name)]
    assert [line.split()[-1] for line in printed[:2]] == ["changed", "changed"]
    assert printed[2].endswith("0 unchanged, 2 updated")
    stored = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (first, second)}

    assert run_notebooks.main([str(first), str(second)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("2 unchanged, 0 updated")
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (first, second)} == stored


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("total = 1 + 1\ntotal / 0", "ZeroDivisionError: division by zero"),
        ("import os\nos._exit(1)", "The kernel died in this cell"),
        ("import sys\nsys.exit(0)", "This cell was not executed"),
    ],
    ids=["exception", "dead kernel", "ended early"],
)
def test_a_failing_cell_is_named_and_no_file_changes(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str, said: str
) -> None:
    paths = [make("bad.ipynb", "n = 1", source, "print('after')"), make("good.ipynb", *GOOD)]
    before = files(tmp_path)
    assert run_notebooks.main([str(path) for path in paths]) == 1
    assert files(tmp_path) == before
    error = capsys.readouterr().err
    place = "cell 4, id cell-2: print('after')" if "sys" in source else f"cell 3, id cell-1: {source.splitlines()[0]}"
    assert f"bad.ipynb, {place}" in error
    assert said in error
    assert "1 of 2 notebooks failed; no file was changed" in error
    assert "good.ipynb" not in error


@pytest.mark.skipif(os.name != "posix", reason="POSIX signals")
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda signum: signum.name)
def test_a_signal_leaves_every_file_as_it_was_and_no_kernel(make: Make, tmp_path: Path, signum: signal.Signals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(120)
        port = server.getsockname()[1]
        connect = f"import socket\nline = socket.create_connection(('127.0.0.1', {port}))\nline.sendall(b'!')"
        paths = [make("done.ipynb", *GOOD), make("waiting.ipynb", "n = 1", f"{connect}\nline.recv(1)")]
        before = files(tmp_path)
        command = [sys.executable, run_notebooks.__file__, "--jobs", "1", *map(str, paths)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            kernel, _ = server.accept()  # the kernel has reached the cell that waits
            assert kernel.recv(1) == b"!"
            process.send_signal(signum)
            try:
                _, error = process.communicate(timeout=60)
            finally:
                process.kill()
        kernel.settimeout(120)
        assert kernel.recv(1) == b""  # the kernel has ended
        kernel.close()
    assert files(tmp_path) == before
    if signum == signal.SIGKILL:
        assert process.returncode == -signum
    else:
        assert (process.returncode, error) == (128 + signum, f"stopped by {signum.name}; no file was changed\n")


def test_parameters_go_to_copies_and_the_originals_stay(make: Make, tmp_path: Path) -> None:
    path = make("words.ipynb", *GOOD)
    plain = make("plain.ipynb", "n: int = 1", "n")
    before = files(tmp_path)
    chosen = ["-p", "word", "12", "-p", "times", "3", "-p", "loud", "True"]
    assert run_notebooks.main([str(path), str(plain), *chosen, "--out", str(tmp_path / "new" / "out")]) == 0
    assert files(tmp_path) == before
    assert outputs(tmp_path / "new" / "out" / "words.ipynb") == ["", "", "121212\n", "True"]
    assert outputs(tmp_path / "new" / "out" / "plain.ipynb") == ["", "1"]
    copy = nbformat.read(tmp_path / "new" / "out" / "words.ipynb", as_version=4)
    assert [cell.id for cell in copy.cells][:3] == ["title", "cell-0", "injected-parameters"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-p", "times", "3"], "-p needs --out FOLDER"),
        (
            ["--out", str(run_notebooks.NOTEBOOKS / "copies")],
            "--out must name a folder outside notebooks, got notebooks/copies",
        ),
        (["--out", "{folder}"], "--out must give every copy a file of its own"),
        (["-p", "time", "3", "--out", "{folder}/out"], "got 'time', known: loud, share, times, word"),
        (["-p", "times", "three", "--out", "{folder}/out"], "times expects int, got 'three', which is str"),
        (["-p", "times", "True", "--out", "{folder}/out"], "times expects int, got 'True', which is bool"),
        (["-p", "share", "half", "--out", "{folder}/out"], "share expects float, got 'half', which is str"),
        (["-p", "loud", "1", "--out", "{folder}/out"], "loud expects bool, got '1', which is int"),
        (["{folder}/missing.ipynb"], "a notebook must be an .ipynb file that exists, got {folder}/missing.ipynb"),
        (["{folder}/broken.ipynb"], "{folder}/broken.ipynb is not a valid notebook"),
        (["--jobs", "0"], "--jobs must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_runs(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    path = make("words.ipynb", *GOOD)
    (tmp_path / "broken.ipynb").write_text('{"cells": [')
    before = files(tmp_path)
    try:
        code = run_notebooks.main([str(path), *(argument.format(folder=tmp_path) for argument in arguments)])
    except SystemExit as refused:
        code = refused.code
    assert code == 2
    assert said.format(folder=tmp_path) in capsys.readouterr().err
    assert files(tmp_path) == before


def test_a_float_parameter_takes_a_whole_number_and_text_stays_text() -> None:
    assert run_notebooks.typed_value("share", "1", "float") == 1
    assert run_notebooks.typed_value("word", "1", "str") == "1"
    assert run_notebooks.typed_value("other", "1", "unknown") == 1


@pytest.mark.parametrize(
    "text", ["True", "False", "None", "3", "-3", "1_000", "1e-3", "0.5", "inf", "true", "", "journey"]
)
def test_values_are_parsed_as_papermill_does(text: str) -> None:
    from papermill.cli import _resolve_type

    value, expected = run_notebooks.parse_value(text), _resolve_type(text)
    assert value == expected
    assert type(value) is type(expected)


def test_the_type_of_a_parameter_without_a_hint_is_that_of_its_default(make: Make) -> None:
    path = make("plain.ipynb", "n = 1\nword = 'is'\nshare: float = 1\nmade = len('is')")
    known = {"n": "int", "word": "str", "share": "float", "made": "unknown"}
    assert run_notebooks.known_parameters(path) == known


def test_all_lessons_exercises_and_solutions_are_found(tmp_path: Path) -> None:
    names = ["00_start.ipynb", "01_b.ipynb", "exercises/01_b.ipynb", "solutions/01_b.ipynb"]
    for name in [*names, "notes.ipynb", ".ipynb_checkpoints/01_b-checkpoint.ipynb", "exercises/notes.txt"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [path.relative_to(tmp_path).as_posix() for path in run_notebooks.find_notebooks(tmp_path)] == names


def test_normalising_drops_what_differs_between_runs_and_machines() -> None:
    cell = new_code_cell("print(1)", id="print-one", execution_count=1)
    cell.metadata = nbformat.from_dict(
        {"papermill": {"duration": 0.1}, "execution": {"iopub.status.busy": "now"}, "tags": [], "reason": "kept"}
    )
    picture = {"data": {"image/png": "AAAA"}, "metadata": {"image/png": {"alt": "kept"}}}
    cell.outputs = [
        new_output("stream", name="stdout", text="a"),
        new_output("stream", name="stderr", text="b"),
        new_output("display_data", **picture),
        new_output("stream", name="stdout", text="c"),
    ]
    injected = new_code_cell("n = 2", id="3f2a9c1d", metadata={"tags": ["injected-parameters"]})
    notebook = new_notebook(cells=[cell, injected])
    notebook.metadata = nbformat.from_dict(
        {
            "papermill": {"duration": 0.1},
            "widgets": {"state": {}},
            "kernelspec": {"name": "other", "display_name": "Other"},
            "language_info": {"name": "python", "version": "3.11.7"},
        }
    )
    run_notebooks.normalise(notebook)
    assert notebook.metadata == run_notebooks.NOTEBOOK_METADATA
    assert cell.metadata == {"reason": "kept"}
    assert cell.id == "print-one"
    assert injected.id == "injected-parameters"
    assert [(output.get("name"), output.get("text")) for output in cell.outputs] == [
        ("stdout", "ac"),
        ("stderr", "b"),
        (None, None),
    ]
    assert cell.outputs[2].metadata == {"image/png": {"alt": "kept"}}
    assert run_notebooks.to_bytes(notebook).endswith(b'"nbformat_minor": 5\n}\n')


def executed_job(path: Path, after: bytes) -> run_notebooks.Job:
    return run_notebooks.Job(path, path, path.read_bytes(), new_notebook(), after=after)


def test_storing_keeps_a_file_that_was_edited_during_the_run(make: Make, tmp_path: Path) -> None:
    paths = [make("first.ipynb", *GOOD), make("second.ipynb", *GOOD)]
    jobs = [executed_job(path, b"new") for path in paths]
    paths[1].write_text("edited")
    before = files(tmp_path)
    with pytest.raises(run_notebooks.RunError, match=r"second\.ipynb was edited during the run"):
        run_notebooks.store(jobs)
    assert files(tmp_path) == before


def test_storing_leaves_nothing_behind_when_it_fails(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [make("first.ipynb", *GOOD), make("second.ipynb", *GOOD)]
    jobs = [executed_job(path, b"new") for path in paths]
    before = files(tmp_path)
    full = OSError(28, "No space left on device")

    def fail_at_the_second(descriptor: int, calls: list[int] = []) -> None:  # noqa: B006
        calls.append(descriptor)
        if len(calls) == 2:
            raise full

    monkeypatch.setattr(os, "fsync", fail_at_the_second)
    with pytest.raises(run_notebooks.RunError, match="No space left on device"):
        run_notebooks.store(jobs)
    assert files(tmp_path) == before


def test_storing_clears_what_a_killed_run_left_and_keeps_the_mode(make: Make, tmp_path: Path) -> None:
    path = make("first.ipynb", *GOOD)
    path.chmod(0o644)
    (tmp_path / ".first.ipynb.123.tmp").write_text("half")
    with run_notebooks.stoppable():
        assert run_notebooks.store([executed_job(path, b"new")]) == 1
    assert files(tmp_path) == {"first.ipynb": b"new"}
    assert path.stat().st_mode & 0o777 == 0o644
