"""Whatever is altered in a stored notebook, nbval or a test of the stored notebooks notices it.

Every notebook is executed once; then nbval's own cells compare altered copies with what was computed, through a
kernel that only repeats it. `make alterations` tries every alteration and prints how many each check caught.
"""

import copy
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest
from in_process import ExecutedCell, execute
from nbformat import NotebookNode
from nbval.plugin import IPyNbCell, IPyNbFile, NbCellError, find_comment_markers, find_metadata_tags
from notebook_cells import ExactCell, TolerantCell
from run_notebooks import NOTEBOOKS, find_lessons
from test_printed_tensors import LESSONS, lesson_complaints, printed_tensors, stored_text
from test_stored_notebooks import RULES_FOR_ALL, RULES_FOR_LESSONS

PATHS = find_lessons() + sorted(NOTEBOOKS.glob("solutions/*.ipynb"))
TRIES = 3  # of each kind of alteration, in each notebook
OTHER_WORDS = {"True": "False", "False": "True", "inf": "nan"}
WORD = re.compile(r"[A-Za-z]{2,}")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::nbformat.warnings.DuplicateCellId")]
Alteration = tuple[str, int, list[NotebookNode]]  # its kind, the cell it is about, all cells afterwards


# --- altering ----------------------------------------------------------------------------------------------------


def altered_texts(text: str) -> Iterator[tuple[str, str]]:
    for place in re.finditer(r"\d", text):
        digit = str((int(place[0]) + 1) % 10)
        yield "a digit", text[: place.start()] + digit + text[place.end() :]
    for place in re.finditer(r"(?<![\w.])-?(?=\d+\.?\d*)(?![\w]*-\w)", text):
        yield "a sign", text[: place.start()] + ("" if place[0] else "-") + text[place.end() :]
    for place in WORD.finditer(text):
        word = OTHER_WORDS.get(place[0], place[0].swapcase())
        yield "a word", text[: place.start()] + word + text[place.end() :]
    lines = text.splitlines(keepends=True)
    for number in range(len(lines)):
        yield "a missing line", "".join(lines[:number] + lines[number + 1 :])
        yield "a line twice", "".join(lines[: number + 1] + lines[number:])
        if number and lines[number] != lines[number - 1]:
            swapped = [*lines[: number - 1], lines[number], lines[number - 1], *lines[number + 1 :]]
            yield "two rows exchanged", "".join(swapped)
    yield "no text", ""
    yield "a space at the end", text + " "


