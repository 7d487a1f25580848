"""The benchmark compares like with like, and its quick form runs from start to end."""

import csv
import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from attention_core import FusedMultiHeadAttention, MultiHeadAttention, causal_mask

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parent.parent / "benchmarks"
B, T, WIDTH, HEADS = 2, 7, 15, 3


@pytest.fixture
def alternatives(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("alternatives")


@pytest.fixture
def run(alternatives):
    return importlib.import_module("run")


def ours() -> MultiHeadAttention:
    torch.manual_seed(0)
    return MultiHeadAttention(WIDTH, WIDTH, T + 2, 0.0, HEADS)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ["fused", "textbook", "separate", "packed", "torch", "torch with weights"])
def test_every_layer_has_the_same_numbers_and_gradients(alternatives, name, training):
    source = ours()
    make = {
        "fused": lambda: FusedMultiHeadAttention(WIDTH, WIDTH, T + 2, 0.0, HEADS),
        "textbook": lambda: alternatives.Textbook(WIDTH, T + 2, 0.0, HEADS),
        "separate": lambda: alternatives.SeparateProjections(WIDTH, 0.0, HEADS),
        "packed": lambda: alternatives.PackedProjection(WIDTH, 0.0, HEADS),
        "torch": lambda: alternatives.TorchLayer(WIDTH, T + 2, 0.0, HEADS, need_weights=False),
        "torch with weights": lambda: alternatives.TorchLayer(WIDTH, T + 2, 0.0, HEADS, need_weights=True),
    }
    layer = alternatives.same_weights(make[name](), source).train(training)
    x, y = (torch.randn(B, T, WIDTH, generator=torch.Generator().manual_seed(1)).requires_grad_() for _ in range(2))
    torch.testing.assert_close(layer(x), source.train(training)(y), rtol=1e-5, atol=1e-6)
    layer(x).square().sum().backward()
    source(y).square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-5)


def test_every_attention_has_the_same_numbers(run):
    inputs = run.memory.make_inputs(HEADS, T, "cpu", torch.float32, False)
    contexts = [attend(*inputs) for attend in run.memory.CANDIDATES.values()]
    for context in contexts[1:]:
        torch.testing.assert_close(context, contexts[0], rtol=1e-5, atol=1e-6)


def test_the_products_cover_what_causality_allows_and_little_more(alternatives):
    length, block = 11, 2
    products = alternatives.MatrixProducts(WIDTH, HEADS, block_size=block)
    rows = [block] * (length // block) + [length % block]
    covered = sum(n * end for n, end in zip(rows, products._ends(length), strict=True))
    assert causal_mask(length).sum() <= covered <= causal_mask(length).sum() + length * block
    assert products(torch.zeros(B, length, WIDTH)).shape == (B, length, WIDTH)


def test_quick_run_writes_tables_and_pictures(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(run, "WIDTH", 24)
    threads = torch.get_num_threads()
    run.main(["--quick", "--out", str(tmp_path)])
    torch.set_num_threads(threads)
    printed = capsys.readouterr().out
    for name in ("time", "memory"):
        with (tmp_path / f"{name}.csv").open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert {"FusedMultiHeadAttention", "tiled_attention", "textbook"} & {row["candidate"] for row in rows}
        assert all(f"| {row['candidate']} |" in printed for row in rows)
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / f"{name}.txt").read_text("utf-8").strip()
    facts = tomllib.loads((tmp_path / "machine.toml").read_text("utf-8"))
    assert {"date", "machine", "torch", "threads", "dtype"} <= set(facts)
    assert "FusedMultiHeadAttention / it" in printed


def test_memory_is_that_of_the_case_alone():
    """Also where the process that starts it holds more: here, a table of 2048 by 2048 numbers takes 16 MB."""
    held = torch.ones(2**26)  # 256 MB
    command = [sys.executable, str(FOLDER / "memory.py"), "attention", "textbook", "2048", "cpu", "float32", "forward"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert 2**24 < int(printed) < 8 * 2**24
    assert held.sum() == 2**26


def test_a_ratio_is_taken_turn_by_turn(run):
    assert run.ratio([1.0, 20.0, 3.0], [2.0, 10.0, 6.0]) == 0.5


@pytest.fixture(autouse=True)
def forget_modules():
    yield
    for name in ("alternatives", "memory", "run"):
        sys.modules.pop(name, None)
