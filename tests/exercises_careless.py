"""Wrong solutions as new learners write them, independent of the checker's own code, and the mistake to be named."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from attention_core import causal_mask

Layer = Callable[[Tensor], Tensor]


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


def cached_mask_reversed(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    scores = queries @ keys.transpose(-2, -1) / math.sqrt(queries.shape[-1])
    scores = scores.masked_fill(causal_mask(queries.shape[-2], keys.shape[-2]), -torch.inf)
    return torch.softmax(scores, dim=-1) @ values


def cached_square(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=causal_mask(queries.shape[-2]))


def cached_all_rows(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=causal_mask(keys.shape[-2]))


def cached_len(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=causal_mask(len(queries), len(keys)))


def cached_float_mask(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    new, everything = queries.shape[-2], keys.shape[-2]
    mask = torch.tril(torch.ones(new, everything), diagonal=everything - new)
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)


def cached_diagonal_sign(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    new, everything = queries.shape[-2], keys.shape[-2]
    mask = torch.ones(new, everything).tril(diagonal=new - everything).bool()
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)


def cached_triu_hidden(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    new, everything = queries.shape[-2], keys.shape[-2]
    mask = torch.triu(torch.ones(new, everything), diagonal=everything - new + 1).bool()
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)


def cached_newest_only(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    new = queries.shape[-2]
    return F.scaled_dot_product_attention(queries, keys[..., -new:, :], values[..., -new:, :], is_causal=True)


def mixes_whole_output(layer: Layer, batch: Tensor) -> bool:
    before = layer(batch)
    for i in range(len(batch)):
        changed = batch.clone()
        changed[i] = torch.randn_like(changed[i])
        if not torch.allclose(layer(changed), before, atol=1e-5):
            return True
    return False


def mixes_first_replaced(layer: Layer, batch: Tensor) -> bool:
    changed = batch.clone()
    changed[0] = torch.randn_like(changed[0])
    return not torch.allclose(layer(changed)[1:], layer(batch)[1:], atol=1e-5)


def mixes_later_ones(layer: Layer, batch: Tensor) -> bool:
    before = layer(batch)
    for i in range(len(batch)):
        changed = batch.clone()
        changed[i] += 1
        if not torch.allclose(layer(changed)[i + 1 :], before[i + 1 :], atol=1e-5):
            return True
    return False


def mixes_first_token(layer: Layer, batch: Tensor) -> bool:
    before = layer(batch)
    for i in range(len(batch)):
        changed = batch.clone()
        changed[i, 0] += 1
        others = [j for j in range(len(batch)) if j != i]
        if not torch.allclose(layer(changed)[others], before[others], atol=1e-5):
            return True
    return False


def mixes_clone_outside(layer: Layer, batch: Tensor) -> bool:
    before, changed = layer(batch), batch.clone()
    for i in range(len(batch)):
        changed[i] = torch.randn_like(changed[i])
        others = [j for j in range(len(batch)) if j != i]
        if not torch.allclose(layer(changed)[others], before[others], atol=1e-5):
            return True
    return False


def mixes_no_clone(layer: Layer, batch: Tensor) -> bool:
    before = layer(batch)
    batch[0] = 0
    return not torch.allclose(layer(batch)[1:], before[1:], atol=1e-5)


def mixes_answer_of_the_last(layer: Layer, batch: Tensor) -> bool:
    before, mixes = layer(batch), False
    for i in range(len(batch)):
        changed = batch.clone()
        changed[i] = 0
        others = [j for j in range(len(batch)) if j != i]
        mixes = not torch.allclose(layer(changed)[others], before[others], atol=1e-5)
    return mixes


def mixes_sentence_alone(layer: Layer, batch: Tensor) -> bool:
    alone = torch.stack([layer(sentence) for sentence in batch])
    return not torch.allclose(layer(batch), alone, atol=1e-5)


def online_maximum_first(scores: Tensor) -> tuple[float, float]:
    maximum, total = -math.inf, 0.0
    for score in scores.tolist():
        maximum = max(maximum, score)
        total = total * math.exp(maximum - maximum) + math.exp(score - maximum)
    return maximum, total


def online_begins_anew(scores: Tensor) -> tuple[float, float]:
    maximum, total = -math.inf, 0.0
    for score in scores.tolist():
        if score > maximum:
            maximum, total = score, 1.0
        else:
            total += math.exp(score - maximum)
    return maximum, total


def online_upside_down(scores: Tensor) -> tuple[float, float]:
    maximum, total = -math.inf, 0.0
    for score in scores.tolist():
        new = max(maximum, score)
        total = total * math.exp(new - maximum) + math.exp(score - new)
        maximum = new
    return maximum, total


def online_divided(scores: Tensor) -> tuple[float, float]:
    maximum, total = -math.inf, 0.0
    for score in scores.tolist():
        new = max(maximum, score)
        total = total / math.exp(maximum - new) + math.exp(score - new)
        maximum = new
    return maximum, total


def online_term_of_the_old(scores: Tensor) -> tuple[float, float]:
    maximum, total = -math.inf, 0.0
    for score in scores.tolist():
        new = max(maximum, score)
        total = total * math.exp(maximum - new) + math.exp(score - maximum)
        maximum = new
    return maximum, total


def online_from_zero(scores: Tensor) -> tuple[float, float]:
    maximum, total = 0.0, 0.0
    for score in scores.tolist():
        new = max(maximum, score)
        total = total * math.exp(maximum - new) + math.exp(score - new)
        maximum = new
    return maximum, total


def blocks(context_step: Any, last: Any = lambda context, total: context / total) -> Any:
    """The function of the exercise with another line for the context, and for what is returned."""

    def find_the_mistake(queries: Tensor, keys: Tensor, values: Tensor, block_size: int) -> Tensor:
        running_max = torch.full((len(queries), 1), -torch.inf)
        running_sum = torch.zeros(len(queries), 1)
        running_context = torch.zeros(len(queries), values.shape[-1])
        for start in range(0, len(keys), block_size):
            block = slice(start, start + block_size)
            scores = queries @ keys[block].T / math.sqrt(keys.shape[-1])
            new_max = torch.maximum(running_max, scores.amax(dim=-1, keepdim=True))
            shares = (scores - new_max).exp()
            correction = (running_max - new_max).exp()
            running_sum = running_sum * correction + shares.sum(dim=-1, keepdim=True)
            running_context = context_step(running_context, correction, shares, values[block])
            running_max = new_max
        return last(running_context, running_sum)

    return find_the_mistake


def blocks_averaged(queries: Tensor, keys: Tensor, values: Tensor, block_size: int) -> Tensor:
    contexts = []
    for start in range(0, len(keys), block_size):
        block = slice(start, start + block_size)
        weights = torch.softmax(queries @ keys[block].T / math.sqrt(keys.shape[-1]), dim=-1)
        contexts.append(weights @ values[block])
    return sum(contexts) / len(contexts)  # type: ignore[return-value]


def merge_shift_given(
    max_a: Tensor, sum_a: Tensor, context_a: Tensor, max_b: Tensor, sum_b: Tensor, context_b: Tensor
) -> tuple[Tensor, ...]:
    new_max = torch.maximum(max_a, max_b)
    new_max = new_max.masked_fill(new_max == -torch.inf, 0.0)
    a, b = torch.exp(max_a - new_max), torch.exp(max_b - new_max)
    return new_max, a * sum_a + b * sum_b, a * context_a + b * context_b


def merge_nan_rows(
    max_a: Tensor, sum_a: Tensor, context_a: Tensor, max_b: Tensor, sum_b: Tensor, context_b: Tensor
) -> tuple[Tensor, ...]:
    new_max = torch.maximum(max_a, max_b)
    a, b = torch.exp(max_a - new_max), torch.exp(max_b - new_max)
    return new_max, a * sum_a + b * sum_b, a * context_a + b * context_b


def merge_nan_to_num_everything(*six: Tensor) -> tuple[Tensor, ...]:
    return tuple(part.nan_to_num() for part in merge_nan_rows(*six))


def merge_divided(*six: Tensor) -> tuple[Tensor, ...]:
    new_max, new_sum, context = merge_nan_rows(*six)
    return new_max, new_sum, context / new_sum


def merge_divided_safely(*six: Tensor) -> tuple[Tensor, ...]:
    _, new_sum, context = merge_shift_given(*six)
    return torch.maximum(six[0], six[3]), new_sum, context / new_sum.clamp(min=1e-6)


def merge_only_added(
    max_a: Tensor, sum_a: Tensor, context_a: Tensor, max_b: Tensor, sum_b: Tensor, context_b: Tensor
) -> tuple[Tensor, ...]:
    return torch.maximum(max_a, max_b), sum_a + sum_b, context_a + context_b


def merge_context_forgotten(*six: Tensor) -> tuple[Tensor, ...]:
    new_max, new_sum, _ = merge_nan_rows(*six)
    return new_max, new_sum, six[2] + six[5]


def merge_times_sums(
    max_a: Tensor, sum_a: Tensor, context_a: Tensor, max_b: Tensor, sum_b: Tensor, context_b: Tensor
) -> tuple[Tensor, ...]:
    _, new_sum, context = merge_shift_given(max_a, sum_a, context_a * sum_a, max_b, sum_b, context_b * sum_b)
    return torch.maximum(max_a, max_b), new_sum, context


def merge_with_if(
    max_a: Tensor, sum_a: Tensor, context_a: Tensor, max_b: Tensor, sum_b: Tensor, context_b: Tensor
) -> tuple[Tensor, ...]:
    if max_a > max_b:
        correction = torch.exp(max_b - max_a)
        return max_a, sum_a + sum_b * correction, context_a + context_b * correction
    correction = torch.exp(max_a - max_b)
    return max_b, sum_a * correction + sum_b, context_a * correction + context_b


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
    ("07.pack_projections", lambda q, k, v: torch.cat([q, k, v]), "not transposed"),
    ("07.pack_projections", lambda q, k, v: torch.cat([q, k, v], dim=1), "packed for x @ W"),
    ("07.pack_projections", lambda q, k, v: torch.cat([q, k, v]).T, "side by side"),
    ("07.pack_projections", lambda q, k, v: torch.stack([q.T, k.T, v.T]), "a dimension of their own"),
    (
        "07.pack_projections",
        lambda q, k, v: torch.cat([q, k, v], dim=1).view(-1, q.shape[0]),
        "joined, then reshaped",
    ),
    ("07.pack_projections", lambda q, k, v: torch.cat([q.T, v.T, k.T]), "keys and values exchanged"),
    ("07.find_the_mistake", F.scaled_dot_product_attention, "nothing hidden"),
    (
        "07.find_the_mistake",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[-2] > 1),
        "right for a single token only",
    ),
    (
        "07.find_the_mistake",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[-2] == k.shape[-2]),
        "nothing hidden with a cache",
    ),
    ("07.find_the_mistake", cached_mask_reversed, "mask reversed"),
    ("07.find_the_mistake", cached_square, "mask for the new tokens only"),
    ("07.find_the_mistake", cached_all_rows, "mask for all tokens"),
    ("07.find_the_mistake", cached_len, "only with a batch"),
    ("07.find_the_mistake", cached_float_mask, "mask of zeros and ones"),
    ("07.find_the_mistake", cached_diagonal_sign, "diagonal with the wrong sign"),
    ("07.find_the_mistake", cached_triu_hidden, "True means hidden"),
    ("07.find_the_mistake", cached_newest_only, "cache not used"),
    ("07.mixes_sentences", mixes_whole_output, "the changed sentence compared"),
    ("07.mixes_sentences", mixes_first_replaced, "first sentence only"),
    ("07.mixes_sentences", mixes_later_ones, "first sentence only"),
    ("07.mixes_sentences", mixes_first_token, "first token only"),
    ("07.mixes_sentences", mixes_clone_outside, "copied once"),
    ("07.mixes_sentences", mixes_no_clone, "argument changed"),
    ("07.mixes_sentences", mixes_answer_of_the_last, "last sentence only"),
    ("07.mixes_sentences", mixes_sentence_alone, "a sentence without its batch"),
    ("08.online_sum", lambda s: (s.max(), s.exp().sum()), "maximum not subtracted"),
    ("08.online_sum", online_maximum_first, "no correction"),
    ("08.online_sum", online_begins_anew, "old sum thrown away"),
    ("08.online_sum", online_upside_down, "correction upside down"),
    ("08.online_sum", online_divided, "divided by the correction"),
    ("08.online_sum", online_term_of_the_old, "relative to the old maximum"),
    ("08.online_sum", online_from_zero, "maximum starts at 0"),
    ("08.find_the_mistake", blocks(lambda c, k, s, v: c + s @ v), "still not corrected"),
    ("08.find_the_mistake", blocks(lambda c, k, s, v: (c + s @ v) * k), "new part corrected too"),
    ("08.find_the_mistake", blocks(lambda c, k, s, v: c + k * (s @ v)), "new part corrected instead"),
    ("08.find_the_mistake", blocks(lambda c, k, s, v: c / k + s @ v), "correction upside down"),
    ("08.find_the_mistake", blocks(lambda c, k, s, v: c * k + s @ v, lambda c, total: c), "not divided"),
    (
        "08.find_the_mistake",
        blocks(lambda c, k, s, v: c * k + s @ v / s.sum(-1, keepdim=True), lambda c, total: c),
        "each block divided by its own sum",
    ),
    ("08.find_the_mistake", blocks_averaged, "blocks averaged"),
    ("08.merge_blocks", merge_nan_rows, "NaN where nothing is visible"),
    ("08.merge_blocks", merge_shift_given, "0 for the empty maximum"),
    ("08.merge_blocks", merge_nan_to_num_everything, "a number for minus infinity"),
    ("08.merge_blocks", merge_divided, "NaN where nothing is visible + divided already"),
    ("08.merge_blocks", merge_divided_safely, "divided where not empty"),
    ("08.merge_blocks", merge_only_added, "no correction"),
    ("08.merge_blocks", merge_context_forgotten, "context not corrected + NaN where nothing is visible"),
    ("08.merge_blocks", merge_times_sums, "multiplied by the sums"),
    ("08.merge_blocks", merge_with_if, "Python's max"),
]
