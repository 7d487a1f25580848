"""The grader on a small class: a right and a wrong notebook, and several that mean harm or are broken."""

import csv
import json
from pathlib import Path

import grade
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

pytestmark = pytest.mark.slow

IMPORTS = "import os, pathlib, sys, torch\nfrom attention_core.exercises import check"
RIGHT = 'check("03.softmax", lambda scores: torch.softmax(scores, dim=-1))'
WRONG = 'check("03.softmax", lambda scores: torch.softmax(scores, dim=0))'


def hand_in(folder: Path, student: str, *cells: str) -> Path:
    path = folder / student / "03_softmax.ipynb"
    path.parent.mkdir(parents=True)
    nbformat.write(new_notebook(cells=[new_code_cell(cell) for cell in (IMPORTS, *cells)]), path)
    return path


def results(out: Path) -> dict[tuple[str, str], tuple[str, str]]:
    with (out / "grades.csv").open(encoding="utf-8", newline="") as file:
        return {(row["student"], row["exercise"]): (row["result"], row["mistake"]) for row in csv.DictReader(file)}


@pytest.fixture
def class_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "class"
    ada = hand_in(
        folder, "ada", RIGHT, "1 / 0", 'check("03.context_vectors", lambda weights, values: weights @ values)'
    )
    hand_in(folder, "bob", WRONG)
    victims = [str(tmp_path / "out" / "grades.csv"), str(ada), str(grade.GRADE_ONE)]
    harm = f"for victim in {victims}:\n    try: open(victim, 'a').write('harm')\n    except OSError: pass"
    hand_in(folder, "eve", harm, RIGHT)
    hand_in(folder, "endless", RIGHT, "while True: pass")
    hand_in(folder, "gone", RIGHT, "os._exit(0)")
    (folder / "garbage").mkdir()
    (folder / "garbage" / "03_softmax.ipynb").write_bytes(b"\xff no notebook")
    return folder


def test_each_notebook_costs_its_own_row_only(class_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    before = grade.GRADE_ONE.read_bytes(), (class_folder / "ada" / "03_softmax.ipynb").read_bytes()
    assert grade.main([str(class_folder), "--out", str(out), "--seconds", "20", "--jobs", "2"]) == 0
    found = results(out)
    assert found["ada", "03.softmax"] == ("right", "")
    assert found["ada", "03.context_vectors"] == ("right", "")
    assert found["ada", "03.self_attention"] == ("open", "")
    assert found["bob", "03.softmax"][0] == "wrong"
    assert "dim=0" in found["bob", "03.softmax"][1]
    assert found["endless", "03.softmax"] == ("broken", "stopped after 20 s")
    assert found["gone", "03.softmax"] == ("broken", "the notebook ended its process")
    assert found["garbage", "03.softmax"] == ("broken", "the notebook ended its process")
    assert (out / "mistakes.png").stat().st_size > 0
    if grade.isolation_problem([out]):
        pytest.skip("this machine cannot confine notebooks, so a hostile one is not tried")
    assert found["eve", "03.softmax"] == ("right", "")
    assert before == (grade.GRADE_ONE.read_bytes(), (class_folder / "ada" / "03_softmax.ipynb").read_bytes())


def test_rerun_does_only_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graded = []

    def fake_grade(submission: grade.Submission, seconds: float, isolated: bool) -> dict[str, list[str]]:
        graded.append(submission.student)
        return {"03.softmax": ["right", ""]}

    monkeypatch.setattr(grade, "grade", fake_grade)
    folder, out = tmp_path / "class", tmp_path / "out"
    ada = hand_in(folder, "ada", RIGHT)
    hand_in(folder, "bob", WRONG)
    for _ in range(2):
        assert grade.main([str(folder), "--out", str(out)]) == 0
    assert sorted(graded) == ["ada", "bob"]
    (out / "results.jsonl").open("a").write('["cut off by an inter')
    nbformat.write(new_notebook(cells=[new_code_cell(RIGHT)]), ada)
    hand_in(folder, "carla", RIGHT)
    assert grade.main([str(folder), "--out", str(out)]) == 0
    assert sorted(graded[2:]) == ["ada", "carla"]
    assert {student for student, _ in results(out)} == {"ada", "bob", "carla"}


@pytest.mark.parametrize(
    "output",
    [b"", b"\xff", b"[]", b"3", b'{"03.softmax": 1}', b"[" * 5000, b'{"03.softmax": ["right"]}'],
)
def test_whatever_a_notebook_writes_is_no_result(output: bytes) -> None:
    assert not grade.read_results(output)


def test_forged_names_states_and_formulas_are_left_out() -> None:
    said = {"03.softmax": ["wrong", '=HYPERLINK("x")\n'], "no.such": ["right", ""], "03.self_attention": ["best", ""]}
    assert grade.read_results(json.dumps(said).encode()) == {"03.softmax": ["wrong", 'HYPERLINK("x")']}


def test_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    secret = hand_in(tmp_path / "elsewhere", "x", RIGHT)
    student = tmp_path / "class" / "mallory"
    student.mkdir(parents=True)
    (student / "03_softmax.ipynb").symlink_to(secret)
    assert grade.find_submissions(tmp_path / "class") == []


def test_empty_folder_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert grade.main([str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "STUDENT/NN_name.ipynb" in capsys.readouterr().err
