"""What every committed notebook keeps to, and proof that each rule notices when it is broken."""

import ast
import base64
import io
import re
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from run_notebooks import NOTEBOOKS, ROOT, find_lessons, find_notebooks, normalise, to_bytes

Rule = Callable[[NotebookNode], Iterator[str]]

MOST_LINES, MOST_LINES_WITH_CLASS = 20, 30
CELL_METADATA = {"tags", "reason"}
EXEMPT_TAGS = {"nbval-skip", "nbval-ignore-output", "nbval-raises-exception", "raises-exception", "skip-execution"}
EXEMPT_COMMENTS = {"NBVAL_SKIP", "NBVAL_IGNORE_OUTPUT", "NBVAL_RAISES_EXCEPTION", "PYTEST_VALIDATE_IGNORE_OUTPUT"}
SILENT_CALLS = {
    "append",
    "extend",
    "update",
    "sort",
    "clear",
    "backward",
    "assert_close",
    "check_parameters",
}  # return None
PATH = re.compile(r"(?<![\w.:/])/(?:home|root|Users|usr|tmp|var|opt|etc|mnt|private)/|\b[A-Z]:\\|site-packages|file://")
TRACES = {
    "a gradient function": re.compile(r"grad_fn"),
    "a memory address": re.compile(r"\b0x[0-9a-f]{6,}"),
    "the size of a figure": re.compile(r"<Figure|<Axes"),
    "a version": re.compile(r"\b\d+\.\d+\.\d+\b|\d\+(?:cpu|cu\d+)\b"),
    "a date or a time of day": re.compile(r"\b20\d\d-\d\d-\d\d\b|\b\d\d?:\d\d:\d\d\b"),
    "a duration": re.compile(r"\d ?(?:ns|µs|us|ms)\b|\d\.\d+ ?s\b|\d seconds?\b|\bCPU times\b|\bWall time\b"),
    "a path": PATH,
}


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def all_outputs(notebook: NotebookNode) -> Iterator[tuple[str, NotebookNode]]:
    for cell in code_cells(notebook):
        for output in cell.outputs:
            yield cell.id, output


def texts(output: NotebookNode) -> list[str]:
    """What a reader of this output reads."""
    kept = [text for mime, text in output.get("data", {}).items() if not mime.startswith("image/png")]
    return [str(text) for text in ["".join(output.get("text", "")), *kept] if text]


# --- the rules: each yields what is wrong ------------------------------------------------------------------------


def is_valid(notebook: NotebookNode) -> Iterator[str]:
    try:
        nbformat.validate(notebook, relax_add_props=False)
    except nbformat.ValidationError as error:
        yield str(error).splitlines()[0]
    if (notebook.nbformat, notebook.nbformat_minor) != (4, 5):
        yield f"expected format 4.5, got {notebook.nbformat}.{notebook.nbformat_minor}"


def is_executed_top_to_bottom(notebook: NotebookNode) -> Iterator[str]:
    """Cells that were not executed are not compared by nbval: they would pass silently."""
    for number, cell in enumerate(code_cells(notebook), start=1):
        counts = [cell.execution_count, *(out.execution_count for out in cell.outputs if "execution_count" in out)]
        if set(counts) != {number}:
            yield f"{cell.id}: expected execution count {number}, got {counts}"


def shows_what_it_prints(notebook: NotebookNode) -> Iterator[str]:
    for cell in code_cells(notebook):
        if not cell.outputs and _shows_something(cell.source):
            yield f"{cell.id}: the cell shows something and has no output"


def _shows_something(source: str) -> bool:
    statements = ast.parse(source).body
    calls = [node.func for node in _unconditional(statements) if isinstance(node, ast.Call)]
    if any(isinstance(call, ast.Name) and call.id in ("print", "display") for call in calls):
        return True
    last = statements[-1] if statements else None
    if not isinstance(last, ast.Expr) or source.rstrip().endswith(";"):
        return False
    return not (isinstance(last.value, ast.Call) and _called_name(last.value.func) in SILENT_CALLS)


