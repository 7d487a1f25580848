"""Attention layers, each a thin shell over the functions, in the order in which the lessons build them.

In every class d_out is the total width of the output, all heads together.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attention_core._checks import (
    check_dropout,
    check_flag,
    check_heads,
    check_input,
    check_int,
    check_length,
    check_widths,
)
from attention_core.functional import attention_weights, context_vectors, merge_heads, split_heads
from attention_core.masks import causal_mask

QUERY_BLOCK = 128  # queries at a time: fewer skip a little more of the future and take more turns of the loop


class SelfAttentionV1(nn.Module):
    """Attend with three projection matrices held as plain parameters.

    context = softmax(Q K^T / sqrt(d_out)) V, with Q = x W_query, K = x W_key, V = x W_value

    Args:
        d_in: width of an input vector.
        d_out: width of a context vector.
    Returns: `forward(x)`: (..., T, d_in) -> (..., T, d_out); `attention_weights(x)`: (..., T, T), rows sum to 1.
    Raises: TypeError or ValueError where a size is no positive int or x does not fit.

    >>> SelfAttentionV1(d_in=3, d_out=2)(torch.ones(4, 3)).shape
    torch.Size([4, 2])

    Source: Vaswani et al. 2017, section 3.2.1. Built in notebook 03.
    """

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        check_widths(d_in, d_out)
        self.d_in = d_in
        self.d_out = d_out
        self.W_query = nn.Parameter(torch.rand(d_in, d_out))
        self.W_key = nn.Parameter(torch.rand(d_in, d_out))
        self.W_value = nn.Parameter(torch.rand(d_in, d_out))

    def attention_weights(self, x: Tensor) -> Tensor:
        check_input(x, self.W_query, self.d_in)
        return attention_weights(x @ self.W_query, x @ self.W_key)  # (..., T, d_in) -> (..., T, T)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.attention_weights(x)  # (..., T, T)
        return context_vectors(weights, x @ self.W_value)  # (..., T, d_out)


class SelfAttentionV2(nn.Module):
    """Attend with three linear layers, which bring their own initialisation and an optional bias.

    context = softmax(Q K^T / sqrt(d_out)) V, with Q, K, V the three layers' outputs

    Args:
        d_in: width of an input vector.
        d_out: width of a context vector.
        qkv_bias: whether the three layers add a bias.
    Returns: `forward(x)`: (..., T, d_in) -> (..., T, d_out); `attention_weights(x)`: (..., T, T), rows sum to 1.
    Raises: TypeError or ValueError where a size is no positive int or x does not fit.

    >>> SelfAttentionV2(d_in=3, d_out=2)(torch.ones(4, 3)).shape
    torch.Size([4, 2])

    Source: Vaswani et al. 2017, section 3.2.1. Built in notebook 03.
    """

    def __init__(self, d_in: int, d_out: int, qkv_bias: bool = False) -> None:
        super().__init__()
        check_widths(d_in, d_out)
        check_flag("qkv_bias", qkv_bias)
        self.d_in = d_in
        self.d_out = d_out
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)

    def attention_weights(self, x: Tensor) -> Tensor:
        check_input(x, self.W_query.weight, self.d_in)
        return attention_weights(self.W_query(x), self.W_key(x))  # (..., T, d_in) -> (..., T, T)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.attention_weights(x)  # (..., T, T)
        return context_vectors(weights, self.W_value(x))  # (..., T, d_out)


class CausalAttention(nn.Module):
    """Attend to the present and the past only, with dropout on the weights in training.

    context = dropout(softmax(Q K^T / sqrt(d_out), future hidden)) V

    Args:
        d_in, d_out: width of an input and of a context vector.
        context_length: the largest number of tokens.
        dropout: the share of weights dropped in training, in [0, 1).
        qkv_bias: whether the three linear layers add a bias.
    Returns: `forward(x)`: (..., T, d_in) -> (..., T, d_out); `attention_weights(x)`: (..., T, T), without dropout.
    Raises: TypeError or ValueError where an argument is out of range or x does not fit.

    >>> CausalAttention(d_in=3, d_out=2, context_length=4, dropout=0.0)(torch.ones(4, 3)).shape
    torch.Size([4, 2])

    Source: Vaswani et al. 2017, section 3.2.3. Built in notebooks 04 and 05.
    """

    def __init__(self, d_in: int, d_out: int, context_length: int, dropout: float, qkv_bias: bool = False) -> None:
        super().__init__()
        check_widths(d_in, d_out)
        check_int("context_length", context_length)
        check_dropout("dropout", dropout)
        check_flag("qkv_bias", qkv_bias)
        self.d_in = d_in
        self.d_out = d_out
        self.context_length = context_length
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.dropout = nn.Dropout(dropout)

    def attention_weights(self, x: Tensor) -> Tensor:
        check_input(x, self.W_query.weight, self.d_in)
        check_length(x, self.context_length)
        mask = causal_mask(x.shape[-2]).to(x.device)  # (T, T)
        return attention_weights(self.W_query(x), self.W_key(x), mask)  # (..., T, d_in) -> (..., T, T)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.dropout(self.attention_weights(x))  # (..., T, T)
        return context_vectors(weights, self.W_value(x))  # (..., T, d_out)


class MultiHeadAttentionWrapper(nn.Module):
    """Run several causal attention layers side by side and join their outputs.

    context = [head_1(x), ..., head_H(x)], each head d_out / H wide

    Args:
        d_in: width of an input vector.
        d_out: width of the output, all heads together.
        context_length: the largest number of tokens.
        dropout: the share of weights dropped in training, in [0, 1).
        num_heads: H, which divides d_out.
        qkv_bias: whether the linear layers add a bias.
    Returns: `forward(x)`: (..., T, d_in) -> (..., T, d_out); `attention_weights(x)`: (..., H, T, T), without dropout.
    Raises: TypeError or ValueError where an argument is out of range or x does not fit.

    >>> MultiHeadAttentionWrapper(3, 4, context_length=6, dropout=0.0, num_heads=2)(torch.ones(1, 6, 3)).shape
    torch.Size([1, 6, 4])

    Source: Vaswani et al. 2017, section 3.2.2. Built in notebook 06.
    """

    def __init__(
        self, d_in: int, d_out: int, context_length: int, dropout: float, num_heads: int, qkv_bias: bool = False
    ) -> None:
        super().__init__()
        check_widths(d_in, d_out)
        check_heads(d_out, num_heads)
        self.d_in = d_in
        self.d_out = d_out
        self.context_length = context_length
        self.num_heads = num_heads
        self.head_dim = d_out // num_heads
        self.heads = nn.ModuleList(
            CausalAttention(d_in, self.head_dim, context_length, dropout, qkv_bias) for _ in range(num_heads)
        )

    def attention_weights(self, x: Tensor) -> Tensor:
        weights = [head.attention_weights(x) for head in self.heads]  # type: ignore[operator]
        return torch.stack(weights, dim=-3)  # H times (..., T, T) -> (..., H, T, T)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([head(x) for head in self.heads], dim=-1)  # (..., T, d_out)


class MultiHeadAttention(nn.Module):
    """Project once for all heads, split into heads, attend in each, merge, and mix the heads with a last projection.

    context = out_proj(merge(dropout(softmax(Q_h K_h^T / sqrt(head_dim), future hidden)) V_h))

    Args:
        d_in: width of an input vector.
        d_out: width of the output, all heads together.
        context_length: the largest number of tokens.
        dropout: the share of weights dropped in training, in [0, 1).
        num_heads: H, which divides d_out; head_dim is d_out / H.
        qkv_bias: whether the query, key and value layers add a bias; out_proj always has one.
    Returns: `forward(x)`: (..., T, d_in) -> (..., T, d_out), QUERY_BLOCK queries at a time, with dropout drawn for each
        block of them; `attention_weights(x)`: (..., H, T, T), without dropout.
    Raises: TypeError or ValueError where an argument is out of range or x does not fit.

    >>> MultiHeadAttention(3, 4, context_length=6, dropout=0.0, num_heads=2)(torch.ones(1, 6, 3)).shape
    torch.Size([1, 6, 4])

    Source: Vaswani et al. 2017, section 3.2.2. Built in notebook 06.
    """

    def __init__(
        self, d_in: int, d_out: int, context_length: int, dropout: float, num_heads: int, qkv_bias: bool = False
    ) -> None:
        super().__init__()
        check_widths(d_in, d_out)
        check_heads(d_out, num_heads)
        check_int("context_length", context_length)
        check_dropout("dropout", dropout)
        check_flag("qkv_bias", qkv_bias)
        self.d_in = d_in
        self.d_out = d_out
        self.context_length = context_length
        self.num_heads = num_heads
        self.head_dim = d_out // num_heads
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.out_proj = nn.Linear(d_out, d_out)
        self.dropout = nn.Dropout(dropout)

    def _heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        check_input(x, self.W_query.weight, self.d_in)
        check_length(x, self.context_length)
        projected = (self.W_query(x), self.W_key(x), self.W_value(x))  # (..., T, d_in) -> (..., T, d_out) each
        queries, keys, values = (split_heads(t, self.num_heads) for t in projected)  # (..., H, T, D) each
        return queries, keys, values

    def attention_weights(self, x: Tensor) -> Tensor:
        queries, keys, _ = self._heads(x)  # (..., H, T, D) each
        mask = causal_mask(x.shape[-2]).to(x.device)  # (T, T)
        return attention_weights(queries, keys, mask)  # (..., H, T, T)

    def forward(self, x: Tensor) -> Tensor:
        queries, keys, values = self._heads(x)  # (..., H, T, D) each
        contexts = []
        for start in range(0, x.shape[-2], QUERY_BLOCK):
            block = queries[..., start : start + QUERY_BLOCK, :]  # (..., H, L, D)
            seen = start + block.shape[-2]  # S: no query of the block sees a later key
            mask = causal_mask(block.shape[-2], seen).to(x.device)  # (L, S)
            weights = self.dropout(attention_weights(block, keys[..., :seen, :], mask))  # (..., H, L, S)
            contexts.append(context_vectors(weights, values[..., :seen, :]))  # (..., H, L, D)
        merged = merge_heads(torch.cat(contexts, dim=-2))  # blocks of (..., H, L, D) -> (..., T, d_out)
        return self.out_proj(merged)  # (..., T, d_out)


class FusedMultiHeadAttention(MultiHeadAttention):
    """Do what `MultiHeadAttention` does, with PyTorch's own attention kernel inside.

    context = out_proj(merge(F.scaled_dot_product_attention(Q_h, K_h, V_h, is_causal=True, dropout in training only)))

    Args: those of `MultiHeadAttention`; the parameters have the same names, order and seeded values.
    Returns: `forward(x)`: (..., T, d_in) -> (..., T, d_out), without holding the (T, T) weights where PyTorch has a
        fused kernel for the case; on a CPU it has none for dropout in training, which is left to `MultiHeadAttention`;
        `attention_weights(x)`: (..., H, T, T), without dropout.
    Raises: TypeError or ValueError where an argument is out of range or x does not fit.

    >>> FusedMultiHeadAttention(3, 4, context_length=6, dropout=0.0, num_heads=2)(torch.ones(1, 6, 3)).shape
    torch.Size([1, 6, 4])

    Source: Dao et al. 2022. Built in notebook 07.
    """

    def forward(self, x: Tensor) -> Tensor:
        dropout_p = self.dropout.p if self.training else 0.0
        if dropout_p > 0 and self.W_query.weight.device.type == "cpu":
            return super().forward(x)  # PyTorch would make the whole table of weights, without saying so
        queries, keys, values = self._heads(x)  # (..., H, T, D) each
        context = F.scaled_dot_product_attention(queries, keys, values, is_causal=True, dropout_p=dropout_p)
        return self.out_proj(merge_heads(context))  # (..., H, T, D) -> (..., T, d_out)
