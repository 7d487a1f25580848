"""The layers against PyTorch's own with the same weights, what causality promises, and their refusals word for word."""

import copy
import inspect
import math
import pickle

import numpy as np
import pytest
import torch
from refusals import Unchanged, assert_refused
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from attention_core import (
    CausalAttention,
    FusedMultiHeadAttention,
    MultiHeadAttention,
    MultiHeadAttentionWrapper,
    SelfAttentionV1,
    SelfAttentionV2,
)

B, H, T, D, D_IN, LENGTH = 2, 3, 7, 5, 11, 13  # a prime each: a dimension taken for another one does not fit
D_OUT = H * D

PLAIN = {"SelfAttentionV1": SelfAttentionV1, "SelfAttentionV2": SelfAttentionV2}
SPLIT = {"MultiHeadAttention": MultiHeadAttention, "FusedMultiHeadAttention": FusedMultiHeadAttention}
HEADS = {"MultiHeadAttentionWrapper": MultiHeadAttentionWrapper, **SPLIT}
CAUSAL = {"CausalAttention": CausalAttention, **HEADS}
ALL = {**PLAIN, **CAUSAL}


def build(layer, d_in=D_IN, d_out=D_OUT, dropout=0.0, num_heads=H, seed=0, **options):
    torch.manual_seed(seed)
    if layer in PLAIN.values():
        return layer(d_in, d_out, **options).double()
    heads = () if layer is CausalAttention else (num_heads,)
    return layer(d_in, d_out, LENGTH, dropout, *heads, **options).double()


def randn(*shape, seed=1, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def project(layer, x):
    """Queries, keys and values of one head or of several, each entry a dot product of its own: (..., H, T, D)."""
    heads = getattr(layer, "num_heads", 1)
    for linear in (layer.W_query, layer.W_key, layer.W_value):
        weight = linear.weight if isinstance(linear, nn.Linear) else linear.mT
        bias = getattr(linear, "bias", None)
        split = weight.reshape(heads, -1, weight.shape[-1])
        projected = torch.einsum("...ti,hdi->...htd", x, split)
        yield projected if bias is None else projected + bias.reshape(heads, 1, -1)


# Against PyTorch


@pytest.mark.parametrize("layer", PLAIN.values(), ids=PLAIN)
def test_plain_attention_is_torchs(layer):
    layer, x = build(layer), randn(B, T, D_IN)
    queries, keys, values = (y.squeeze(1) for y in project(layer, x))
    torch.testing.assert_close(layer(x), F.scaled_dot_product_attention(queries, keys, values))
    identity = torch.eye(T, dtype=torch.float64).expand(B, T, T)
    torch.testing.assert_close(layer.attention_weights(x), F.scaled_dot_product_attention(queries, keys, identity))


@pytest.mark.parametrize("bias", [False, True])
def test_causal_attention_is_torchs(bias):
    layer, x = build(CausalAttention, qkv_bias=bias), randn(B, T, D_IN)
    queries, keys, values = (y.squeeze(1) for y in project(layer, x))
    expected = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("layer", SPLIT.values(), ids=SPLIT)
def test_split_attention_is_torchs_function(layer, bias):
    layer, x = build(layer, qkv_bias=bias), randn(B, T, D_IN)
    context = F.scaled_dot_product_attention(*project(layer, x), is_causal=True)
    weight = layer.out_proj.weight.reshape(D_OUT, H, D)
    expected = torch.einsum("bhtd,ohd->bto", context, weight) + layer.out_proj.bias
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("layer", SPLIT.values(), ids=SPLIT)
def test_long_sequences_are_torchs_too(layer):
    torch.manual_seed(0)
    layer, x = layer(2, 3, 521, 0.0, 3).double(), randn(521, 2).requires_grad_()
    context = F.scaled_dot_product_attention(*project(layer, x), is_causal=True)
    expected = torch.einsum("htd,ohd->to", context, layer.out_proj.weight.reshape(3, 3, 1)) + layer.out_proj.bias
    torch.testing.assert_close(layer(x), expected)
    ours, theirs = (torch.autograd.grad(y.square().sum(), x)[0] for y in (layer(x), expected))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("layer", SPLIT.values(), ids=SPLIT)
def test_split_attention_is_torchs_layer_with_copied_weights(layer, bias):
    """PyTorch's layer packs the three projections into one, and its mask means the opposite: True = hidden."""
    layer, x = build(layer, d_in=D_OUT, qkv_bias=bias), randn(B, T, D_OUT)
    theirs = nn.MultiheadAttention(D_OUT, H, bias=True, batch_first=True, dtype=torch.float64)
    projections = (layer.W_query, layer.W_key, layer.W_value)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([linear.weight for linear in projections]))
        if bias:
            theirs.in_proj_bias.copy_(torch.cat([linear.bias for linear in projections]))
        theirs.out_proj.load_state_dict(layer.out_proj.state_dict())
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    context, weights = theirs(x, x, x, attn_mask=future, average_attn_weights=False)
    torch.testing.assert_close(layer(x), context)
    torch.testing.assert_close(layer.attention_weights(x), weights)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("layer", SPLIT.values(), ids=SPLIT)
