"""Whatever tensor comes: the answer that float64 gives, or a refusal in our own words, and the arguments untouched.

`HYPOTHESIS_PROFILE=thorough` tries 50 times as many examples.
"""

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import Unchanged, raised_by_package
from torch.nn import functional as F

from attention_core import (
    CausalAttention,
    FusedMultiHeadAttention,
    MultiHeadAttention,
    MultiHeadAttentionWrapper,
    SelfAttentionV1,
    SelfAttentionV2,
    apply_dropout,
    attention_weights,
    causal_mask,
    context_vectors,
    dot_product_scores,
    dropout_keep_mask,
    entropy,
    masked_softmax,
    merge_heads,
    padding_mask,
    scale_scores,
    scaled_dot_product_attention,
    softmax,
    split_heads,
    tiled_attention,
)

pytestmark = pytest.mark.slow

settings.register_profile("default", derandomize=True, deadline=None, database=None, max_examples=50)
settings.register_profile("thorough", deadline=None, database=None, max_examples=3000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
OTHERS = [torch.int64, torch.uint8, torch.bool, torch.complex64, torch.complex128]
SPECIAL = [torch.inf, -torch.inf, torch.nan, 1e30, -1e30, 1e-42, -0.0, 0.0]  # 1e-42 is denormal in float32
LAYOUTS = ["contiguous", "transposed", "every second", "expanded", "shifted"]


def filled(seed, shape, dtype, special=False):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    if special and x.numel():
        choice = torch.randint(0, 3 * len(SPECIAL), x.shape, generator=generator)
        for place, value in enumerate(SPECIAL):
            x[choice == place] = value
    return (x.nan_to_num(0, 3, -3).clamp(-3, 3) if dtype not in FLOATS else x).to(dtype)


def laid_out(x, layout):
    """The same numbers, held in memory in another way; `expanded` repeats the first entry of the first dimension."""
    if x.dim() == 0 or 0 in x.shape:
        return x
    if layout == "transposed":
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "every second":
        return x.repeat_interleave(2, dim=-1)[..., ::2]
    if layout == "expanded":
        return x[:1].expand(x.shape)
    if layout == "shifted":
        return torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape)
    return x


@st.composite
def tensors(draw, shape, dtype, special=False):
    x = laid_out(filled(draw(st.integers(0, 2**16)), shape, dtype, special), draw(st.sampled_from(LAYOUTS)))
    return x.requires_grad_() if x.is_floating_point() and draw(st.booleans()) else x


shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)
sizes = st.integers(1, 4)
batches = st.lists(st.integers(1, 3), max_size=2).map(tuple)
any_tensor = st.tuples(shapes, st.sampled_from(FLOATS + OTHERS)).flatmap(lambda x: tensors(*x, special=True))
any_mask = st.one_of(st.none(), any_tensor, shapes.flatmap(lambda shape: tensors(shape, torch.bool)))
any_int = st.one_of(st.integers(-3, 9), st.integers(10**10, 10**40))  # what lies between might fill the memory
any_number = st.one_of(any_int, st.floats(), st.sampled_from([None, "1", True, 10**400, torch.ones(2)]))


# Anything at all: an answer or our own words


