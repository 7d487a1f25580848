"""What else a user would pick: layers with the parameters of `MultiHeadAttention`, and attention without the layer.

Every layer takes x (B, T, d_in), is causal, and has the same numbers once `same_weights` has copied them.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attention_core import MultiHeadAttention


def textbook_attention(queries: Tensor, keys: Tensor, values: Tensor, future: Tensor) -> Tensor:
    """Scores, fill, divide, softmax, product, each a step of its own; future (T, T) is True where a key is hidden."""
    scores = queries @ keys.transpose(-2, -1)  # (..., T, D) @ (..., D, T) -> (..., T, T)
    scores.masked_fill_(future, -torch.inf)
    weights = torch.softmax(scores / math.sqrt(queries.shape[-1]), dim=-1)
    return weights @ values  # (..., T, D)


class Textbook(nn.Module):
    """The layer as textbooks have it: a stored mask, three projections, fill, divide, softmax, dropout."""

    def __init__(self, width: int, context_length: int, dropout: float, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.W_query = nn.Linear(width, width, bias=False)
        self.W_key = nn.Linear(width, width, bias=False)
        self.W_value = nn.Linear(width, width, bias=False)
        self.out_proj = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", torch.triu(torch.ones(context_length, context_length), diagonal=1))

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        queries, keys, values = (
            projection(x).view(batch, tokens, self.num_heads, -1).transpose(1, 2)
            for projection in (self.W_query, self.W_key, self.W_value)
        )
        scores = queries @ keys.transpose(2, 3)  # (B, H, T, T)
        scores.masked_fill_(self.mask.bool()[:tokens, :tokens], -torch.inf)
        weights = self.dropout(torch.softmax(scores / math.sqrt(keys.shape[-1]), dim=-1))
        context = (weights @ values).transpose(1, 2).contiguous().view(batch, tokens, -1)
        return self.out_proj(context)


class SeparateProjections(nn.Module):
    """The layer written directly on PyTorch's kernel, with three projections."""

    def __init__(self, width: int, dropout: float, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.W_query = nn.Linear(width, width, bias=False)
        self.W_key = nn.Linear(width, width, bias=False)
        self.W_value = nn.Linear(width, width, bias=False)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        heads = [
            projection(x).view(batch, tokens, self.num_heads, -1).transpose(1, 2)
            for projection in (self.W_query, self.W_key, self.W_value)
        ]
        dropout_p = self.dropout if self.training else 0.0
        context = F.scaled_dot_product_attention(*heads, dropout_p=dropout_p, is_causal=True)
        return self.out_proj(context.transpose(1, 2).reshape(batch, tokens, width))


class PackedProjection(nn.Module):
    """The layer written directly on PyTorch's kernel, with one projection for queries, keys and values."""

    def __init__(self, width: int, dropout: float, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.in_proj = nn.Linear(width, 3 * width, bias=False)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        heads = self.in_proj(x).view(batch, tokens, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        dropout_p = self.dropout if self.training else 0.0
        context = F.scaled_dot_product_attention(*heads.unbind(0), dropout_p=dropout_p, is_causal=True)
        return self.out_proj(context.transpose(1, 2).reshape(batch, tokens, width))


class TorchLayer(nn.Module):
    """`nn.MultiheadAttention`, called so that it is causal; with or without the weights that it can return."""

    def __init__(self, width: int, context_length: int, dropout: float, num_heads: int, need_weights: bool) -> None:
        super().__init__()
        self.need_weights = need_weights
        self.layer = nn.MultiheadAttention(width, num_heads, dropout=dropout, bias=True, batch_first=True)
        future = torch.ones(context_length, context_length, dtype=torch.bool).triu(1)
        self.register_buffer("future", future)

    def forward(self, x: Tensor) -> Tensor:
        future = self.future[: x.shape[1], : x.shape[1]]
        return self.layer(x, x, x, attn_mask=future, is_causal=True, need_weights=self.need_weights)[0]


class MatrixProducts(nn.Module):
    """The layer's matrix products and nothing else, of the tables of weights only the blocks that causality needs.

    Its output means nothing: it is the least work that any implementation of the layer has to do.
    """

    def __init__(self, width: int, num_heads: int, block_size: int = 64) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.block_size = block_size
        self.in_proj = nn.Linear(width, 3 * width, bias=False)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        heads = self.in_proj(x).view(batch, tokens, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        queries, keys, values = (part.flatten(0, 1) for part in heads)  # (B*H, T, D)
        context = [
            (block @ keys[:, :seen].transpose(1, 2)) @ values[:, :seen]
            for block, seen in zip(queries.split(self.block_size, dim=1), self._ends(tokens), strict=True)
        ]
        return self.out_proj(torch.cat(context, dim=1).view(batch, tokens, width))

    def _ends(self, tokens: int) -> list[int]:
        return [min(start + self.block_size, tokens) for start in range(0, tokens, self.block_size)]


def same_weights(layer: nn.Module, source: MultiHeadAttention) -> nn.Module:
    """Give a layer of this file the parameters of ours, made without a bias for queries, keys and values."""
    own = dict(source.named_parameters())
    packed = torch.cat([own[f"W_{name}.weight"].detach() for name in ("query", "key", "value")])
    values = own | {"in_proj.weight": packed, "layer.in_proj_weight": packed}
    values |= {f"layer.{name}": own[name] for name in ("out_proj.weight", "out_proj.bias")}
    values["layer.in_proj_bias"] = torch.zeros(len(packed))
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.copy_(values[name])
    return layer
