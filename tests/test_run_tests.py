"""make test leaves out what is slow only where nothing changed since it passed."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from run_tests import PASSED_ON, files_of, main, state_of

import conftest

pytestmark = pytest.mark.slow

QUICK = "def test_quick():\n    assert True\n"
SLOW = "import pytest\n\n@pytest.mark.slow\ndef test_slow():\n    assert True\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\nmarkers = ["slow"]\naddopts = "-p no:nbval"\n')
    (tmp_path / "test_quick.py").write_text(QUICK)
    (tmp_path / "test_slow.py").write_text(SLOW)
    return tmp_path


def ran(project: Path, capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit status, and what pytest counted."""
    status = main(project, list(arguments))
    return status, re.findall(r"=+ (.*) in [\d.]+s", capfd.readouterr().out)[-1]


def test_slow_tests_are_left_out_until_a_file_changes(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert ran(project, capfd) == (0, "2 passed")
    assert ran(project, capfd) == (0, "1 passed, 1 deselected")
    assert ran(project, capfd, "--all") == (0, "2 passed")
    (project / "test_quick.py").write_text(QUICK + "\n")
    assert ran(project, capfd) == (0, "2 passed")


def test_what_failed_is_repeated(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (project / "test_slow.py").write_text(SLOW.replace("True", "False"))
    assert ran(project, capfd) == (1, "1 failed, 1 passed")
    assert ran(project, capfd) == (1, "1 failed, 1 passed")
    (project / "test_slow.py").write_text(SLOW)
    assert ran(project, capfd) == (0, "2 passed")


def test_a_file_that_changes_under_way_counts_as_changed(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (project / "test_quick.py").write_text("def test_quick():\n    open('test_quick.py', 'a').write('# more')\n")
    assert ran(project, capfd) == (0, "2 passed")
    assert not (project / PASSED_ON).exists()


def test_every_change_of_a_file_changes_the_state(project: Path) -> None:
    states = [state_of(project)]
    for change in (
        lambda: (project / "data").mkdir() or (project / "data" / "a.txt").write_text("1"),
        lambda: (project / "data" / "a.txt").write_text("2"),
        lambda: (project / "data" / "a.txt").rename(project / "data" / "b.txt"),
        lambda: (project / "data" / "b.txt").unlink(),
    ):
        change()
        states.append(state_of(project))
    assert len(set(states)) == 4
    assert states[-1] == states[0], "without the file it is as it was"


def test_every_setting_changes_the_state(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = state_of(project)
    for name in ("PYTEST_ADDOPTS", "OMP_NUM_THREADS", "ATEN_CPU_CAPABILITY", "HYPOTHESIS_PROFILE", "PYTHONPATH"):
        monkeypatch.setenv(name, "other")
        assert state_of(project) != before, name
        monkeypatch.delenv(name)


def test_what_programs_leave_behind_does_not_count(project: Path) -> None:
    before = list(files_of(project))
    for folder in ("build", ".venv", ".venv-torch-2.6.0", ".pytest_cache", "__pycache__", ".hypothesis", ".git"):
        (project / folder).mkdir()
        (project / folder / "file").write_text("1")
    assert list(files_of(project)) == before


def test_another_option_is_refused(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(project, ["--everything"]) == 2
    assert "knows --all, got --everything" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("text", "expression", "ignored"),
    [
        ("import pytest\n\npytestmark = pytest.mark.slow\n", "not slow", True),
        ("pytestmark = [\n    pytest.mark.slow,\n    pytest.mark.skip,\n]\n", "not slow", True),
        ("pytestmark = pytest.mark.slow\n", "", None),
        ("@pytest.mark.slow\ndef test(): ...\n", "not slow", None),
        ("text = 'pytestmark = pytest.mark.slow'\n", "not slow", None),
    ],
)
def test_files_that_are_slow_as_a_whole_are_not_imported(
    text: str, expression: str, ignored: bool | None, tmp_path: Path
) -> None:
    path = tmp_path / "tests" / "test_some.py"
    path.parent.mkdir()
    path.write_text(text)
    config = SimpleNamespace(option=SimpleNamespace(markexpr=expression))
    assert conftest.pytest_ignore_collect(path, config) is ignored