def test_wrapper_is_split_attention_with_copied_weights(layer, bias):
    wrapper, split = build(MultiHeadAttentionWrapper, qkv_bias=bias), build(layer, seed=5, qkv_bias=bias)
    with torch.no_grad():
        for name in ("W_query", "W_key", "W_value"):
            heads = [getattr(head, name) for head in wrapper.heads]
            getattr(split, name).weight.copy_(torch.cat([head.weight for head in heads]))
            if bias:
                getattr(split, name).bias.copy_(torch.cat([head.bias for head in heads]))
        split.out_proj.weight.copy_(torch.eye(D_OUT))
        split.out_proj.bias.zero_()
    x = randn(B, T, D_IN)
    torch.testing.assert_close(wrapper(x), split(x))
    torch.testing.assert_close(wrapper.attention_weights(x), split.attention_weights(x))


@pytest.mark.parametrize("bias", [False, True])
def test_fused_has_the_same_parameters_numbers_and_gradients(bias):
    ours, fused = (build(layer, qkv_bias=bias) for layer in SPLIT.values())
    assert list(ours.state_dict()) == list(fused.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), fused.parameters(), strict=True))
    grads = []
    for layer in (ours, fused):
        x = randn(B, T, D_IN).requires_grad_()
        grads.append(torch.autograd.grad(layer(x), [x, *layer.parameters()], grad_outputs=randn(B, T, D_OUT, seed=3)))
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)
    x = randn(B, T, D_IN)
    assert torch.equal(ours.attention_weights(x), fused.attention_weights(x))


# What always holds


@pytest.mark.parametrize("layer", ALL.values(), ids=ALL)
def test_attention_weights_of_every_row_sum_to_one(layer):
    layer, x = build(layer, dropout=0.5), randn(B, T, D_IN)
    weights = layer.attention_weights(x)
    heads = (H,) if hasattr(layer, "num_heads") else ()
    assert weights.shape == (B, *heads, T, T)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(B, *heads, T, dtype=torch.float64))


@pytest.mark.parametrize("layer", CAUSAL.values(), ids=CAUSAL)
def test_weights_of_the_future_are_zero(layer):
    weights = build(layer).attention_weights(randn(B, T, D_IN))
    allowed = torch.ones(T, T).tril() == 1
    assert (weights[..., ~allowed] == 0).all()
    assert (weights[..., allowed] > 0).all()


@pytest.mark.parametrize("layer", CAUSAL.values(), ids=CAUSAL)
@pytest.mark.parametrize("place", range(T))
def test_a_changed_token_changes_only_what_comes_after(layer, place):
    layer, x = build(layer), randn(B, T, D_IN)
    changed = x.clone()
    changed[:, place] += 3
    before, after = layer(x), layer(changed)
    torch.testing.assert_close(before[:, :place], after[:, :place], rtol=0, atol=1e-14)
    assert ((before - after).abs().amax(dim=(0, 2))[place:] > 1e-3).all()


