"""Attention one block at a time: the same result, and memory that grows with the length instead of its square.

Shapes are those of `functional`; inside a block, L and S are the block's own queries and keys, at most `block_size`.
"""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

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

Running = tuple[Tensor, Tensor, Tensor]  # (..., L, 1), (..., L, 1), (..., L, D_v): maximum, sum, weighted sum so far


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
        is_causal: hide the future as `causal_mask(L, S)` does, beside what the mask hides; blocks in it are left out.
        block_size: the largest number of queries, and of keys, at a time.
    Returns: context (..., L, D_v); a row with nothing allowed is 0. Beside the mask, memory grows with L + S,
        backward too. The gradient has no gradient of its own, as with PyTorch's kernel.
    Raises: TypeError or ValueError where dtype, device, shapes or range do not fit.

    >>> tiled_attention(torch.zeros(1, 2), torch.ones(2, 2), torch.tensor([[2., 0.], [4., 8.]]), block_size=1)
    tensor([[3., 4.]])

    Source: Milakov & Gimelshein 2018; Rabe & Staats 2021; Dao et al. 2022. Built in notebook 08.
    """
    _check_arguments(queries, keys, values, mask, is_causal, block_size)
    wide_dtype = torch.promote_types(queries.dtype, torch.float32)
    batch = torch.broadcast_shapes(queries.shape[:-2], keys.shape[:-2], values.shape[:-2])
    scaled = queries.to(wide_dtype) / math.sqrt(queries.shape[-1])  # (..., L, D), so that scores come out scaled
    tensors = [x.to(wide_dtype).expand(*batch, -1, -1) for x in (scaled, keys, values)]
    with _without_autocast(queries.device):
        _, _, context = _Tiled.apply(*tensors, mask, is_causal, block_size)  # (..., L, D_v)
    return context.to(queries.dtype)


class _Tiled(torch.autograd.Function):
    """A function that says itself how its gradient is computed: `setup_context` keeps what `backward` will need.

    Of each query it keeps the context and two numbers instead of its weights, and makes the weights a second time.
    """

    generate_vmap_rule = True  # torch.func.vmap may add a dimension in front

    @staticmethod
    def forward(
        queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, is_causal: bool, block_size: int
    ) -> Running:
        query_blocks, key_blocks, value_blocks = (x.split(block_size, dim=-2) for x in (queries, keys, values))
        visible_blocks = _visible_blocks(mask, is_causal, queries, keys, block_size)
        finished = []
        for block, visible in zip(query_blocks, visible_blocks, strict=True):
            running = _no_keys_yet(block, values)
            for j, allowed in enumerate(visible):  # which ends before the future
                running = _add_block(running, _scores(block, key_blocks[j], allowed), value_blocks[j])
            finished.append(_divide(running))
        row_max, row_sum, context = (torch.cat(parts, dim=-2) for parts in zip(*finished, strict=True))
        return row_max, row_sum, context  # (..., L, 1), (..., L, 1), (..., L, D_v)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Running) -> None:
        queries, keys, values, mask, ctx.is_causal, ctx.block_size = inputs
        row_max, row_sum, context = output
        ctx.mark_non_differentiable(row_max, row_sum)  # which are returned only to be kept
        ctx.save_for_backward(queries, keys, values, mask, row_max, row_sum, context)

    @staticmethod
    @once_differentiable  # the gradient has no gradient of its own
    def backward(ctx: Any, _: Tensor, __: Tensor, grad_context: Tensor) -> tuple[Tensor | None, ...]:
        """Make each block of weights again, and take the gradient through it.

        grad_weights[i, j] = grad_context[i] . values[j]
        grad_scores[i, j] = weights[i, j] * (grad_weights[i, j] - sum_k weights[i, k] * grad_weights[i, k])
        grad_queries[i] = sum_j grad_scores[i, j] * keys[j], grad_keys[j] = sum_i grad_scores[i, j] * queries[i]
        grad_values[j] = sum_i weights[i, j] * grad_context[i]

        weights = exponentials / row_sum; here grad_context is divided by row_sum instead, once for a row.
        """
        queries, keys, values, mask, row_max, row_sum, context = ctx.saved_tensors
        grad = grad_context / row_sum  # (..., L, D_v)
        average = (grad * context).sum(dim=-1, keepdim=True)  # (..., L, 1), the weighted average of grad_weights
        by_query = (x.split(ctx.block_size, dim=-2) for x in (queries, row_max, grad, average))
        key_blocks, value_blocks = (x.split(ctx.block_size, dim=-2) for x in (keys, values))
        visible_blocks = _visible_blocks(mask, ctx.is_causal, queries, keys, ctx.block_size)
        grad_queries = []
        grad_keys = [torch.zeros_like(some_keys) for some_keys in key_blocks]
        grad_values = [torch.zeros_like(some_values) for some_values in value_blocks]
        for block, block_max, block_grad, block_average, visible in zip(*by_query, visible_blocks, strict=True):
            grad_block = torch.zeros_like(block)  # (..., L, D)
            for j, allowed in enumerate(visible):
                exponentials = (_scores(block, key_blocks[j], allowed) - block_max).exp_()  # (..., L, S)
                grad_weights = block_grad @ value_blocks[j].transpose(-2, -1)  # (..., L, S)
                grad_scores = exponentials * (grad_weights - block_average)  # (..., L, S)
                grad_block = grad_block + grad_scores @ key_blocks[j]  # (..., L, D)
                grad_keys[j] = grad_keys[j] + grad_scores.transpose(-2, -1) @ block  # (..., S, D)
                grad_values[j] = grad_values[j] + exponentials.transpose(-2, -1) @ block_grad  # (..., S, D_v)
            grad_queries.append(grad_block)
        grads = (torch.cat(parts, dim=-2) for parts in (grad_queries, grad_keys, grad_values))
        return *grads, None, None, None


def _no_keys_yet(queries: Tensor, values: Tensor) -> Running:
    rows = queries.shape[:-1]  # (..., L)
    no_context = queries.new_zeros(*rows, values.shape[-1])  # (..., L, D_v)
    return queries.new_full((*rows, 1), -torch.inf), queries.new_zeros(*rows, 1), no_context


def _scores(queries: Tensor, keys: Tensor, allowed: Tensor | None) -> Tensor:
    scores = queries @ keys.transpose(-2, -1)  # (..., L, D) @ (..., D, S) -> (..., L, S)
    return scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)


def _add_block(running: Running, scores: Tensor, values: Tensor) -> Running:
    """Take one more block of keys into the maximum, the sum of the exponentials and the weighted sum of the values."""
    running_max, running_sum, running_context = running
    new_max = torch.maximum(running_max, scores.amax(dim=-1, keepdim=True))  # (..., L, 1)
    finite_max = _finite(new_max)  # (..., L, 1)
    correction = (running_max - finite_max).exp()  # (..., L, 1), what the earlier exponentials are worth now
    exponentials = (scores - finite_max).exp_()  # (..., L, S)
    new_sum = running_sum * correction + exponentials.sum(dim=-1, keepdim=True)  # (..., L, 1)
    new_context = running_context * correction + exponentials @ values  # (..., L, S) @ (..., S, D_v) -> (..., L, D_v)
    return new_max, new_sum, new_context


def _divide(running: Running) -> Running:
    running_max, running_sum, running_context = running
    row_sum = running_sum.masked_fill(running_sum == 0, 1.0)  # 0 / 1 for a row with nothing allowed
    return _finite(running_max), row_sum, running_context / row_sum


def _finite(largest: Tensor) -> Tensor:
    """0 in place of the maximum of a row that has seen no key: -inf minus -inf would be nan."""
    return largest.masked_fill(largest == -torch.inf, 0.0)


def _visible_blocks(
    mask: Tensor | None, is_causal: bool, queries: Tensor, keys: Tensor, block_size: int
) -> Iterator[list[Tensor | None]]:
    """For each block of queries, what it may attend to in each block of keys; None where that is every key.

    With is_causal a list ends at the last block of keys that the block's last query sees.
    """
    num_queries, num_keys = queries.shape[-2], keys.shape[-2]
    earlier = num_keys - num_queries  # query i stands at the place of key i + earlier
    if mask is not None:
        mask = mask.expand(torch.broadcast_shapes(mask.shape, (num_queries, num_keys)))  # (..., L, S), without a copy
    for rows in _ranges(num_queries, block_size):
        seen = rows[-1] + earlier + 1 if is_causal else num_keys  # keys, by the block's last query
        visible = []
        for columns in _ranges(num_keys, block_size)[: math.ceil(seen / block_size)]:
            allowed = None if mask is None else mask[..., rows.start : rows.stop, columns.start : columns.stop]
            if is_causal and columns[-1] > rows[0] + earlier:  # the block's first query may not see its last key
                everything = torch.ones(len(rows), len(columns), dtype=torch.bool, device=queries.device)  # (L, S)
                past = everything.tril(diagonal=rows[0] + earlier - columns[0])
                allowed = past if allowed is None else allowed & past
            visible.append(allowed)
        yield visible


def _ranges(length: int, block_size: int) -> list[range]:
    return [range(start, min(start + block_size, length)) for start in range(0, length, block_size)]


def _without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """What is added up over the keys stays in float32, forward and backward."""
    return torch.autocast(device.type, enabled=False) if torch.amp.is_autocast_available(device.type) else nullcontext()


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
