"""Which printed numbers lie so close to a rounding edge that another processor may print another digit.

All of them are in rounding_edges.csv, so that a new one is noticed. A number must be at least 8 rounding errors of
float32 away from its edge, or have a reason there why it is the same on every processor: computed in float64, say.
After a lesson changed: `python tests/test_rounding_edges.py` writes the file anew and keeps its reasons.
"""

import csv
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

from in_process import ExecutedCell, Number, distance_to_edge, execute
from run_notebooks import NOTEBOOKS, find_lessons

LISTED = Path(__file__).with_name("rounding_edges.csv")
PATHS = find_lessons() + sorted(NOTEBOOKS.glob("solutions/*.ipynb"))
NEAR, ENOUGH_ROUNDINGS = 1e-6, 8
BLUR = 2e-7  # a machine's last bits move a margin so far; what lies within this of the limit may be listed or not
LONG_NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d{4,}(?![\w.])")
# long numbers that no tensor and no f-string printed, and why they are the same everywhere
PRINTED_OTHERWISE = {
    "2.23606797749979": "math.sqrt of a whole number, correctly rounded on every machine",
}


@dataclass(frozen=True, order=True)
class Edge:
    notebook: str
    cell: str
    printed: str


def name_of(path: Path) -> str:
    return path.relative_to(NOTEBOOKS).as_posix().removesuffix(".ipynb")


def text_of(cell: ExecutedCell) -> str:
    return "\n".join(str(output.get("text") or output.get("data", {}).get("text/plain", "")) for output in cell.outputs)


def shown_numbers(cells: list[ExecutedCell]) -> Iterator[tuple[str, Number]]:
    """The numbers that a reader sees, with their cells; not those that were only made into text."""
    for cell in cells:
        text = text_of(cell)
        for number in cell.numbers:
            if re.search(rf"(?<![\d.]){re.escape(number.printed)}(?!\d)", text):
                yield cell.id, number


def is_near(number: Number, limit: float = NEAR) -> bool:
    """Within a millionth of the edge, or a hundredth of the last place where that is less."""
    near = min(limit, limit / NEAR * 0.01 * 10.0**-number.decimals)
    return number.margin < near or number.roundings < ENOUGH_ROUNDINGS


def edges(path: Path, cells: list[ExecutedCell], limit: float = NEAR) -> dict[Edge, Number]:
    found: dict[Edge, Number] = {}
    for cell, number in shown_numbers(cells):
        edge = Edge(name_of(path), cell, number.printed)
        if is_near(number, limit) and (edge not in found or number.margin < found[edge].margin):
            found[edge] = number
    return found


def listed() -> dict[Edge, str]:
    with LISTED.open(encoding="utf-8", newline="") as file:
        return {Edge(row["notebook"], row["cell"], row["printed"]): row["reason"] for row in csv.DictReader(file)}


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS, ids=name_of)
def test_every_number_near_a_rounding_edge_is_listed(
    path: Path, executed: Callable[[Path], list[ExecutedCell]]
) -> None:
    cells = executed(path)
    here = {edge for edge in listed() if edge.notebook == name_of(path)}
    new = edges(path, cells, NEAR - BLUR).keys() - here
    gone = here - edges(path, cells, NEAR + BLUR).keys()
    assert not new, f"near a rounding edge and not in {LISTED.name}: {sorted(new)}"
    assert not gone, f"in {LISTED.name} and no longer near a rounding edge: {sorted(gone)}"


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS, ids=name_of)
def test_every_number_is_8_roundings_from_the_edge_or_has_a_reason(
    path: Path, executed: Callable[[Path], list[ExecutedCell]]
) -> None:
    reasons = listed()
    for edge, number in edges(path, executed(path)).items():
        if number.roundings < ENOUGH_ROUNDINGS:
            said = f"{edge}: {number.value!r} is {number.roundings:.1f} roundings from the edge"
            assert reasons.get(edge, "").strip(), f"{said}; print fewer digits, or give a reason in {LISTED.name}"