def _unconditional(nodes: list[ast.stmt]) -> Iterator[ast.AST]:
    conditional = (ast.FunctionDef, ast.ClassDef, ast.Lambda, ast.If, ast.ExceptHandler)
    todo: list[ast.AST] = list(nodes)
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, conditional):
            todo.extend(ast.iter_child_nodes(node))


def _called_name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def has_readable_ids(notebook: NotebookNode) -> Iterator[str]:
    ids = [cell.get("id", "") for cell in notebook.cells]
    for name in sorted({name for name in ids if ids.count(name) > 1}):
        yield f"{name}: two cells have this id"
    for name in ids:
        random = any(re.fullmatch(r"(?=.*\d)[0-9a-f]{8,}", part) for part in name.split("-"))
        if random or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
            yield f"{name}: expected words with hyphens, such as scores-as-matrix-product"


def begins_with_parameters(notebook: NotebookNode) -> Iterator[str]:
    tagged = [
        number for number, cell in enumerate(code_cells(notebook)) if "parameters" in cell.metadata.get("tags", [])
    ]
    if tagged != [0]:
        yield f"expected one cell tagged parameters, the first with code; got it at {tagged} of the code cells"


def has_only_known_metadata(notebook: NotebookNode) -> Iterator[str]:
    expected = normalise(new_notebook()).metadata
    if notebook.metadata != expected:
        yield f"expected the notebook's metadata {dict(expected)}, got {dict(notebook.metadata)}"
    for cell in notebook.cells:
        unknown = set(cell.metadata) - CELL_METADATA
        if unknown or cell.metadata.get("tags") == []:
            yield f"{cell.get('id')}: expected no metadata but {sorted(CELL_METADATA)}, got {dict(cell.metadata)}"
        if "injected-parameters" in cell.metadata.get("tags", []):
            yield f"{cell.get('id')}: the notebook was executed with other parameters"


def has_no_errors_or_warnings(notebook: NotebookNode) -> Iterator[str]:
    for name, output in all_outputs(notebook):
        if output.output_type == "error":
            yield f"{name}: the cell raised {output.ename}"
        if output.get("name") == "stderr":
            yield f"{name}: the cell wrote to stderr: {output.text!r}"


def has_no_active_output(notebook: NotebookNode) -> Iterator[str]:
    """Widgets and scripts need a running kernel or a trusted notebook."""
    for name, output in all_outputs(notebook):
        for mime, text in output.get("data", {}).items():
            if mime.startswith(("application/vnd.", "application/javascript")) or "<script" in str(text):
                yield f"{name}: active output {mime}"


def is_the_same_on_every_machine(notebook: NotebookNode) -> Iterator[str]:
    for name, output in all_outputs(notebook):
        for text in texts(output):
            for what, trace in TRACES.items():
                if found := trace.search(text):
                    yield f"{name}: the output holds {what}: {found.group()!r}"
    for cell in code_cells(notebook):
        if found := PATH.search(cell.source):
            yield f"{cell.id}: the code holds a path: {found.group()!r}"


def describes_its_pictures(notebook: NotebookNode) -> Iterator[str]:
    for name, output in all_outputs(notebook):
        data = output.get("data", {})
        if others := [mime for mime in data if mime.startswith("image/") and mime != "image/png"]:
            yield f"{name}: expected pictures as image/png, got {others}"
        if "image/png" not in data:
            continue
        alt, text = output.metadata.get("image/png", {}).get("alt", ""), data.get("text/plain", "")
        if not alt.strip() or text.removeprefix("Figure: ") != alt.removeprefix("Figure: "):
            yield f"{name}: expected the same description as alt and as text, got {alt!r} and {text!r}"
        if not text.startswith("Figure: "):
            yield f"{name}: expected a text that starts with 'Figure: ', got {text!r}"
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and re.search(r"!\[\s*\]|<img(?![^>]*\balt=\"[^\"]+\")", cell.source):
            yield f"{cell.id}: a picture has no alt text"


