"""Pictures drawn from the tensors on the page, each with a description made from the same numbers.

Every function returns a `Picture`. As the last line of a cell it shows the figure and, below it, its description;
the description is the image's alternative text too.
"""

import base64
import functools
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from IPython.display import display
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter
from torch import Tensor

COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
)  # Okabe and Ito, told apart by everyone
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
COLOUR_MAP = "cividis"
LARGEST_LABELLED = 10  # more columns than this leave no room for a number in each cell


class Picture:
    """A figure with its description; showing it in a notebook shows both."""

    def __init__(self, figure: Figure, description: str) -> None:
        self.figure = figure
        self.description = description

    @functools.cached_property
    def _png(self) -> bytes:
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format="png", dpi=100, bbox_inches="tight", metadata={"Software": None})
        return buffer.getvalue()

    def png(self) -> bytes:
        return self._png  # drawn once: drawing again would lay out the figure anew and move it a little

    def _ipython_display_(self) -> None:
        text = f"Figure: {self.description}"
        image = {"image/png": base64.b64encode(self.png()).decode("ascii"), "text/plain": text}
        display(image, raw=True, metadata={"image/png": {"alt": self.description}})
        display({"text/markdown": f"*{text}*", "text/plain": text}, raw=True)


def heatmap(
    matrix: Tensor,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    *,
    kind: str = "scores",
    row_label: str = "queries",
    column_label: str = "keys",
) -> Picture:
    """Draw a matrix as coloured cells, queries down and keys across, with the numbers in the cells.

    Args:
        matrix: (L, S); boolean for a mask.
        rows, columns: L and S names, usually tokens.
        title: what the numbers are.
        kind: "weights" (one colour scale from 0 to 1), "scores" (the matrix's own scale) or "mask" (True = may attend).
        row_label, column_label: the names of the two axes.
    Returns: a Picture.
    Raises: TypeError or ValueError where type, shape, names or kind do not fit.

    >>> heatmap(torch.eye(2), ["a", "b"], ["a", "b"], "Identity").description
    'Identity, queries down (a, b), keys across. The largest 1.00 for a and a, the smallest 0.00 for a and b.'

    First used in notebook 00.
    """
    shown = _as_matrix(matrix, rows, columns, kind)
    figure = Figure(figsize=(2.2 + 0.72 * shown.shape[1], 1.4 + 0.5 * shown.shape[0]), layout="constrained")
    axes = figure.add_subplot()
    image = _draw_cells(axes, shown, kind)
    _name_axes(axes, rows, columns, row_label, column_label)
    axes.set_title(title)
    if kind != "mask":
        figure.colorbar(image, ax=axes)
    head = f"{title}, {row_label} down ({', '.join(rows)}), {column_label} across."
    return Picture(figure, f"{head} {_describe(shown, rows, columns, kind)}")