FREE = {
    "dot_product_scores": (dot_product_scores, any_tensor, any_tensor),
    "scale_scores": (scale_scores, any_tensor, any_number),
    "entropy": (entropy, any_tensor),
    "softmax": (softmax, any_tensor, any_number),
    "masked_softmax": (masked_softmax, any_tensor, any_mask),
    "attention_weights": (
        lambda q, k, m, s: attention_weights(q, k, m, scale=s),
        any_tensor,
        any_tensor,
        any_mask,
        any_number,
    ),
    "context_vectors": (context_vectors, any_tensor, any_tensor),
    "scaled_dot_product_attention": (
        lambda q, k, v, m, keep, p: scaled_dot_product_attention(q, k, v, m, keep=keep, dropout_p=p),
        any_tensor,
        any_tensor,
        any_tensor,
        any_mask,
        any_mask,
        any_number,
    ),
    "tiled_attention": (
        lambda q, k, v, m, causal, size: tiled_attention(q, k, v, m, is_causal=causal, block_size=size),
        any_tensor,
        any_tensor,
        any_tensor,
        any_mask,
        st.one_of(st.booleans(), any_number),
        any_number,
    ),
    "split_heads": (split_heads, any_tensor, any_number),
    "merge_heads": (merge_heads, any_tensor),
    "apply_dropout": (apply_dropout, any_tensor, any_mask, any_number),
    "causal_mask": (causal_mask, st.one_of(st.integers(-2, 9), any_number), st.one_of(st.integers(-2, 9), any_number)),
    "padding_mask": (padding_mask, st.one_of(any_tensor, st.lists(st.integers(-1, 9)), any_number), any_number),
    "dropout_keep_mask": (
        lambda shape, p, seed, stream: dropout_keep_mask(shape, p, seed=seed, stream=stream),
        st.one_of(shapes, st.lists(any_number, max_size=3), any_number),
        st.one_of(st.floats(0, 1), any_number),
        st.one_of(st.integers(0, 2**32), any_number),
        st.one_of(st.sampled_from(["torch", "mkl"]), any_number),
    ),
}
LAYERS = {
    "SelfAttentionV1": lambda: SelfAttentionV1(2, 4),
    "SelfAttentionV2": lambda: SelfAttentionV2(2, 4, qkv_bias=True),
    "CausalAttention": lambda: CausalAttention(2, 4, 3, 0.0),
    "MultiHeadAttentionWrapper": lambda: MultiHeadAttentionWrapper(2, 4, 3, 0.0, 2),
    "MultiHeadAttention": lambda: MultiHeadAttention(2, 4, 3, 0.0, 2),
    "FusedMultiHeadAttention": lambda: FusedMultiHeadAttention(2, 4, 3, 0.0, 2),
}
BUILD = {
    SelfAttentionV1: 2,
    SelfAttentionV2: 3,
    CausalAttention: 5,
    MultiHeadAttentionWrapper: 6,
    MultiHeadAttention: 6,
    FusedMultiHeadAttention: 6,
}


def answer_or_refusal(function, *arguments):
    before, out, refusal = Unchanged(*arguments), None, None
    try:
        out = function(*arguments)
    except (TypeError, ValueError) as error:
        refusal = error
    before.check()
    assert refusal is None or raised_by_package(refusal), refusal
    return out


@pytest.mark.parametrize(("function", "arguments"), [(f, a) for f, *a in FREE.values()], ids=FREE)
def test_function_answers_or_refuses(function, arguments):
    @given(st.tuples(*arguments))
    def check(drawn):
        answer_or_refusal(function, *drawn)

    check()


@pytest.mark.parametrize("build", LAYERS.values(), ids=LAYERS)
def test_layer_answers_or_refuses(build):
    layer = build()

    @given(any_tensor, st.sampled_from(FLOATS))
    def check(x, dtype):
        layer.to(dtype)
        context, weights = answer_or_refusal(layer, x), answer_or_refusal(layer.attention_weights, x)
        assert (context is None) == (weights is None)
        fits = x.dtype == dtype and x.dim() >= 2 and 0 not in x.shape and x.shape[-1] == 2
        longest = 4 if isinstance(layer, SelfAttentionV1 | SelfAttentionV2) else 3
        assert (context is not None) == (fits and x.shape[-2] <= longest)
        if context is not None:
            assert context.shape == (*x.shape[:-1], 4)
            assert context.dtype == dtype

    check()


@pytest.mark.parametrize(("layer", "count"), BUILD.items(), ids=lambda x: getattr(x, "__name__", ""))
def test_layer_is_built_or_refused(layer, count):
    @given(st.lists(any_number, min_size=count, max_size=count))
    def check(options):
        answer_or_refusal(layer, *options)

    check()


@given(any_number)
def test_scale_is_a_number_or_refused(scale):
    x = filled(0, (3, 2), torch.float32)
    weights = answer_or_refusal(lambda scale: attention_weights(x, x, scale=scale), scale)
    number = isinstance(scale, int | float) and not isinstance(scale, bool) and abs(scale) <= 1.7976931348623157e308
    assert (weights is not None) == (scale is None or number)


@given(st.data())
def test_entropy_refuses_negative_weights(data):
    weights = data.draw(tensors((2, 3), data.draw(st.sampled_from(FLOATS)), special=True))
    entropies = answer_or_refusal(entropy, weights)
    assert (entropies is None) == (weights < 0).any().item()


# What fits: the answer of float64, gradient included


def tolerance(dtype):
    return 16 * torch.finfo(dtype).eps


