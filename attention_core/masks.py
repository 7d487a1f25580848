"""Which keys a query may attend to. In every mask, True = may attend."""

from collections.abc import Sequence

import torch
from torch import Tensor

from attention_core._checks import check_dense, check_entries, check_int, check_past


def causal_mask(num_queries: int, num_keys: int | None = None) -> Tensor:
    """Let each query see the keys up to its own place, and none after it.

    mask[i, j] = (j <= i + num_keys - num_queries)

    Args:
        num_queries: L, the number of queries.
        num_keys: S, at least L; L where left out. With S > L the last query sees every key.
    Returns: boolean (L, S), True = may attend. Every row has at least one True.
    Raises: TypeError or ValueError where a size is no positive int, or S < L.

    >>> causal_mask(2)
    tensor([[ True, False],
            [ True,  True]])

    Source: Vaswani et al. 2017, section 3.2.3. Built in notebook 04.
    """
    check_int("num_queries", num_queries)
    num_keys = num_queries if num_keys is None else num_keys
    check_int("num_keys", num_keys)
    check_past(num_queries, num_keys)
    check_entries("the mask", (num_queries, num_keys))
    everything = torch.ones(num_queries, num_keys, dtype=torch.bool)  # (L, S)
    return everything.tril(diagonal=num_keys - num_queries)


def padding_mask(lengths: Sequence[int] | Tensor, max_length: int | None = None) -> Tensor:
    """Hide the filler tokens at the end of the shorter sequences of a batch.

    mask[b, 0, j] = (j < lengths[b])

    Args:
        lengths: B ints, the number of real tokens of each sequence; 0 hides a whole sequence.
        max_length: S; the longest of `lengths` where left out.
    Returns: boolean (B, 1, S), True = may attend. It fits scores (B, L, S).
        For (B, H, L, S) use `.unsqueeze(1)`: without it, where B = H, it would hide by head and no error would tell.
    Raises: TypeError or ValueError where a length is no int, is negative or exceeds max_length.

    >>> padding_mask([1, 2])
    tensor([[[ True, False]],
    <BLANKLINE>
            [[ True,  True]]])

    Built in notebook 04.
    """
    sizes = _as_ints(lengths)
    for size in sizes:
        check_int("every length", size, minimum=0)
    max_length = max(sizes) if max_length is None else max_length
    check_int("max_length", max_length)
    if max(sizes) > max_length:
        raise ValueError(f"no length may exceed max_length: lengths={sizes}, max_length={max_length}")
    check_entries("the mask", (len(sizes), 1, max_length))
    places = torch.arange(max_length)  # (S,)
    return (places < torch.tensor(sizes).unsqueeze(-1)).unsqueeze(-2)  # (B, 1, S)


def _as_ints(lengths: Sequence[int] | Tensor) -> list[int]:
    if not isinstance(lengths, (Tensor, list, tuple)):
        raise TypeError(f"lengths must be a list of ints or a 1-D tensor, got {type(lengths).__name__}")
    if isinstance(lengths, Tensor):
        check_dense("lengths", lengths)
        if lengths.is_meta:
            raise ValueError("lengths must hold numbers, got a tensor on device meta, which holds none")
        if lengths.dim() != 1:
            raise ValueError(f"lengths must be 1-D, one number a sequence, got shape {tuple(lengths.shape)}")
        lengths = lengths.tolist()
    if len(lengths) == 0:
        raise ValueError("lengths must hold at least one number, got none")
    return list(lengths)
