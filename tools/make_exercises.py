"""Make the student's notebooks in notebooks/exercises/ from the solved ones in notebooks/solutions/.

In a code cell the lines from `# SOLUTION` to `# END SOLUTION` are replaced by `raise NotImplementedError`; cells tagged
`solution` are left out. A student's notebook whose cells did not change keeps its stored outputs and is not written.
"""

import argparse
import os
import re
import sys
from pathlib import Path

import nbformat
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
BEGIN, END = "# SOLUTION", "# END SOLUTION"
SOLUTION_TAG = "solution"


class SourceError(ValueError):
    """A solved notebook has no exercise in it, or one that is not marked rightly."""


def student_copy(solved: NotebookNode) -> NotebookNode:
    """The student's notebook: the same cells without solutions and outputs."""
    copy = nbformat.from_dict({**solved, "cells": []})
    for cell in solved.cells:
        if SOLUTION_TAG in cell.metadata.get("tags", []):
            continue
        cell = nbformat.from_dict(dict(cell))
        if cell.cell_type == "code":
            cell.source = without_solution(cell.source, cell.id)
            cell.outputs, cell.execution_count = [], None
        copy.cells.append(cell)
    if not any("raise NotImplementedError" in cell.source for cell in copy.cells):
        raise SourceError(f"expected at least one part between '{BEGIN}' and '{END}', got none")
    return copy


def without_solution(source: str, cell_id: str) -> str:
    """The source with every marked part replaced by `raise NotImplementedError`, indented as the part was."""
    lines: list[str] = []
    inside = False
    for line in source.splitlines():
        mark = line.strip()
        if mark in (BEGIN, END):
            if inside == (mark == BEGIN):
                raise SourceError(f"cell {cell_id}: expected '{BEGIN}' and '{END}' in turn, got '{mark}' out of turn")
            inside = mark == BEGIN
            if inside:
                lines.append(line.replace(BEGIN, "raise NotImplementedError"))
        elif not inside:
            lines.append(line)
    if inside:
        raise SourceError(f"cell {cell_id}: expected '{END}' after '{BEGIN}', got the end of the cell")
    return "\n".join(lines)


def solution_lines(source: str) -> list[str]:
    """The lines that the student must not see."""
    parts = re.findall(rf"^[ ]*{BEGIN}\n(.*?)^[ ]*{END}$", source, flags=re.DOTALL | re.MULTILINE)
    return [line.strip() for part in parts for line in part.splitlines() if line.strip()]


def same_cells(one: NotebookNode, two: NotebookNode) -> bool:
    """Whether two notebooks differ in nothing but outputs and execution counts."""
    return one.metadata == two.metadata and [_content(cell) for cell in one.cells] == [_content(c) for c in two.cells]


def _content(cell: NotebookNode) -> tuple[object, ...]:
    return cell.id, cell.cell_type, cell.source, cell.metadata


def update(source: Path, target: Path) -> bool:
    """Write the student's copy of `source` to `target` if its cells changed; returns whether it was written."""
    try:
        copy = student_copy(nbformat.read(source, as_version=4))
    except SourceError as error:
        raise SourceError(f"{source.name}, {error}") from None
    if target.is_file() and same_cells(nbformat.read(target, as_version=4), copy):
        return False
    nbformat.validate(copy)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes((nbformat.writes(copy, indent=1) + "\n").encode())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return True


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--notebooks", type=Path, default=NOTEBOOKS, help="the folder with solutions/ and exercises/")
    folder = parser.parse_args(arguments).notebooks
    sources = sorted((folder / "solutions").glob("*.ipynb"))
    try:
        for source in sources:
            if update(source, folder / "exercises" / source.name):
                print(f"exercises/{source.name} made from its solution")
    except SourceError as error:
        print(error, file=sys.stderr)
        return 1
    orphans = {path.name for path in (folder / "exercises").glob("*.ipynb")} - {path.name for path in sources}
    if orphans:
        print(f"exercises without a solution of the same name: {', '.join(sorted(orphans))}", file=sys.stderr)
    return 1 if orphans else 0


if __name__ == "__main__":
    sys.exit(main())