def assert_answers(ours, theirs, dtype):
    """`theirs` maps float64 arguments to float64."""
    assert ours.dtype == dtype
    torch.testing.assert_close(ours.double(), theirs, rtol=tolerance(dtype), atol=tolerance(dtype))


@st.composite
def attention_arguments(draw):
    dtype, batch = draw(st.sampled_from(FLOATS)), draw(batches)
    num_queries, num_keys, width, out = (draw(sizes) for _ in range(4))
    shapes_ = [(*batch, num_queries, width), (*batch, num_keys, width), (*batch, num_keys, out)]
    queries, keys, values = (draw(tensors(shape, dtype)) for shape in shapes_)
    leading = draw(st.sampled_from([(), *((1,) * i + batch[i:] for i in range(len(batch) + 1))]))
    mask = draw(
        st.one_of(st.none(), tensors((*leading, num_queries, num_keys), torch.bool), tensors((num_keys,), torch.bool))
    )
    scale = draw(st.sampled_from([None, 0.5, -1]))
    return queries, keys, values, mask, scale


@given(attention_arguments())
def test_attention_is_float64s(arguments):
    queries, keys, values, mask, scale = arguments
    before = Unchanged(*arguments)
    context, weights = scaled_dot_product_attention(queries, keys, values, mask, scale=scale)
    before.check()
    wide = None if mask is None else mask.expand(weights.shape)
    exact = [x.detach().double() for x in (queries, keys, values)]
    expected = F.scaled_dot_product_attention(*exact, wide, scale=scale)
    # A score rounded to the dtype moves its weight by as much; scores here stay below 60.
    bound = 64 * torch.finfo(queries.dtype).eps * (1 + exact[2].abs().max().item())
    torch.testing.assert_close(context.double(), expected, rtol=0, atol=bound)
    allowed = torch.ones(weights.shape, dtype=torch.bool) if wide is None else wide
    torch.testing.assert_close(
        weights.double().sum(-1), allowed.any(-1).double(), rtol=0, atol=tolerance(weights.dtype)
    )
    assert (weights[~allowed] == 0).all()
    if context.requires_grad:
        context.sum().backward()
        assert all(x.grad.isfinite().all() for x in (queries, keys, values) if x.requires_grad)


@given(attention_arguments(), st.booleans(), st.integers(1, 5))
def test_attention_in_blocks_is_float64s(arguments, is_causal, block_size):
    queries, keys, values, mask, _ = arguments
    is_causal = is_causal and queries.shape[-2] <= keys.shape[-2]
    before = Unchanged(queries, keys, values, mask)
    context = tiled_attention(queries, keys, values, mask, is_causal=is_causal, block_size=block_size)
    before.check()
    assert context.dtype == queries.dtype
    allowed = torch.ones(context.shape[:-1] + keys.shape[-2:-1], dtype=torch.bool)
    if mask is not None:
        allowed = allowed & mask
    if is_causal:
        allowed = allowed & causal_mask(queries.shape[-2], keys.shape[-2])
    exact = [x.detach().double().requires_grad_() for x in (queries, keys, values)]
    expected = F.scaled_dot_product_attention(*exact, allowed)
    bound = 64 * torch.finfo(queries.dtype).eps * (1 + exact[2].abs().max().item())
    torch.testing.assert_close(context.double(), expected, rtol=0, atol=bound)
    if context.requires_grad:
        context.sum().backward()
        expected.sum().backward()
        for x, y in zip((queries, keys, values), exact, strict=True):
            if x.requires_grad and y.grad is not None:
                torch.testing.assert_close(x.grad.double(), y.grad, rtol=0, atol=8 * bound)


def fitting(draw, rank=2, special=False):
    shape = (*draw(batches), *(draw(sizes) for _ in range(rank)))
    return draw(tensors(shape, draw(st.sampled_from(FLOATS)), special))


@given(st.data())
def test_softmax_is_float64s(data):
    scores = fitting(data.draw, special=data.draw(st.booleans()))
    dim = data.draw(st.integers(-scores.dim(), scores.dim() - 1))
    expected = scores.detach().double().softmax(dim)
    torch.testing.assert_close(
        softmax(scores, dim).double(),
        expected,
        rtol=tolerance(scores.dtype),
        atol=tolerance(scores.dtype),
        equal_nan=True,
    )


