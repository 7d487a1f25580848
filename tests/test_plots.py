"""Pictures: what the description says is in the numbers, the bytes are always the same, and the refusals."""

import base64
import csv
import hashlib
import io
import sys
import warnings
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display
from IPython.utils.capture import capture_output
from refusals import Unchanged, assert_refused
from torch import tensor
from traitlets.config import Config

from attention_core import causal_mask, plots
from attention_core.plots import COLOURS, LARGEST_LABELLED, curves, head_grid, heatmap, word_vectors

pytestmark = pytest.mark.slow

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven"]


@pytest.fixture(autouse=True)
def warnings_are_errors():
    """A warning would stand in a notebook's output."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Jupyter's libraries leave sockets and event loops to the collector, which may come while a picture is drawn
        warnings.simplefilter("ignore", ResourceWarning)
        yield


def rand(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def words(n):
    return [WORDS[i % 11] for i in range(n)]


PICTURES = {
    "weights": lambda shift=0.0: heatmap(rand(3, 3) + shift, words(3), words(3), "Weights", kind="weights"),
    "scores": lambda shift=0.0: heatmap(4 * rand(2, 5) - 2 + shift, words(2), words(5), "Scores"),
    "mask": lambda shift=0.0: heatmap(causal_mask(3), words(3), words(3), "Mask", kind="mask"),
    "one token": lambda shift=0.0: heatmap(tensor([[1.0 + shift]]), ["a"], ["a"], "One", kind="weights"),
    "ten tokens": lambda shift=0.0: heatmap(rand(10, 10) + shift, words(10), words(10), "Ten", kind="weights"),
    "eleven tokens": lambda shift=0.0: heatmap(rand(11, 11) + shift, words(11), words(11), "Eleven"),
    "hidden scores": lambda shift=0.0: heatmap(
        (rand(3, 3) + shift).masked_fill(~causal_mask(3), -torch.inf), words(3), words(3), "Hidden"
    ),
    "heads": lambda shift=0.0: head_grid(rand(3, 2, 2) + shift, words(2), "Heads"),
    "one head of one token": lambda shift=0.0: head_grid(rand(1, 1, 1) + shift, words(1), "Head"),
    "heads in two rows": lambda shift=0.0: head_grid(rand(3, 5, 5) + shift, words(5), "Rows"),
    "vectors": lambda shift=0.0: word_vectors(rand(6, 3) + shift, words(6), "Words"),
    "wide vectors": lambda shift=0.0: word_vectors(rand(9, 5) - 0.5 + shift, words(9), "Wide"),
    "a vector at the origin": lambda shift=0.0: word_vectors(torch.zeros(1, 3) + abs(shift), ["a"], "Nothing"),
    "curves": lambda shift=0.0: curves(
        [1, 2, 4],
        {"a": (rand(3) + shift).tolist(), "b": (rand(3, seed=1) + shift).tolist()},
        "Curves",
        x_label="x",
        y_label="y",
    ),
    "one point": lambda shift=0.0: curves([1], {"a": [0.5 + shift]}, "Point", x_label="x", y_label="y"),
    "logarithmic axes": lambda shift=0.0: curves(
        [256, 512, 1024],
        {"a": [20 + shift, 90 + shift, 700 + shift], "b": [30 + shift, 60 + shift, 120 + shift]},
        "Time",
        x_label="tokens",
        y_label="milliseconds",
        log="xy",
    ),
    "four tokens": lambda shift=0.0: head_grid(rand(5, 4, 4) + shift, words(4), "Four"),
    "two vectors": lambda shift=0.0: word_vectors(tensor([[0.0, 1.5, -0.2], [0.9, 1.4, 0.3]]) + shift, words(2), "Two"),
}
STORED = Path(__file__).with_name("pictures.csv")


@pytest.mark.parametrize("draw", PICTURES.values(), ids=PICTURES)
def test_picture_can_be_read_and_is_always_the_same(draw):
    """Numbers that differ in the 7th decimal, as between two processors, give the same file."""
    picture = draw()
    png = picture.png()
    image = matplotlib.image.imread(io.BytesIO(png))
    assert image.ndim == 3
    assert min(image.shape[:2]) > 80
    assert image[..., :3].std() > 0.01, "something is drawn"
    again = draw(4e-8)
    assert picture.description == again.description
    assert digest(picture) == digest(picture) == digest(again)
    assert b"Software" not in png
    assert b"Matplotlib" not in png


@pytest.mark.skipif(sys.platform != "linux", reason="Matplotlib's builds for other systems round differently")
@pytest.mark.parametrize("name", PICTURES)
def test_picture_looks_as_it_did_when_somebody_looked(name):
    """After a change that is meant: `python tests/test_plots.py`, and look at the files in build/pictures."""
    with STORED.open(encoding="utf-8", newline="") as file:
        stored = {row["picture"]: row["sha256"] for row in csv.DictReader(file)}
    assert digest(PICTURES[name]()) == stored[name]


def test_logarithmic_descriptions_have_three_digits_and_no_empty_decimals():
    picture = PICTURES["logarithmic axes"]()
    assert picture.description == (
        "Time, milliseconds against tokens: a goes from 20 at 256 to 700 at 1024; b goes from 30 at 256 to 120 at 1024."
    )


def test_display_shows_the_picture_and_its_description_below():
    InteractiveShell.clear_instance()
    InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    try:
        with capture_output() as shown:
            display(PICTURES["one point"]())
    finally:
        InteractiveShell.clear_instance()
    picture, description = (output.data for output in shown.outputs)
    assert picture["image/png"].startswith("iVBORw0KGgo")
    assert description["text/markdown"] == "*Figure: Point, y against x: a goes from 0.50 at 1 to 0.50 at 1.*"


def test_only_four_decimals_reach_a_picture():
    matrix = tensor([[0.1234, 0.5], [0.25, 1.0]], dtype=torch.float64)
    for draw in (
        lambda x: heatmap(x, words(2), words(2), "Weights"),
        lambda x: word_vectors(torch.cat([x, x[:, :1]], dim=1), words(2), "Words"),
    ):
        assert digest(draw(matrix)) == digest(draw(matrix + 2e-5)) != digest(draw(matrix + 0.01))


def digest(picture):
    return hashlib.sha256(picture.png()).hexdigest()


def test_other_numbers_give_another_picture():
    for name in ("one token", "one head of one token", "a vector at the origin", "one point"):
        assert digest(PICTURES[name]()) != digest(PICTURES[name](-0.1))
    for name in ("weights", "scores", "heads", "vectors", "curves"):
        draw = PICTURES[name]
        assert draw().description != draw(0.1).description


def drawn_text(picture):
    return [text.get_text() for text in picture.figure.axes[0].texts]


def test_heatmap_says_where_the_largest_and_the_smallest_are():
    picture = heatmap(tensor([[0.5, -1.25, 2.0], [3.0, 0.0, 1.0]]), ["a", "b"], ["c", "d", "e"], "T", row_label="rows")
    assert picture.description == (
        "T, rows down (a, b), keys across. The largest 3.00 for b and c, the smallest -1.25 for a and d."
    )
    assert drawn_text(picture) == ["0.50", "-1.25", "2.00", "3.00", "0.00", "1.00"]
    axes = picture.figure.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["c", "d", "e"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title()) == ("keys", "rows", "T")
    assert axes.images[0].get_clim() == (-1.25, 3.0)
    assert axes.images[0].get_array().tolist() == [[0.5, -1.25, 2.0], [3.0, 0.0, 1.0]]


def test_of_equal_numbers_the_first_is_named():
    matrix = tensor([[0.1, 0.7], [0.7, 0.1]])
    assert heatmap(matrix, "ab", "ab", "T").description.endswith(
        "The largest 0.70 for a and b, the smallest 0.10 for a and a."
    )
    nearly = tensor([[0.1 + 3e-8, 0.7 - 3e-8], [0.7, 0.1]], dtype=torch.float64)
    assert heatmap(nearly, "ab", "ab", "T").description == heatmap(matrix, "ab", "ab", "T").description


@pytest.mark.parametrize(
    ("matrix", "said", "texts"),
    [
        (
            [[1.0, -torch.inf], [3.0, 2.0]],
            "The largest 3.00 for b and a, the smallest 1.00 for a and a. 1 cell is minus infinity.",
            ["1", "-inf", "3", "2"],
        ),
        (
            [[-4.0, -torch.inf], [-torch.inf, -4.0]],
            "The largest -4.00 for a and a, the smallest -4.00 for a and a. 2 cells are minus infinity.",
            ["-4", "-inf", "-inf", "-4"],
        ),
        ([[-torch.inf, -torch.inf]] * 2, "No cell holds a finite number.", ["-inf"] * 4),
        (
            [[1.0, torch.nan], [torch.inf, 0.0]],
            "The largest 1.00 for a and a, the smallest 0.00 for b and b. 2 cells are no finite number.",
            ["1", "nan", "inf", "0"],
        ),
        (
            [[-0.0, -0.00001], [-0.004, 0.0]],
            "The largest 0.00 for a and a, the smallest 0.00 for b and a.",
            ["0.00"] * 4,
        ),
    ],
    ids=["one hidden", "all alike", "nothing finite", "nan", "zero without a sign"],
)
def test_heatmap_of_special_numbers(matrix, said, texts):
    picture = heatmap(tensor(matrix), "ab", "ab", "T")
    assert picture.description == f"T, queries down (a, b), keys across. {said}"
    assert drawn_text(picture) == texts
    assert picture.png()


def test_heatmap_of_a_mask_counts_yes():
    picture = heatmap(causal_mask(3), "abc", "abc", "Mask", kind="mask")
    assert picture.description == (
        "Mask, queries down (a, b, c), keys across. Cells with yes, row by row: 1, 2, 3 of 3."
    )
    assert drawn_text(picture) == ["yes", "no", "no", "yes", "yes", "no", "yes", "yes", "yes"]
    assert len(picture.figure.axes) == 1, "a mask needs no colour bar"


def test_weights_have_one_colour_scale():
    assert heatmap(tensor([[0.4, 0.6]]), "a", "ab", "T", kind="weights").figure.axes[0].images[0].get_clim() == (0, 1)
    grid = head_grid(rand(3, 2, 2) / 2, words(2), "T")
    assert {axes.images[0].get_clim() for axes in grid.figure.axes[:3]} == {(0, 1)}


def test_numbers_are_written_while_there_is_room():
    assert len(drawn_text(PICTURES["ten tokens"]())) == 100
    assert LARGEST_LABELLED == 10
    assert drawn_text(PICTURES["eleven tokens"]()) == []


def test_numbers_stand_out_from_their_cell():
    texts = heatmap(tensor([[0.0, 1.0]]), "a", "ab", "T", kind="weights").figure.axes[0].texts
    assert [text.get_color() for text in texts] == ["white", "black"]


def test_head_grid_describes_every_head():
    weights = tensor([[[1.0, 0.0], [0.25, 0.75]], [[0.5, 0.5], [0.5, 0.5]]])
    picture = head_grid(weights, ["a", "b"], "T")
    assert picture.description == (
        "T, queries down (a, b), keys across. "
        "Head 0: The largest 1.00 for a and a, the smallest 0.00 for a and b. "
        "Head 1: The largest 0.50 for a and a, the smallest 0.50 for a and a."
    )
    titles = [axes.get_title() for axes in picture.figure.axes[:2]]
    assert titles == ["head 0", "head 1"]
    assert picture.figure.axes[0].images[0].get_array().tolist() == weights[0].tolist()
    assert picture.figure.axes[1].images[0].get_array().tolist() == weights[1].tolist()


def test_word_vectors_names_every_place():
    picture = word_vectors(tensor([[0.125, -0.001, 1.0, 9.0], [0.5, 0.25, 0.75, 9.0]]), ["a", "b"], "T")
    assert picture.description == (
        "T. Each word is an arrow from the origin: a at (0.12, 0.00, 1.00); b at (0.50, 0.25, 0.75)."
    )
    axes = picture.figure.axes[0]
    assert [text.get_text() for text in axes.texts] == ["a", "b"]
    assert [text.get_color() for text in axes.texts] == list(COLOURS[:2])
    assert (axes.get_xlim()[0], axes.get_ylim()[0], axes.get_zlim()[0]) == pytest.approx((0, -0.001, 0), abs=0.05)


def test_curves_say_where_they_begin_and_end():
    lines = {"up": [0.0, 0.5, 2.0], "down": [1.0, 0.0, -0.001]}
    picture = curves([1, 2.5, 4], lines, "T", x_label="width", y_label="nats")
    assert picture.description == (
        "T, nats against width: up goes from 0.00 at 1 to 2.00 at 4; down goes from 1.00 at 1 to 0.00 at 4."
    )
    axes = picture.figure.axes[0]
    assert [line.get_label() for line in axes.lines] == ["up", "down"]
    assert list(axes.lines[0].get_xdata()) == [1, 2.5, 4]
    assert list(axes.lines[1].get_ydata()) == [1.0, 0.0, -0.001]
    assert (axes.get_xscale(), axes.get_yscale()) == ("linear", "linear")
    assert len({line.get_marker() for line in axes.lines}) == len({line.get_color() for line in axes.lines}) == 2


def test_small_numbers_survive_on_a_logarithmic_axis():
    picture = curves([2, 8], {"a": [0.5, 0.00001234321]}, "T", x_label="x", y_label="y", log="xy")
    axes = picture.figure.axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert list(axes.lines[0].get_ydata()) == [0.5, 1.234e-05]
    assert picture.description == "T, y against x: a goes from 0.5 at 2 to 0.0000123 at 8."
    assert [label.get_text() for label in axes.get_xticklabels()] == ["2", "8"]
    assert picture.png()


def test_showing_a_picture_shows_its_description_too(monkeypatch):
    shown = []
    monkeypatch.setattr(plots, "display", lambda data, **options: shown.append((data, options)))
    picture = PICTURES["one token"]()
    picture._ipython_display_()
    (image, options), (text, _) = shown
    assert hashlib.sha256(base64.b64decode(image["image/png"])).hexdigest() == digest(picture)
    assert options["metadata"] == {"image/png": {"alt": picture.description}}
    assert image["text/plain"] == text["text/plain"] == f"Figure: {picture.description}"
    assert text["text/markdown"] == f"*Figure: {picture.description}*"


def test_tensors_that_are_trained_are_drawn_and_left_alone():
    weights = rand(2, 2).requires_grad_()
    before = Unchanged(weights)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64):
        heatmap(weights.to(dtype), "ab", "ab", "T").png()
    head_grid(weights.unsqueeze(0), "ab", "T").png()
    word_vectors(torch.cat([weights, weights], dim=1), "ab", "T").png()
    before.check()


def no_tensor(name, kind):
    return f"{name} must be a torch.Tensor, got {kind}"


REFUSED = {
    "shape": (
        ValueError,
        "the matrix must have shape (2, 3), got (3, 2)",
        lambda: heatmap(torch.ones(3, 2), "ab", "abc", "T"),
    ),
    "a batch": (
        ValueError,
        "the matrix must have shape (2, 2), got (1, 2, 2)",
        lambda: heatmap(torch.ones(1, 2, 2), "ab", "ab", "T"),
    ),
    "kind": (
        ValueError,
        "kind must be 'weights', 'scores' or 'mask', got 'heat'",
        lambda: heatmap(torch.ones(2, 2), "ab", "ab", "T", kind="heat"),
    ),
    "list": (TypeError, no_tensor("the matrix", "list"), lambda: heatmap([[1.0]], "a", "a", "T")),
    "NumPy array": (TypeError, no_tensor("the matrix", "ndarray"), lambda: heatmap(np.ones((1, 1)), "a", "a", "T")),
    "complex": (
        TypeError,
        "the matrix must hold real numbers, got torch.complex64",
        lambda: heatmap(torch.ones(1, 1, dtype=torch.complex64), "a", "a", "T"),
    ),
    "one head without its dimension": (
        ValueError,
        "weights must have shape (1 or more heads, tokens, tokens), got (2, 2)",
        lambda: head_grid(torch.ones(2, 2), "ab", "T"),
    ),
    "no heads": (
        ValueError,
        "weights must have shape (1 or more heads, tokens, tokens), got (0, 2, 2)",
        lambda: head_grid(torch.ones(0, 2, 2), "ab", "T"),
    ),
    "heads of other tokens": (
        ValueError,
        "the matrix must have shape (3, 3), got (2, 2)",
        lambda: head_grid(torch.ones(1, 2, 2), "abc", "T"),
    ),
    "heads as list": (TypeError, no_tensor("weights", "list"), lambda: head_grid([[[1.0]]], "a", "T")),
    "two features": (
        ValueError,
        "vectors must have shape (2, 3 or more), got (2, 2)",
        lambda: word_vectors(torch.ones(2, 2), "ab", "T"),
    ),
    "vectors of other words": (
        ValueError,
        "vectors must have shape (3, 3 or more), got (2, 3)",
        lambda: word_vectors(torch.ones(2, 3), "abc", "T"),
    ),
    "no vectors": (
        ValueError,
        "vectors must have shape (0, 3 or more), got (0, 3)",
        lambda: word_vectors(torch.ones(0, 3), "", "T"),
    ),
    "vectors None": (TypeError, no_tensor("vectors", "NoneType"), lambda: word_vectors(None, "ab", "T")),
    "short curve": (
        ValueError,
        "curve 'a' must have one number for each x: 2 expected, got 1",
        lambda: curves([1, 2], {"a": [1]}, "T", x_label="x", y_label="y"),
    ),
    "no curve": (
        ValueError,
        "there must be a curve and a place to measure it, got 0 curves, 2 places",
        lambda: curves([1, 2], {}, "T", x_label="x", y_label="y"),
    ),
    "no place": (
        ValueError,
        "there must be a curve and a place to measure it, got 1 curves, 0 places",
        lambda: curves([], {"a": []}, "T", x_label="x", y_label="y"),
    ),
}


@pytest.mark.parametrize(("kind", "message", "call"), REFUSED.values(), ids=REFUSED)
def test_refused(kind, message, call):
    assert_refused(kind, message, call)


if __name__ == "__main__":
    folder = STORED.parent.parent / "build" / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    with STORED.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["picture", "sha256"])
        for name, draw in PICTURES.items():
            (folder / f"{name}.png").write_bytes(draw().png())
            writer.writerow([name, digest(draw())])
