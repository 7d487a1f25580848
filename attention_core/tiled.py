"""Attention one block at a time: the same result, and memory that grows with the length instead of its square.

Shapes are those of `functional`; inside a block, L and S are the block's own queries and keys, at most `block_size`.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attention_core._checks import (
    check_alike,
    check_batch,
    check_flag,
    check_int,
    check_mask,
    check_past,
    check_tensor,
    shape_of,
)

Allowed = Callable[[range, range], Tensor | None]
Running = tuple[Tensor, Tensor, Tensor]


def tiled_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    block_size: int = 256,
) -> Tensor:
    """Attend block by block, with a running maximum and a running sum instead of the whole table of weights.

    context = softmax(queries @ keys^T / sqrt(D)) @ values, over the keys that mask and is_causal allow

    Args:
        queries, keys, values, mask: as in `scaled_dot_product_attention`.
        is_causal: hide the future as `causal_mask(L, S)` does; blocks that lie in it are left out.
        block_size: the largest number of queries, and of keys, at a time.
    Returns: context (..., L, D_v); a row with nothing allowed is 0. Memory grows with L + S, backward too.
    Raises: TypeError or ValueError where dtype, device, shapes or range do not fit.

    >>> tiled_attention(torch.zeros(1, 2), torch.ones(2, 2), torch.tensor([[2., 0.], [4., 8.]]), block_size=1)
    tensor([[3., 4.]])

    Source: Milakov & Gimelshein 2018; Rabe & Staats 2021; Dao et al. 2022. Built in notebook 08.
    """
    _check_arguments(queries, keys, values, mask, is_causal, block_size)
    num_queries, num_keys = queries.shape[-2], keys.shape[-2]
    wide = torch.promote_types(queries.dtype, torch.float32)
    scaled = queries.to(wide) / math.sqrt(queries.shape[-1])  # (..., L, D)
    key_blocks = keys.to(wide).split(block_size, dim=-2)  # S / block_size times (..., block, D)
    value_blocks = values.to(wide).split(block_size, dim=-2)  # S / block_size times (..., block, D_v)
    columns = _ranges(num_keys, block_size)
    allowed = _allowed(mask, is_causal, num_queries, num_keys, queries.device)
    context = []
    for rows, block in zip(_ranges(num_queries, block_size), scaled.split(block_size, dim=-2), strict=True):
        last_seen = rows.stop - 1 + num_keys - num_queries if is_causal else num_keys - 1  # by the block's last query
        visited = [block_columns for block_columns in columns if block_columns.start <= last_seen]
        # Keeps the block's inputs only: backward computes its weights a second time instead of storing them.
        context.append(
            checkpoint(
                _attend,
                block,
                key_blocks,
                value_blocks,
                rows,
                visited,
                allowed,
                use_reentrant=False,
                preserve_rng_state=False,
            )
        )
    return torch.cat(context, dim=-2).to(queries.dtype)  # L / block_size times (..., block, D_v) -> (..., L, D_v)


def _attend(
    queries: Tensor,
    key_blocks: Sequence[Tensor],
    value_blocks: Sequence[Tensor],
    rows: range,
    visited: Sequence[range],
    allowed: Allowed,
) -> Tensor:
    """The context of one block of queries, gathered from one block of keys after the other."""
    zero = queries.new_zeros(())
    running = (zero, zero, zero - torch.inf)
    for columns, keys, values in zip(visited, key_blocks, value_blocks, strict=False):
        running = _add_block(running, queries, keys, values, allowed(rows, columns))
    context, total, _ = running
    return context / total.masked_fill(total == 0, 1.0)  # (..., L, D_v), 0 / 1 for a row with nothing allowed


def _add_block(running: Running, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Running:
    """Take one more block of keys into the weighted sum, the sum of the exponentials and the largest score."""
    context, total, largest = running  # (..., L, D_v), (..., L, 1), (..., L, 1); before the first block ()
    scores = queries @ keys.transpose(-2, -1)  # (..., L, D) @ (..., D, S) -> (..., L, S)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    new_largest = torch.maximum(largest, scores.detach().amax(dim=-1, keepdim=True))  # (..., L, 1)
    shift = new_largest.masked_fill(new_largest == -torch.inf, 0.0)  # rows that have seen no key yet
    exponentials = (scores - shift).exp()  # (..., L, S)
    shrink = (largest - shift).exp()  # (..., L, 1), what the earlier exponentials are worth now
    context = context * shrink + exponentials @ values  # (..., L, S) @ (..., S, D_v) -> (..., L, D_v)
    total = total * shrink + exponentials.sum(dim=-1, keepdim=True)  # (..., L, 1)
    return context, total, new_largest


def _allowed(mask: Tensor | None, is_causal: bool, num_queries: int, num_keys: int, device: torch.device) -> Allowed:
    """Which keys of a block the queries of a block may attend to; None where that is every one."""
    if mask is not None:
        shape = torch.broadcast_shapes(mask.shape, (num_queries, num_keys))
        mask = mask.expand(shape)  # (..., L, S), without a copy

    def allowed(rows: range, columns: range) -> Tensor | None:
        block = None if mask is None else mask[..., rows.start : rows.stop, columns.start : columns.stop]
        last_seen = rows.start + num_keys - num_queries
        if not is_causal or columns[-1] <= last_seen:
            return block
        places = torch.arange(len(rows), device=device).unsqueeze(-1) + last_seen  # (L, 1)
        past = torch.arange(columns.start, columns.stop, device=device) <= places  # (S,) <= (L, 1) -> (L, S)
        return past if block is None else past & block

    return allowed


def _ranges(length: int, block_size: int) -> list[range]:
    return [range(start, min(start + block_size, length)) for start in range(0, length, block_size)]


def _check_arguments(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, is_causal: bool, block_size: int
) -> None:
    check_tensor("queries", queries, 2, "(..., L, D)")
    check_tensor("keys", keys, 2, "(..., S, D)")
    check_tensor("values", values, 2, "(..., S, D_v)")
    check_alike("queries", queries, "keys", keys)
    check_alike("keys", keys, "values", values)
    if queries.shape[-1] != keys.shape[-1]:
        raise ValueError(
            f"queries and keys must share their last dimension: queries {shape_of(queries)}, keys {shape_of(keys)}"
        )
    if keys.shape[-2] != values.shape[-2]:
        raise ValueError(
            f"keys and values must have one row for each other: keys {shape_of(keys)}, values {shape_of(values)}"
        )
    check_batch("queries", queries, "keys", keys)
    check_batch("queries", queries, "values", values)
    check_batch("keys", keys, "values", values)
    check_int("block_size", block_size)
    check_flag("is_causal", is_causal)
    if is_causal:
        check_past(queries.shape[-2], keys.shape[-2])
    if mask is not None:
        batch = torch.broadcast_shapes(queries.shape[:-2], keys.shape[:-2])
        scores = queries.new_empty(()).expand(*batch, queries.shape[-2], keys.shape[-2])  # their shape, one number
        check_mask(mask, scores)