@given(st.data())
def test_masked_softmax_is_float64s_over_what_is_allowed(data):
    scores = fitting(data.draw, special=data.draw(st.booleans()))
    mask = data.draw(tensors(scores.shape, torch.bool))
    expected = torch.zeros(scores.shape, dtype=torch.float64)
    for place in torch.cartesian_prod(*(torch.arange(size) for size in scores.shape[:-1])).view(-1, scores.dim() - 1):
        allowed = mask[tuple(place)]
        row = scores.detach().double()[tuple(place)][allowed]
        expected[tuple(place)][allowed] = row.softmax(-1)
    torch.testing.assert_close(
        masked_softmax(scores, mask).double(),
        expected,
        rtol=tolerance(scores.dtype),
        atol=tolerance(scores.dtype),
        equal_nan=True,
    )


@given(st.data())
def test_products_are_float64s(data):
    """A sum of products is off by a few roundings of the sum of their sizes; special values go as PyTorch's go."""
    x = fitting(data.draw, special=data.draw(st.booleans()))
    y = data.draw(tensors((*x.shape[:-2], data.draw(sizes), x.shape[-1]), x.dtype))
    for ours, other in ((dot_product_scores(x, y), y.mT), (context_vectors(x, y.mT), y.mT)):
        exact, sizes_ = x.double() @ other.double(), x.double().abs() @ other.double().abs()
        normal = exact.isfinite() & (sizes_ < torch.finfo(x.dtype).max)
        bound = tolerance(x.dtype) * sizes_ + torch.finfo(x.dtype).tiny
        assert ((ours.double() - exact).abs() <= bound)[normal].all()
        assert not ours[~normal & ~exact.isfinite()].isfinite().any()


@given(st.data())
def test_scaling_is_float64s(data):
    scores, head_dim = fitting(data.draw, special=data.draw(st.booleans())), data.draw(st.integers(1, 10**6))
    expected = scores.detach().double() / head_dim**0.5
    torch.testing.assert_close(
        scale_scores(scores, head_dim).double(),
        expected,
        rtol=tolerance(scores.dtype),
        atol=torch.finfo(scores.dtype).tiny,
        equal_nan=True,
    )


@given(st.data())
def test_entropy_is_float64s(data):
    weights = fitting(data.draw).detach().abs()
    exact = -torch.special.xlogy(weights.double(), weights.double())
    bound = tolerance(weights.dtype) * (1 + exact.abs().sum(-1))
    assert ((entropy(weights).double() - exact.sum(-1)).abs() <= bound).all()