def has_whole_pictures(notebook: NotebookNode) -> Iterator[str]:
    """nbval does not look at pictures."""
    for name, output in all_outputs(notebook):
        if "image/png" not in output.get("data", {}):
            continue
        try:
            with Image.open(io.BytesIO(base64.b64decode(output.data["image/png"], validate=False))) as picture:
                picture.load()
                if "Software" in picture.info:
                    yield f"{name}: the picture holds a version: {picture.info['Software']}"
        except (ValueError, OSError, SyntaxError) as error:
            yield f"{name}: the picture does not decode: {error}"


def has_small_cells(notebook: NotebookNode) -> Iterator[str]:
    for cell in code_cells(notebook):
        lines = sum(bool(line.strip()) for line in cell.source.splitlines())
        most = MOST_LINES_WITH_CLASS if re.search(r"^class ", cell.source, re.MULTILINE) else MOST_LINES
        if not 0 < lines <= most:
            yield f"{cell.id}: expected 1 to {most} lines of code, got {lines}"


def gives_reasons_for_exemptions(notebook: NotebookNode) -> Iterator[str]:
    for cell in code_cells(notebook):
        tags = EXEMPT_TAGS.intersection(cell.metadata.get("tags", []))
        comments = {line.strip().lstrip("#").strip() for line in cell.source.splitlines() if "#" in line}
        exempt = tags | (comments & EXEMPT_COMMENTS)
        if exempt and not str(cell.metadata.get("reason", "")).strip():
            yield f"{cell.id}: expected a reason in the cell's metadata for {sorted(exempt)}"


RULES_FOR_ALL: list[Rule] = [
    is_valid,
    is_executed_top_to_bottom,
    shows_what_it_prints,
    has_readable_ids,
    has_only_known_metadata,
    has_no_errors_or_warnings,
    has_no_active_output,
    is_the_same_on_every_machine,
    describes_its_pictures,
    has_whole_pictures,
    has_small_cells,
    gives_reasons_for_exemptions,
]
RULES_FOR_LESSONS: list[Rule] = [begins_with_parameters]


# --- the committed notebooks -------------------------------------------------------------------------------------


def name_of(value: Path | Rule) -> str:
    return value.relative_to(NOTEBOOKS).as_posix() if isinstance(value, Path) else value.__name__


@pytest.mark.parametrize("path", find_notebooks(), ids=name_of)
@pytest.mark.parametrize("rule", RULES_FOR_ALL, ids=name_of)
def test_notebook(path: Path, rule: Rule) -> None:
    problems = list(rule(nbformat.read(path, as_version=nbformat.NO_CONVERT)))
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("path", find_lessons(), ids=name_of)
@pytest.mark.parametrize("rule", RULES_FOR_LESSONS, ids=name_of)
def test_lesson(path: Path, rule: Rule) -> None:
    problems = list(rule(nbformat.read(path, as_version=nbformat.NO_CONVERT)))
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("path", find_notebooks(), ids=name_of)
def test_notebook_is_stored_as_the_tool_writes_it(path: Path) -> None:
    stored = path.read_bytes()
    written = to_bytes(normalise(nbformat.read(path, as_version=nbformat.NO_CONVERT)))
    pairs = zip_longest(stored.split(b"\n"), written.split(b"\n"))
    assert next(((ours, theirs) for ours, theirs in pairs if ours != theirs), None) is None
    assert str(ROOT) not in stored.decode()


def test_every_notebook_in_the_folder_is_regenerated_and_checked() -> None:
    there = {path for path in NOTEBOOKS.rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts}
    assert there == set(find_notebooks())


# --- each rule notices when it is broken -------------------------------------------------------------------------


