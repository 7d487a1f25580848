"""The lessons hold for other parameters than the stored ones: no error, and no assertion of a lesson fails."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.figure
import nbformat
import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell

LESSONS = sorted((Path(__file__).resolve().parent.parent / "notebooks").glob("[0-9][0-9]_*.ipynb"))
COMBINATIONS: list[dict[str, Any]] = [
    {"sentence": "attention", "seed": 1, "d_out": 1, "num_heads": 1, "block_size": 1, "dropout_p": 0.0},
    {"sentence": "positions", "seed": 2**32 - 1, "d_out": 12, "num_heads": 3, "block_size": 3, "dropout_p": 0.1},
    {"sentence": "journey", "seed": 0, "d_out": 8, "num_heads": 8, "block_size": 64, "dropout_p": 0.9},
    {"sentence": "attention", "seed": 5, "d_out": 20, "num_heads": 5, "block_size": 4, "dropout_p": 0.75},
]


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    """Runs cells in this process; pictures are described and not drawn, since drawing takes most of the time."""
    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", lambda *_, **__: None)
    grad, options = torch.is_grad_enabled(), torch._tensor_str.PRINT_OPTS.__dict__.copy()
    yield InteractiveShell()
    torch.set_grad_enabled(grad)
    torch._tensor_str.PRINT_OPTS.__dict__.update(options)


def run(shell: InteractiveShell, lesson: Path, parameters: dict[str, Any]) -> list[str]:
    """Executes the lesson with those of the parameters that it has; returns the errors, with their cells."""
    for cell in nbformat.read(lesson, as_version=4).cells:
        if cell.cell_type != "code":
            continue
        result = shell.run_cell(cell.source)
        if result.error_in_exec or result.error_before_exec:
            return [f"{cell.id}: {result.error_in_exec or result.error_before_exec!r}"]
        if "parameters" in cell.metadata.get("tags", []):
            shell.push({name: value for name, value in parameters.items() if name in shell.user_ns})
    return []


@pytest.mark.parametrize("parameters", COMBINATIONS, ids=lambda parameters: "-".join(map(str, parameters.values())))
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_lesson_holds_for_other_parameters(
    shell: InteractiveShell, lesson: Path, parameters: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(lesson.parent)
    assert run(shell, lesson, parameters) == []


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
def test_wrong_parameter_is_named_in_the_first_cells(
    shell: InteractiveShell, wrong: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = 0
    for lesson in LESSONS:
        source = next(cell.source for cell in nbformat.read(lesson, as_version=4).cells if cell.cell_type == "code")
        if not all(f"{name}:" in source for name in wrong):
            continue
        monkeypatch.chdir(lesson.parent)
        (error,) = run(shell, lesson, wrong)
        assert error.startswith("imports: ")
        assert says in error
        checked += 1
    assert checked > 0