@given(st.data())
def test_heads_move_and_do_not_change(data):
    num_heads, width = data.draw(sizes), data.draw(sizes)
    x = data.draw(
        tensors(
            (*data.draw(batches), data.draw(sizes), num_heads * width), data.draw(st.sampled_from(FLOATS)), special=True
        )
    )
    heads = split_heads(x, num_heads)
    pieces = torch.stack(x.split(width, dim=-1), dim=-3)
    torch.testing.assert_close(heads, pieces, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(merge_heads(heads), x, rtol=0, atol=0, equal_nan=True)


@given(st.data())
def test_dropout_is_float64s(data):
    weights, share = fitting(data.draw, special=data.draw(st.booleans())), data.draw(st.floats(0, 0.9))
    keep = data.draw(tensors(weights.shape, torch.bool))
    expected = torch.where(keep, weights.detach().double() / (1 - share), 0.0)
    large = expected.abs() > torch.finfo(weights.dtype).max
    ours = apply_dropout(weights, keep, share)
    torch.testing.assert_close(
        ours.double()[~large],
        expected[~large],
        rtol=tolerance(weights.dtype),
        atol=torch.finfo(weights.dtype).tiny,
        equal_nan=True,
    )
    assert ours[large].isinf().all()


@given(sizes, st.integers(0, 4))
def test_causal_mask_is_its_formula(num_queries, more):
    num_keys = num_queries + more
    expected = [[j <= i + num_keys - num_queries for j in range(num_keys)] for i in range(num_queries)]
    assert causal_mask(num_queries, num_keys).tolist() == expected


@given(st.lists(st.integers(0, 9), min_size=1), st.integers(1, 3))
def test_padding_mask_is_its_formula(lengths, more):
    longest = max(lengths) + more
    expected = [[[j < length for j in range(longest)]] for length in lengths]
    assert padding_mask(lengths, longest).tolist() == padding_mask(torch.tensor(lengths), longest).tolist() == expected


# Gradients, and what PyTorch builds on top


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


MASK = torch.tensor([[True, False, True, True], [False, False, False, False], [True, True, True, True]])
FUNCTIONS = {
    "dot_product_scores": (dot_product_scores, randn(2, 3, 5), randn(2, 4, 5)),
    "scale_scores": (lambda x: scale_scores(x, 5), randn(2, 3, 4)),
    "entropy": (lambda x: entropy(x), randn(2, 3, 4).abs() + 0.1),
    "softmax": (softmax, randn(2, 3, 4)),
    "softmax over rows": (lambda x: softmax(x, -2), randn(2, 3, 4)),
    "softmax of equal scores": (softmax, torch.ones(2, 3, dtype=torch.float64)),
    "masked_softmax": (lambda x: masked_softmax(x, MASK), randn(2, 3, 4)),
    "attention_weights": (lambda q, k: attention_weights(q, k, MASK, scale=0.3), randn(2, 3, 5), randn(2, 4, 5)),
    "context_vectors": (context_vectors, randn(2, 3, 4), randn(2, 4, 5)),
    "scaled_dot_product_attention": (
        lambda q, k, v: scaled_dot_product_attention(q, k, v, MASK)[0],
        randn(2, 3, 5),
        randn(2, 4, 5),
        randn(2, 4, 7),
    ),
    "attention with dropout": (
        lambda q, k, v: scaled_dot_product_attention(q, k, v, keep=MASK, dropout_p=0.2)[0],
        randn(3, 5),
        randn(4, 5),
        randn(4, 7),
    ),
    "tiled_attention": (
        lambda q, k, v: tiled_attention(q, k, v, MASK, is_causal=True, block_size=2),
        randn(2, 3, 5),
        randn(2, 4, 5),
        randn(2, 4, 7),
    ),
    "split_heads": (lambda x: split_heads(x, 3), randn(2, 4, 6)),
    "merge_heads": (merge_heads, randn(2, 3, 4, 5)),
    "apply_dropout": (lambda x: apply_dropout(x, MASK, 0.2), randn(3, 4)),
    **{name: (build().double(), randn(2, 3, 2)) for name, build in LAYERS.items()},
}


BACKWARD_ONLY = ("FusedMultiHeadAttention", "tiled_attention")  # and once, as PyTorch's own kernel


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients(name):
    function, *arguments = FUNCTIONS[name]
    arguments = [x.clone().requires_grad_() for x in arguments]
    forward = name not in BACKWARD_ONLY
    assert torch.autograd.gradcheck(function, arguments, check_forward_ad=forward)


SECOND = {name: case for name, case in FUNCTIONS.items() if name not in (*LAYERS, *BACKWARD_ONLY)}


@pytest.mark.parametrize(("function", "arguments"), [(f, a) for f, *a in SECOND.values()], ids=SECOND)
def test_second_derivatives(function, arguments):
    assert torch.autograd.gradgradcheck(function, [x.clone().requires_grad_() for x in arguments])


@pytest.mark.parametrize("build", LAYERS.values(), ids=LAYERS)
def test_gradients_of_parameters(build):
    layer, x = build().double(), randn(2, 3, 2)
    names, parameters = zip(*layer.named_parameters(), strict=True)

    def call(*values):
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(call, [p.detach().clone().requires_grad_() for p in parameters])


BATCHED = {name: case for name, case in FUNCTIONS.items() if all(x.dim() > 2 for x in case[1:]) and name != "entropy"}


@pytest.mark.parametrize(("function", "arguments"), [(f, a) for f, *a in BATCHED.values()], ids=BATCHED)
def test_vmap_over_the_batch_changes_nothing(function, arguments):
    """Not for entropy, which looks whether a weight is negative, as vmap does not allow."""
    with torch.no_grad():
        torch.testing.assert_close(torch.func.vmap(function)(*arguments), function(*arguments))


COMPILED = {
    name: FUNCTIONS[name]
    for name in ("scaled_dot_product_attention", "tiled_attention", "split_heads", *list(LAYERS)[-2:])
}


@pytest.mark.parametrize(("function", "arguments"), [(f, a) for f, *a in COMPILED.values()], ids=COMPILED)
def test_compiled_gives_the_same(function, arguments):
    torch.compiler.reset()
    compiled = torch.compile(function, backend="eager", dynamic=True)
    torch.testing.assert_close(compiled(*arguments), function(*arguments))