def picture(alt: str = "Weights", text: str = "Figure: Weights", cut: int | None = None, **info: str) -> NotebookNode:
    notes, file = PngInfo(), io.BytesIO()
    for key, value in info.items():
        notes.add_text(key, value)
    Image.new("RGB", (40, 40), "navy").save(file, "png", pnginfo=notes)
    data = {"image/png": base64.b64encode(file.getvalue()[:cut]).decode(), "text/plain": text}
    return new_output("display_data", data=data, metadata={"image/png": {"alt": alt}} if alt else {})


def sample() -> NotebookNode:
    """A small notebook that keeps every rule."""
    cells = [
        new_markdown_cell("# A lesson\n![six words](words.png)", id="title"),
        new_code_cell("seed: int = 123", id="parameters", metadata={"tags": ["parameters"]}),
        new_code_cell("print(seed)\nseed / 2 == 61.5", id="seed-halved"),
        new_code_cell("heatmap(weights)", id="weights-drawn"),
        new_code_cell("class Head:\n" + "    size = 1\n" * 29, id="head"),
        new_code_cell("if seed < 0:\n    print('below')\nseen = []\nseen.append(1)", id="silent"),
        new_code_cell("# NBVAL_SKIP\nrest = 1", id="skipped", metadata={"reason": "takes an hour"}),
    ]
    notebook = normalise(new_notebook(cells=cells))
    for number, cell in enumerate(code_cells(notebook), start=1):
        cell.execution_count = number
    shown = new_output("execute_result", data={"text/plain": "True"}, execution_count=2)
    cells[2].outputs = [new_output("stream", name="stdout", text="tensor([0.0625, 0.5])\n"), shown]
    cells[3].outputs = [picture()]
    return nbformat.from_dict(notebook)


def printing(text: str) -> Callable[[NotebookNode], None]:
    def change(notebook: NotebookNode) -> None:
        notebook.cells[2].outputs[0].text = text

    return change


def drawing(output: NotebookNode) -> Callable[[NotebookNode], None]:
    def change(notebook: NotebookNode) -> None:
        notebook.cells[3].outputs = [output]

    return change


def setting(place: int, key: str, value: object) -> Callable[[NotebookNode], None]:
    """Set an item of a cell, or with a dotted key an item of what the cell holds."""

    def change(notebook: NotebookNode) -> None:
        *within, last = key.split(".")
        target = notebook.cells[place]
        for step in within:
            target = target[step]
        target[last] = nbformat.from_dict(value)

    return change


def naming(key: str, value: object) -> Callable[[NotebookNode], None]:
    def change(notebook: NotebookNode) -> None:
        notebook[key] = nbformat.from_dict(value)

    return change


