"""The expected answer drawn beside the given one. Imported only when there is something to draw (matplotlib)."""

from matplotlib.figure import Figure
from torch import Tensor

from attention_core.exercises._compare import differing
from attention_core.plots import Picture, _as_matrix, _draw_cells, _name_axes


def beside(expected: Tensor, given: Tensor, kind: str) -> Picture:
    """Draw two matrices of one shape side by side, queries down and keys across."""
    rows, columns = ([f"{axis} {i}" for i in range(size)] for axis, size in zip("qk", expected.shape, strict=True))
    width, height = 1.6 + 0.72 * len(columns), 1.4 + 0.5 * len(rows)
    figure = Figure(figsize=(2 * width, height), layout="constrained")
    for place, (title, matrix) in enumerate((("expected", expected), ("yours", given)), start=1):
        axes = figure.add_subplot(1, 2, place)
        _draw_cells(axes, _as_matrix(matrix, rows, columns, kind), kind)
        _name_axes(axes, rows, columns, "queries", "keys")
        axes.set_title(title)
    wrong = int(differing(given, expected).sum())
    said = f"{wrong} of {expected.numel()} cells differ"
    return Picture(figure, f"the expected answer beside yours, queries down, keys across; {said}.")