def head_grid(weights: Tensor, tokens: Sequence[str], title: str) -> Picture:
    """Draw the attention weights of all heads side by side, on one colour scale from 0 to 1.

    Args:
        weights: (H, T, T).
        tokens: the T tokens.
        title: what the numbers are.
    Returns: a Picture.
    Raises: TypeError or ValueError where type or shape do not fit the tokens.

    >>> head_grid(torch.ones(1, 1, 1), ["a"], "One head").description
    'One head, queries down (a), keys across. Head 0: The largest 1.00 for a and a, the smallest 1.00 for a and a.'

    First used in notebook 06.
    """
    _check_real("weights", weights)
    if weights.dim() != 3 or len(weights) == 0:
        raise ValueError(f"weights must have shape (1 or more heads, tokens, tokens), got {tuple(weights.shape)}")
    heads = [_as_matrix(head, tokens, tokens, "weights") for head in weights]
    columns = min(len(heads), 2 if len(tokens) > 4 else 4)
    lines = -(-len(heads) // columns)
    size = 1.3 + 0.6 * len(tokens)
    figure = Figure(figsize=(size * columns, 0.85 * size * lines), layout="constrained")
    for number, head in enumerate(heads):
        axes = figure.add_subplot(lines, columns, number + 1)
        image = _draw_cells(axes, head, "weights")
        _name_axes(axes, tokens, tokens, "queries", "keys")
        axes.set_title(f"head {number}")
    figure.colorbar(image, ax=figure.axes)
    figure.suptitle(title)
    said = [f"Head {number}: {_describe(head, tokens, tokens, 'weights')}" for number, head in enumerate(heads)]
    return Picture(figure, f"{title}, queries down ({', '.join(tokens)}), keys across. {' '.join(said)}")


def word_vectors(vectors: Tensor, tokens: Sequence[str], title: str) -> Picture:
    """Draw each word as an arrow from the origin, in three dimensions; of wider vectors the first three numbers.

    Args:
        vectors: (T, D), D at least 3.
        tokens: the T tokens.
        title: what is drawn.
    Returns: a Picture.
    Raises: TypeError or ValueError where type or shape do not fit the tokens.

    >>> word_vectors(torch.eye(3)[:1], ["a"], "One word").description
    'One word. Each word is an arrow from the origin: a at (1.00, 0.00, 0.00).'

    First used in notebook 01.
    """
    _check_real("vectors", vectors)
    if vectors.dim() != 2 or len(tokens) == 0 or vectors.shape[0] != len(tokens) or vectors.shape[1] < 3:
        raise ValueError(f"vectors must have shape ({len(tokens)}, 3 or more), got {tuple(vectors.shape)}")
    points = vectors.detach().round(decimals=4)[:, :3].tolist()
    lower = [i for i in range(len(points)) if points[i][2] < points[_nearest(points, i)][2]]
    figure = Figure(figsize=(6.5, 6))
    axes: Any = figure.add_subplot(projection="3d")
    for number, (token, point) in enumerate(zip(tokens, points, strict=True)):
        colour = COLOURS[number % len(COLOURS)]
        axes.quiver(0, 0, 0, *point, color=colour, arrow_length_ratio=0.08)
        below = number in lower
        axes.text(*(1.03 * x for x in point), token, color=colour, fontsize=11, va="top" if below else "bottom")
    for axis, column in zip("xyz", zip(*points, strict=True), strict=True):
        low, high = min(0.0, *column), max(0.0, *column)
        getattr(axes, f"set_{axis}lim")(low, high if low < high else 1.0)
        getattr(axes, f"set_{axis}label")(f"feature {'xyz'.index(axis) + 1}")
    axes.set_title(title)
    places = "; ".join(
        f"{token} at ({', '.join(f'{x:z.2f}' for x in point)})" for token, point in zip(tokens, points, strict=True)
    )
    return Picture(figure, f"{title}. Each word is an arrow from the origin: {places}.")


def curves(
    x: Sequence[float], lines: Mapping[str, Sequence[float]], title: str, *, x_label: str, y_label: str, log: str = ""
) -> Picture:
    """Draw one curve for each named list of numbers.

    Args:
        x: where the curves are measured.
        lines: name -> as many numbers as there are in x.
        title: what is drawn.
        x_label, y_label: the names of the axes.
        log: the axes with a logarithmic scale: "", "x", "y" or "xy".
    Returns: a Picture.
    Raises: ValueError where a curve and x differ in length, or where there is none.

    >>> curves([1, 2], {"squares": [1, 4]}, "Powers", x_label="x", y_label="y").description
    'Powers, y against x: squares goes from 1.00 at 1 to 4.00 at 2.'

    First used in notebook 02.
    """
    if len(x) == 0 or len(lines) == 0:
        raise ValueError(f"there must be a curve and a place to measure it, got {len(lines)} curves, {len(x)} places")
    figure = Figure(figsize=(6.5, 4), layout="constrained")
    axes = figure.add_subplot()
    rounding = ".4g" if "y" in log else ".4f"
    said = []
    for number, (name, values) in enumerate(lines.items()):
        if len(values) != len(x):
            raise ValueError(f"curve {name!r} must have one number for each x: {len(x)} expected, got {len(values)}")
        y = [float(f"{float(value):{rounding}}") for value in values]
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        axes.plot(list(x), y, color=colour, marker=marker, label=name)
        first, last = (_in_words(number, "y" in log) for number in (y[0], y[-1]))
        said.append(f"{name} goes from {first} at {x[0]:g} to {last} at {x[-1]:g}")
    axes.set(title=title, xlabel=x_label, ylabel=y_label)
    if "x" in log:
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(x), [f"{place:g}" for place in x])
        axes.minorticks_off()
    if "y" in log:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")  # 100 and 0.01 instead of powers of ten
        axes.yaxis.set_minor_formatter(LogFormatter())
    axes.grid(alpha=0.3)
    axes.legend()
    return Picture(figure, f"{title}, {y_label} against {x_label}: {'; '.join(said)}.")


