"""The small steps against answers worked out by hand, against PyTorch's own, and their refusals word for word."""

import math
import sys

import numpy as np
import pytest
import torch
from refusals import Unchanged, assert_refused
from torch import tensor
from torch.nn import functional as F

import attention_core
from attention_core import (
    apply_dropout,
    attention_weights,
    context_vectors,
    dot_product_scores,
    entropy,
    masked_softmax,
    merge_heads,
    scale_scores,
    scaled_dot_product_attention,
    softmax,
    split_heads,
)
from attention_core._checks import LARGEST_COUNT, check_entries

B, H, L, S, D, D_V = 2, 3, 5, 7, 11, 13  # a prime each: a dimension taken for another one does not fit


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def random_mask(*shape, seed=0):
    """About half True, and at least one True in every row."""
    mask = randn(*shape, seed=seed) > 0
    mask[..., 2] |= ~mask.any(dim=-1)
    return mask


def inputs(dtype=torch.float64):
    return (randn(B, H, size, width, seed=size + width, dtype=dtype) for size, width in ((L, D), (S, D), (S, D_V)))


MASKS = {
    "none": None,
    "one for all": random_mask(L, S),
    "one per sequence": random_mask(B, 1, 1, S, seed=1),
    "one per head": random_mask(H, L, S, seed=2),
    "one per score": random_mask(B, H, L, S, seed=3),
    "one key for every query": random_mask(S, seed=4),
    "everything hidden from some": random_mask(L, S) & tensor([[True], [False], [True], [True], [False]]),
}


# Worked out by hand


def test_scores_by_hand():
    scores = dot_product_scores(tensor([[1.0, 2.0], [3.0, 4.0], [0.0, -1.0]]), tensor([[5.0, 6.0], [7.0, 8.0]]))
    assert scores.tolist() == [[17, 23], [39, 53], [-6, -8]]


def test_scaled_scores_by_hand():
    assert scale_scores(tensor([[8.0, -4.0]]), head_dim=16).tolist() == [[2, -1]]
    assert scale_scores(tensor([[3.0]]), head_dim=2).item() == pytest.approx(2.1213203)


def test_softmax_by_hand():
    scores = tensor([[1.0, 2.0, 5.0], [4.0, 4.0, 8.0]], dtype=torch.float64).log()
    assert softmax(scores).tolist() == [pytest.approx([0.125, 0.25, 0.625]), pytest.approx([0.25, 0.25, 0.5])]
    columns = softmax(scores, dim=0).mT
    assert columns.tolist() == [
        pytest.approx([0.2, 0.8]),
        pytest.approx([1 / 3, 2 / 3]),
        pytest.approx([5 / 13, 8 / 13]),
    ]


def test_masked_softmax_by_hand():
    scores = tensor([[1.0, 2.0, 5.0]] * 3, dtype=torch.float64).log()
    mask = tensor([[True, False, True], [False, True, False], [False, False, False]])
    assert masked_softmax(scores, mask).tolist() == [pytest.approx([1 / 6, 0, 5 / 6]), [0, 1, 0], [0, 0, 0]]


def test_attention_by_hand():
    queries = tensor([[2 * math.log(3.0), 0, 0, 0], [0, 0, 1, 1]], dtype=torch.float64)
    keys = tensor([[1.0, 0, 0, 0], [0, 1, 0, 0]], dtype=torch.float64)
    values = tensor([[4.0, 0, 1], [8, 4, 1]], dtype=torch.float64)
    context, weights = scaled_dot_product_attention(queries, keys, values)
    assert weights.tolist() == [pytest.approx([0.75, 0.25]), [0.5, 0.5]]
    assert context.tolist() == [pytest.approx([5, 1, 1]), [6, 2, 1]]


def test_entropy_by_hand():
    weights = tensor([[0.5, 0.25, 0.25], [0, 1, 0], [1 / 3, 1 / 3, 1 / 3]], dtype=torch.float64)
    assert entropy(weights).tolist() == pytest.approx([1.5 * math.log(2), 0, math.log(3)])
    assert entropy(tensor([0.5, 0.5], dtype=torch.float64)).item() == pytest.approx(math.log(2))


