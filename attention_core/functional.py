"""Attention in small steps, in the order in which the lessons build them.

Shapes: B sequences, H heads, L queries, S keys, D numbers per vector (D_v per value, where that differs), T tokens;
"..." is any number of leading dimensions.
"""

import math

import torch
from torch import Tensor

from attention_core._checks import (
    LARGEST_COUNT,
    check_alike,
    check_batch,
    check_dim,
    check_dropout,
    check_int,
    check_mask,
    check_scale,
    check_tensor,
    shape_of,
)
from attention_core.dropout import apply_dropout


def dot_product_scores(queries: Tensor, keys: Tensor) -> Tensor:
    """Score every query against every key by their dot product.

    scores[i, j] = queries[i] . keys[j]

    Args:
        queries: (..., L, D).
        keys: (..., S, D), the same D.
    Returns: scores (..., L, S).
    Raises: TypeError or ValueError where dtype, device or shapes do not fit.

    >>> dot_product_scores(torch.tensor([[1., 2.], [3., 4.]]), torch.tensor([[1., 0.], [1., 1.]]))
    tensor([[1., 3.],
            [3., 7.]])

    Source: Luong et al. 2015, section 3.1. Built in notebook 01.
    """
    check_tensor("queries", queries, 2, "(..., L, D)")
    check_tensor("keys", keys, 2, "(..., S, D)")
    check_alike("queries", queries, "keys", keys)
    if queries.shape[-1] != keys.shape[-1]:
        raise ValueError(
            f"queries and keys must share their last dimension: queries {shape_of(queries)}, keys {shape_of(keys)}"
        )
    check_batch("queries", queries, "keys", keys)
    return queries @ keys.transpose(-2, -1)  # (..., L, D) @ (..., D, S) -> (..., L, S)


def scale_scores(scores: Tensor, head_dim: int) -> Tensor:
    """Divide the scores by the square root of the width of a query, so that their spread does not grow with it.

    scaled = scores / sqrt(head_dim)

    Args:
        scores: (..., L, S).
        head_dim: D, the number of terms in each dot product.
    Returns: scaled scores (..., L, S). For independent entries of mean 0 and variance 1 they have variance 1.
    Raises: TypeError or ValueError where scores is no floating-point tensor or head_dim no positive int.

    >>> scale_scores(torch.tensor([[2., 4.], [6., 8.]]), head_dim=4)
    tensor([[1., 2.],
            [3., 4.]])

    Source: Vaswani et al. 2017, section 3.2.1. Built in notebook 02.
    """
    check_tensor("scores", scores, 2, "(..., L, S)")
    check_int("head_dim", head_dim, 1, LARGEST_COUNT)
    return scores / math.sqrt(head_dim)


def entropy(weights: Tensor) -> Tensor:
    """Measure how evenly each row of weights is spread, in nats.

    entropy[i] = -sum_j weights[i, j] * ln(weights[i, j]), where 0 * ln(0) = 0

    Args:
        weights: (..., S), rows that sum to 1.
    Returns: (...), from 0 (all weight on one key) to ln(S) (the same weight on every key).
    Raises: TypeError or ValueError where weights is no floating-point tensor or holds a negative number.

    >>> entropy(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
    tensor([0.0000, 0.6931])

    Source: Shannon 1948. Built in notebook 02.
    """
    check_tensor("weights", weights, 1, "(..., S)")
    if not weights.is_meta and (weights < 0).any():
        raise ValueError(f"weights must not be negative, got {weights.min().item()}")
    return torch.special.entr(weights).sum(dim=-1)  # (..., S) -> (...)