def _in_words(number: float, logarithmic: bool) -> str:
    if logarithmic:
        return np.format_float_positional(number, precision=3, fractional=False, trim="-")
    return f"{number:z.2f}"


def _nearest(points: list[list[float]], i: int) -> int:
    others = [j for j in range(len(points)) if j != i]
    return min(others, key=lambda j: math.dist(points[i], points[j]), default=i)


def _check_real(name: str, x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}")
    if x.is_complex():
        raise TypeError(f"{name} must hold real numbers, got {x.dtype}")


def _as_matrix(matrix: Tensor, rows: Sequence[str], columns: Sequence[str], kind: str) -> Tensor:
    if kind not in ("weights", "scores", "mask"):
        raise ValueError(f"kind must be 'weights', 'scores' or 'mask', got {kind!r}")
    _check_real("the matrix", matrix)
    if tuple(matrix.shape) != (len(rows), len(columns)):
        raise ValueError(f"the matrix must have shape ({len(rows)}, {len(columns)}), got {tuple(matrix.shape)}")
    return matrix.detach().to(torch.float64).round(decimals=4)  # the last bits differ between machines; pictures do not


def _draw_cells(axes: Axes, matrix: Tensor, kind: str) -> Any:
    finite = matrix[matrix.isfinite()]
    low, high = (finite.min().item(), finite.max().item()) if kind == "scores" and len(finite) else (0.0, 1.0)
    colour_map = colormaps[COLOUR_MAP].with_extremes(bad="#d9d9d9")
    visible = matrix.masked_fill(~matrix.isfinite(), torch.nan)
    image = axes.imshow(visible.numpy(), cmap=colour_map, vmin=low, vmax=high, aspect="auto")
    colours = image.to_rgba(visible.numpy())  # (L, S, 4)
    decimals = 0 if torch.equal(finite, finite.round()) else 2
    if matrix.shape[1] <= LARGEST_LABELLED:
        for i, row in enumerate(matrix.tolist()):
            for j, value in enumerate(row):
                text = _cell_text(value, kind, decimals)
                axes.text(j, i, text, ha="center", va="center", color=_readable_on(colours[i, j]))
    return image


def _readable_on(background: Iterable[float]) -> str:
    """Black or white, whichever stands out more (relative luminance as in WCAG 2)."""
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in list(background)[:3])
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "black" if (luminance + 0.05) / 0.05 > 1.05 / (luminance + 0.05) else "white"


def _cell_text(value: float, kind: str, decimals: int) -> str:
    if kind == "mask":
        return "yes" if value else "no"
    return f"{value:z.{decimals}f}"


def _name_axes(axes: Axes, rows: Sequence[str], columns: Sequence[str], row_label: str, column_label: str) -> None:
    axes.set_xticks(range(len(columns)), columns, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(rows)), rows)
    axes.set(xlabel=column_label, ylabel=row_label)


def _describe(matrix: Tensor, rows: Sequence[str], columns: Sequence[str], kind: str) -> str:
    if kind == "mask":
        counts = ", ".join(f"{int(row.sum())}" for row in matrix)
        return f"Cells with yes, row by row: {counts} of {len(columns)}."
    finite = matrix.isfinite()
    if not finite.any():
        return "No cell holds a finite number."
    largest = matrix.masked_fill(~finite, -torch.inf).numpy().argmax()
    smallest = matrix.masked_fill(~finite, torch.inf).numpy().argmin()
    said = [
        f"{word} {_place(matrix, rows, columns, int(place))}"
        for word, place in (("largest", largest), ("smallest", smallest))
    ]
    hidden = int((~finite).sum())
    number = "minus infinity" if (matrix[~finite] == -torch.inf).all() else "no finite number"
    cells = "1 cell is" if hidden == 1 else f"{hidden} cells are"
    return f"The {', the '.join(said)}." + (f" {cells} {number}." if hidden else "")


def _place(matrix: Tensor, rows: Sequence[str], columns: Sequence[str], place: int) -> str:
    i, j = divmod(place, matrix.shape[1])
    return f"{matrix[i, j].item():z.2f} for {rows[i]} and {columns[j]}"
