"""The comparison for processors that round differently forgives the last digit of a long number, and nothing more."""

import operator
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import run_notebooks
from nbformat.v4 import new_code_cell, new_notebook, new_output
from nbval.plugin import IPyNbCell
from notebook_cells import ExactCell, Rounded, TolerantCell, same_but_for_rounding
from run_notebooks import ROOT

import conftest

FORGIVEN = {
    "the last digit up": ("0.0633", "0.0634"),
    "and down": ("tensor([1.2705, 1.8524])", "tensor([1.2704, 1.8525])"),
    "a carry": ("sum 0.9999", "sum 1.0000"),
    "a carry that needs a digit more": ("9.9999", "10.0000"),
    "a carry in a padded column": ("a  9.9999\n", "a 10.0000\n"),
    "to zero": ("-0.0001", "-0.0000"),
    "through zero": ("tensor([ 0.0000, 0.5000])", "tensor([-0.0000, 0.5000])"),
    "more decimals": ("2.36453213", "2.36453214"),
    "a mantissa": ("4.5399e-05", "4.5400e-05"),
    "a negative number": ("-0.5337", "-0.5338"),
}
NOT_FORGIVEN = {
    "two units": ("0.0633", "0.0635"),
    "two units, another one right": ("0.0633 0.5000", "0.0635 0.5000"),
    "two units of more decimals": ("2.36453213", "2.36453215"),
    "an integer": ("6", "7"),
    "an integer beside": ("row 1: 0.5000", "row 2: 0.5000"),
    "three decimals": ("0.063", "0.064"),
    "two decimals": ("0.06", "0.07"),
    "percent": ("51%", "52%"),
    "the sign": ("0.5000", "-0.5000"),
    "the sign of the smallest": ("0.0001", "-0.0001"),
    "a word": ("journey 0.5000", "starts 0.5000"),
    "another number of decimals": ("0.5000", "0.50000"),
    "an exponent": ("4.5399e-05", "4.5399e-06"),
    "a number less": ("0.5000 0.5000", "0.5000"),
    "a number more": ("0.5000", "0.5000 0.5000"),
    "a space": ("0.5000, 0.5000", "0.5000,  0.5000"),
    "a line": ("0.5000\n", "0.5000"),
    "an integer part": ("1.5000", "2.5000"),
    "minus infinity": ("0.5000", "-inf"),
    "a version": ("1.2345.1", "1.2346.1"),
    "a name": ("v1.23456", "v1.23457"),
    "nothing": ("0.5000", ""),
}


@pytest.mark.parametrize(("left", "right"), FORGIVEN.values(), ids=FORGIVEN)
def test_one_unit_of_the_last_place_is_forgiven(left: str, right: str) -> None:
    assert same_but_for_rounding(left, right)
    assert same_but_for_rounding(right, left)
    assert Rounded(left) == Rounded(right)
    assert not operator.ne(Rounded(left), Rounded(right))


@pytest.mark.parametrize(("left", "right"), NOT_FORGIVEN.values(), ids=NOT_FORGIVEN)
def test_nothing_else_is(left: str, right: str) -> None:
    assert not same_but_for_rounding(left, right)
    assert not same_but_for_rounding(right, left)
    assert Rounded(left) != Rounded(right)


def printing(path: Path, stored: str) -> None:
    """Writes a notebook that prints 0.0634 and 6, and holds something else."""
    cell = new_code_cell("print(0.0634, 6)", id="printed", execution_count=1)
    cell.outputs = [new_output("stream", name="stdout", text=stored + "\n")]
    path.write_bytes(run_notebooks.to_bytes(run_notebooks.normalise(new_notebook(cells=[cell]))))


@pytest.mark.slow
def test_notebooks_are_compared_so_when_asked(tmp_path: Path) -> None:
    for name, stored in [("one-unit", "0.0633 6"), ("two-units", "0.0632 6"), ("integer", "0.0634 7")]:
        printing(tmp_path / f"{name}.ipynb", stored)
    command = [sys.executable, "-m", "pytest", "-rA", "-o", "addopts=", "-p", "no:cacheprovider", "-p", "conftest"]
    done = subprocess.run(
        [*command, "--nbval", "--nbval-current-env", "--tolerant", str(tmp_path)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tools")])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert set(re.findall(r"(PASSED|FAILED|ERROR) ([\w-]+)", done.stdout)) == {
        ("PASSED", "one-unit"),
        ("FAILED", "two-units"),
        ("FAILED", "integer"),
    }, done.stdout


@pytest.mark.parametrize(("asked", "expected"), [(False, ExactCell), (True, TolerantCell)])
def test_exact_unless_asked(asked: bool, expected: type) -> None:
    cell = IPyNbCell.__new__(IPyNbCell)
    cell.config = SimpleNamespace(option=SimpleNamespace(tolerant=asked))
    conftest.pytest_itemcollected(cell)
    assert type(cell) is expected


def collected(*nodes: str, slow: str = "") -> list[SimpleNamespace]:
    return [
        SimpleNamespace(nodeid=node, get_closest_marker=lambda name, node=node: node == slow and name == "slow")
        for node in nodes
    ]


def test_files_are_shuffled_whole() -> None:
    cells = [(f"notebooks/{name}.ipynb", f"Cell {number}") for name in "abcdef" for number in range(12)]
    orders = set()
    for seed in range(20):
        items = collected(*("::".join(cell) for cell in cells))
        conftest.pytest_collection_modifyitems(SimpleNamespace(option=SimpleNamespace(order_seed=seed)), items)
        shuffled = [tuple(item.nodeid.split("::")) for item in items]
        files = list(dict.fromkeys(file for file, _ in shuffled))
        assert shuffled == [(file, f"Cell {number}") for file in files for number in range(12)]
        assert sorted(shuffled) == sorted(cells)
        orders.add(tuple(files))
    assert len(orders) > 10


def test_one_seed_gives_one_order_whatever_order_is_collected() -> None:
    orders = []
    for nodes in (["a::1", "b::1", "c::1", "d::1"], ["d::1", "c::1", "b::1", "a::1"]):
        items = collected(*nodes)
        conftest.pytest_collection_modifyitems(SimpleNamespace(option=SimpleNamespace(order_seed=3)), items)
        orders.append([item.nodeid for item in items])
    assert orders[0] == orders[1]


def test_a_file_with_a_slow_test_comes_first() -> None:
    for seed in range(5):
        items = collected("a::1", "b::1", "c::1", "c::2", "d::1", slow="c::2")
        conftest.pytest_collection_modifyitems(SimpleNamespace(option=SimpleNamespace(order_seed=seed)), items)
        assert [item.nodeid for item in items[:2]] == ["c::1", "c::2"]