def test_heads_by_hand():
    x = torch.arange(12.0).reshape(2, 6)
    heads = split_heads(x, num_heads=3)
    assert heads.tolist() == [[[0, 1], [6, 7]], [[2, 3], [8, 9]], [[4, 5], [10, 11]]]
    assert torch.equal(merge_heads(heads), x)


# Against PyTorch and against einsum


def test_scores_are_the_dot_products_one_by_one():
    queries, keys, _ = inputs()
    torch.testing.assert_close(dot_product_scores(queries, keys), torch.einsum("bhld,bhsd->bhls", queries, keys))


def test_context_is_the_weighted_sum_one_by_one():
    weights, values = randn(B, H, L, S).softmax(-1), randn(B, H, S, D_V)
    torch.testing.assert_close(context_vectors(weights, values), torch.einsum("bhls,bhsv->bhlv", weights, values))


@pytest.mark.parametrize("dim", [-4, -3, -2, -1, 0, 1, 2, 3])
def test_softmax_is_torchs_softmax(dim):
    scores = randn(B, H, L, S)
    torch.testing.assert_close(softmax(scores, dim=dim), scores.softmax(dim))


@pytest.mark.parametrize("scale", [None, 1.0, 0.3, -2, 0])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_attention_is_torchs_attention(mask, scale):
    queries, keys, values = inputs()
    before = Unchanged(queries, keys, values, mask)
    context, weights = scaled_dot_product_attention(queries, keys, values, mask, scale=scale)
    before.check()
    identity = torch.eye(S, dtype=torch.float64).expand(B, H, S, S)  # the context of one-hot values is the weights
    wide = None if mask is None else mask.expand(B, H, L, S)
    torch.testing.assert_close(context, F.scaled_dot_product_attention(queries, keys, values, wide, scale=scale))
    torch.testing.assert_close(weights, F.scaled_dot_product_attention(queries, keys, identity, wide, scale=scale))
    assert torch.equal(weights, attention_weights(queries, keys, mask, scale=scale))


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_gradients_are_torchs(mask):
    wide = None if mask is None else mask.expand(B, H, L, S)
    grads = []
    for attend in (scaled_dot_product_attention, lambda q, k, v, m: (F.scaled_dot_product_attention(q, k, v, m),)):
        arguments = [x.requires_grad_() for x in inputs()]
        context = attend(*arguments, wide)[0]
        grads.append(torch.autograd.grad(context, arguments, grad_outputs=randn(B, H, L, D_V, seed=9)))
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_leading_dimensions_are_stretched():
    queries, keys, values = inputs()
    context, weights = scaled_dot_product_attention(queries, keys[0, :1], values[:1, 0])
    expected = F.scaled_dot_product_attention(
        queries, keys[0, :1].expand(B, H, S, D), values[:1, 0].expand(B, H, S, D_V)
    )
    torch.testing.assert_close(context, expected)
    assert weights.shape == (B, H, L, S)


def test_split_heads_takes_neighbouring_columns():
    x = randn(B, L, H * D)
    heads = split_heads(x, H)
    assert heads.shape == (B, H, L, D)
    for number in range(H):
        assert torch.equal(heads[:, number], x[..., number * D : (number + 1) * D])
    assert torch.equal(merge_heads(heads), x)


def test_merge_heads_puts_heads_side_by_side():
    heads = randn(B, H, L, D)
    assert torch.equal(merge_heads(heads), torch.cat(list(heads.unbind(1)), dim=-1))


# What always holds


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_rows_sum_to_one_or_hold_nothing(mask):
    scores = randn(B, H, L, S)
    weights = masked_softmax(scores, mask)
    allowed = torch.ones(B, H, L, S, dtype=torch.bool) if mask is None else mask.expand(B, H, L, S)
    torch.testing.assert_close(weights.sum(dim=-1), allowed.any(dim=-1).double())
    assert (weights[allowed] > 0).all()
    assert (weights[~allowed] == 0).all()


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_no_gradient_reaches_a_hidden_score(mask):
    scores = randn(B, H, L, S).requires_grad_()
    (masked_softmax(scores, mask) * randn(B, H, L, S, seed=1)).sum().backward()
    hidden = torch.zeros(B, H, L, S, dtype=torch.bool) if mask is None else ~mask.expand(B, H, L, S)
    assert (scores.grad[hidden] == 0).all()
    assert (scores.grad[~hidden] != 0).any()
    assert scores.grad.isfinite().all()


