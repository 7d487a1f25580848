"""Dropout taken apart: which weights are kept, and what is done with them."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from attention_core._checks import (
    check_boolean,
    check_dropout,
    check_entries,
    check_int,
    check_tensor,
    shape_of,
)

MCG_MULTIPLIER = 1132489760  # MKL's generator MCG31m1: state -> multiplier * state mod modulus
MCG_MODULUS = 2**31 - 1


def dropout_keep_mask(shape: Sequence[int], dropout_p: float, *, seed: int, stream: str = "torch") -> Tensor:
    """Draw which entries dropout keeps, from one of two generators; a seed gives the same mask on every machine.

    keep[i] = (u[i] < 1 - dropout_p), with u[0], u[1], ... uniform in [0, 1)

    Args:
        shape: the shape of the mask, of positive ints.
        dropout_p: the share dropped, in [0, 1).
        seed: an int in [0, 2**32).
        stream: "torch" as PyTorch's own generator draws it, "mkl" as PyTorch builds that draw through Intel MKL do.
    Returns: boolean tensor of that shape, True = kept.
    Raises: TypeError or ValueError where an argument is out of range.

    >>> dropout_keep_mask((2, 2), 0.5, seed=123)
    tensor([[ True,  True],
            [False,  True]])

    Source: Srivastava et al. 2014; Intel MKL's MCG31m1 generator. Built in notebook 05.
    """
    sizes = _as_shape(shape)
    check_dropout("dropout_p", dropout_p)
    check_int("seed", seed, 0, 2**32 - 1)
    if not isinstance(stream, str):
        raise TypeError(f"stream must be a str, got {stream!r} of type {type(stream).__name__}")
    if stream not in _STREAMS:
        raise ValueError(f"stream must be one of {sorted(_STREAMS)}, got {stream!r}")
    return _STREAMS[stream](sizes, seed) < 1 - dropout_p


def apply_dropout(weights: Tensor, keep: Tensor, dropout_p: float) -> Tensor:
    """Zero what was not kept and enlarge the rest, so that every entry keeps its value on average.

    out = weights / (1 - dropout_p) where kept, 0 elsewhere

    Args:
        weights: floating-point tensor of any shape.
        keep: boolean, the same shape, True = kept.
        dropout_p: the share dropped, in [0, 1).
    Returns: new tensor of the same shape. Rows of attention weights no longer sum to 1, except on average.
    Raises: TypeError or ValueError where dtype, shape, device or range is wrong.

    >>> apply_dropout(torch.ones(2, 2), torch.tensor([[True, False], [True, True]]), 0.5)
    tensor([[2., 0.],
            [2., 2.]])

    Source: Srivastava et al. 2014. Built in notebook 05.
    """
    check_tensor("weights", weights, 0, "(...)")
    check_boolean("keep", keep, "True = kept")
    check_dropout("dropout_p", dropout_p)
    if keep.shape != weights.shape:
        raise ValueError(f"keep must have the shape of the weights {shape_of(weights)}, got {shape_of(keep)}")
    if keep.device != weights.device:
        raise ValueError(
            f"keep and weights must be on the same device: keep on {keep.device}, weights on {weights.device}"
        )
    return weights.masked_fill(~keep, 0.0) / (1 - dropout_p)


def _as_shape(shape: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(shape, (tuple, list)):
        raise TypeError(f"shape must be a tuple of ints, got {type(shape).__name__}")
    for size in shape:
        check_int("every size in shape", size)
    check_entries("the mask", shape)
    return tuple(shape)


def _torch_uniforms(shape: tuple[int, ...], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, dtype=torch.float64, generator=generator, device="cpu")


def _mkl_uniforms(shape: tuple[int, ...], seed: int) -> Tensor:
    """MKL's generator, started as PyTorch starts it: from one number of the Mersenne Twister, which NumPy has too."""
    first = int(np.random.RandomState(seed).randint(0, 2**32, dtype=np.uint32))
    state = first % MCG_MODULUS or 1  # 0 would stay 0 for ever
    uniforms = []
    for _ in range(math.prod(shape)):
        uniforms.append(state / MCG_MODULUS)
        state = MCG_MULTIPLIER * state % MCG_MODULUS
    return torch.tensor(uniforms, dtype=torch.float64, device="cpu").reshape(shape)


_STREAMS = {"torch": _torch_uniforms, "mkl": _mkl_uniforms}