BROKEN: list[tuple[Rule, str, Callable[[NotebookNode], None]]] = [
    (is_valid, "an unknown key", setting(1, "other", 1)),
    (is_valid, "an older format", naming("nbformat_minor", 4)),
    (is_executed_top_to_bottom, "a cell that never ran", setting(5, "execution_count", None)),
    (is_executed_top_to_bottom, "cells run out of order", setting(5, "execution_count", 9)),
    (is_executed_top_to_bottom, "an output of another run", setting(2, "execution_count", 3)),
    (shows_what_it_prints, "a print without output", setting(2, "outputs", [])),
    (shows_what_it_prints, "a last expression without output", setting(3, "outputs", [])),
    (shows_what_it_prints, "a print in a loop", setting(5, "source", "for n in (1, 2):\n    print(n)")),
    (has_readable_ids, "two alike", setting(2, "id", "title")),
    (has_readable_ids, "a random one", setting(2, "id", "3f2a9c1d")),
    (has_readable_ids, "a random one with hyphens", setting(2, "id", "8f14e45f-ceea-467f-ab12-0a1b2c3d4e5f")),
    (has_readable_ids, "an empty one", setting(2, "id", "")),
    (begins_with_parameters, "no such cell", setting(1, "metadata", {})),
    (begins_with_parameters, "a second one", setting(2, "metadata", {"tags": ["parameters"]})),
    (has_only_known_metadata, "papermill", setting(1, "metadata.papermill", {"duration": 1})),
    (has_only_known_metadata, "timing", setting(1, "metadata.execution", {})),
    (has_only_known_metadata, "empty tags", setting(2, "metadata.tags", [])),
    (has_only_known_metadata, "other parameters", setting(2, "metadata.tags", ["injected-parameters"])),
    (has_only_known_metadata, "a Python version", naming("metadata", {"language_info": {"version": "3.11.7"}})),
    (has_only_known_metadata, "widget state", naming("metadata", {"widgets": {"state": {}}})),
    (has_no_errors_or_warnings, "a warning", setting(5, "outputs", [new_output("stream", name="stderr", text="w")])),
    (has_no_errors_or_warnings, "an error", setting(5, "outputs", [new_output("error", ename="E", evalue="e")])),
    (
        has_no_active_output,
        "a widget",
        drawing(new_output("display_data", data={"application/vnd.jupyter.widget-view+json": {"model_id": "1"}})),
    ),
    (has_no_active_output, "a script", drawing(new_output("display_data", data={"text/html": "<script>1</script>"}))),
    *(
        (is_the_same_on_every_machine, text, printing(text))
        for text in [
            "tensor([0.5], grad_fn=<ViewBackward0>)",
            "<object at 0x7f3a5c0d2e50>",
            "<Figure size 640x480 with 1 Axes>",
            "torch 2.13.0",
            "2.6+cpu",
            "2026-01-31",
            "at 12:30:59",
            "took 3.2 ms",
            "took 0.52 s",
            "5 seconds",
            "/home/someone/notebooks",
            r"C:\Users\someone",
        ]
    ),
    (is_the_same_on_every_machine, "a path in the code", setting(5, "source", "open('/home/someone/words.csv')")),
    (describes_its_pictures, "no alt", drawing(picture(alt=""))),
    (describes_its_pictures, "another text", drawing(picture(text="Figure: Scores"))),
    (describes_its_pictures, "no text", drawing(picture(text="Weights"))),
    (
        describes_its_pictures,
        "another format",
        drawing(new_output("display_data", data={"image/svg+xml": "<svg/>", "text/plain": "Figure: Weights"})),
    ),
    (describes_its_pictures, "a picture in the text", setting(0, "source", "![](words.png)")),
    (has_whole_pictures, "a cut picture", drawing(picture(cut=60))),
    (has_whole_pictures, "no picture", drawing(picture(cut=0))),
    (has_whole_pictures, "a version in the picture", drawing(picture(Software="Matplotlib version 3.11.2"))),
    (has_small_cells, "a long cell", setting(5, "source", "n = 1\n" * 21)),
    (has_small_cells, "a long class", setting(4, "source", "class Head:\n" + "    size = 1\n" * 30)),
    (has_small_cells, "an empty cell", setting(5, "source", " \n")),
    (gives_reasons_for_exemptions, "a comment", setting(6, "metadata", {})),
    (gives_reasons_for_exemptions, "a tag", setting(5, "metadata.tags", ["nbval-ignore-output"])),
    (gives_reasons_for_exemptions, "an expected error", setting(5, "metadata.tags", ["raises-exception"])),
]


@pytest.mark.parametrize("rule", RULES_FOR_ALL + RULES_FOR_LESSONS, ids=name_of)
def test_a_good_notebook_keeps_the_rule(rule: Rule) -> None:
    assert list(rule(sample())) == []


@pytest.mark.parametrize(
    ("rule", "what", "change"), BROKEN, ids=[f"{rule.__name__}: {what}" for rule, what, _ in BROKEN]
)
def test_a_broken_notebook_does_not(rule: Rule, what: str, change: Callable[[NotebookNode], None]) -> None:
    notebook = sample()
    change(notebook)
    assert list(rule(notebook)) != []


def test_every_rule_has_a_broken_example() -> None:
    assert {rule for rule, _, _ in BROKEN} == {*RULES_FOR_ALL, *RULES_FOR_LESSONS}