def test_hidden_scores_and_nothing_else_are_ignored():
    scores, mask = randn(L, S), random_mask(L, S)
    for rubbish in (torch.inf, -torch.inf, torch.nan, 1e300):
        assert torch.equal(masked_softmax(scores.masked_fill(~mask, rubbish), mask), masked_softmax(scores, mask))


def test_context_stays_within_the_values():
    queries, keys, values = inputs()
    context, _ = scaled_dot_product_attention(queries, keys, values)
    assert (context <= values.amax(dim=-2, keepdim=True)).all()
    assert (context >= values.amin(dim=-2, keepdim=True)).all()


def test_one_token_gives_its_value():
    queries, keys, values = randn(B, H, 1, D), randn(B, H, 1, D, seed=1), randn(B, H, 1, D_V)
    context, weights = scaled_dot_product_attention(queries, keys, values)
    assert torch.equal(context, values)
    assert torch.equal(weights, torch.ones(B, H, 1, 1, dtype=torch.float64))


def test_dropout_acts_on_the_weights():
    queries, keys, values = inputs()
    keep = random_mask(B, H, L, S)
    context, weights = scaled_dot_product_attention(
        queries, keys, values, MASKS["one for all"], keep=keep, dropout_p=0.2
    )
    expected = attention_weights(queries, keys, MASKS["one for all"]) * keep / 0.8
    torch.testing.assert_close(weights, expected)
    torch.testing.assert_close(context, torch.einsum("bhls,bhsv->bhlv", expected, values))


STEPS = {
    "dot_product_scores": (dot_product_scores, randn(L, D), randn(S, D)),
    "scale_scores": (lambda x: scale_scores(x, D), randn(L, S)),
    "entropy": (entropy, randn(L, S).softmax(-1)),
    "softmax": (softmax, randn(L, S)),
    "masked_softmax": (masked_softmax, randn(L, S), random_mask(L, S)),
    "masked_softmax without mask": (masked_softmax, randn(L, S)),
    "context_vectors": (context_vectors, randn(L, S), randn(S, D_V)),
    "split_heads": (lambda x: split_heads(x, H), randn(L, H * D)),
    "merge_heads": (merge_heads, randn(H, L, D)),
    "apply_dropout": (lambda x, keep: apply_dropout(x, keep, 0.5), randn(L, S), random_mask(L, S)),
}


@pytest.mark.parametrize(("function", "arguments"), [(f, a) for f, *a in STEPS.values()], ids=STEPS)
def test_arguments_stay_as_they_are(function, arguments):
    before = Unchanged(*arguments)
    assert function(*arguments).isfinite().all()
    before.check()


# Numerical care


def error(x, exact):
    return (x.double() - exact).abs().max()


DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
NARROW = DTYPES[:3]  # float64 is what they are measured by


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("size", [0.0, 1.0, 1e4, -1e4])
def test_softmax_is_as_exact_as_torchs(dtype, size):
    scores = (randn(B, L, 97) + size * random_mask(B, L, 97)).to(dtype)
    exact = scores.double().softmax(-1)
    ours, theirs = softmax(scores), scores.softmax(-1)
    assert ours.dtype == dtype
    assert ours.isfinite().all()
    assert error(ours, exact) <= error(theirs, exact) + torch.finfo(dtype).eps / 4
    assert torch.equal(masked_softmax(scores, torch.ones_like(scores, dtype=torch.bool)), ours)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("size", [1.0, 1e4])
def test_attention_is_as_exact_as_torchs_steps(dtype, size):
    """Scores reach `size`; the measure is what PyTorch's operations of the same width leave as error."""
    mask = MASKS["everything hidden from some"]
    queries, keys, values = inputs()
    queries, keys = (x / x.abs().amax() * math.sqrt(size) for x in (queries, keys))
    queries, keys, values = (x.to(dtype) for x in (queries, keys, values))
    wide = mask.expand(B, H, L, S)
    exact = F.scaled_dot_product_attention(queries.double(), keys.double(), values.double(), wide)
    scores = (queries @ keys.mT / math.sqrt(D)).masked_fill(~mask, -torch.inf)
    theirs = scores.softmax(-1).nan_to_num(0) @ values
    ours, _ = scaled_dot_product_attention(queries, keys, values, mask)
    assert ours.dtype == dtype
    assert ours.isfinite().all()
    assert error(ours, exact) <= 1.1 * error(theirs, exact) + torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_with_nothing_allowed_are_zero(dtype):
    queries, keys, values = (x.requires_grad_() for x in inputs(dtype))
    context, weights = scaled_dot_product_attention(queries, keys, values, torch.zeros(L, S, dtype=torch.bool))
    assert (context == 0).all()
    assert (weights == 0).all()
    context.sum().backward()
    assert (queries.grad == 0).all()
    assert (keys.grad == 0).all()


