"""The argument checks that every public function and module shares.

Each check names the rule, what was expected and what came, and raises ValueError or TypeError.
"""

import math
import sys
from collections.abc import Sequence

import torch
from torch import Tensor

FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
LARGEST_COUNT = 2**31 - 1  # more numbers than this do not fit into most memories


def shape_of(x: Tensor) -> tuple[int, ...]:
    return tuple(x.shape)


def check_tensor(name: str, x: Tensor, min_dims: int, dims: str) -> None:
    """`x` is a dense tensor of real floating-point numbers with at least `min_dims` dimensions, none empty."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}")
    if x.dtype not in FLOATING:
        raise TypeError(f"{name} must hold floating-point numbers, got {x.dtype}; convert it with .float()")
    check_dense(name, x)
    if x.dim() < min_dims:
        raise ValueError(f"{name} must have shape {dims}, got {shape_of(x)}")
    if 0 in x.shape:
        raise ValueError(f"{name} must not be empty, got shape {shape_of(x)}")


def check_dense(name: str, x: Tensor) -> None:
    if x.is_nested:
        raise TypeError(f"{name} must be a dense tensor, got a nested one; convert it with .to_padded_tensor()")
    if x.layout != torch.strided:
        raise TypeError(f"{name} must be a dense tensor, got layout {x.layout}; convert it with .to_dense()")


def check_alike(name: str, x: Tensor, other_name: str, other: Tensor) -> None:
    """Both tensors share one dtype (autocast may mix them) and live on one device."""
    if x.device != other.device:
        raise ValueError(
            f"{name} and {other_name} must be on the same device: {name} on {x.device}, {other_name} on {other.device}"
        )
    if x.dtype != other.dtype and not _autocast_mixes(x, other):
        raise TypeError(
            f"{name} and {other_name} must share one dtype: {name} is {x.dtype}, {other_name} is {other.dtype}"
        )


def _autocast_mixes(x: Tensor, other: Tensor) -> bool:
    device = x.device.type
    enabled = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return enabled and torch.float64 not in (x.dtype, other.dtype)


def check_batch(name: str, x: Tensor, other_name: str, other: Tensor) -> None:
    """The dimensions before the last two are equal, or 1, or missing."""
    for size, other_size in zip(reversed(x.shape[:-2]), reversed(other.shape[:-2]), strict=False):
        if size != other_size and 1 not in (size, other_size):
            raise ValueError(
                f"{name} and {other_name} must agree in all dimensions before the last two: "
                f"{name} {shape_of(x)}, {other_name} {shape_of(other)}"
            )


def check_boolean(name: str, mask: Tensor, meaning: str) -> None:
    if not isinstance(mask, Tensor):
        raise TypeError(f"{name} must be a boolean torch.Tensor ({meaning}), got {type(mask).__name__}")
    if mask.dtype != torch.bool:
        raise TypeError(f"{name} must be boolean ({meaning}), got {mask.dtype}")
    check_dense(name, mask)


def check_mask(mask: Tensor, scores: Tensor) -> None:
    """`mask` is boolean, on the scores' device, and broadcasts to the scores' shape without enlarging it."""
    check_boolean("mask", mask, "True = may attend")
    if mask.device != scores.device:
        raise ValueError(
            f"mask and scores must be on the same device: mask on {mask.device}, scores on {scores.device}"
        )
    sizes = zip(reversed(mask.shape), reversed(scores.shape), strict=False)
    if mask.dim() > scores.dim() or any(m not in (1, s) for m, s in sizes):
        raise ValueError(f"mask must broadcast to the shape of the scores {shape_of(scores)}, got {shape_of(mask)}")


def check_int(name: str, value: object, minimum: int = 1, maximum: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {value!r} of type {type(value).__name__}")
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value}")
    if maximum is not None and value > maximum:
        raise ValueError(f"{name} must be at most {maximum}, got {value}")


def check_entries(name: str, sizes: Sequence[int]) -> None:
    if math.prod(sizes) > LARGEST_COUNT:
        raise ValueError(f"{name} may hold at most {LARGEST_COUNT} numbers, got shape {tuple(sizes)}")


def check_past(num_queries: int, num_keys: int) -> None:
    """With the last query at the last key, every query has a key at its own place."""
    if num_keys < num_queries:
        raise ValueError(
            f"num_keys must be at least num_queries, so that every query sees a key: "
            f"num_queries={num_queries}, num_keys={num_keys}"
        )


def check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r} of type {type(value).__name__}")


def check_scale(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"scale must be a number, got {value!r} of type {type(value).__name__}")
    if not abs(value) <= sys.float_info.max:
        raise ValueError(f"scale must be a finite number, got {value}")


def check_dropout(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, got {value!r} of type {type(value).__name__}")
    if not 0.0 <= value < 1.0:
        raise ValueError(f"{name} is the share dropped and must be in [0, 1), got {value}")


def check_widths(d_in: int, d_out: int) -> None:
    check_int("d_in", d_in)
    check_int("d_out", d_out)
    check_entries("a weight matrix", (max(d_in, d_out), d_out))


def check_heads(d_out: int, num_heads: int) -> None:
    """`d_out` has been checked before."""
    check_int("num_heads", num_heads)
    if d_out % num_heads != 0:
        raise ValueError(f"d_out must be divisible by num_heads: d_out={d_out}, num_heads={num_heads}")


def check_dim(name: str, x: Tensor, dim: int) -> None:
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise TypeError(f"dim must be an int, got {dim!r} of type {type(dim).__name__}")
    if not -x.dim() <= dim < x.dim():
        raise ValueError(f"dim must name one of the {x.dim()} dimensions of {name} {shape_of(x)}, got {dim}")


def check_input(x: Tensor, weight: Tensor, d_in: int) -> None:
    """`x` is what a module can project: (..., T, d_in), with the dtype and device of its parameters."""
    check_tensor("x", x, 2, "(..., tokens, d_in)")
    if x.shape[-1] != d_in:
        raise ValueError(f"the last dimension of x must be d_in={d_in}, got shape {shape_of(x)}")
    check_alike("x", x, "the module's parameters", weight)


def check_length(x: Tensor, context_length: int) -> None:
    if x.shape[-2] > context_length:
        raise ValueError(
            f"x must hold at most context_length={context_length} tokens, got {x.shape[-2]} in shape {shape_of(x)}"
        )