def softmax(scores: Tensor, dim: int = -1) -> Tensor:
    """Turn scores into weights between 0 and 1 that sum to 1, without overflow.

    weights[j] = exp(scores[j] - max) / sum_k exp(scores[k] - max)

    Args:
        scores: floating-point tensor of at least one dimension; float16 and bfloat16 are summed in float32.
        dim: the dimension over which the weights sum to 1.
    Returns: weights of the same shape, in [0, 1], that sum to 1 over dim.
    Raises: TypeError or ValueError where scores is no floating-point tensor or has no such dim.

    >>> softmax(torch.tensor([[0., 0.], [1000., 0.]]))
    tensor([[0.5000, 0.5000],
            [1.0000, 0.0000]])

    Source: Bridle 1990. Built in notebook 03.
    """
    check_tensor("scores", scores, 1, "(..., S)")
    check_dim("scores", scores, dim)
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    largest = wide.detach().amax(dim=dim, keepdim=True)  # cancels out, so no gradient has to pass through it
    exponentials = (wide - largest).exp()
    return (exponentials / exponentials.sum(dim=dim, keepdim=True)).to(scores.dtype)


def masked_softmax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Share out each query's attention over the keys that it may attend to.

    weights = softmax over the keys with True in the mask, 0 for the others

    Args:
        scores: (..., L, S).
        mask: boolean, True = may attend, of a shape that broadcasts to the scores; None hides nothing.
    Returns: weights (..., L, S). Rows sum to 1; a row with nothing allowed is 0. No gradient reaches a hidden score.
    Raises: TypeError or ValueError where scores or mask have a wrong type, shape or device.

    >>> masked_softmax(torch.zeros(2, 2), torch.tensor([[True, False], [True, True]]))
    tensor([[1.0000, 0.0000],
            [0.5000, 0.5000]])

    Source: Vaswani et al. 2017, section 3.2.3. Built in notebook 04.
    """
    check_tensor("scores", scores, 2, "(..., L, S)")
    if mask is None:
        return softmax(scores)
    check_mask(mask, scores)
    something_allowed = mask.any(dim=-1, keepdim=True)  # (..., L, 1)
    hidden_score = torch.where(something_allowed, -torch.inf, 0.0).to(scores.dtype)  # (..., L, 1)
    masked_scores = torch.where(mask, scores, hidden_score)  # (..., L, S)
    return softmax(masked_scores).masked_fill(~mask, 0.0)  # (..., L, S)


def attention_weights(
    queries: Tensor, keys: Tensor, mask: Tensor | None = None, *, scale: float | None = None
) -> Tensor:
    """Weigh every key for every query: scores, scaling, mask and softmax in one.

    weights = softmax(queries @ keys^T / sqrt(D)) over the keys that the mask allows

    Args:
        queries: (..., L, D).
        keys: (..., S, D).
        mask: boolean, True = may attend, of a shape that broadcasts to (..., L, S); None hides nothing.
        scale: what the scores are multiplied by; 1 / sqrt(D) where left out.
    Returns: weights (..., L, S). Rows sum to 1; a row with nothing allowed is 0.
    Raises: TypeError or ValueError where dtype, device or shapes do not fit.

    >>> attention_weights(torch.zeros(2, 2), torch.ones(2, 2))
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]])

    Source: Vaswani et al. 2017, section 3.2.1. Built in notebook 03.
    """
    scores = dot_product_scores(queries, keys)  # (..., L, S)
    if scale is None:
        return masked_softmax(scale_scores(scores, queries.shape[-1]), mask)
    check_scale(scale)
    return masked_softmax(scores * float(scale), mask)


def context_vectors(weights: Tensor, values: Tensor) -> Tensor:
    """Mix the values, for each query in the shares that its weights give.

    context[i] = sum_j weights[i, j] * values[j]

    Args:
        weights: (..., L, S).
        values: (..., S, D).
    Returns: context (..., L, D). Where rows are shares of 1, no entry leaves the range of its column.
    Raises: TypeError or ValueError where dtype, device or shapes do not fit.

    >>> context_vectors(torch.tensor([[1., 0.], [.5, .5]]), torch.tensor([[2., 0.], [4., 8.]]))
    tensor([[2., 0.],
            [3., 4.]])

    Source: Bahdanau et al. 2015, section 3.1. Built in notebook 03.
    """
    check_tensor("weights", weights, 2, "(..., L, S)")
    check_tensor("values", values, 2, "(..., S, D)")
    check_alike("weights", weights, "values", values)
    if weights.shape[-1] != values.shape[-2]:
        raise ValueError(
            f"weights must have one column for each row of values: "
            f"weights {shape_of(weights)}, values {shape_of(values)}"
        )
    check_batch("weights", weights, "values", values)
    return weights @ values  # (..., L, S) @ (..., S, D) -> (..., L, D)


def scaled_dot_product_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float | None = None,
    keep: Tensor | None = None,
    dropout_p: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Let every query gather from the values what its weights select.

    context = dropout(softmax(queries @ keys^T / sqrt(D))) @ values

    Args:
        queries, keys, values: (..., L, D), (..., S, D), (..., S, D_v).
        mask, scale: as in `attention_weights`.
        keep, dropout_p: as in `apply_dropout`, both or neither; no dropout where left out.
    Returns: context (..., L, D_v) and the weights (..., L, S) that made it, dropout included.
    Raises: TypeError or ValueError where dtype, device, shapes or range do not fit.

    >>> scaled_dot_product_attention(torch.zeros(1, 2), torch.ones(2, 2), torch.tensor([[2., 0.], [4., 8.]]))
    (tensor([[3., 4.]]), tensor([[0.5000, 0.5000]]))

    Source: Vaswani et al. 2017, section 3.2.1. Built in notebooks 03, 04 and 05.
    """
    weights = attention_weights(queries, keys, mask, scale=scale)  # (..., L, S)
    check_dropout("dropout_p", dropout_p)
    if keep is not None:
        weights = apply_dropout(weights, keep, dropout_p)
        if dropout_p == 0.0 and not keep.all():
            raise ValueError("keep drops weights, so it needs the dropout_p that it was drawn with, got dropout_p=0.0")
    elif dropout_p != 0.0:
        raise ValueError(f"dropout_p={dropout_p} needs keep, the mask of what is kept; see dropout_keep_mask")
    return context_vectors(weights, values), weights


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Cut each vector into one piece per head, and put the heads before the tokens.

    out[..., h, t, :] = x[..., t, h * D : (h + 1) * D]

    Args:
        x: (..., T, H * D).
        num_heads: H, which divides the last dimension.
    Returns: (..., H, T, D). No number is changed; `merge_heads` undoes it.
    Raises: TypeError or ValueError where x is no such tensor or H does not divide its width.

    >>> split_heads(torch.tensor([[1., 2.], [3., 4.]]), num_heads=2)
    tensor([[[1.],
             [3.]],
    <BLANKLINE>
            [[2.],
             [4.]]])

    Source: Vaswani et al. 2017, section 3.2.2. Built in notebook 06.
    """
    check_tensor("x", x, 2, "(..., T, H*D)")
    check_int("num_heads", num_heads)
    if x.shape[-1] % num_heads != 0:
        raise ValueError(f"num_heads must divide the last dimension of x: x {shape_of(x)}, num_heads={num_heads}")
    heads = x.unflatten(-1, (num_heads, -1))  # (..., T, H*D) -> (..., T, H, D)
    return heads.transpose(-3, -2)  # (..., H, T, D)


def merge_heads(x: Tensor) -> Tensor:
    """Put the pieces of all heads side by side again, one vector per token.

    out[..., t, h * D : (h + 1) * D] = x[..., h, t, :]

    Args:
        x: (..., H, T, D).
    Returns: (..., T, H * D). No number is changed; it undoes `split_heads`.
    Raises: TypeError or ValueError where x is no floating-point tensor of at least three dimensions.

    >>> merge_heads(torch.tensor([[[1.], [3.]], [[2.], [4.]]]))
    tensor([[1., 2.],
            [3., 4.]])

    Source: Vaswani et al. 2017, section 3.2.2. Built in notebook 06.
    """
    check_tensor("x", x, 3, "(..., H, T, D)")
    tokens_first = x.transpose(-3, -2)  # (..., H, T, D) -> (..., T, H, D)
    return tokens_first.flatten(start_dim=-2)  # (..., T, H*D)