# Refusals


def t(*shape, dtype=torch.float32, device="cpu"):
    return torch.ones(shape, dtype=dtype, device=device)


def hides(*shape, device="cpu"):
    return torch.ones(shape, dtype=torch.bool, device=device)


TAKES_TENSORS = {  # function -> (what one argument is called, its shape in words, how to call it with that argument)
    "dot_product_scores queries": ("queries", "(..., L, D)", lambda x: dot_product_scores(x, t(2, 3))),
    "dot_product_scores keys": ("keys", "(..., S, D)", lambda x: dot_product_scores(t(2, 3), x)),
    "scale_scores": ("scores", "(..., L, S)", lambda x: scale_scores(x, 4)),
    "entropy": ("weights", "(..., S)", entropy),
    "softmax": ("scores", "(..., S)", softmax),
    "masked_softmax": ("scores", "(..., L, S)", masked_softmax),
    "masked_softmax with a mask": ("scores", "(..., L, S)", lambda x: masked_softmax(x, hides(2, 3))),
    "attention_weights queries": ("queries", "(..., L, D)", lambda x: attention_weights(x, t(2, 3))),
    "attention_weights keys": ("keys", "(..., S, D)", lambda x: attention_weights(t(2, 3), x)),
    "context_vectors weights": ("weights", "(..., L, S)", lambda x: context_vectors(x, t(2, 3))),
    "context_vectors values": ("values", "(..., S, D)", lambda x: context_vectors(t(3, 2), x)),
    "attention queries": ("queries", "(..., L, D)", lambda x: scaled_dot_product_attention(x, t(2, 3), t(2, 3))),
    "attention keys": ("keys", "(..., S, D)", lambda x: scaled_dot_product_attention(t(2, 3), x, t(2, 3))),
    "attention values": ("values", "(..., S, D)", lambda x: scaled_dot_product_attention(t(2, 3), t(2, 3), x)),
    "split_heads": ("x", "(..., T, H*D)", lambda x: split_heads(x, 1)),
    "merge_heads": ("x", "(..., H, T, D)", merge_heads),
    "apply_dropout": ("weights", "(...)", lambda x: apply_dropout(x, hides(2, 3), 0.5)),
}


def floats(dtype):
    return f"must hold floating-point numbers, got {dtype}; convert it with .float()"


NO_TENSORS = {
    "None": (None, TypeError, "must be a torch.Tensor, got NoneType"),
    "list": ([[1.0]], TypeError, "must be a torch.Tensor, got list"),
    "NumPy array": (np.ones((2, 3)), TypeError, "must be a torch.Tensor, got ndarray"),
    "number": (1.0, TypeError, "must be a torch.Tensor, got float"),
    "integers": (t(2, 3, dtype=torch.int64), TypeError, floats("torch.int64")),
    "booleans": (t(2, 3, dtype=torch.bool), TypeError, floats("torch.bool")),
    "complex": (t(2, 3, dtype=torch.complex64), TypeError, floats("torch.complex64")),
    "8 bits": (t(2, 3).to(torch.float8_e4m3fn), TypeError, floats("torch.float8_e4m3fn")),
    "sparse": (
        t(2, 3).to_sparse(),
        TypeError,
        "must be a dense tensor, got layout torch.sparse_coo; convert it with .to_dense()",
    ),
    "nested": (
        torch.nested.nested_tensor([t(2, 3), t(4, 3)]),
        TypeError,
        "must be a dense tensor, got a nested one; convert it with .to_padded_tensor()",
    ),
    "no tokens": (t(2, 0, 3), ValueError, "must not be empty, got shape (2, 0, 3)"),
    "no features": (t(2, 3, 0), ValueError, "must not be empty, got shape (2, 3, 0)"),
    "no sequences": (t(0, 2, 3), ValueError, "must not be empty, got shape (0, 2, 3)"),
}


