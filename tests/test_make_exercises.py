"""Student notebooks and solutions come from one source and cannot drift apart."""

import re
from pathlib import Path

import nbformat
import pytest
from make_exercises import NOTEBOOKS, SourceError, main, same_cells, solution_lines, student_copy, without_solution
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from attention_core.exercises import EXERCISES

SOLUTIONS = sorted((NOTEBOOKS / "solutions").glob("*.ipynb"))
CELL = '''def double(x):
    """Double x."""
    # SOLUTION
    secret = 2 * x
    return secret
    # END SOLUTION


check("00.double", double)'''
STUB = '''def double(x):
    """Double x."""
    raise NotImplementedError


check("00.double", double)'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    notebook = new_notebook(cells=[new_markdown_cell("text", id="text"), new_code_cell(CELL, id="double")])
    notebook.cells.append(new_markdown_cell("for the teacher", id="teacher", metadata={"tags": ["solution"]}))
    (tmp_path / "solutions").mkdir()
    nbformat.write(notebook, tmp_path / "solutions" / "00_double.ipynb")
    return tmp_path


def test_the_marked_part_becomes_not_implemented() -> None:
    assert without_solution(CELL, "double") == STUB


@pytest.mark.parametrize("source", ["# SOLUTION\nx", "# END SOLUTION", "# SOLUTION\n# SOLUTION\n# END SOLUTION"])
def test_wrong_marks_are_an_error(source: str) -> None:
    with pytest.raises(SourceError, match="cell some-id: expected"):
        without_solution(source, "some-id")


def test_an_interrupted_source_names_its_notebook(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nbformat.write(new_notebook(), folder / "solutions" / "01_empty.ipynb")
    assert main(["--notebooks", str(folder)]) == 1
    assert "01_empty.ipynb, expected at least one part" in capsys.readouterr().err


def test_making_twice_changes_nothing_and_keeps_outputs(folder: Path) -> None:
    target = folder / "exercises" / "00_double.ipynb"
    assert main(["--notebooks", str(folder)]) == 0
    made = nbformat.read(target, as_version=4)
    assert [cell.id for cell in made.cells] == ["text", "double"]
    made.cells[1].execution_count = 1
    nbformat.write(made, target)
    before = target.read_bytes()
    assert main(["--notebooks", str(folder)]) == 0
    assert target.read_bytes() == before


def test_a_changed_source_is_made_anew(folder: Path) -> None:
    target, source = folder / "exercises" / "00_double.ipynb", folder / "solutions" / "00_double.ipynb"
    main(["--notebooks", str(folder)])
    source.write_text(source.read_text().replace("Double x.", "Twice x."))
    main(["--notebooks", str(folder)])
    assert "Twice x." in target.read_text()
    assert not list(target.parent.glob(".*"))


@pytest.mark.parametrize("solution", SOLUTIONS, ids=lambda path: path.stem)
def test_the_committed_copy_is_what_the_tool_makes(solution: Path) -> None:
    solved = nbformat.read(solution, as_version=4)
    committed = nbformat.read(NOTEBOOKS / "exercises" / solution.name, as_version=4)
    assert same_cells(student_copy(solved), committed), "run tools/make_exercises.py"


@pytest.mark.parametrize("solution", SOLUTIONS, ids=lambda path: path.stem)
def test_no_solution_is_left_in_the_copy(solution: Path) -> None:
    solved = nbformat.read(solution, as_version=4)
    copy = (NOTEBOOKS / "exercises" / solution.name).read_text(encoding="utf-8")
    assert "SOLUTION" not in copy
    cells = [cell for cell in nbformat.reads(copy, as_version=4).cells if cell.cell_type == "code"]
    student = {line.strip() for cell in cells for line in cell.source.splitlines()}
    hidden = [line for cell in solved.cells for line in solution_lines(cell.source)]
    assert hidden
    assert not student & {line for line in hidden if re.search(r"return|=", line)}


@pytest.mark.parametrize("solution", SOLUTIONS, ids=lambda path: path.stem)
def test_each_exercise_of_the_lesson_is_in_its_notebook_once(solution: Path) -> None:
    code = "\n".join(cell.source for cell in nbformat.read(solution, as_version=4).cells if cell.cell_type == "code")
    checked = re.findall(r'^check\("([^"]+)", (\w+)\)$', code, flags=re.MULTILINE)
    ids = [name for name, exercise in EXERCISES.items() if exercise.lesson == solution.stem[:2]]
    assert [name for name, _ in checked] == ids
    assert all(name.partition(".")[2] == function for name, function in checked)
    assert code.rstrip().endswith("check()")


@pytest.mark.parametrize("solution", SOLUTIONS, ids=lambda path: path.stem)
def test_stored_outputs_are_open_for_the_student_and_done_when_solved(solution: Path) -> None:
    ids = [name for name, exercise in EXERCISES.items() if exercise.lesson == solution.stem[:2]]
    for path, said in ((solution, "Right: {}."), (NOTEBOOKS / "exercises" / solution.name, "{}: not done yet.")):
        cells = nbformat.read(path, as_version=4).cells
        printed = "".join(o.get("text", "") for c in cells if c.cell_type == "code" for o in c.outputs)
        assert [name for name in ids if said.format(name) not in printed] == []
