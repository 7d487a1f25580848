"""Every published tensor that can be reproduced stands, digit for digit, in the stored output of its lesson."""

import functools
import json
import re
import tomllib
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import nbformat
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
LESSONS = ["01", "02", "03", "04", "05", "06"]

TENSOR = re.compile(r"\btensor\(\s*(?P<body>[^()=]*?)\s*(?:,\s*\w+=[^()]*(?:\([^()]*\))?[^()]*)?\)")
NUMBER = re.compile(r"[+-]?(?:inf|nan|True|False|\d+\.?\d*(?:e[+-]?\d+)?)")
LOOSE_NUMBER = re.compile(r"(?<![\w.])[+-]?\d+\.\d{4,}(?:e[+-]?\d+)?(?![\w])")


# What the published files hold


@functools.cache
def published() -> dict[str, dict]:
    """The tensors that can be reproduced, by document and step, with their lesson and their digits."""
    found = {}
    for path in sorted((ROOT / "data" / "published").glob("*.toml")):
        for step, entry in tomllib.loads(path.read_text("utf-8")).items():
            if entry["status"] != "unseeded":
                values = np.array(np.vectorize(lambda number: f"{number:z.4f}")(entry["values"]))
                found[f"{path.stem}.{step}"] = {"lesson": entry["lesson"], "digits": values}
    return found


# What a notebook prints


def stored_text(notebook: nbformat.NotebookNode) -> list[str]:
    """The printed text of each code cell: stdout and text/plain."""
    return ["\n".join(_output_text(cell)) for cell in notebook.cells if cell.cell_type == "code"]


def _output_text(cell: nbformat.NotebookNode) -> Iterator[str]:
    stdout = [output.text for output in cell.outputs if output.output_type == "stream" and output.name == "stdout"]
    yield "".join(stdout)
    for output in cell.outputs:
        yield output.get("data", {}).get("text/plain", "")


def printed_tensors(text: str) -> list[np.ndarray]:
    """Every tensor in the text as an array of digits, and every loose number with 4 or more decimals as a scalar."""
    tensors = [parsed for match in TENSOR.finditer(text) if (parsed := _parse(match["body"])) is not None]
    loose = [np.array(as_digits(match[0])) for match in LOOSE_NUMBER.finditer(TENSOR.sub("", text))]
    return tensors + loose


def _parse(body: str) -> np.ndarray | None:
    quoted = NUMBER.sub(lambda match: json.dumps(as_digits(match[0])), body)
    try:
        return np.array(json.loads(quoted))
    except ValueError:  # shortened with "...", or no tensor at all
        return None


def as_digits(token: str) -> str:
    """The number with 4 decimals and no sign on a zero; as it stands where it was printed with fewer."""
    if not token[-1].isdigit() and not token.endswith("."):  # inf, nan, True, False
        return token
    decimals = -Decimal(token).as_tuple().exponent
    whole = decimals <= 0  # 2. is how a tensor of whole numbers is printed
    return f"{float(token):z.4f}" if whole or decimals >= 4 else token


# Comparing the two


def candidates(tensor: np.ndarray) -> Iterator[np.ndarray]:
    """The tensor and, where it holds several matrices, each of its entries."""
    yield tensor
    if tensor.ndim > 2:
        for entry in tensor:
            yield from candidates(entry)


def without_leading_ones(tensor: np.ndarray) -> np.ndarray:
    """The same tensor as one of a batch of one, down to a matrix."""
    while tensor.ndim > 2 and len(tensor) == 1:
        tensor = tensor[0]
    return tensor


def complaint(digits: np.ndarray, tensors: list[np.ndarray]) -> str | None:
    """What keeps the digits from standing among the tensors; None where they do."""
    wanted = without_leading_ones(digits)
    pool = (without_leading_ones(candidate) for tensor in tensors for candidate in candidates(tensor))
    same_shape = [candidate for candidate in pool if candidate.shape == wanted.shape]
    if not same_shape:
        return (
            f"missing: no tensor of shape {digits.shape} is printed" if digits.ndim else "missing: no number is printed"
        )
    closest = min(same_shape, key=lambda candidate: int((candidate != wanted).sum()))
    differing = np.argwhere(closest != wanted)
    if len(differing) == 0:
        return None
    if digits.ndim == 0:
        return f"missing: {digits} is not printed, as tensor(...) or with 4 decimals"
    first = tuple(differing[0].tolist())
    return (
        f"differs: the closest printed tensor of shape {wanted.shape} has {len(differing)} of {wanted.size} entries "
        f"different, first {list(first)}: printed {closest[first]}, published {wanted[first]}"
    )