@pytest.mark.parametrize(("x", "kind", "rule"), NO_TENSORS.values(), ids=NO_TENSORS)
@pytest.mark.parametrize(("name", "_", "call"), TAKES_TENSORS.values(), ids=TAKES_TENSORS)
def test_what_is_no_such_tensor_is_refused(name, _, call, x, kind, rule):
    assert_refused(kind, f"{name} {rule}", call, x)


@pytest.mark.parametrize(("name", "dims", "call"), TAKES_TENSORS.values(), ids=TAKES_TENSORS)
def test_too_few_dimensions_are_refused(name, dims, call):
    for rank in range(dims.count(",")):
        shape = (2,) * rank
        assert_refused(ValueError, f"{name} must have shape {dims}, got {shape}", call, t(*shape))


Q, K, V, SCORES = t(2, 5, 11), t(2, 7, 11), t(2, 7, 13), t(2, 5, 7)
MASK_IS = "mask must be boolean (True = may attend), got"
REFUSED = {
    "widths": (
        ValueError,
        "queries and keys must share their last dimension: queries (2, 5, 8), keys (2, 5, 6)",
        lambda: dot_product_scores(t(2, 5, 8), t(2, 5, 6)),
    ),
    "batches": (
        ValueError,
        "queries and keys must agree in all dimensions before the last two: queries (2, 5, 11), keys (3, 7, 11)",
        lambda: dot_product_scores(Q, t(3, 7, 11)),
    ),
    "batches further left": (
        ValueError,
        "weights and values must agree in all dimensions before the last two: "
        "weights (2, 3, 5, 7), values (4, 1, 7, 13)",
        lambda: context_vectors(t(2, 3, 5, 7), t(4, 1, 7, 13)),
    ),
    "dtypes": (
        TypeError,
        "queries and keys must share one dtype: queries is torch.float32, keys is torch.float64",
        lambda: dot_product_scores(Q, K.double()),
    ),
    "dtypes of weights and values": (
        TypeError,
        "weights and values must share one dtype: weights is torch.float32, values is torch.bfloat16",
        lambda: scaled_dot_product_attention(Q, K, V.bfloat16()),
    ),
    "dtypes without numbers": (
        TypeError,
        "queries and keys must share one dtype: queries is torch.float32, keys is torch.float64",
        lambda: dot_product_scores(Q.to("meta"), K.double().to("meta")),
    ),
    "devices": (
        ValueError,
        "queries and keys must be on the same device: queries on cpu, keys on meta",
        lambda: attention_weights(Q, K.to("meta")),
    ),
    "devices of weights and values": (
        ValueError,
        "weights and values must be on the same device: weights on cpu, values on meta",
        lambda: scaled_dot_product_attention(Q, K, V.to("meta")),
    ),
    "device of the mask": (
        ValueError,
        "mask and scores must be on the same device: mask on meta, scores on cpu",
        lambda: masked_softmax(SCORES, hides(5, 7, device="meta")),
    ),
    "keys without values": (
        ValueError,
        "weights must have one column for each row of values: weights (2, 5, 7), values (2, 5, 13)",
        lambda: scaled_dot_product_attention(Q, K, t(2, 5, 13)),
    ),
    "head_dim zero": (ValueError, "head_dim must be at least 1, got 0", lambda: scale_scores(SCORES, 0)),
    "head_dim negative": (ValueError, "head_dim must be at least 1, got -4", lambda: scale_scores(SCORES, -4)),
    "head_dim huge": (
        ValueError,
        f"head_dim must be at most 2147483647, got {10**400}",
        lambda: scale_scores(SCORES, 10**400),
    ),
    "head_dim float": (TypeError, "head_dim must be an int, got 4.0 of type float", lambda: scale_scores(SCORES, 4.0)),
    "head_dim bool": (TypeError, "head_dim must be an int, got True of type bool", lambda: scale_scores(SCORES, True)),
    "head_dim None": (
        TypeError,
        "head_dim must be an int, got None of type NoneType",
        lambda: scale_scores(SCORES, None),
    ),
    "negative weights": (
        ValueError,
        "weights must not be negative, got -0.25",
        lambda: entropy(tensor([[1.25, -0.25]])),
    ),
    "dim too large": (
        ValueError,
        "dim must name one of the 3 dimensions of scores (2, 5, 7), got 3",
        lambda: softmax(SCORES, 3),
    ),
    "dim too small": (
        ValueError,
        "dim must name one of the 3 dimensions of scores (2, 5, 7), got -4",
        lambda: softmax(SCORES, dim=-4),
    ),
    "dim float": (TypeError, "dim must be an int, got -1.0 of type float", lambda: softmax(SCORES, -1.0)),
    "dim bool": (TypeError, "dim must be an int, got True of type bool", lambda: softmax(SCORES, True)),
    "dim tuple": (TypeError, "dim must be an int, got (0, 1) of type tuple", lambda: softmax(SCORES, (0, 1))),
    "mask of zeros and ones": (TypeError, f"{MASK_IS} torch.float32", lambda: masked_softmax(SCORES, t(5, 7))),
    "mask of ints": (
        TypeError,
        f"{MASK_IS} torch.int64",
        lambda: attention_weights(Q, K, t(5, 7, dtype=torch.int64)),
    ),
    "mask as list": (
        TypeError,
        "mask must be a boolean torch.Tensor (True = may attend), got list",
        lambda: masked_softmax(SCORES, [[True] * 7] * 5),
    ),
    "mask as NumPy array": (
        TypeError,
        "mask must be a boolean torch.Tensor (True = may attend), got ndarray",
        lambda: masked_softmax(SCORES, np.ones((5, 7), dtype=bool)),
    ),
    "mask sparse": (
        TypeError,
        "mask must be a dense tensor, got layout torch.sparse_coo; convert it with .to_dense()",
        lambda: masked_softmax(SCORES, hides(5, 7).to_sparse()),
    ),
    "mask nested": (
        TypeError,
        "mask must be a dense tensor, got a nested one; convert it with .to_padded_tensor()",
        lambda: masked_softmax(SCORES, torch.nested.nested_tensor([t(2, 7), t(5, 7)]).to(torch.bool)),
    ),
    "mask turned": (
        ValueError,
        "mask must broadcast to the shape of the scores (2, 5, 7), got (7, 5)",
        lambda: masked_softmax(SCORES, hides(7, 5)),
    ),
    "mask with more dimensions": (
        ValueError,
        "mask must broadcast to the shape of the scores (2, 5, 7), got (1, 2, 5, 7)",
        lambda: masked_softmax(SCORES, hides(1, 2, 5, 7)),
    ),
    "mask that enlarges": (
        ValueError,
        "mask must broadcast to the shape of the scores (1, 5, 7), got (2, 5, 7)",
        lambda: masked_softmax(SCORES[:1], hides(2, 5, 7)),
    ),
    "mask empty": (
        ValueError,
        "mask must broadcast to the shape of the scores (2, 1, 7), got (0, 7)",
        lambda: masked_softmax(SCORES[:, :1], hides(0, 7)),
    ),
    "scale text": (
        TypeError,
        "scale must be a number, got '0.5' of type str",
        lambda: attention_weights(Q, K, scale="0.5"),
    ),
    "scale tensor": (
        TypeError,
        "scale must be a number, got tensor(2.) of type Tensor",
        lambda: scaled_dot_product_attention(Q, K, V, scale=tensor(2.0)),
    ),
    "scale bool": (
        TypeError,
        "scale must be a number, got True of type bool",
        lambda: attention_weights(Q, K, scale=True),
    ),
    "scale nan": (
        ValueError,
        "scale must be a finite number, got nan",
        lambda: attention_weights(Q, K, scale=math.nan),
    ),
    "scale infinite": (
        ValueError,
        "scale must be a finite number, got -inf",
        lambda: attention_weights(Q, K, scale=-math.inf),
    ),
    "scale beyond float": (
        ValueError,
        f"scale must be a finite number, got {10**400}",
        lambda: attention_weights(Q, K, scale=10**400),
    ),
    "dropout without keep": (
        ValueError,
        "dropout_p=0.5 needs keep, the mask of what is kept; see dropout_keep_mask",
        lambda: scaled_dot_product_attention(Q, K, V, dropout_p=0.5),
    ),
    "dropout nan": (
        ValueError,
        "dropout_p is the share dropped and must be in [0, 1), got nan",
        lambda: scaled_dot_product_attention(Q, K, V, dropout_p=math.nan),
    ),
    "dropout tensor": (
        TypeError,
        "dropout_p must be a number, got tensor([0., 0.]) of type Tensor",
        lambda: scaled_dot_product_attention(Q, K, V, dropout_p=torch.zeros(2)),
    ),
    "dropout bool": (
        TypeError,
        "dropout_p must be a number, got False of type bool",
        lambda: scaled_dot_product_attention(Q, K, V, dropout_p=False),
    ),
    "keep of another shape": (
        ValueError,
        "keep must have the shape of the weights (2, 5, 7), got (5, 7)",
        lambda: scaled_dot_product_attention(Q, K, V, keep=hides(5, 7), dropout_p=0.5),
    ),
    "keep of another type": (
        TypeError,
        "keep must be boolean (True = kept), got torch.float32",
        lambda: scaled_dot_product_attention(Q, K, V, keep=t(2, 5, 7), dropout_p=0.5),
    ),
    "heads do not divide": (
        ValueError,
        "num_heads must divide the last dimension of x: x (2, 5, 11), num_heads=3",
        lambda: split_heads(Q, 3),
    ),
    "heads huge": (
        ValueError,
        f"num_heads must divide the last dimension of x: x (2, 5, 11), num_heads={10**30}",
        lambda: split_heads(Q, 10**30),
    ),
    "heads zero": (ValueError, "num_heads must be at least 1, got 0", lambda: split_heads(Q, 0)),
    "heads negative": (ValueError, "num_heads must be at least 1, got -11", lambda: split_heads(Q, -11)),
    "heads float": (TypeError, "num_heads must be an int, got 11.0 of type float", lambda: split_heads(Q, 11.0)),
    "heads bool": (TypeError, "num_heads must be an int, got True of type bool", lambda: split_heads(Q, True)),
}