@pytest.mark.slow
@pytest.mark.parametrize("path", find_lessons(), ids=name_of)
def test_no_long_number_is_printed_unseen(path: Path, executed: Callable[[Path], list[ExecutedCell]]) -> None:
    """Else a number near an edge could hide in a form that this test does not look into."""
    sources = {cell.id: cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"}
    for cell in executed(path):
        seen = {number.printed for number in cell.numbers} | PRINTED_OTHERWISE.keys()
        from_checker = re.search(r"^check\(", sources[cell.id], re.MULTILINE)  # its inputs are fixed
        text = re.sub(r"^\*?Figure: .*$", "", text_of(cell), flags=re.MULTILINE)  # numbers of a picture, rounded twice
        for token in LONG_NUMBER.findall(text):
            known = token in seen or token in sources[cell.id] or from_checker or _whole_power_of_ten(token)
            assert known, f"{cell.id} prints {token} in a way that is not looked into: use a tensor or an f-string"


def _whole_power_of_ten(token: str) -> bool:
    return set(token) <= set("01.")


def test_the_list_names_only_notebooks_that_exist() -> None:
    assert {edge.notebook for edge in listed()} <= {name_of(path) for path in PATHS}


def near_edges(source: str, folder: Path) -> dict[str, Number]:
    path = folder / "sample.ipynb"
    cell = nbformat.v4.new_code_cell(f"import torch\n{source}", id="sample", execution_count=1)
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    return {number.printed: number for _, number in shown_numbers(execute(path)) if is_near(number)}


@pytest.mark.parametrize(
    ("source", "printed"),
    [
        ("print(torch.tensor([0.5, 0.12345001]))", ["0.1235"]),
        ("print(torch.tensor([0.5, 0.1234]))", []),
        ("torch.tensor([[0.5, -2.72444995]], dtype=torch.float64)", ["-2.7244"]),
        ("print(torch.tensor([1.0, 2.0]))", []),
        ("print(f'{0.12345001:.4f} {0.12349:.4f} {0.62500001:.2f} {0.6250001:.2f}')", ["0.1235", "0.63"]),
        ("print(f'{0.1250000001:.0%} {0.125:>8.3f}')", ["13%"]),
        ("print(f'{torch.tensor(0.12345001):7.4f}')", ["0.1235"]),
        ("label = f'{0.12345001:.4f}'", []),
        ("print(torch.tensor([0.5, 0.25]).round(decimals=4), '0.50')", []),
        ("x = torch.tensor([0.3349501]).round(decimals=4)\nprint(f'Figure: the largest {x.item():z.2f}')", ["0.34"]),
    ],
)
def test_edges_are_seen(source: str, printed: list[str], tmp_path: Path) -> None:
    assert sorted(near_edges(source, tmp_path)) == sorted(printed)


def test_margins_are_distances_to_the_next_edge() -> None:
    assert distance_to_edge(2.72445, 4) == pytest.approx(0, abs=1e-12)
    assert distance_to_edge(2.7244, 4) == pytest.approx(5e-5)
    assert distance_to_edge(-0.0633499, 4) == pytest.approx(1e-7, rel=1e-3)
    number = Number("0.0633", 0.0633499, 4, 2.0**-24, 1e-7)
    assert number.roundings == pytest.approx(1e-7 / (0.0633499 * 2.0**-24))


def write() -> None:
    reasons = listed() if LISTED.is_file() else {}
    with LISTED.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["notebook", "cell", "printed", "margin", "roundings", "reason"])
        for path in PATHS:
            for edge, number in sorted(edges(path, execute(path)).items()):
                roundings = f"{number.roundings:.1f}"
                margin = f"{number.margin:.0e}"
                rows.writerow([edge.notebook, edge.cell, edge.printed, margin, roundings, reasons.get(edge, "")])


if __name__ == "__main__":
    write()