def lesson_complaints(lesson: str, tensors: list[np.ndarray]) -> list[str]:
    steps = {name: entry["digits"] for name, entry in published().items() if entry["lesson"] == lesson}
    complaints = {name: complaint(digits, tensors) for name, digits in steps.items()}
    return [f"{name} {said}" for name, said in complaints.items() if said]


@pytest.mark.parametrize("lesson", LESSONS)
def test_lesson_prints_its_published_tensors(lesson):
    paths = sorted(NOTEBOOKS.glob(f"{lesson}_*.ipynb"))
    if len(paths) != 1:
        pytest.fail(
            f"lesson {lesson}: expected one notebook notebooks/{lesson}_*.ipynb, got {len(paths)}", pytrace=False
        )
    notebook = nbformat.read(paths[0], as_version=4)
    tensors = [tensor for text in stored_text(notebook) for tensor in printed_tensors(text)]
    complaints = lesson_complaints(lesson, tensors)
    if complaints:
        pytest.fail(f"{paths[0].name}, in its stored output:\n  " + "\n  ".join(complaints), pytrace=False)


def test_every_published_tensor_has_a_lesson_here():
    assert {entry["lesson"] for entry in published().values()} == set(LESSONS)


# The parser and the comparison, on strings

PRINTED = {
    "vector": ("tensor([0.4306, 1.4551])", [["0.4306", "1.4551"]]),
    "after a label": ("Query: tensor([0.4306])\nKey: tensor([0.4433])", [["0.4306"], ["0.4433"]]),
    "matrix": ("tensor([[0.1000, 0.2000],\n        [0.3000, 0.4000]])", [[["0.1000", "0.2000"], ["0.3000", "0.4000"]]]),
    "negative": ("tensor([-0.5337,  0.1051])", [["-0.5337", "0.1051"]]),
    "minus infinity": ("tensor([[0.2899,   -inf]])", [[["0.2899", "-inf"]]]),
    "whole numbers": ("tensor([2., 0.]) tensor([1, 0])", [["2.0000", "0.0000"], ["1.0000", "0.0000"]]),
    "booleans are no digits": ("tensor([ True, False])", [["True", "False"]]),
    "nested": (
        "tensor([[[1.0000],\n         [2.0000]],\n\n        [[3.0000],\n         [4.0000]]])",
        [[[["1.0000"], ["2.0000"]], [["3.0000"], ["4.0000"]]]],
    ),
    "wide rows on two lines": (
        "tensor([[[0.1000, 0.2000,\n          0.3000],\n         [0.4000, 0.5000,\n          0.6000]]])",
        [[[["0.1000", "0.2000", "0.3000"], ["0.4000", "0.5000", "0.6000"]]]],
    ),
    "scalar": ("tensor(6.5617)", ["6.5617"]),
    "whole scalar": ("Sum: tensor(1.)", ["1.0000"]),
    "loose scalar": ("the sum is 6.5617, the root 2.23606797749979.", ["6.5617", "2.2361"]),
    "other loose numbers": ("step 3 of 6, 0.62, 1.2.3456, v1.23456x", []),
    "negative zero": ("tensor([-0.0000])", [["0.0000"]]),
    "scientific": ("tensor([1.2000e+03, 4.5678e-02])", [["1.2000e+03", "0.0457"]]),
    "more decimals": ("tensor([0.43061])", [["0.4306"]]),
    "fewer decimals": ("tensor([0.43, 0.50])", [["0.43", "0.50"]]),
    "extras": ("tensor([0.1000], dtype=torch.float64, grad_fn=<MulBackward0>)", [["0.1000"]]),
    "bare dtype": ("tensor([1, 2], dtype=torch.int32)", [["1.0000", "2.0000"]]),
    "parameter": ("Parameter containing:\ntensor([[0.2961]], requires_grad=True)", [[["0.2961"]]]),
    "tuple": ("(tensor([0.1000]), tensor([0.2000]))", [["0.1000"], ["0.2000"]]),
    "shortened": ("tensor([0.1000, ..., 0.2000])", []),
    "no tensor": ("a tensor (see above) of tensor(s) and torch.Size([6, 2])", []),
}


