"""Each lesson executed in this process, its outputs against the stored ones; for `make mutants`, which runs it often.

nbval does the same with a kernel for each notebook, which takes seconds to start. Not collected by `make test`.
"""

from pathlib import Path

import nbformat
import pytest
from in_process import execute
from nbformat import NotebookNode
from run_notebooks import coalesce

LESSONS = sorted((Path(__file__).parent.parent / "notebooks").glob("0*.ipynb"))


def said(outputs: list[NotebookNode]) -> list[object]:
    """What outputs say, with a picture's description in place of the picture."""
    return [
        output.get("text") or (output.data.get("text/plain"), output.metadata.get("image/png", {}).get("alt"))
        for output in coalesce(outputs)
    ]


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_lesson_prints_what_is_stored(path):
    stored = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    for cell, found in zip(stored, execute(path), strict=True):
        assert said(found.outputs) == said(cell.outputs), cell.id
