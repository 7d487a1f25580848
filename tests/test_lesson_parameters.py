"""The lessons hold for other parameters than the stored ones: no error, and no assertion of a lesson fails."""

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from in_process import execute

pytestmark = pytest.mark.slow
LESSONS = sorted((Path(__file__).resolve().parent.parent / "notebooks").glob("[0-9][0-9]_*.ipynb"))
COMBINATIONS: list[dict[str, Any]] = [
    {"sentence": "attention", "seed": 1, "d_out": 1, "num_heads": 1, "block_size": 1, "dropout_p": 0.0},
    {"sentence": "positions", "seed": 2**32 - 1, "d_out": 12, "num_heads": 3, "block_size": 3, "dropout_p": 0.1},
    {"sentence": "journey", "seed": 0, "d_out": 8, "num_heads": 8, "block_size": 64, "dropout_p": 0.9},
    {"sentence": "attention", "seed": 5, "d_out": 20, "num_heads": 5, "block_size": 4, "dropout_p": 0.75},
]


@pytest.mark.parametrize("parameters", COMBINATIONS, ids=lambda parameters: "-".join(map(str, parameters.values())))
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_lesson_holds_for_other_parameters(lesson: Path, parameters: dict[str, Any]) -> None:
    assert execute(lesson, parameters)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"sentence": "no such sentence"}, "known: attention, journey, positions"),
        ({"sentence": 7}, "must be a str"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"seed": "text"}, "seed must be an int"),
        ({"d_out": 0}, "d_out must be at least 1"),
        ({"d_out": 1.5}, "d_out must be an int"),
        ({"d_out": 6, "num_heads": 4}, "d_out must be divisible by num_heads: d_out=6, num_heads=4"),
        ({"dropout_p": 1.0}, "dropout_p is the share dropped and must be in [0, 1), got 1.0"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_wrong_parameter_is_named_in_the_first_cells(wrong: dict[str, Any], says: str) -> None:
    checked = 0
    for lesson in LESSONS:
        source = next(cell.source for cell in nbformat.read(lesson, as_version=4).cells if cell.cell_type == "code")
        if not all(f"{name}:" in source for name in wrong):
            continue
        with pytest.raises(RuntimeError, match=r"^cell imports raised .*" + re.escape(says)):
            execute(lesson, wrong)
        checked += 1
    assert checked > 0
