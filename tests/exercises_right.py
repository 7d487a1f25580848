"""Right solutions of every exercise, written in as many ways as students write them."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F


def dot_loop(a: Tensor, b: Tensor) -> float:
    total = 0.0
    for i in range(len(a)):
        total += a[i].double().item() * b[i].double().item()
    return total


def scores_loop(queries: Tensor, keys: Tensor) -> Tensor:
    if queries.dim() == 3:
        return torch.stack([scores_loop(q, k) for q, k in zip(queries, keys, strict=True)])
    scores = torch.empty(queries.shape[0], keys.shape[0])
    for i, query in enumerate(queries):
        for j, key in enumerate(keys):
            scores[i, j] = torch.dot(query, key)
    return scores


def scores_numpy(queries: Tensor, keys: Tensor) -> np.ndarray:
    return np.einsum("...ld,...sd->...ls", queries.numpy().astype(np.float64), keys.numpy().astype(np.float64))


def scores_keep_graph(queries: Tensor, keys: Tensor) -> Tensor:
    return queries.clone().requires_grad_() @ keys.transpose(-2, -1)


def project_einsum(x: Tensor, *matrices: Tensor) -> list[Tensor]:
    return [torch.einsum("...i,io->...o", x, W) for W in matrices]


def project_fused(x: Tensor, W_query: Tensor, W_key: Tensor, W_value: Tensor) -> tuple[Tensor, ...]:
    return (x @ torch.cat([W_query, W_key, W_value], dim=1)).chunk(3, dim=-1)


def project_linear(x: Tensor, W_query: Tensor, W_key: Tensor, W_value: Tensor) -> tuple[Tensor, ...]:
    return F.linear(x, W_query.T), F.linear(x, W_key.T), F.linear(x, W_value.T)


def word_loop(inputs: Tensor, position: int) -> Tensor:
    query = inputs[position]
    scores = torch.empty(inputs.shape[0])
    for i, x_i in enumerate(inputs):
        scores[i] = torch.dot(x_i, query)
    return scores


def both_ways_loop(scores: Tensor) -> bool:
    rows, columns = scores.shape
    if rows != columns:
        return False
    return all(abs(scores[i, j] - scores[j, i]) < 1e-4 for i in range(rows) for j in range(i))


def both_ways_tensor(scores: Tensor) -> Tensor:
    if scores.shape != scores.T.shape:
        return torch.tensor(False)
    return ((scores - scores.T).abs() < 1e-3).all()


def scale_in_place(scores: Tensor, head_dim: int) -> Tensor:
    own = scores.clone()
    own /= math.sqrt(head_dim)
    return own


def scaled_early(queries: Tensor, keys: Tensor) -> Tensor:
    return (queries / queries.size(-1) ** 0.25) @ (keys / keys.size(-1) ** 0.25).transpose(-1, -2)


def scaled_loop(queries: Tensor, keys: Tensor) -> Tensor:
    return scores_loop(queries, keys) * queries.shape[-1] ** -0.5


def entropy_where(weights: Tensor) -> Tensor:
    return -(weights * torch.where(weights > 0, weights, 1.0).log()).sum(-1)


def entropy_epsilon(weights: Tensor) -> Tensor:
    return -(weights * (weights + 1e-12).log()).sum(dim=-1)


def entropy_loop(weights: Tensor) -> Any:
    if weights.dim() == 1:
        return -sum(w * math.log(w) for w in weights.tolist() if w > 0)
    return [entropy_loop(row) for row in weights]


def order_ranks(before: Tensor, after: Tensor) -> bool:
    return all(torch.equal(a.argsort(), b.argsort()) for a, b in zip(before, after, strict=True))


def order_pairs(before: Tensor, after: Tensor) -> bool:
    return bool(((before[:, :, None] < before[:, None, :]) == (after[:, :, None] < after[:, None, :])).all())


def order_numpy(before: Tensor, after: Tensor) -> np.bool_:
    return np.all(np.argsort(before.numpy(), axis=1) == np.argsort(after.numpy(), axis=1))


def softmax_loop(scores: Tensor) -> Tensor:
    if scores.dim() > 1:
        return torch.stack([softmax_loop(row) for row in scores])
    exponentials = [math.exp(x - max(scores.tolist())) for x in scores.tolist()]
    return torch.tensor([x / sum(exponentials) for x in exponentials])


def softmax_numpy(scores: Tensor) -> np.ndarray:
    x = scores.numpy().astype(np.float64)
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def weights_einsum(queries: Tensor, keys: Tensor) -> Tensor:
    return torch.einsum("...ld,...sd->...ls", queries, keys).div(queries.shape[-1] ** 0.5).softmax(-1)


def weights_double(queries: Tensor, keys: Tensor) -> Tensor:
    return torch.softmax(queries.double() @ keys.double().mT / math.sqrt(keys.shape[-1]), -1)


def context_loop(weights: Tensor, values: Tensor) -> Tensor:
    context = torch.zeros(*weights.shape[:-1], values.shape[-1])
    for i in range(weights.shape[-2]):
        for j in range(weights.shape[-1]):
            context[..., i, :] += weights[..., i, j, None] * values[..., j, :]
    return context


def context_broadcast(weights: Tensor, values: Tensor) -> Tensor:
    return (weights.unsqueeze(-1) * values.unsqueeze(-3)).sum(-2)


def self_sdpa(x: Tensor, W_query: Tensor, W_key: Tensor, W_value: Tensor) -> Tensor:
    batch = x if x.dim() == 3 else x[None]
    out = F.scaled_dot_product_attention(batch @ W_query, batch @ W_key, batch @ W_value)
    return out if x.dim() == 3 else out[0]


def self_steps(x: Tensor, W_query: Tensor, W_key: Tensor, W_value: Tensor) -> Tensor:
    queries, keys, values = x @ W_query, x @ W_key, x @ W_value
    return weights_einsum(queries, keys) @ values


def wrong_loop(weights: Tensor, values: Tensor, printed: Tensor) -> list[list[bool]]:
    right = weights @ values
    return [
        [abs(float(right[i, j]) - float(printed[i, j])) > 0.0051 for j in range(right.shape[1])]
        for i in range(right.shape[0])
    ]


def sum_loop(weights: Tensor) -> bool:
    return all(abs(sum(row) - 1) < 1e-3 for row in weights.reshape(-1, weights.shape[-1]).tolist())


def mask_loop(num_tokens: int) -> Tensor:
    mask = torch.zeros(num_tokens, num_tokens, dtype=torch.bool)
    for i in range(num_tokens):
        for j in range(i + 1):
            mask[i, j] = True
    return mask


def mask_places(num_tokens: int) -> Tensor:
    places = torch.arange(num_tokens)
    return places[None, :] <= places[:, None]


def masked_allowed_first(scores: Tensor, mask: Tensor) -> Tensor:
    visible = torch.where(mask, scores, torch.tensor(float("-inf")))
    largest = visible.amax(-1, keepdim=True).clamp_min(torch.finfo(scores.dtype).min)
    e = torch.exp(visible - largest)
    return e / e.sum(-1, keepdim=True).clamp_min(1e-30)


def masked_nan_to_zero(scores: Tensor, mask: Tensor) -> Tensor:
    return torch.nan_to_num(torch.softmax(scores.masked_fill(~mask, float("-inf")), -1))


def masked_loop(scores: Tensor, mask: Tensor) -> Tensor:
    mask = mask.expand(scores.shape)
    if scores.dim() == 3:
        return torch.stack([masked_loop(s, m) for s, m in zip(scores, mask, strict=True)])
    weights = torch.zeros(scores.shape)
    for i, (row, allowed) in enumerate(zip(scores, mask, strict=True)):
        if allowed.any():
            weights[i, allowed] = torch.softmax(row[allowed], 0)
    return weights


def causal_sdpa(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(queries, keys, values, is_causal=True)


def causal_loop(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    if queries.dim() == 3:
        return torch.stack([causal_loop(*part) for part in zip(queries, keys, values, strict=True)])
    rows = []
    for i in range(len(queries)):
        scores = keys[: i + 1] @ queries[i] / queries.shape[1] ** 0.5
        rows.append(torch.softmax(scores, 0) @ values[: i + 1])
    return torch.stack(rows)


def future_by_gradient(attention: Any, x: Tensor) -> bool:
    for i in range(len(x) - 1):
        own = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad((attention(own)[i] ** 2).sum(), own)
        if gradient[i + 1 :].abs().max() > 1e-7:
            return True
    return False


def future_by_cutting(attention: Any, x: Tensor) -> bool:
    whole = attention(x)
    for n in range(1, len(x)):
        other = torch.cat([x[:n], torch.randn_like(x[n:]) * 3])
        if not torch.allclose(whole[:n], attention(other)[:n], atol=1e-4):
            return True
    return False


def dropout_bernoulli(weights: Tensor, dropout_p: float, training: bool, generator: torch.Generator) -> Tensor:
    if not training:
        return weights
    keep = torch.bernoulli(torch.full_like(weights, 1 - dropout_p), generator=generator)
    return weights * keep / (1 - dropout_p)


def dropout_at_least(weights: Tensor, dropout_p: float, training: bool, generator: torch.Generator) -> Tensor:
    if not training:
        return weights.clone()
    drawn = torch.rand(weights.shape, generator=generator, dtype=torch.float64)
    return torch.where(drawn >= dropout_p, weights / (1 - dropout_p), 0.0)


def dropout_numpy(weights: Tensor, dropout_p: float, training: bool, generator: torch.Generator) -> Any:
    if not training:
        return weights.numpy()
    return weights.numpy() * (torch.rand(weights.shape, generator=generator).numpy() < 1 - dropout_p) / (1 - dropout_p)


def share_loop(weights: Tensor, dropped: Tensor) -> float:
    pairs = [(a, b) for a, b in zip(weights.flatten().tolist(), dropped.flatten().tolist(), strict=True) if a != 0]
    return sum(b == 0 for _, b in pairs) / len(pairs)


def split_slices(x: Tensor, num_heads: int) -> Tensor:
    width = x.shape[-1] // num_heads
    return torch.stack([x[..., h * width : (h + 1) * width] for h in range(num_heads)], dim=-3)


def split_numpy(x: Tensor, num_heads: int) -> np.ndarray:
    array = x.numpy()
    return np.swapaxes(array.reshape(*array.shape[:-1], num_heads, -1), -2, -3)


def multi_head_slices(x: Tensor, W_q: Tensor, W_k: Tensor, W_v: Tensor, W_out: Tensor, num_heads: int) -> Tensor:
    parts = zip(*(W.chunk(num_heads, dim=1) for W in (W_q, W_k, W_v)), strict=True)
    return torch.cat([self_steps(x, *matrices) for matrices in parts], dim=-1) @ W_out


def multi_head_sdpa(x: Tensor, W_q: Tensor, W_k: Tensor, W_v: Tensor, W_out: Tensor, num_heads: int) -> Tensor:
    q, k, v = (split_slices(x @ W, num_heads) for W in (W_q, W_k, W_v))
    context = F.scaled_dot_product_attention(q, k, v)
    return context.transpose(-3, -2).reshape(*x.shape[:-1], -1) @ W_out


def permute_index(
    W_query: Tensor, W_key: Tensor, W_value: Tensor, W_out: Tensor, num_heads: int, order: Any
) -> list[Tensor]:
    places = torch.arange(W_out.shape[0]).reshape(num_heads, -1)[list(order)].flatten()
    return [W_query[:, places], W_key[:, places], W_value[:, places], W_out[places]]


def permute_loop(W_query: Tensor, W_key: Tensor, W_value: Tensor, W_out: Tensor, num_heads: int, order: Any) -> Any:
    new = [torch.zeros_like(W) for W in (W_query, W_key, W_value, W_out)]
    d = W_out.shape[0] // num_heads
    for place, head in enumerate(order):
        for mine, W in zip(new[:3], (W_query, W_key, W_value), strict=True):
            mine[:, place * d : (place + 1) * d] = W[:, head * d : (head + 1) * d]
        new[3][place * d : (place + 1) * d] = W_out[head * d : (head + 1) * d]
    return tuple(new)


def pack_into_empty(W_query: Tensor, W_key: Tensor, W_value: Tensor) -> Tensor:
    d_in, d_out = W_query.shape
    packed = torch.empty(3 * d_out, d_in)
    for i, W in enumerate((W_query, W_key, W_value)):
        packed[i * d_out : (i + 1) * d_out] = W.T
    return packed


def cached_padded(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    past = keys.shape[-2] - queries.shape[-2]
    padded = torch.cat([torch.zeros_like(keys[..., :past, :]), queries], dim=-2)
    return F.scaled_dot_product_attention(padded, keys, values, is_causal=True)[..., past:, :]


def cached_loop(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    past = keys.shape[-2] - queries.shape[-2]
    rows = []
    for i in range(queries.shape[-2]):
        seen = past + i + 1
        rows.append(
            F.scaled_dot_product_attention(queries[..., i : i + 1, :], keys[..., :seen, :], values[..., :seen, :])
        )
    return torch.cat(rows, dim=-2)


def mixes_by_gradient(layer: Any, batch: Tensor) -> bool:
    for i in range(len(batch)):
        own = batch.clone().requires_grad_()
        (gradient,) = torch.autograd.grad((layer(own)[i] ** 2).sum(), own)
        gradient[i] = 0
        if gradient.abs().max() > 1e-6:
            return True
    return False


def mixes_by_single_sentences(layer: Any, batch: Tensor) -> bool:
    for i in range(len(batch)):
        other = torch.randn_like(batch)
        other[i] = batch[i]
        if not torch.allclose(layer(batch)[i], layer(other)[i], atol=1e-5):
            return True
    return False


def online_floats(scores: Tensor) -> tuple[float, float]:
    largest, total = -math.inf, 0.0
    for score in scores.tolist():
        new = max(largest, score)
        total = total * math.exp(largest - new) + math.exp(score - new)
        largest = new
    return largest, total


def online_if(scores: Tensor) -> list[Tensor]:
    largest, total = scores[0], torch.ones(())
    for score in scores[1:]:
        if score > largest:
            total = total * torch.exp(largest - score) + 1
            largest = score
        else:
            total = total + torch.exp(score - largest)
    return [largest, total]


def blocks_by_split(queries: Tensor, keys: Tensor, values: Tensor, block_size: int) -> Tensor:
    m = torch.full(queries.shape[:-1], -torch.inf)
    total, context = torch.zeros(queries.shape[:-1]), torch.zeros(len(queries), values.shape[-1])
    for k, v in zip(keys.split(block_size), values.split(block_size), strict=True):
        scores = queries @ k.T / math.sqrt(k.shape[-1])
        new = torch.maximum(m, scores.max(dim=1).values)
        shrink, shares = torch.exp(m - new), torch.exp(scores - new[:, None])
        total = shrink * total + shares.sum(1)
        context = shrink[:, None] * context + shares @ v
        m = new
    return context / total[:, None]


def blocks_by_logsumexp(queries: Tensor, keys: Tensor, values: Tensor, block_size: int) -> Tensor:
    scores = (queries.double() @ keys.double().T / math.sqrt(keys.shape[-1])).split(block_size, dim=1)
    sums = torch.stack([block.logsumexp(dim=1) for block in scores])
    parts = [block.softmax(1) @ v.double() for block, v in zip(scores, values.split(block_size), strict=True)]
    return (sums.softmax(0).unsqueeze(-1) * torch.stack(parts)).sum(0)


def merge_where(m_a: Tensor, s_a: Tensor, c_a: Tensor, m_b: Tensor, s_b: Tensor, c_b: Tensor) -> tuple[Tensor, ...]:
    m = torch.where(m_a > m_b, m_a, m_b)
    a = torch.where(m_a == m, 1.0, torch.exp(m_a - m))
    b = torch.where(m_b == m, 1.0, torch.exp(m_b - m))
    return m, a * s_a + b * s_b, a * c_a + b * c_b


def merge_nan_to_num(*blocks: Tensor) -> list[Tensor]:
    m_a, s_a, c_a, m_b, s_b, c_b = blocks
    m = torch.cat([m_a, m_b], dim=1).amax(1, keepdim=True)
    a, b = (m_a - m).exp().nan_to_num(0.0), (m_b - m).exp().nan_to_num(0.0)
    return [m, s_a * a + s_b * b, c_a * a + c_b * b]


def merge_rows(*blocks: Tensor) -> tuple[Tensor, ...]:
    rows = []
    for m_a, s_a, c_a, m_b, s_b, c_b in zip(*blocks, strict=True):
        m = max(m_a, m_b)
        a, b = (0.0 if part == -math.inf else torch.exp(part - m) for part in (m_a, m_b))
        rows.append((m, s_a * a + s_b * b, c_a * a + c_b * b))
    return tuple(torch.stack(column) for column in zip(*rows, strict=True))


RIGHT: dict[str, list[Any]] = {
    "01.dot_product": [dot_loop, torch.dot, lambda a, b: (a * b).sum(), lambda a, b: np.dot(a.numpy(), b.numpy())],
    "01.dot_product_scores": [
        scores_loop,
        scores_numpy,
        scores_keep_graph,
        lambda q, k: (q[..., :, None, :] * k[..., None, :, :]).sum(-1),
        lambda q, k: torch.matmul(q.double(), k.double().transpose(-1, -2)),
    ],
    "01.project": [project_einsum, project_fused, project_linear],
    "01.find_the_mistake": [word_loop, lambda x, i: x @ x[i], lambda x, i: [torch.dot(row, x[i]) for row in x]],
    "01.same_both_ways": [both_ways_loop, both_ways_tensor],
    "02.scale_scores": [
        scale_in_place,
        lambda s, d: s * d**-0.5,
        lambda s, d: s.numpy() / np.sqrt(d),
        lambda s, d: s / torch.tensor(float(d)).sqrt(),
    ],
    "02.scaled_scores": [scaled_early, scaled_loop, lambda q, k: q @ k.mT / math.sqrt(k.shape[-1])],
    "02.entropy": [
        entropy_where,
        entropy_epsilon,
        entropy_loop,
        lambda w: torch.distributions.Categorical(probs=w.double()).entropy(),
    ],
    "02.find_the_mistake": [scaled_early, scaled_loop, lambda q, k: q @ k.mT / k.shape[-1] ** (1 / 2)],
    "02.keeps_the_order": [order_ranks, order_pairs, order_numpy],
    "03.softmax": [softmax_loop, softmax_numpy, lambda s: F.softmax(s, dim=-1), lambda s: s.log_softmax(-1).exp()],
    "03.attention_weights": [weights_einsum, weights_double, lambda q, k: softmax_loop(scaled_loop(q, k))],
    "03.context_vectors": [context_loop, context_broadcast, lambda w, v: torch.einsum("...ls,...sd->...ld", w, v)],
    "03.self_attention": [self_sdpa, self_steps],
    "03.find_the_mistake": [wrong_loop, lambda w, v, p: ~torch.isclose(w @ v, p, rtol=0, atol=0.0055)],
    "03.rows_sum_to_one": [
        sum_loop,
        lambda w: torch.allclose(w.sum(-1), torch.ones(w.shape[:-1]), atol=1e-3),
        lambda w: bool(((w.sum(dim=-1) - 1).abs() < 1e-5).all()),
    ],
    "04.causal_mask": [
        mask_loop,
        mask_places,
        lambda n: torch.tril(torch.ones(n, n)).bool(),
        lambda n: np.tri(n, dtype=bool),
        lambda n: [[j <= i for j in range(n)] for i in range(n)],
        lambda n: ~torch.triu(torch.ones(n, n, dtype=torch.bool), diagonal=1),
    ],
    "04.masked_softmax": [masked_allowed_first, masked_nan_to_zero, masked_loop],
    "04.causal_attention": [causal_sdpa, causal_loop],
    "04.find_the_mistake": [
        lambda s, hidden: torch.softmax(s.masked_fill(hidden, -torch.inf), -1),
        lambda s, hidden: masked_loop(s, ~hidden),
        lambda s, hidden: torch.softmax(s - 1e9 * hidden.float(), -1),
    ],
    "04.sees_the_future": [future_by_gradient, future_by_cutting],
    "05.apply_dropout": [
        lambda w, keep, p: torch.where(keep, w / (1 - p), 0.0),
        lambda w, keep, p: w.numpy() * keep.numpy() / (1 - p),
        lambda w, keep, p: w.mul(keep.double()).div(1 - p),
    ],
    "05.dropout": [dropout_bernoulli, dropout_at_least, dropout_numpy],
    "05.find_the_mistake": [
        lambda w, v, keep, p: (w * keep / (1 - p)) @ v,
        lambda w, v, keep, p: (w * keep) @ v / (1 - p),
        lambda w, v, keep, p: context_loop(w.masked_fill(~keep, 0), v) * (1 / (1 - p)),
    ],
    "05.share_dropped": [
        share_loop,
        lambda w, d: ((w != 0) & (d == 0)).sum() / (w != 0).sum(),
        lambda w, d: 1 - torch.count_nonzero(d) / torch.count_nonzero(w),
    ],
    "06.split_heads": [
        split_slices,
        split_numpy,
        lambda x, h: x.view(*x.shape[:-1], h, x.shape[-1] // h).transpose(-2, -3),
        lambda x, h: torch.stack(x.chunk(h, dim=-1), dim=-3),
    ],
    "06.merge_heads": [
        lambda x: torch.cat(list(x.unbind(-3)), dim=-1),
        lambda x: x.transpose(-2, -3).contiguous().view(*x.shape[:-3], x.shape[-2], -1),
        lambda x: np.concatenate([x.numpy()[..., h, :, :] for h in range(x.shape[-3])], axis=-1),
    ],
    "06.stack_projections": [
        torch.hstack,
        lambda matrices: torch.cat([W.T for W in matrices]).T,
        lambda matrices: torch.stack(matrices, dim=1).flatten(1),
    ],
    "06.multi_head_attention": [multi_head_slices, multi_head_sdpa],
    "06.find_the_mistake": [
        lambda q, k, h: torch.stack([a @ b.mT for a, b in zip(q.chunk(h, -1), k.chunk(h, -1), strict=True)], dim=-3),
        lambda q, k, h: torch.einsum("...lhd,...shd->...hls", q.unflatten(-1, (h, -1)), k.unflatten(-1, (h, -1))),
    ],
    "06.permute_heads": [permute_index, permute_loop],
    "07.pack_projections": [
        pack_into_empty,
        lambda q, k, v: torch.cat([q, k, v], dim=1).T,
        lambda q, k, v: np.concatenate([q.numpy().T, k.numpy().T, v.numpy().T]),
        lambda q, k, v: torch.stack([q.T, k.T, v.T]).flatten(0, 1),
    ],
    "07.find_the_mistake": [
        cached_padded,
        cached_loop,
        lambda q, k, v: (
            masked_allowed_first(
                q @ k.mT / q.shape[-1] ** 0.5,
                torch.ones(q.shape[-2], k.shape[-2]).tril(k.shape[-2] - q.shape[-2]).bool(),
            )
            @ v
        ),
    ],
    "07.mixes_sentences": [mixes_by_gradient, mixes_by_single_sentences],
    "08.online_sum": [
        online_floats,
        online_if,
        lambda s: (s.max(), torch.exp(torch.logsumexp(s.double(), 0) - s.max())),
        lambda s: (s.numpy().max(), np.exp(s.numpy() - s.numpy().max()).sum()),
    ],
    "08.find_the_mistake": [
        blocks_by_split,
        blocks_by_logsumexp,
        lambda q, k, v, block_size: F.scaled_dot_product_attention(q, k, v),
    ],
    "08.merge_blocks": [merge_where, merge_nan_to_num, merge_rows],
}
