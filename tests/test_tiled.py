"""tiled_attention: exact against PyTorch's kernel, its gradients, its errors, and memory that grows with the length."""

import functools

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from attention_core import causal_mask, scaled_dot_product_attention, tiled_attention

B, H, L, S, D, DV = 2, 3, 7, 11, 5, 13
BLOCK_SIZES = (1, 3, 7, 256)
close = functools.partial(torch.testing.assert_close, rtol=1e-5, atol=1e-6)


def make(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def inputs(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return make((B, H, L, D), (B, H, S, D), (B, H, S, DV), dtype=dtype)


def random_mask(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.5


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_is_exact(block_size):
    q, k, v = inputs()
    close(tiled_attention(q, k, v, block_size=block_size), F.scaled_dot_product_attention(q, k, v))


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_causal_is_aligned_to_the_last_key(block_size):
    q, k, v = inputs()
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=causal_mask(L, S))
    close(tiled_attention(q, k, v, is_causal=True, block_size=block_size), expected)


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize(
    "shape", [(B, H, L, S), (H, L, S), (L, S), (S,), (B, 1, 1, S), (L, 1), (1, 1), ()], ids=lambda shape: f"{shape}"
)
@pytest.mark.parametrize("is_causal", [False, True])
def test_masks_broadcast_as_elsewhere(shape, is_causal, block_size):
    q, k, v = inputs()
    mask = random_mask(*shape)
    both = mask & causal_mask(L, S) if is_causal else mask
    expected, _ = scaled_dot_product_attention(q, k, v, both)
    close(tiled_attention(q, k, v, mask, is_causal=is_causal, block_size=block_size), expected)


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_a_row_with_nothing_allowed_is_zero_and_has_no_gradient(block_size):
    q, k, v = (x.requires_grad_() for x in inputs())
    mask = torch.ones(L, S, dtype=torch.bool)
    mask[2] = False
    context = tiled_attention(q, k, v, mask, block_size=block_size)
    context.sum().backward()
    assert (context[..., 2, :] == 0).all()
    assert (q.grad[..., 2, :] == 0).all()
    assert all(x.grad.isfinite().all() for x in (q, k, v))


def test_hidden_keys_do_not_reach_the_result():
    q, k, v = inputs()
    clean = tiled_attention(q, k, v, is_causal=True, block_size=3)
    k[..., -1, :], v[..., -1, :] = 1e30, 1e4
    spoilt = tiled_attention(q, k, v, is_causal=True, block_size=3)
    assert torch.equal(clean[..., :-1, :], spoilt[..., :-1, :])


@pytest.mark.parametrize("shapes", [((L, D), (S, D), (S, DV)), ((B, 1, L, D), (H, S, D), (1, H, S, DV))], ids=str)
def test_dimensions_in_front_broadcast(shapes):
    q, k, v = make(*shapes)
    expected, _ = scaled_dot_product_attention(q, k, v)
    close(tiled_attention(q, k, v, block_size=3), expected)


def test_large_scores_do_not_overflow():
    q, k, v = inputs()
    expected, _ = scaled_dot_product_attention(1e4 * q, k, v)
    close(tiled_attention(1e4 * q, k, v, block_size=3), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float32(dtype):
    q, k, v = make((1, 64), (4099, 64), (4099, 3), dtype=dtype)
    v = v.abs() + 1
    exact = F.scaled_dot_product_attention(q.double(), k.double(), v.double())
    context = tiled_attention(q, k, v, block_size=3)
    assert context.dtype == dtype
    assert torch.equal(context, exact.float().to(dtype))


@pytest.mark.parametrize("is_causal", [False, True])
def test_gradients_are_those_of_finite_differences(is_causal):
    tensors = [x.requires_grad_() for x in make((3, 2), (5, 2), (5, 3), dtype=torch.float64)]
    mask = random_mask(3, 5)
    mask[0] = False
    attend = functools.partial(tiled_attention, mask=mask, is_causal=is_causal, block_size=2)
    assert torch.autograd.gradcheck(attend, tensors)


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_gradients_are_those_of_the_kernel(block_size):
    ours, theirs = ([x.requires_grad_() for x in inputs()] for _ in range(2))
    tiled_attention(*ours, is_causal=True, block_size=block_size).square().sum().backward()
    F.scaled_dot_product_attention(*theirs, attn_mask=causal_mask(L, S)).square().sum().backward()
    for x, y in zip(ours, theirs, strict=True):
        close(x.grad, y.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shared", range(3))
def test_vmap_where_one_argument_is_shared(shared):
    """A batch of two of the three; also for the gradient, where the shared one's comes once for each."""
    tensors = make((L, D), (S, D), (S, DV), dtype=torch.float64)
    batched = [x if i == shared else torch.stack([x, -x, x + 1]) for i, x in enumerate(tensors)]
    dims = tuple(None if i == shared else 0 for i in range(3))
    mask = random_mask(L, S)

    def loss(q, k, v):
        return tiled_attention(q, k, v, mask, is_causal=True, block_size=3).square().sum()

    together = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)), in_dims=dims)(*batched)
    for item in range(3):
        alone = [x if i == shared else x[item] for i, x in enumerate(batched)]
        alone = [x.clone().requires_grad_() for x in alone]
        loss(*alone).backward()
        for x, y in zip(alone, together, strict=True):
            close(x.grad, y[item])


def test_vmap_over_masks():
    q, k, v = make((L, D), (S, D), (S, DV))
    masks = torch.stack([random_mask(L, S), ~random_mask(L, S)])
    attend = functools.partial(tiled_attention, q, k, v, is_causal=True, block_size=4)
    close(torch.func.vmap(attend)(masks), torch.stack([attend(mask) for mask in masks]))


def test_autocast_does_not_narrow_the_sums():
    q, k, v = (x.requires_grad_() for x in inputs())
    expected = torch.autograd.grad(tiled_attention(q, k, v, block_size=3).square().sum(), (q, k, v))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        context = tiled_attention(q, k, v, block_size=3)
    assert torch.equal(context, tiled_attention(q, k, v, block_size=3))
    given = torch.autograd.grad(context.square().sum(), (q, k, v))
    assert all(torch.equal(x, y) for x, y in zip(given, expected, strict=True))


def test_a_gradient_has_no_gradient_and_says_so():
    q, k, v = (x.requires_grad_() for x in inputs())
    (grad,) = torch.autograd.grad(tiled_attention(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        grad.sum().backward()


def test_arguments_stay_as_they_were():
    tensors = [*inputs(), random_mask(L, S)]
    copies = [x.clone() for x in tensors]
    tiled_attention(*tensors, is_causal=True, block_size=3)
    assert all(torch.equal(x, y) for x, y in zip(tensors, copies, strict=True))


class Allocations(TorchDispatchMode):
    """Counts products of matrices, and keeps the size of the largest tensor that any operation returned."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0
        self.products = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.products += func._schema.name in ("aten::bmm", "aten::mm")
        made = [x.untyped_storage().nbytes() for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        self.largest = max([self.largest, *made])
        return out


@pytest.mark.parametrize("backward", [False, True])
def test_no_tensor_grows_with_the_square_of_the_length(backward):
    largest = {}
    for length in (64, 128):
        q, k, v = (x.requires_grad_(backward) for x in make(*3 * [(length, 4)]))
        with Allocations() as allocations:
            context = tiled_attention(q, k, v, is_causal=True, block_size=8)
            if backward:
                context.sum().backward()
        largest[length] = allocations.largest
    assert largest[128] <= 2 * largest[64]
    assert largest[128] < 128 * 128 * 4


def test_what_is_kept_for_backward_grows_with_the_length():
    kept = {}
    for length in (64, 128):
        q, k, v = (x.requires_grad_() for x in make(*3 * [(length, 4)]))
        sizes = {}
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x, sizes=sizes: sizes.update({x.untyped_storage().data_ptr(): x.untyped_storage().nbytes()}) or x,
            lambda x: x,
        ):
            context = tiled_attention(q, k, v, is_causal=True, block_size=8)
        assert context.requires_grad
        kept[length] = sum(sizes.values())
    assert 0 < kept[128] <= 2 * kept[64]


def test_blocks_in_the_future_are_left_out():
    q, k, v = make(*3 * [(12, 4)])
    for is_causal, blocks in ((False, 16), (True, 10)):
        with Allocations() as allocations:
            tiled_attention(q, k, v, is_causal=is_causal, block_size=3)
        assert allocations.products == 2 * blocks


WRONG = [
    ({"queries": torch.zeros(L)}, ValueError, r"^queries must have shape \(..., L, D\), got \(7,\)"),
    ({"keys": torch.zeros(S)}, ValueError, r"^keys must have shape \(..., S, D\), got \(11,\)"),
    ({"keys": torch.zeros(2, S, D), "values": torch.zeros(3, S, DV)}, ValueError, "^keys and values must agree"),
    ({"queries": [1.0]}, TypeError, "queries must be a torch.Tensor, got list"),
    ({"keys": torch.zeros(S, D, dtype=torch.int64)}, TypeError, "keys must hold floating-point numbers"),
    ({"values": torch.zeros(S)}, ValueError, r"values must have shape \(..., S, D_v\), got \(11,\)"),
    ({"keys": torch.zeros(S, 2)}, ValueError, r"share their last dimension: queries \(7, 5\), keys \(11, 2\)"),
    ({"values": torch.zeros(3, DV)}, ValueError, r"one row for each other: keys \(11, 5\), values \(3, 13\)"),
    ({"keys": torch.zeros(S, D).double()}, TypeError, "queries and keys must share one dtype"),
    ({"values": torch.zeros(S, DV).double()}, TypeError, "keys and values must share one dtype"),
    ({"queries": torch.zeros(2, L, D), "keys": torch.zeros(3, S, D)}, ValueError, "queries and keys must agree"),
    ({"queries": torch.zeros(2, L, D), "values": torch.zeros(3, S, D)}, ValueError, "queries and values must agree"),
    ({"mask": torch.ones(L, S)}, TypeError, "mask must be boolean"),
    ({"mask": torch.ones(L, 2, dtype=torch.bool)}, ValueError, r"broadcast to the shape of the scores \(7, 11\)"),
    ({"mask": torch.ones(B, L, S, dtype=torch.bool)}, ValueError, r"scores \(7, 11\), got \(2, 7, 11\)"),
    ({"is_causal": 1}, TypeError, "is_causal must be True or False, got 1"),
    ({"is_causal": True, "queries": torch.zeros(13, D)}, ValueError, "num_queries=13, num_keys=11"),
    ({"block_size": 0}, ValueError, "block_size must be at least 1, got 0"),
    ({"block_size": 2.0}, TypeError, "block_size must be an int, got 2.0"),
]


@pytest.mark.parametrize(("change", "error", "said"), WRONG, ids=[said for _, _, said in WRONG])
def test_a_wrong_argument_is_refused_in_words(change, error, said):
    right = {"queries": torch.zeros(L, D), "keys": torch.zeros(S, D), "values": torch.zeros(S, DV)}
    with pytest.raises(error, match=said):
        tiled_attention(**(right | change))


@pytest.mark.parametrize("batched", range(3))
def test_any_one_of_the_three_may_bring_the_batch(batched):
    shapes = [(L, D), (S, D), (S, DV)]
    shapes[batched] = (B, *shapes[batched])
    q, k, v = make(*shapes)
    mask = random_mask(B, L, S) if batched < 2 else random_mask(L, S)
    expected, _ = scaled_dot_product_attention(q, k, v, mask)
    close(tiled_attention(q, k, v, mask, block_size=3), expected)


def test_blocks_of_256_where_nothing_else_is_said():
    q, k, v = make(*3 * [(257, 2)])
    with Allocations() as allocations:
        tiled_attention(q, k, v)
    assert allocations.products == 2 * 4
    with Allocations() as allocations:
        tiled_attention(q[:256], k[:256], v[:256])
    assert allocations.products == 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_scaled_in_float32(dtype):
    q, k, v = make((40, D), (40, D), (40, 3), dtype=dtype)
    exact = tiled_attention(8 * q.double(), k.double(), v.double())
    close(tiled_attention(8 * q, k, v), exact.to(dtype), rtol=0, atol=torch.finfo(dtype).eps)


def test_masks_are_made_where_the_input_is():
    q, k, v = (x.to("meta") for x in inputs())
    context = tiled_attention(q, k, v, is_causal=True, block_size=3)
    assert (context.device.type, context.shape) == ("meta", (B, H, L, DV))