def altered_outputs(output: NotebookNode, other_png: str) -> Iterator[tuple[str, NotebookNode]]:
    kept = output.get("data", {})
    for mime, text in [("", output.text)] if "text" in output else kept.items():
        if mime == "image/png":
            for kind, png in (("no picture", ""), ("half a picture", text[: len(text) // 2]), ("another", other_png)):
                yield f"picture: {kind}", changed(output, lambda new, png=png: new.data.update({"image/png": png}))
            continue
        for kind, new_text in altered_texts(text):
            where = f"{mime or output.name}: {kind}"
            part = {mime or "text": new_text}
            yield where, changed(output, lambda new, m=mime, part=part: (new.data if m else new).update(part))
    for mime in kept:
        yield f"{mime} taken away", changed(output, lambda new, mime=mime: new.data.pop(mime))
    alt = output.get("metadata", {}).get("image/png", {}).get("alt", "")
    for kind, new_alt in altered_texts(alt) if alt else ():
        yield f"alt: {kind}", changed(output, lambda new, t=new_alt: new.metadata["image/png"].update(alt=t))
    if output.output_type == "stream":
        yield "stderr for stdout", changed(output, lambda new: new.update(name="stderr"))


def changed(node: NotebookNode, change: Callable[[NotebookNode], object]) -> NotebookNode:
    new = copy.deepcopy(node)
    change(new)
    return new


def altered_cells(cell: NotebookNode, other_png: str) -> Iterator[tuple[str, NotebookNode]]:
    """Alterations of a code cell."""
    for number, output in enumerate(cell.outputs):
        for kind, new in altered_outputs(output, other_png):
            yield kind, with_outputs(cell, [*cell.outputs[:number], new, *cell.outputs[number + 1 :]])
        yield "an output taken away", with_outputs(cell, cell.outputs[:number] + cell.outputs[number + 1 :])
        yield "an output twice", with_outputs(cell, cell.outputs[: number + 1] + cell.outputs[number:])
    for first, second in zip(cell.outputs, cell.outputs[1:], strict=False):
        if first != second:
            swapped = [second if one is first else first if one is second else one for one in cell.outputs]
            yield "two outputs exchanged", with_outputs(cell, swapped)
    if cell.outputs:
        yield "outputs cleared", with_outputs(cell, [])
        yield "never run", changed(with_outputs(cell, []), lambda new: new.update(execution_count=None))
    extra = nbformat.v4.new_output("stream", name="stdout", text="tensor([0.1234])\n")
    yield "an output that nothing prints", with_outputs(cell, [*cell.outputs, extra])
    yield "no execution count", changed(cell, lambda new: new.update(execution_count=None))
    yield "another execution count", changed(cell, lambda new: new.update(execution_count=cell.execution_count + 1))
    for tag in ("nbval-ignore-output", "nbval-skip"):
        yield f"tagged {tag}", changed(cell, lambda new, tag=tag: new.metadata.update(tags=[tag]))
    yield (
        "a comment that exempts",
        changed(cell, lambda new: new.update(source=f"# NBVAL_IGNORE_OUTPUT\n{cell.source}")),
    )


def with_outputs(cell: NotebookNode, outputs: list[NotebookNode]) -> NotebookNode:
    return NotebookNode({**cell, "outputs": outputs})


def alterations(notebook: NotebookNode) -> Iterator[Alteration]:
    cells = notebook.cells
    pictures = [output.data["image/png"] for cell in cells for output in cell.get("outputs", []) if shows(output)]
    for place, cell in enumerate(cells):
        before, after = cells[:place], cells[place + 1 :]
        if cell.cell_type != "code":
            continue
        shown = {output.data["image/png"] for output in cell.outputs if shows(output)}
        other_png = next((png for png in pictures if png not in shown), "")
        for kind, new in altered_cells(cell, other_png):
            yield kind, place, [*before, new, *after]
        if any(later.cell_type == "code" for later in after):  # a notebook that ends earlier tells nothing wrong
            yield "a cell taken away", place, before + after
        yield "a cell twice", place, [*before, cell, copy.deepcopy(cell), *after]
        again = changed(cell, lambda new: new.update(id=f"{new.id}-again"))
        yield "a cell twice, renamed", place, [*before, cell, again, *after]


def shows(output: NotebookNode) -> bool:
    return "image/png" in output.get("data", {})


# --- checking ----------------------------------------------------------------------------------------------------


class RepeatingKernel:
    """Answers nbval with the outputs that were computed for the cell."""

    def __init__(self, outputs: list[NotebookNode]) -> None:
        self.messages = [{"msg_type": output.output_type, "content": output} for output in outputs]
        self.messages.append({"msg_type": "status", "content": {"execution_state": "idle"}})

    def is_alive(self) -> bool:
        return True

    def execute_cell_input(self, source: str, allow_stdin: bool) -> str:
        return "here"

    def await_reply(self, message: str, timeout: float) -> None:
        pass

    def get_message(self, stream: str, timeout: float) -> dict:
        return {"parent_header": {"msg_id": "here"}} | self.messages.pop(0)


class Checker:
    """The checks that a committed notebook has to pass, applied to altered copies of it."""

    def __init__(self, path: Path, computed: list[ExecutedCell], session: pytest.Session, cell_class: type) -> None:
        self.path, self.notebook = path, nbformat.read(path, as_version=4)
        self.file = IPyNbFile.from_parent(session, path=path)
        self.cell_class = cell_class
        self.lesson = path.name[:2] if path.parent == NOTEBOOKS and path.name[:2] in LESSONS else None
        self.rules = RULES_FOR_ALL + (RULES_FOR_LESSONS if path.parent == NOTEBOOKS else [])
        stored = {cell.id: cell for cell in self.notebook.cells if cell.cell_type == "code"}
        self.computed = {cell.id: self._with_pictures(cell.outputs, stored[cell.id].outputs) for cell in computed}

    def _with_pictures(self, computed: list[NotebookNode], stored: list[NotebookNode]) -> list[NotebookNode]:
        """The computed outputs, with the stored pictures where none was drawn, in the stored order of kinds."""
        pictures = iter([output.data["image/png"] for output in stored if shows(output)])
        for output in computed:
            if shows(output):
                output.data["image/png"] = next(pictures, "")
        first = stored[0].output_type if stored else "stream"
        return sorted(computed, key=lambda output: (output.output_type == "stream") != (first == "stream"))

    def check(self, cells: list[NotebookNode]) -> str | None:
        """The name of the check that catches this copy; None where all pass."""
        original = {id(cell) for cell in self.notebook.cells}
        altered = [cell for cell in cells if cell.cell_type == "code" and id(cell) not in original]
        if any(not self.passes_nbval(cell) for cell in altered if cell.id in self.computed):
            return "nbval"
        notebook = NotebookNode({**self.notebook, "cells": cells})
        for rule in self.rules:
            if any(True for _ in rule(notebook)):
                return rule.__name__
        if self.lesson:
            tensors = [tensor for text in stored_text(notebook) for tensor in printed_tensors(text)]
            if lesson_complaints(self.lesson, tensors):
                return "printed tensors"
        return None

    def passes_nbval(self, cell: NotebookNode) -> bool:
        options = dict(find_metadata_tags(cell.metadata)) | dict(find_comment_markers(cell.source))
        defaults = {"check": True, "skip": False, "check_exception": False}
        item = IPyNbCell.from_parent(
            self.file, name="cell", cell_num=0, cell=copy.deepcopy(cell), options=defaults | options
        )
        item.__class__ = self.cell_class
        item.format_output_compare = lambda *_: None  # the difference is not shown to anyone
        self.file.kernel = RepeatingKernel(copy.deepcopy(self.computed[cell.id]))
        try:
            item.runtest()
        except NbCellError:
            return False
        except pytest.skip.Exception:
            return True
        finally:
            self.file.kernel = None
        return True


def few(found: list[Alteration], seed: int) -> list[Alteration]:
    """Some of each kind."""
    random.Random(seed).shuffle(found)
    taken: Counter[str] = Counter()
    return [one for one in found if (taken.update([one[0]]), taken[one[0]])[1] <= TRIES]


@pytest.fixture
def checker(request: pytest.FixtureRequest, executed: Callable[[Path], list[ExecutedCell]]) -> Callable[..., Checker]:
    def make(path: Path, cell_class: type = ExactCell) -> Checker:
        return Checker(path, executed(path), request.session, cell_class)

    return make


@pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_alteration_is_caught(
    path: Path, checker: Callable[..., Checker], pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]
) -> None:
    check = checker(path)
    assert check.check([copy.deepcopy(cell) for cell in check.notebook.cells]) is None, "fails before it is altered"
    found = list(alterations(check.notebook))
    if not pytestconfig.option.all_alterations:
        found = few(found, seed=len(path.name))
    caught = Counter()
    survivors = []
    for kind, place, cells in found:
        by = check.check(cells)
        caught[by] += 1
        if by is None:
            survivors.append(f"{check.notebook.cells[place].id}: {kind}")
    if pytestconfig.option.all_alterations:
        with capsys.disabled():
            print(f"\n{path.parent.name}/{path.name}: {len(found)} alterations,", dict(caught.most_common()))
    assert not survivors, f"{len(survivors)} of {len(found)} were not noticed:\n" + "\n".join(survivors[:40])


# --- parameters: a changed one changes an output -----------------------------------------------------------------

VALUES = {"sentence": "attention", "seed": 124, "layer_seed": 790, "d_out": 6, "num_heads": 1, "dropout_p": 0.25}


def parameters_cell(notebook: NotebookNode) -> NotebookNode:
    return next(cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", []))


def parameters(path: Path) -> Iterator[tuple[str, str, str]]:
    """Each parameter with its value and another one, as code."""
    (cell,) = [
        cell for cell in nbformat.read(path, as_version=4).cells if "parameters" in cell.metadata.get("tags", [])
    ]
    for name, value in re.findall(r"^(\w+)\b[^=\n]*= ([^#\n]*?)\s*(?:#.*)?$", cell.source, re.MULTILINE):
        yield name, value, repr(VALUES[name]) if name in VALUES else f"{value} + 1"


@pytest.mark.parametrize("path", find_lessons(), ids=lambda path: path.stem)
def test_another_parameter_is_caught(path: Path, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    stored = nbformat.read(path, as_version=4)
    texts = {cell.id: output_texts(cell.outputs) for cell in stored.cells if cell.cell_type == "code"}
    found = list(parameters(path))
    for name, value, other in found if pytestconfig.option.all_alterations else found[: path.stem.startswith("01")]:
        notebook = copy.deepcopy(stored)
        (cell,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
        cell.source, count = re.subn(
            rf"^({name}\b[^=\n]*= )[^#\n]*?(?=\s*(#|$))", rf"\g<1>{other}", cell.source, flags=re.M
        )
        assert count == 1, f"{name} was not found"
        copied = tmp_path / f"{name}.ipynb"
        nbformat.write(notebook, copied)
        try:
            caught = any(output_texts(cell.outputs) != texts[cell.id] for cell in execute(copied))
        except RuntimeError:
            caught = True  # an assertion of the lesson says so
        assert caught, f"{name} = {other} in place of {value} changes no output"


def output_texts(outputs: list[NotebookNode]) -> list[str]:
    return sorted(str(output.get("text") or output.data.get("text/plain")) for output in outputs)


# --- how cells are compared --------------------------------------------------------------------------------------


def test_the_tolerant_cell_catches_all_but_the_last_digit(checker: Callable[..., Checker]) -> None:
    path = next(path for path in find_lessons() if path.name.startswith("01"))
    exact, tolerant = checker(path), checker(path, TolerantCell)
    exact.rules = tolerant.rules = []
    exact.lesson = tolerant.lesson = None
    differing = 0
    for kind, place, cells in few(list(alterations(exact.notebook)), seed=1):
        if exact.check(cells) == "nbval" != tolerant.check([*cells]):
            differing += 1
            assert "digit" in kind or "sign" in kind, f"{kind} in {exact.notebook.cells[place].id}"
    assert differing <= 2 * TRIES
