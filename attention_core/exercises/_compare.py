"""Read an answer, whatever it was written with, and compare it with another one."""

import inspect
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

TOLERANCE = 1e-5
LARGEST_LIST = 100_000
GIVES_NONE = "Your function gives None. Is a `return` missing at its end?"
GIVES_DOTS = "Your function gives `...`, the placeholder, and no answer."

Answer = dict[str, Tensor]  # what a function gives, by name


class UnreadableError(Exception):
    """The answer is nothing that can be compared; the text says why."""


def read_answer(value: Any, names: tuple[str, ...], *, observed: bool = False) -> Answer:
    """The answer as dense tensors on the CPU, by name; UnreadableError where it cannot be read so."""
    if observed:
        return {name: torch.as_tensor(fact) for name, fact in value.items()}
    if len(names) == 1:
        return {names[0]: read_tensor(value)}
    _refuse_strange(value)
    several = isinstance(value, (tuple, list)) or (isinstance(value, (Tensor, np.ndarray)) and value.ndim > 0)
    if not several or len(value) != len(names):
        raise UnreadableError(
            f"Your function should return {len(names)} things, ({', '.join(names)}), and gives {_what(value)}."
        )
    return {name: read_tensor(part, name) for name, part in zip(names, value, strict=True)}


def read_tensor(value: Any, name: str = "") -> Tensor:
    """A tensor, NumPy array, number or (nested) list as a dense tensor on the CPU."""
    _refuse_strange(value)
    where = f" for {name}" if name else ""
    if not isinstance(value, Tensor):
        value = _from_python(value, where)
    if value.is_nested or value.layout != torch.strided:
        raise UnreadableError(
            f"Your answer{where} is not an ordinary (dense) tensor. Call .to_dense() before you return it."
        )
    if value.is_complex():
        raise UnreadableError(f"Your answer{where} holds complex numbers. Ordinary real numbers are asked for.")
    if value.device.type == "meta":
        raise UnreadableError(f"Your answer{where} is on the device 'meta': it has a shape and no numbers.")
    if not (value.dtype == torch.bool or value.is_floating_point() or value.dtype in _INTEGERS):
        raise UnreadableError(f"Your answer{where} has the type {value.dtype}, which cannot be compared.")
    return value.detach().as_subclass(Tensor).cpu()


_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def _refuse_strange(value: Any) -> None:
    if value is None:
        raise UnreadableError(GIVES_NONE)
    if value is ...:
        raise UnreadableError(GIVES_DOTS)
    if inspect.isgenerator(value):
        raise UnreadableError(
            "Your function gives a generator, because it uses `yield`. Give the whole answer with `return`."
        )
    if inspect.iscoroutine(value):
        value.close()
        raise UnreadableError("Your function is an `async def`. An ordinary `def` is asked for.")
    if inspect.isclass(value) or (callable(value) and not isinstance(value, Tensor)):
        raise UnreadableError(
            f"Your function gives {_what(value)}, and not its result. Were brackets forgotten: f(...)?"
        )
    if isinstance(value, (str, bytes)):
        raise UnreadableError(f"Your function gives text ({_what(value)}). Numbers are asked for.")


def _from_python(value: Any, where: str) -> Tensor:
    try:
        if isinstance(value, np.ndarray):
            return torch.from_numpy(np.array(value))
        if isinstance(value, (bool, int, float, complex, np.generic)):
            return torch.from_numpy(np.array(value))
        if isinstance(value, (list, tuple)) and 0 < len(value) <= LARGEST_LIST:
            return torch.stack([part if isinstance(part, Tensor) else _from_python(part, where) for part in value])
    except Exception:
        raise UnreadableError(
            f"Your answer{where} is {_what(value)}, which cannot be read as a tensor of numbers."
        ) from None
    raise UnreadableError(f"Your answer{where} is {_what(value)}. A tensor is asked for.")


def _what(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if inspect.isclass(value):
        return "a class"
    if callable(value):
        return "a function"
    kind = type(value).__name__
    size = f" of {len(value)}" if isinstance(value, (list, tuple, dict, set)) else ""
    article = "an" if kind[0].lower() in "aeiou" else "a"
    return f"{article} {kind}{size}"


def same(given: Answer, expected: Answer) -> bool:
    """Whether two answers have the same names, shapes and numbers."""
    return tuple(given) == tuple(expected) and all(same_tensor(given[name], expected[name]) for name in expected)


def same_tensor(given: Tensor, expected: Tensor) -> bool:
    """Equal to 1e-5 of the largest number or of 1; infinity and NaN where the other has them; True equals only True."""
    if given.shape != expected.shape or (given.dtype == torch.bool) != (expected.dtype == torch.bool):
        return False
    if given.dtype == torch.bool:
        return torch.equal(given, expected)
    return not differing(given, expected).any()


def differing(given: Tensor, expected: Tensor) -> Tensor:
    """True where two tensors of one shape differ by more than the tolerance."""
    a, b = given.double(), expected.double()
    finite = b[b.isfinite()]
    largest = finite.abs().max().item() if finite.numel() else 0.0
    close = (a - b).abs() <= TOLERANCE * (1 + largest)
    return ~(close | (a == b) | (a.isnan() & b.isnan()))


def first_difference(given: Tensor, expected: Tensor) -> tuple[int, ...]:
    """The place of the first entry that differs, row by row."""
    flat = int(differing(given, expected).flatten().int().argmax())
    return tuple(int(place) for place in np.unravel_index(flat, tuple(expected.shape))) if expected.dim() else ()


def number(value: float, digits: int = 4) -> str:
    """A number as text: `digits` decimals, fewer for large ones."""
    if math.isnan(value) or math.isinf(value):
        return str(value)
    if abs(value) >= 1e5 or 0 < abs(value) < 0.5 * 10**-digits:
        return f"{value:.{digits}g}"
    return f"{value + 0.0:.{digits}f}"


def entry(tensor: Tensor, place: tuple[int, ...], digits: int = 4) -> str:
    value = tensor[place].item()
    return number(value, digits) if tensor.is_floating_point() else str(value)


def lines_of(tensor: Tensor) -> list[str]:
    """A small tensor as lines of text, one a row; empty where it is too large to read."""
    if tensor.numel() > 36 or tensor.dim() > 3 or (tensor.dim() and tensor.shape[-1] > 8) or tensor.numel() == 0:
        return []
    if tensor.dim() == 0:
        return [entry(tensor, ())]
    rows = tensor.reshape(-1, tensor.shape[-1])
    cells = [[entry(rows, (i, j)) for j in range(rows.shape[1])] for i in range(rows.shape[0])]
    width = max(len(cell) for row in cells for cell in row)
    lines = ["[" + "  ".join(cell.rjust(width) for cell in row) + "]" for row in cells]
    if tensor.dim() == 3:
        block = tensor.shape[1]
        parts = [lines[i : i + block] for i in range(0, len(lines), block)]
        lines = [line for i, part in enumerate(parts) for line in ([""] if i else []) + part]
    return lines