@pytest.mark.parametrize("layer", ALL.values(), ids=ALL)
def test_gradients_come_from_exactly_the_tokens_that_are_seen(layer):
    causal = layer in CAUSAL.values()
    layer, x = build(layer), randn(T, D_IN)
    jacobian = torch.autograd.functional.jacobian(layer, x)  # (T, d_out, T, d_in)
    reached = jacobian.abs().amax(dim=(1, 3)) > 0
    expected = torch.ones(T, T)
    assert torch.equal(reached, (expected.tril() if causal else expected) == 1)


@pytest.mark.parametrize("layer", ALL.values(), ids=ALL)
def test_sequences_of_a_batch_do_not_meet(layer):
    layer, x = build(layer), randn(B, T, D_IN)
    together = layer(x)
    for sequence in range(B):
        torch.testing.assert_close(together[sequence], layer(x[sequence]))
        torch.testing.assert_close(layer.attention_weights(x)[sequence], layer.attention_weights(x[sequence]))
    stacked = layer(torch.stack([x, 2 * x, 3 * x]))
    torch.testing.assert_close(stacked[0], together)
    torch.testing.assert_close(stacked[2], layer(3 * x))


def test_the_last_token_sees_everything():
    causal, plain = build(CausalAttention), build(SelfAttentionV2)
    x = randn(B, T, D_IN)
    torch.testing.assert_close(causal(x)[:, -1], plain(x)[:, -1])
    assert not torch.allclose(causal(x)[:, -2], plain(x)[:, -2])


@pytest.mark.parametrize("layer", CAUSAL.values(), ids=CAUSAL)
def test_a_shorter_sequence_gives_the_same_beginning(layer):
    layer, x = build(layer), randn(B, LENGTH, D_IN)
    for length in (1, 2, T):
        torch.testing.assert_close(layer(x[:, :length]), layer(x)[:, :length])


@pytest.mark.parametrize("layer", ALL.values(), ids=ALL)
def test_one_token_attends_to_itself(layer):
    layer = build(layer)
    assert (layer.attention_weights(randn(B, 1, D_IN)) == 1).all()
    assert layer(randn(B, 1, D_IN)).isfinite().all()


@pytest.mark.parametrize("layer", ALL.values(), ids=ALL)
def test_numbers_of_every_size_give_numbers(layer):
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        layer_, x = build(layer).to(dtype), randn(B, T, D_IN).to(dtype)
        for size in (0.0, 1e-4, 1.0, 10.0):
            x_ = (size * x).requires_grad_()
            context = layer_(x_)
            context.sum().backward()
            assert context.dtype == dtype
            assert context.isfinite().all()
            assert x_.grad.isfinite().all()


@pytest.mark.parametrize("layer", ALL.values(), ids=ALL)
def test_input_and_parameters_stay_as_they_are(layer):
    layer, x = build(layer), randn(B, T, D_IN)
    before = Unchanged(x, *layer.parameters())
    layer(x)
    layer.attention_weights(x)
    layer.eval()(x)
    before.check()


# Dropout


@pytest.mark.parametrize("layer", CAUSAL.values(), ids=CAUSAL)
def test_dropout_rests_in_evaluation(layer):
    x = randn(B, T, D_IN)
    dropping, plain = build(layer, dropout=0.5), build(layer, dropout=0.0)
    assert torch.equal(dropping.eval()(x), plain(x))
    assert not torch.equal(dropping.train()(x), plain(x))
    assert torch.equal(dropping.attention_weights(x), plain.attention_weights(x)), "weights are shown without dropout"