@pytest.mark.parametrize(("text", "expected"), PRINTED.values(), ids=PRINTED)
def test_printed_tensors(text, expected):
    assert [tensor.tolist() for tensor in printed_tensors(text)] == expected


def test_parser_reads_what_torch_prints():
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(5)
    for shape in [(), (3,), (10, 10), (1, 10, 10), (2, 2, 6, 2)]:
        tensor = torch.randn(shape, generator=generator)
        (parsed,) = printed_tensors(f"here: {tensor}")
        expected = [f"{number:z.4f}" for number in tensor.flatten().tolist()]
        assert parsed.shape == shape
        assert parsed.flatten().tolist() == expected


def test_stored_text_joins_stdout_and_results_and_leaves_the_rest():
    v4 = nbformat.v4
    outputs = [
        v4.new_output("stream", name="stdout", text="tensor([0.10"),
        v4.new_output("stream", name="stderr", text="tensor([9.0000])"),
        v4.new_output("stream", name="stdout", text="00])"),
        v4.new_output("execute_result", data={"text/plain": "tensor([0.2000])", "text/html": "tensor([8.0000])"}),
    ]
    source = "tensor([7.0000])"
    cells = [v4.new_markdown_cell(source), v4.new_code_cell(source, outputs=outputs)]
    (text,) = stored_text(v4.new_notebook(cells=cells))
    assert [tensor.tolist() for tensor in printed_tensors(text)] == [["0.1000"], ["0.2000"]]


MATRIX = [["0.1000", "0.2000"], ["0.3000", "0.4000"]]
OTHER = [["0.1000", "0.2000"], ["0.3000", "0.5000"]]
FARTHER = [["0.1000", "0.9000"], ["0.3000", "0.5000"]]
COMPLAINTS = {
    "same": (MATRIX, [MATRIX], None),
    "among others": (MATRIX, [OTHER, ["0.1000"], MATRIX], None),
    "entry of a batch": (MATRIX, [[OTHER, MATRIX]], None),
    "entry of a batch of one": ([MATRIX], [MATRIX], None),
    "batch of one": (MATRIX, [[[MATRIX]]], None),
    "scalar": ("6.5617", ["6.5617"], None),
    "nothing printed": (MATRIX, [], "missing: no tensor of shape (2, 2) is printed"),
    "other shapes only": (MATRIX, [["0.1000", "0.2000"], "0.1000"], "missing: no tensor of shape (2, 2) is printed"),
    "row of a matrix": (["0.1000", "0.2000"], [MATRIX], "missing: no tensor of shape (2,) is printed"),
    "scalar not there": ("6.5617", ["6.5618"], "missing: 6.5617 is not printed, as tensor(...) or with 4 decimals"),
    "no scalar at all": ("6.5617", [MATRIX], "missing: no number is printed"),
    "closest": (
        MATRIX,
        [FARTHER, OTHER],
        "differs: the closest printed tensor of shape (2, 2) has 1 of 4 entries different, first [1, 1]: "
        "printed 0.5000, published 0.4000",
    ),
}


@pytest.mark.parametrize(("digits", "tensors", "expected"), COMPLAINTS.values(), ids=COMPLAINTS)
def test_complaint(digits, tensors, expected):
    assert complaint(np.array(digits), [np.array(tensor) for tensor in tensors]) == expected


def test_only_a_lesson_that_prints_everything_has_no_complaint():
    for lesson in LESSONS:
        names = [name for name, entry in published().items() if entry["lesson"] == lesson]
        tensors = [published()[name]["digits"] for name in names]
        assert lesson_complaints(lesson, tensors) == []
        assert [said.split()[0] for said in lesson_complaints(lesson, [])] == names