@pytest.mark.parametrize(("kind", "message", "call"), REFUSED.values(), ids=REFUSED)
def test_refused(kind, message, call):
    before = Unchanged(Q, K, V, SCORES)
    assert_refused(kind, message, call)
    before.check()


def test_without_numbers_shapes_are_still_computed():
    context, weights = scaled_dot_product_attention(*(x.to("meta") for x in inputs()))
    assert (context.shape, weights.shape) == ((B, H, L, D_V), (B, H, L, S))
    assert entropy(weights).shape == (B, H, L)


def test_keep_without_its_dropout_p_is_refused():
    queries, keys, values = torch.rand(3, 5), torch.rand(7, 5), torch.rand(7, 2)
    everything = torch.ones(3, 7, dtype=torch.bool)
    context, _ = attention_core.scaled_dot_product_attention(queries, keys, values, keep=everything)
    assert torch.equal(context, attention_core.scaled_dot_product_attention(queries, keys, values)[0])
    with pytest.raises(ValueError, match=r"^keep drops weights, so it needs the dropout_p .* got dropout_p=0.0$"):
        attention_core.scaled_dot_product_attention(queries, keys, values, keep=everything.tril())


def test_half_precision_is_summed_in_float32():
    """The sum of 70000 exponentials does not fit into float16, which ends at 65504."""
    weights = softmax(torch.zeros(70_000, dtype=torch.float16))
    assert weights.dtype == torch.float16
    torch.testing.assert_close(weights.double().sum().item(), 1.0, rtol=0.01, atol=0)


def test_a_row_with_nothing_allowed_makes_no_nan_on_the_way_back_either():
    """Anomaly detection, which learners switch on to find a nan, must not find one here."""
    scores = torch.randn(3, 4).requires_grad_()
    mask = torch.ones(3, 4, dtype=torch.bool)
    mask[1] = False
    with torch.autograd.detect_anomaly():
        masked_softmax(scores, mask).square().sum().backward()
    assert (scores.grad[1] == 0).all()


def test_the_largest_finite_scale_is_a_scale():
    x = torch.zeros(2, 2, dtype=torch.float64)
    assert attention_weights(x, x, scale=sys.float_info.max).tolist() == [[0.5, 0.5]] * 2


def test_as_many_numbers_as_are_allowed_are_allowed():
    check_entries("the mask", (LARGEST_COUNT,))
    with pytest.raises(ValueError, match=f"the mask may hold at most {LARGEST_COUNT} numbers"):
        check_entries("the mask", (LARGEST_COUNT + 1,))