def test_dropout_acts_on_the_weights_in_training():
    layer, x = build(CausalAttention, dropout=0.2), randn(B, T, D_IN)
    *_, values = (y.squeeze(1) for y in project(layer, x))
    torch.manual_seed(3)
    context = layer(x)
    torch.manual_seed(3)
    expected = F.dropout(layer.attention_weights(x), 0.2) @ values
    torch.testing.assert_close(context, expected)


def test_dropout_of_each_head_in_training():
    layer, x = build(MultiHeadAttention, dropout=0.2), randn(B, T, D_IN)
    *_, values = project(layer, x)
    torch.manual_seed(3)
    context = layer(x)
    torch.manual_seed(3)
    mixed = torch.einsum("bhls,bhsd->bhld", F.dropout(layer.attention_weights(x), 0.2), values)
    torch.testing.assert_close(context, layer.out_proj(torch.cat(list(mixed.unbind(1)), dim=-1)))


def test_dropout_in_training_reaches_every_block_of_queries():
    """With values of 1 a token's context is the sum of its weights, which dropout moves away from 1."""
    torch.manual_seed(0)
    layer, x = MultiHeadAttention(1, 1, 521, 0.5, 1).double(), torch.ones(521, 1, dtype=torch.float64)
    with torch.no_grad():
        layer.W_value.weight.fill_(1.0)
        layer.out_proj.weight.fill_(1.0)
        layer.out_proj.bias.zero_()
    sums = layer(x).squeeze(-1)
    assert ((sums - 1).abs() > 1e-6).float().mean() > 0.9
    for start in range(0, 521, 100):
        torch.testing.assert_close(sums[start : start + 100].mean().item(), 1.0, rtol=0, atol=0.15)
    torch.testing.assert_close(layer.eval()(x).squeeze(-1), torch.ones(521, dtype=torch.float64))


def test_most_of_the_future_is_not_computed():
    layer, x = MultiHeadAttention(1, 1, 1024, 0.0, 1), torch.ones(1024, 1)
    with FlopCounterMode(display=False) as counter:
        layer(x)
    whole_table = 2 * 2 * 1024 * 1024  # scores and mixing, a product and a sum each
    assert 0.5 < counter.get_total_flops() / whole_table < 0.58


@pytest.mark.parametrize("layer", ALL.values(), ids=ALL)
def test_sizes_can_be_asked_for(layer):
    built = build(layer)
    expected = {"d_in": D_IN, "d_out": D_OUT}
    if layer in CAUSAL.values():
        expected["context_length"] = LENGTH
    if layer in HEADS.values():
        expected |= {"num_heads": H, "head_dim": D}
    found = {name: getattr(built, name) for name in expected}
    assert found == expected
    assert {type(size) for size in found.values()} == {int}


@pytest.mark.parametrize("layer", CAUSAL.values(), ids=CAUSAL)
def test_dropout_keeps_the_average(layer):
    layer, x = build(layer, dropout=0.3), randn(T, D_IN) / 4
    torch.manual_seed(0)
    average = layer(x.expand(5003, T, D_IN)).mean(dim=0)
    torch.testing.assert_close(average, layer.eval()(x), rtol=0, atol=0.03)


@pytest.mark.parametrize("layer", CAUSAL.values(), ids=CAUSAL)
def test_first_token_is_kept_or_dropped_whole(layer):
    """It has one weight: with dropout a half its context is twice the value or nothing."""
    layer, x = build(layer, dropout=0.5, num_heads=1), randn(1, D_IN).expand(101, 1, D_IN)
    nothing = layer.out_proj.bias if hasattr(layer, "out_proj") else torch.zeros(D_OUT, dtype=torch.float64)
    twice = 2 * layer.eval()(x)[0, 0] - nothing
    torch.manual_seed(0)
    rows = layer.train()(x)[:, 0]
    is_nothing, is_twice = ((rows - row).abs().amax(dim=-1) < 1e-9 for row in (nothing, twice))
    assert (is_nothing ^ is_twice).all()
    assert 20 < is_twice.sum() < 80


# What they hold, and how they are called

