"""The README and the map in lesson 00 say what is there."""

import re
from pathlib import Path

import nbformat
import pytest
import readme_picture

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text("utf-8")
LESSONS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
START = "\n".join(cell.source for cell in nbformat.read(LESSONS[0], as_version=4).cells)


def opening(lesson: Path) -> str:
    return nbformat.read(lesson, as_version=4).cells[0].source


def row_of(lesson: Path, text: str) -> list[str]:
    """The cells of the table row that links to the lesson."""
    (row,) = [line for line in text.splitlines() if line.startswith("|") and f"{lesson.name})" in line]
    return [cell.strip() for cell in row.strip("|").split("|")]


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_both_maps_give_title_and_minutes_of_the_lesson(lesson: Path) -> None:
    (minutes,) = re.findall(r"\*\*Time:\*\* about (\d+) minutes", opening(lesson))
    for text in (README, START):
        if lesson == LESSONS[0] and text == START:
            continue
        cells = row_of(lesson, text)
        assert cells[2] == minutes
        assert cells[0].startswith(f"[{lesson.name[:2]} ")


@pytest.mark.parametrize("lesson", LESSONS[1:], ids=lambda path: path.stem)
def test_lesson_names_its_exercises_and_their_minutes(lesson: Path) -> None:
    close = nbformat.read(lesson, as_version=4).cells[-1].source
    (name, minutes) = re.findall(r"\*\*Exercises:\*\* `(exercises/\w+\.ipynb)`, about (\d+) minutes", close)[0]
    exercises = nbformat.read(lesson.parent / name, as_version=4).cells
    (in_all,) = re.findall(r"In all it takes about (\d+) minutes", exercises[0].source)
    assert minutes == in_all


def test_picture_is_the_lessons() -> None:
    assert readme_picture.PICTURE.read_bytes() == readme_picture.stored_picture(), "run tools/readme_picture.py"


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_make_target_that_is_named_exists() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert [name for name in re.findall(r"`make ([a-z-]+)", README) if f"\n{name}:" not in makefile] == []


def test_every_folder_at_the_top_has_a_line() -> None:
    kept = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")}
    folders = kept - {"build", "attention_core.egg-info", "__pycache__"}
    assert [name for name in sorted(folders) if f"| `{name}/` |" not in README] == []
