"""Wrong solutions as new learners write them, independent of the checker's own code, and the mistake to be named."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def dot_total_overwritten(a: Tensor, b: Tensor) -> Tensor:
    total = torch.tensor(0.0)
    for i in range(len(a)):
        total = a[i] * b[i]
    return total


def dot_range_too_short(a: Tensor, b: Tensor) -> Tensor:
    total = torch.tensor(0.0)
    for i in range(len(a) - 1):
        total += a[i] * b[i]
    return total


def scores_transpose_0_1(queries: Tensor, keys: Tensor) -> Tensor:
    return torch.matmul(queries, keys.transpose(0, 1))


def scores_dot_t(queries: Tensor, keys: Tensor) -> Tensor:
    return queries @ keys.t()


def word_given(inputs: Tensor, position: int) -> Tensor:
    query = inputs.shape[0]
    scores = torch.empty(inputs.shape[0])
    for i, x_i in enumerate(inputs):
        scores[i] = torch.dot(x_i, query)  # type: ignore[arg-type]
    return scores


def softmax_plain(scores: Tensor) -> Tensor:
    e = torch.exp(scores)
    return e / torch.sum(e, dim=-1, keepdim=True)


def softmax_global_max(scores: Tensor) -> Tensor:
    e = torch.exp(scores - torch.max(scores))
    return e / e.sum(-1, keepdim=True)


def softmax_plain_wrong_axis(scores: Tensor) -> Tensor:
    e = torch.exp(scores - scores.max())
    return e / e.sum()


def softmax_no_keepdim(scores: Tensor) -> Tensor:
    e = torch.exp(scores - scores.max(dim=-1, keepdim=True).values)
    return e / e.sum(-1)


def mask_upper_ones(num_tokens: int) -> Tensor:
    return torch.triu(torch.ones(num_tokens, num_tokens), diagonal=1).bool()


def masked_then_divided(scores: Tensor, mask: Tensor) -> Tensor:
    weights = torch.softmax(scores, dim=-1)
    masked = weights * mask
    return masked / masked.sum(dim=-1, keepdim=True)


def causal_unscaled(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    scores = queries @ keys.transpose(-2, -1)
    hidden = torch.triu(torch.ones(scores.shape[-1], scores.shape[-1]), diagonal=1).bool()
    return F.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1) @ values


def causal_zero(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    scores = queries @ keys.transpose(-2, -1) / keys.shape[-1] ** 0.5
    scores = torch.tril(scores)
    return F.softmax(scores, dim=-1) @ values


def causal_unmasked_unscaled(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return F.softmax(queries @ keys.mT, dim=-1) @ values


def dropout_ignores_training(weights: Tensor, dropout_p: float, training: bool, generator: torch.Generator) -> Tensor:
    keep = torch.rand(weights.shape, generator=generator) > dropout_p
    return weights * keep / (1 - dropout_p)


def dropout_functional(weights: Tensor, dropout_p: float, training: bool, generator: torch.Generator) -> Tensor:
    return F.dropout(weights, dropout_p, training)


def dropout_less_than_p(weights: Tensor, dropout_p: float, training: bool, generator: torch.Generator) -> Tensor:
    if not training:
        return weights
    keep = torch.rand(weights.shape, generator=generator) < dropout_p
    return weights * keep / (1 - dropout_p)


def dropout_unscaled(weights: Tensor, dropout_p: float, training: bool, generator: torch.Generator) -> Tensor:
    if training:
        weights = weights * torch.bernoulli(torch.full(weights.shape, 1 - dropout_p), generator=generator)
    return weights


def split_view(x: Tensor, num_heads: int) -> Tensor:
    if x.dim() == 2:
        return x.view(num_heads, x.shape[0], -1)
    return x.view(x.shape[0], num_heads, x.shape[1], -1)


def split_transpose_1_2(x: Tensor, num_heads: int) -> Tensor:
    return x.view(*x.shape[:-1], num_heads, x.shape[-1] // num_heads).transpose(1, 2)


def multi_head_d_out(x: Tensor, W_q: Tensor, W_k: Tensor, W_v: Tensor, W_o: Tensor, num_heads: int) -> Tensor:
    def heads(W: Tensor) -> Tensor:
        return (x @ W).unflatten(-1, (num_heads, -1)).transpose(-2, -3)

    scores = heads(W_q) @ heads(W_k).mT / math.sqrt(W_q.shape[1])
    return (scores.softmax(-1) @ heads(W_v)).transpose(-2, -3).flatten(-2) @ W_o


def multi_head_no_transpose_back(
    x: Tensor, W_q: Tensor, W_k: Tensor, W_v: Tensor, W_o: Tensor, num_heads: int
) -> Tensor:
    def heads(W: Tensor) -> Tensor:
        return (x @ W).unflatten(-1, (num_heads, -1)).transpose(-2, -3)

    context = F.scaled_dot_product_attention(heads(W_q), heads(W_k), heads(W_v))
    return context.reshape(*x.shape[:-1], -1) @ W_o


CARELESS: list[tuple[str, Any, str]] = [
    ("01.dot_product", dot_total_overwritten, "only the last product"),
    ("01.dot_product", dot_range_too_short, "last number left out"),
    ("01.dot_product", lambda a, b: a * b, "products not added up"),
    ("01.dot_product", F.cosine_similarity, "IndexError"),
    ("01.dot_product_scores", scores_transpose_0_1, "dimensions counted from the front"),
    ("01.dot_product_scores", scores_dot_t, "dimensions counted from the front"),
    ("01.dot_product_scores", lambda q, k: torch.einsum("...ld,...sd->...sl", q, k), "queries and keys exchanged"),
    ("01.dot_product_scores", lambda q, k: torch.matmul(q, k), "keys not transposed"),
    ("01.project", lambda x, q, k, v: (F.linear(x, q), F.linear(x, k), F.linear(x, v)), "matrices transposed"),
    ("01.project", lambda x, q, k, v: [x @ q, x @ v, x @ k], "keys and values exchanged"),
    ("01.find_the_mistake", word_given, "the number of tokens as query"),
    ("01.find_the_mistake", lambda x, i: x @ x[1], "always the same word"),
    ("01.same_both_ways", lambda s: s.shape[0] == s.shape[1] and bool((s == s.T).all()), "exact comparison"),
    ("01.same_both_ways", lambda s: torch.allclose(s, s.T), "error for other shapes"),
    ("02.scale_scores", lambda s, d: s / d**1 / 2, "1 / 2 without brackets"),
    ("02.scale_scores", lambda s, d: s * math.sqrt(d), "multiplied"),
    ("02.scale_scores", lambda s, d: s / math.sqrt(s.size(-1)), "number of keys"),
    ("02.scaled_scores", lambda q, k: q @ k.mT, "not scaled"),
    ("02.scaled_scores", lambda q, k: (q @ k.mT) / math.sqrt(k.shape[-2]), "number of keys"),
    ("02.scaled_scores", lambda q, k: (q @ k.mT).softmax(-1), "not scaled + already a softmax"),
    ("02.entropy", lambda w: (w * w.clamp(min=1e-12).log()).sum(-1), "no minus"),
    ("02.entropy", lambda w: -(w * w.log()).sum(-1), "NaN where a weight is 0"),
    ("02.entropy", lambda w: -(w * w.clamp(min=1e-12).log2()).sum(-1), "bits"),
    ("02.entropy", lambda w: -(w * w.log2()).sum(-1), "bits + NaN where a weight is 0"),
    ("02.entropy", lambda w: -(w * w.clamp(min=1e-12).log()).sum(), "one number for everything"),
    ("02.find_the_mistake", lambda q, k: q @ k.transpose(-2, -1) / k.shape[-1] ** 1 / 2, "1 / 2 without brackets"),
    ("02.keeps_the_order", lambda a, b: torch.equal(a.argmax(-1), b.argmax(-1)), "favourite only"),
    ("02.keeps_the_order", lambda a, b: torch.equal(a.argsort(0), b.argsort(0)), "columns ranked"),
    ("03.softmax", softmax_plain, "overflow"),
    ("03.softmax", softmax_global_max, "one maximum for everything"),
    ("03.softmax", softmax_plain_wrong_axis, "one maximum for everything + everything sums to 1"),
    ("03.softmax", softmax_no_keepdim, "keepdim forgotten"),
    ("03.softmax", lambda s: torch.softmax(s, dim=0), "dim=0"),
    ("03.softmax", lambda s: torch.softmax(s, dim=1), "dim=1"),
    ("03.softmax", lambda s: s / s.sum(-1, keepdim=True), "no exp"),
    ("03.softmax", lambda s: F.log_softmax(s, -1), "logarithm"),
    ("03.attention_weights", lambda q, k: (q @ k.mT / q.shape[-1] ** 0.5).softmax(-2), "softmax over the queries"),
    ("03.attention_weights", lambda q, k: (q @ k.mT).softmax(-1) / q.shape[-1] ** 0.5, "scaled after the softmax"),
    ("03.attention_weights", lambda q, k: (q @ k.mT).softmax(-2), "not scaled + softmax over the queries"),
    ("03.attention_weights", lambda q, k: (k @ q.mT).softmax(-1), "not scaled + queries and keys exchanged"),
    ("03.context_vectors", lambda w, v: w.transpose(-2, -1) @ v, "weights transposed"),
    ("03.context_vectors", lambda w, v: v @ w, "values first"),
    ("03.context_vectors", lambda w, v: w.softmax(-1) @ v, "softmax once more"),
    ("03.self_attention", lambda x, q, k, v: ((x @ q) @ (x @ k).mT).softmax(-1) @ (x @ v), "not scaled"),
    (
        "03.self_attention",
        lambda x, q, k, v: ((x @ q) @ (x @ k).mT / x.shape[-1] ** 0.5).softmax(-1) @ (x @ v),
        "width of the input",
    ),
    (
        "03.self_attention",
        lambda x, q, k, v: ((x @ q) @ (x @ k).mT / q.shape[1] ** 0.5).softmax(-1) @ x,
        "values not projected",
    ),
    ("03.find_the_mistake", lambda w, v, p: p != w @ v, "exact comparison"),
    ("03.find_the_mistake", lambda w, v, p: torch.isclose(w @ v, p, atol=0.006), "True where right"),
    ("03.rows_sum_to_one", lambda w: bool((w.sum(-1) == 1).all()), "exact comparison"),
    ("03.rows_sum_to_one", lambda w: torch.allclose(w.sum(-2), torch.tensor(1.0), atol=1e-4), "columns"),
    ("04.causal_mask", mask_upper_ones, "True means hidden"),
    ("04.causal_mask", lambda n: torch.tril(torch.ones(n, n)), "numbers 0 and 1"),
    ("04.causal_mask", lambda n: torch.triu(torch.full((n, n), -torch.inf), diagonal=1), "0 and minus infinity"),
    ("04.causal_mask", lambda n: torch.ones(n, n).triu().bool(), "only the future"),
    ("04.causal_mask", lambda n: torch.arange(n) < torch.arange(n)[:, None], "does not see itself"),
    ("04.masked_softmax", lambda s, m: s.masked_fill(m, -torch.inf).softmax(-1).nan_to_num(), "mask reversed"),
    ("04.masked_softmax", lambda s, m: s.masked_fill(~m, -torch.inf).softmax(-1), "NaN in an empty row"),
    ("04.masked_softmax", lambda s, m: s.masked_fill(~m, -1e9).softmax(-1), "even weights in an empty row"),
    ("04.masked_softmax", lambda s, m: (s * m).softmax(-1), "scores set to 0"),
    ("04.masked_softmax", lambda s, m: s.softmax(-1) * m, "hidden after the softmax"),
    ("04.masked_softmax", masked_then_divided, "renormalised afterwards"),
    ("04.masked_softmax", lambda s, m: (s + m).softmax(-1), "mask added as 0 and 1"),
    ("04.causal_attention", causal_unscaled, "not scaled"),
    ("04.causal_attention", causal_zero, "scores set to 0"),
    ("04.causal_attention", causal_unmasked_unscaled, "no mask + not scaled"),
    ("04.causal_attention", F.scaled_dot_product_attention, "no mask"),
    ("04.find_the_mistake", lambda s, h: s.masked_fill(~h, -torch.inf).softmax(-1), "still reversed"),
    ("05.apply_dropout", lambda w, k, p: w * k, "kept weights not enlarged"),
    ("05.apply_dropout", lambda w, k, p: w * k / p, "divided by p"),
    ("05.apply_dropout", lambda w, k, p: w * k * (1 - p), "made smaller"),
    ("05.apply_dropout", lambda w, k, p: w.masked_fill(k, 0) / (1 - p), "keep reversed"),
    ("05.apply_dropout", lambda w, k, p: w.masked_fill(k, 0), "kept weights not enlarged + keep reversed"),
    ("05.dropout", dropout_ignores_training, "dropped in evaluation"),
    ("05.dropout", dropout_functional, "generator not used"),
    ("05.dropout", dropout_less_than_p, "p taken as the share kept"),
    ("05.dropout", dropout_unscaled, "kept weights not enlarged"),
    ("05.dropout", lambda w, p, t, g: w, "never dropped"),
    ("05.find_the_mistake", lambda w, v, k, p: (w * k) @ v, "still not enlarged"),
    ("05.find_the_mistake", lambda w, v, k, p: (w * k) @ v * (1 - p), "made smaller"),
    ("05.share_dropped", lambda w, d: (d == 0).float().mean(), "old zeros counted"),
    ("05.share_dropped", lambda w, d: ((d == 0) & (w != 0)).float().mean(), "share of all places"),
    ("06.split_heads", split_view, "view without transpose"),
    ("06.split_heads", split_transpose_1_2, "dimensions counted from the front"),
    ("06.split_heads", lambda x, h: x.unflatten(-1, (h, -1)), "tokens before heads"),
    ("06.split_heads", lambda x, h: x.view(h, x.shape[-2], -1), "view without transpose"),
    ("06.merge_heads", lambda x: x.reshape(*x.shape[:-3], x.shape[-2], -1), "view without transpose"),
    ("06.merge_heads", lambda x: x.transpose(1, 2).flatten(-2), "dimensions counted from the front"),
    ("06.stack_projections", lambda ws: torch.cat(ws), "below each other"),
    ("06.stack_projections", lambda ws: torch.stack(ws), "a dimension of their own"),
    ("06.multi_head_attention", multi_head_d_out, "scaled by the total width"),
    ("06.multi_head_attention", multi_head_no_transpose_back, "merged by view alone"),
    ("06.permute_heads", lambda q, k, v, o, h, order: (q, k, v, o), "nothing moved"),
]