QKV = ["W_query.weight", "W_key.weight", "W_value.weight"]
QKV_BIAS = [f"W_{name}.{kind}" for name in ("query", "key", "value") for kind in ("weight", "bias")]
OUT = ["out_proj.weight", "out_proj.bias"]
HOLDS = {
    "SelfAttentionV1": (SelfAttentionV1, {}, ["W_query", "W_key", "W_value"]),
    "SelfAttentionV2": (SelfAttentionV2, {}, QKV),
    "SelfAttentionV2 with bias": (SelfAttentionV2, {"qkv_bias": True}, QKV_BIAS),
    "CausalAttention": (CausalAttention, {}, QKV),
    "CausalAttention with bias": (CausalAttention, {"qkv_bias": True}, QKV_BIAS),
    "MultiHeadAttentionWrapper": (
        MultiHeadAttentionWrapper,
        {"num_heads": 3},
        [f"heads.{head}.{name}" for head in range(3) for name in QKV],
    ),
    "MultiHeadAttention": (MultiHeadAttention, {}, QKV + OUT),
    "MultiHeadAttention with bias": (MultiHeadAttention, {"qkv_bias": True}, QKV_BIAS + OUT),
    "FusedMultiHeadAttention": (FusedMultiHeadAttention, {}, QKV + OUT),
}


@pytest.mark.parametrize(("layer", "options", "names"), HOLDS.values(), ids=HOLDS)
def test_state_dict_holds_parameters_and_no_mask(layer, options, names):
    layer = build(layer, **options)
    assert list(layer.state_dict()) == names
    assert not list(layer.buffers())
    shape = (D_IN, D_OUT) if isinstance(layer, SelfAttentionV1) else (D_OUT, D_IN)
    if not isinstance(layer, MultiHeadAttentionWrapper):
        assert {layer.state_dict()[name].shape for name in names if "out" not in name and "bias" not in name} == {shape}


@pytest.mark.parametrize("layer", ALL.values(), ids=ALL)
def test_saved_and_copied_layers_are_the_same(layer):
    ours, x = build(layer), randn(B, T, D_IN)
    other = build(layer, seed=99)
    assert not torch.equal(other(x), ours(x))
    other.load_state_dict(ours.state_dict())
    for same in (other, copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert torch.equal(same(x), ours(x))


WITH_HEADS = ["d_in", "d_out", "context_length", "dropout", "num_heads", "qkv_bias"]
ARGUMENTS = {
    SelfAttentionV1: ["d_in", "d_out"],
    SelfAttentionV2: ["d_in", "d_out", "qkv_bias"],
    CausalAttention: ["d_in", "d_out", "context_length", "dropout", "qkv_bias"],
    **{layer: WITH_HEADS for layer in HEADS.values()},
}


@pytest.mark.parametrize(("layer", "names"), ARGUMENTS.items(), ids=lambda x: getattr(x, "__name__", ""))
def test_arguments_stand_in_the_fields_order(layer, names):
    parameters = inspect.signature(layer).parameters
    assert list(parameters) == names
    assert all(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in parameters.values())
    assert "qkv_bias" not in names or parameters["qkv_bias"].default is False


@pytest.mark.parametrize(("layer", "names"), ARGUMENTS.items(), ids=lambda x: getattr(x, "__name__", ""))
def test_positions_mean_what_the_field_means(layer, names):
    given = {"d_in": D_IN, "d_out": D_OUT, "context_length": LENGTH, "dropout": 0.25, "num_heads": H, "qkv_bias": True}
    layer = layer(*(given[name] for name in names))
    assert layer(randn(B, T, D_IN, dtype=torch.float32)).shape == (B, T, D_OUT)
    inner = layer.heads[0] if isinstance(layer, MultiHeadAttentionWrapper) else layer
    if "context_length" in names:
        assert inner.context_length == LENGTH
        assert inner.dropout.p == 0.25
    if "num_heads" in names:
        assert (layer.num_heads, layer.head_dim) == (H, D)
    if "qkv_bias" in names:
        assert all(x.bias is not None for x in (inner.W_query, inner.W_key, inner.W_value))


@pytest.mark.parametrize("bias", [False, True])
def test_seeds_are_spent_in_the_fields_order(bias):
    torch.manual_seed(123)
    expected = [p for size in (D_IN, D_IN, D_IN) for p in nn.Linear(size, D_OUT, bias=bias).parameters()]
    expected += nn.Linear(D_OUT, D_OUT).parameters()
    ours = build(MultiHeadAttention, seed=123, qkv_bias=bias).float()
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), expected, strict=True))
    torch.manual_seed(123)
    drawn = [torch.rand(D_IN, D_OUT) for _ in range(3)]
    ours = build(SelfAttentionV1, seed=123).float()
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), drawn, strict=True))


class Block(nn.Module):
    """Where the field's usual layer stands: in a block, built by position, moved, trained."""

    def __init__(self, attention):
        super().__init__()
        self.norm = nn.LayerNorm(D_OUT)
        self.attention = attention(D_OUT, D_OUT, LENGTH, 0.1, H, False)

    def forward(self, x):
        return x + self.attention(self.norm(x))


@pytest.mark.parametrize("layer", HEADS.values(), ids=HEADS)
def test_layer_trains_in_a_block(layer):
    torch.manual_seed(0)
    block = Block(layer)
    optimizer = torch.optim.SGD(block.parameters(), lr=0.1)
    x, target = randn(B, T, D_OUT, dtype=torch.float32), randn(B, T, D_OUT, seed=2, dtype=torch.float32)
    losses = []
    for _ in range(5):
        losses.append(F.mse_loss(block(x), target))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0]
    assert all(p.grad.abs().sum() > 0 for p in block.parameters())


@pytest.mark.parametrize("layer", ALL.values(), ids=ALL)
def test_autocast(layer):
    layer, x = build(layer).float(), randn(B, T, D_IN, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        context, weights = layer(x), layer.attention_weights(x)
        narrow = layer(x.bfloat16())
    assert context.dtype == weights.dtype == torch.bfloat16
    torch.testing.assert_close(context.float(), layer(x), rtol=0.05, atol=0.05)
    torch.testing.assert_close(narrow.float(), layer(x), rtol=0.05, atol=0.05)


# Refusals

INT = "must be an int, got"
SHARE = "dropout is the share dropped and must be in [0, 1), got"
BAD_OPTIONS = {
    "no width": ("d_in", 0, ValueError, "d_in must be at least 1, got 0"),
    "negative width": ("d_out", -6, ValueError, "d_out must be at least 1, got -6"),
    "float width": ("d_in", 3.0, TypeError, f"d_in {INT} 3.0 of type float"),
    "float output": ("d_out", 6.0, TypeError, f"d_out {INT} 6.0 of type float"),
    "bool width": ("d_in", True, TypeError, f"d_in {INT} True of type bool"),
    "no int": ("d_out", None, TypeError, f"d_out {INT} None of type NoneType"),
    "text": ("d_in", "3", TypeError, f"d_in {INT} '3' of type str"),
    "list": ("d_out", [6], TypeError, f"d_out {INT} [6] of type list"),
    "NumPy int": ("d_in", np.int64(3), TypeError, f"d_in {INT} np.int64(3) of type int64"),
    "huge width": (
        "d_in",
        10**30,
        ValueError,
        f"a weight matrix may hold at most 2147483647 numbers, got shape ({10**30}, {D_OUT})",
    ),
    "huge output": (
        "d_out",
        10**6 * D_OUT,
        ValueError,
        f"a weight matrix may hold at most 2147483647 numbers, got shape ({10**6 * D_OUT}, {10**6 * D_OUT})",
    ),
    "bias text": ("qkv_bias", "no", TypeError, "qkv_bias must be True or False, got 'no' of type str"),
    "bias number": ("qkv_bias", 0, TypeError, "qkv_bias must be True or False, got 0 of type int"),
    "bias None": ("qkv_bias", None, TypeError, "qkv_bias must be True or False, got None of type NoneType"),
    "no context": ("context_length", 0, ValueError, "context_length must be at least 1, got 0"),
    "negative context": ("context_length", -1, ValueError, "context_length must be at least 1, got -1"),
    "float context": ("context_length", 6.0, TypeError, f"context_length {INT} 6.0 of type float"),
    "bool context": ("context_length", True, TypeError, f"context_length {INT} True of type bool"),
    "dropout of one": ("dropout", 1.0, ValueError, f"{SHARE} 1.0"),
    "dropout negative": ("dropout", -0.5, ValueError, f"{SHARE} -0.5"),
    "dropout in percent": ("dropout", 10, ValueError, f"{SHARE} 10"),
    "dropout nan": ("dropout", math.nan, ValueError, f"{SHARE} nan"),
    "dropout bool": ("dropout", False, TypeError, "dropout must be a number, got False of type bool"),
    "dropout None": ("dropout", None, TypeError, "dropout must be a number, got None of type NoneType"),
    "dropout text": ("dropout", "0.1", TypeError, "dropout must be a number, got '0.1' of type str"),
    "no heads": ("num_heads", 0, ValueError, "num_heads must be at least 1, got 0"),
    "negative heads": ("num_heads", -3, ValueError, "num_heads must be at least 1, got -3"),
    "float heads": ("num_heads", 3.0, TypeError, f"num_heads {INT} 3.0 of type float"),
    "bool heads": ("num_heads", True, TypeError, f"num_heads {INT} True of type bool"),
    "heads do not divide": (
        "num_heads",
        4,
        ValueError,
        f"d_out must be divisible by num_heads: d_out={D_OUT}, num_heads=4",
    ),
    "more heads than widths": (
        "num_heads",
        10**30,
        ValueError,
        f"d_out must be divisible by num_heads: d_out={D_OUT}, num_heads={10**30}",
    ),
}
OPTIONS = {"d_in": D_IN, "d_out": D_OUT, "context_length": LENGTH, "dropout": 0.0, "num_heads": H, "qkv_bias": False}


BAD_CALLS = {
    f"{name}-{what}": (layer, *bad)
    for name, layer in ALL.items()
    for what, bad in BAD_OPTIONS.items()
    if bad[0] in ARGUMENTS[layer]
}


@pytest.mark.parametrize(("layer", "name", "value", "kind", "message"), BAD_CALLS.values(), ids=BAD_CALLS)
def test_option_is_refused(layer, name, value, kind, message):
    options = {option: OPTIONS[option] for option in ARGUMENTS[layer]}
    assert_refused(kind, message, layer, **{**options, name: value})


def floats(dtype):
    return f"x must hold floating-point numbers, got {dtype}; convert it with .float()"


X = torch.ones(B, T, D_IN)
BAD_INPUTS = {
    "None": (None, TypeError, "x must be a torch.Tensor, got NoneType"),
    "list": ([[1.0] * D_IN], TypeError, "x must be a torch.Tensor, got list"),
    "NumPy array": (X.numpy(), TypeError, "x must be a torch.Tensor, got ndarray"),
    "integers": (X.long(), TypeError, floats("torch.int64")),
    "booleans": (X.bool(), TypeError, floats("torch.bool")),
    "complex": (X.to(torch.complex64), TypeError, floats("torch.complex64")),
    "sparse": (
        X.to_sparse(),
        TypeError,
        "x must be a dense tensor, got layout torch.sparse_coo; convert it with .to_dense()",
    ),
    "nested": (
        torch.nested.nested_tensor([X[0], X[0, :2]]),
        TypeError,
        "x must be a dense tensor, got a nested one; convert it with .to_padded_tensor()",
    ),
    "a number": (torch.tensor(1.0), ValueError, "x must have shape (..., tokens, d_in), got ()"),
    "one token without its dimension": (X[0, 0], ValueError, "x must have shape (..., tokens, d_in), got (11,)"),
    "no tokens": (X[:, :0], ValueError, "x must not be empty, got shape (2, 0, 11)"),
    "no sequences": (X[:0], ValueError, "x must not be empty, got shape (0, 7, 11)"),
    "too narrow": (X[..., :5], ValueError, "the last dimension of x must be d_in=11, got shape (2, 7, 5)"),
    "turned": (X.mT, ValueError, "the last dimension of x must be d_in=11, got shape (2, 11, 7)"),
    "other device": (
        X.to("meta"),
        ValueError,
        "x and the module's parameters must be on the same device: x on meta, the module's parameters on cpu",
    ),
    "other dtype": (
        X.double(),
        TypeError,
        "x and the module's parameters must share one dtype: "
        "x is torch.float64, the module's parameters is torch.float32",
    ),
}
TOO_LONG = "x must hold at most context_length=13 tokens, got 14 in shape (2, 14, 11)"


@pytest.mark.parametrize(("x", "kind", "message"), BAD_INPUTS.values(), ids=BAD_INPUTS)
@pytest.mark.parametrize("layer", ALL.values(), ids=ALL)
def test_input_is_refused(layer, x, kind, message):
    layer = build(layer).float()
    assert_refused(kind, message, layer, x)
    assert_refused(kind, message, layer.attention_weights, x)


@pytest.mark.parametrize("layer", CAUSAL.values(), ids=CAUSAL)
def test_too_many_tokens_are_refused(layer):
    layer = build(layer).float()
    assert_refused(ValueError, TOO_LONG, layer, torch.ones(2, LENGTH + 1, D_IN))
    assert_refused(ValueError, TOO_LONG, layer.attention_weights, torch.ones(2, LENGTH + 1, D_IN))


@pytest.mark.parametrize("layer", ALL.values(), ids=ALL)
def test_autocast_does_not_narrow_float64(layer):
    layer = build(layer).float()
    message = (
        "x and the module's parameters must share one dtype: x is torch.float64, "
        "the module's parameters is torch.float32"
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_refused(TypeError, message, layer, X.double())


@pytest.mark.parametrize("layer", CAUSAL.values(), ids=CAUSAL)
def test_the_mask_is_made_where_the_input_is(layer):
    layer = build(layer).to("meta")
    assert layer(X.double().to("meta")).device.type == "meta"
    assert layer.attention_weights(X.double().to("meta")).device.type == "meta"


@pytest.mark.parametrize(
    ("training", "dropout", "device", "calls"),
    [(False, 0.5, "cpu", 1), (True, 0.0, "cpu", 1), (True, 0.5, "cpu", 0), (True, 0.5, "meta", 1)],
)
def test_fused_leaves_dropout_on_a_cpu_to_its_parent(training, dropout, device, calls, monkeypatch):
    """PyTorch has no fused kernel for it, and would make the whole table of weights."""
    called = []
    theirs = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda *a, **more: called.append(more) or theirs(*a, **more),
    )
    layer = FusedMultiHeadAttention(4, 6, 5, dropout, 2).to(device).train(training)
    layer(torch.ones(2, 5, 4, device=device))
    assert len(called) == calls
    assert all(more["dropout_p"] == (dropout if training else 0.0) for more in called)


def test_fused_with_dropout_on_a_cpu_is_its_parent_with_the_same_seed():
    ours, fused = (layer(4, 6, 5, 0.5, 2).train() for layer in (MultiHeadAttention, FusedMultiHeadAttention))
    fused.load_state_dict(ours.state_dict())
    x, outputs = torch.rand(2, 5, 4, generator=torch.Generator().manual_seed(1)), []
    for layer in (ours, fused):
        torch.manual_seed(7)
        outputs.append(layer(x))
    assert torch.equal(*outputs)
    assert not torch.equal(outputs[0], ours.eval()(x))
