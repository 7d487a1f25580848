"""Both dropout streams against known bits and PyTorch's live dropout, and the refusals word for word."""

import math
import random

import numpy as np
import pytest
import torch
from refusals import Unchanged, assert_refused
from torch import tensor
from torch.nn import functional as F

from attention_core import apply_dropout, dropout, dropout_keep_mask

STREAMS = ["torch", "mkl"]
SHAPES = [(6, 6), (2, 6, 6), (50, 50), (3,)]
SHARES = [0.1, 0.2, 0.5, 0.75]
SEEDS = [0, 1, 123, 999999]


# Which are kept


def test_the_two_masks_of_one_seed():
    """The first row is known of both; the rest of "mkl" is what document 004 prints."""
    torch_rows, mkl_rows = (dropout_keep_mask((6, 6), 0.5, seed=123, stream=stream).int() for stream in STREAMS)
    assert torch_rows[0].tolist() == [1, 1, 0, 1, 1, 0]
    assert mkl_rows.tolist() == [
        [1, 1, 1, 1, 1, 1],
        [0, 1, 0, 0, 0, 0],
        [0, 0, 1, 0, 1, 0],
        [1, 1, 0, 0, 0, 1],
        [1, 0, 0, 0, 0, 1],
        [0, 1, 0, 0, 0, 0],
    ]


def live(shape, share, seed):
    torch.manual_seed(seed)
    return F.dropout(torch.ones(shape), share) != 0


def test_one_stream_is_the_running_torchs_dropout():
    """Every shape, share and seed agrees with the same one of the two streams, to the last bit."""
    cases = [(shape, share, seed) for shape in SHAPES for share in SHARES for seed in SEEDS]
    agreeing = {
        stream: sum(
            torch.equal(dropout_keep_mask(shape, share, seed=seed, stream=stream), live(shape, share, seed))
            for shape, share, seed in cases
        )
        for stream in STREAMS
    }
    assert max(agreeing.values()) == len(cases) == 64, agreeing


# Worked out by hand from MT19937's first output, such as 2991312382 for the seed 123: the remainder by 2^31 - 1, then
# 1132489760 times that, of which the remainder again, and so on.
FIRST_STATES = {
    0: [209652397, 1283021519, 2119101788],
    1: [1791095845, 621462158, 804586915],
    123: [843828735, 459765758, 453103405],
}


@pytest.mark.parametrize(("seed", "states"), FIRST_STATES.items())
def test_mkl_stream_by_hand(seed, states):
    """A state is kept below 1 - p and dropped above: p is put just above and just below each one."""
    for place, state in enumerate(states):
        uniform = state / (2**31 - 1)
        for share, kept in ((1 - uniform - 1e-9, True), (1 - uniform + 1e-9, False)):
            assert dropout_keep_mask((3,), share, seed=seed, stream="mkl")[place].item() is kept


def test_mkl_stream_starts_with_one_where_the_seed_gives_zero(monkeypatch):
    class Zero:
        def __init__(self, seed):
            pass

        def randint(self, *args, **kwargs):
            return 2**31 - 1

    monkeypatch.setattr(np.random, "RandomState", Zero)
    share = 1 - 1132489760 / (2**31 - 1)  # the second state, after 1
    assert dropout_keep_mask((2,), share - 1e-9, seed=5, stream="mkl").tolist() == [True, True]
    assert dropout_keep_mask((2,), share + 1e-9, seed=5, stream="mkl").tolist() == [True, False]


@pytest.mark.parametrize("stream", STREAMS)
def test_longer_masks_begin_like_shorter_ones_row_by_row(stream):
    long = dropout_keep_mask((5, 7), 0.3, seed=11, stream=stream)
    assert torch.equal(dropout_keep_mask((7,), 0.3, seed=11, stream=stream), long[0])
    assert torch.equal(dropout_keep_mask([35], 0.3, seed=11, stream=stream), long.flatten())


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("share", SHARES)
def test_share_dropped(stream, share):
    keep = dropout_keep_mask((101, 103), share, seed=3, stream=stream)
    spread = math.sqrt(share * (1 - share) / keep.numel())
    assert keep.float().mean().item() == pytest.approx(1 - share, abs=4 * spread)


@pytest.mark.parametrize("stream", STREAMS)
def test_edges_of_the_arguments(stream):
    assert dropout_keep_mask((3, 5), 0, seed=0, stream=stream).all()
    assert dropout_keep_mask((), 0.0, seed=2**32 - 1, stream=stream).item() is True
    assert dropout_keep_mask(torch.Size([2, 3]), 0.5, seed=0, stream=stream).shape == (2, 3)
    assert dropout_keep_mask((1,) * 40, 0.5, seed=0, stream=stream).shape == (1,) * 40
    assert not dropout_keep_mask((99,), math.nextafter(1.0, 0.0), seed=0, stream=stream).any()
    assert dropout_keep_mask((2,), 0.5, seed=0, stream=stream).dtype == torch.bool


@pytest.mark.parametrize("stream", STREAMS)
def test_nobody_elses_random_numbers_or_settings_matter(stream):
    expected = dropout_keep_mask((5, 7), 0.3, seed=11, stream=stream)
    torch.manual_seed(5)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            again = dropout_keep_mask((5, 7), 0.3, seed=11, stream=stream)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(again, expected)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert (np.random.get_state()[1] == states[2]).all()


# What is done with them


def test_apply_dropout_by_hand():
    weights = tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    keep = tensor([[True, False, True], [False, False, True]])
    before = Unchanged(weights, keep)
    assert apply_dropout(weights, keep, 0.75).tolist() == [[4, 0, 12], [0, 0, 24]]
    assert apply_dropout(weights, keep, 0).tolist() == [[1, 0, 3], [0, 0, 6]]
    before.check()


@pytest.mark.parametrize("share", [0.0, *SHARES])
def test_apply_dropout_is_torchs_dropout(share):
    weights = torch.rand(2, 3, 5, 7, generator=torch.Generator().manual_seed(0))
    keep = live(weights.shape, share, 7)
    torch.manual_seed(7)
    torch.testing.assert_close(apply_dropout(weights, keep, share), F.dropout(weights, share))


def test_apply_dropout_keeps_the_average():
    weights = tensor([0.5, 0.3, 0.2])
    keep = dropout_keep_mask((20011, 3), 0.2, seed=1)
    average = apply_dropout(weights.expand(20011, 3), keep, 0.2).mean(dim=0)
    torch.testing.assert_close(average, weights, rtol=0.02, atol=0)


def test_apply_dropout_drops_whatever_is_there():
    weights = tensor([math.nan, math.inf, -math.inf, 1.0], requires_grad=True)
    keep = tensor([False, False, False, True])
    out = apply_dropout(weights, keep, 0.5)
    out.sum().backward()
    assert out.tolist() == [0, 0, 0, 2]
    assert weights.grad.tolist() == [0, 0, 0, 2]


def test_apply_dropout_of_a_single_number():
    assert apply_dropout(tensor(3.0), tensor(True), 0.25).item() == 4


# Refusals

WEIGHTS, KEEP = torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool)


def share_is(value):
    return f"dropout_p is the share dropped and must be in [0, 1), got {value}"


BAD_SHARES = {
    "one": (1.0, ValueError, share_is(1.0)),
    "int one": (1, ValueError, share_is(1)),
    "negative": (-0.1, ValueError, share_is(-0.1)),
    "percent": (50, ValueError, share_is(50)),
    "nan": (math.nan, ValueError, share_is("nan")),
    "infinite": (math.inf, ValueError, share_is("inf")),
    "text": ("0.5", TypeError, "dropout_p must be a number, got '0.5' of type str"),
    "None": (None, TypeError, "dropout_p must be a number, got None of type NoneType"),
    "bool": (True, TypeError, "dropout_p must be a number, got True of type bool"),
    "tensor": (tensor(0.5), TypeError, "dropout_p must be a number, got tensor(0.5000) of type Tensor"),
    "complex": (0.5j, TypeError, "dropout_p must be a number, got 0.5j of type complex"),
}


@pytest.mark.parametrize(("share", "kind", "message"), BAD_SHARES.values(), ids=BAD_SHARES)
def test_share_is_refused(share, kind, message):
    assert_refused(kind, message, apply_dropout, WEIGHTS, KEEP, share)
    assert_refused(kind, message, dropout_keep_mask, (2, 3), share, seed=0)


REFUSED = {
    "keep turned": (
        ValueError,
        "keep must have the shape of the weights (2, 3), got (3, 2)",
        lambda: apply_dropout(WEIGHTS, KEEP.mT, 0.5),
    ),
    "keep of one row": (
        ValueError,
        "keep must have the shape of the weights (2, 3), got (3,)",
        lambda: apply_dropout(WEIGHTS, KEEP[0], 0.5),
    ),
    "keep of zeros and ones": (
        TypeError,
        "keep must be boolean (True = kept), got torch.float32",
        lambda: apply_dropout(WEIGHTS, WEIGHTS, 0.5),
    ),
    "keep None": (
        TypeError,
        "keep must be a boolean torch.Tensor (True = kept), got NoneType",
        lambda: apply_dropout(WEIGHTS, None, 0.5),
    ),
    "keep as NumPy array": (
        TypeError,
        "keep must be a boolean torch.Tensor (True = kept), got ndarray",
        lambda: apply_dropout(WEIGHTS, KEEP.numpy(), 0.5),
    ),
    "keep sparse": (
        TypeError,
        "keep must be a dense tensor, got layout torch.sparse_coo; convert it with .to_dense()",
        lambda: apply_dropout(WEIGHTS, KEEP.to_sparse(), 0.5),
    ),
    "keep elsewhere": (
        ValueError,
        "keep and weights must be on the same device: keep on meta, weights on cpu",
        lambda: apply_dropout(WEIGHTS, KEEP.to("meta"), 0.5),
    ),
    "weights None": (
        TypeError,
        "weights must be a torch.Tensor, got NoneType",
        lambda: apply_dropout(None, KEEP, 0.5),
    ),
    "weights of ints": (
        TypeError,
        "weights must hold floating-point numbers, got torch.int64; convert it with .float()",
        lambda: apply_dropout(WEIGHTS.long(), KEEP, 0.5),
    ),
    "weights empty": (
        ValueError,
        "weights must not be empty, got shape (0, 3)",
        lambda: apply_dropout(WEIGHTS[:0], KEEP[:0], 0.5),
    ),
    "shape a number": (
        TypeError,
        "shape must be a tuple of ints, got int",
        lambda: dropout_keep_mask(6, 0.5, seed=0),
    ),
    "shape None": (
        TypeError,
        "shape must be a tuple of ints, got NoneType",
        lambda: dropout_keep_mask(None, 0.5, seed=0),
    ),
    "shape a tensor": (
        TypeError,
        "shape must be a tuple of ints, got Tensor",
        lambda: dropout_keep_mask(tensor([2, 3]), 0.5, seed=0),
    ),
    "size float": (
        TypeError,
        "every size in shape must be an int, got 3.0 of type float",
        lambda: dropout_keep_mask((2, 3.0), 0.5, seed=0),
    ),
    "size bool": (
        TypeError,
        "every size in shape must be an int, got True of type bool",
        lambda: dropout_keep_mask((2, True), 0.5, seed=0),
    ),
    "size zero": (
        ValueError,
        "every size in shape must be at least 1, got 0",
        lambda: dropout_keep_mask((2, 0), 0.5, seed=0),
    ),
    "size negative": (
        ValueError,
        "every size in shape must be at least 1, got -1",
        lambda: dropout_keep_mask((2, -1), 0.5, seed=0),
    ),
    "size huge": (
        ValueError,
        f"the mask may hold at most 2147483647 numbers, got shape (2, {10**30})",
        lambda: dropout_keep_mask((2, 10**30), 0.5, seed=0, stream="mkl"),
    ),
    "seed negative": (ValueError, "seed must be at least 0, got -1", lambda: dropout_keep_mask((2,), 0.5, seed=-1)),
    "seed too large": (
        ValueError,
        "seed must be at most 4294967295, got 4294967296",
        lambda: dropout_keep_mask((2,), 0.5, seed=2**32),
    ),
    "seed float": (
        TypeError,
        "seed must be an int, got 1.0 of type float",
        lambda: dropout_keep_mask((2,), 0.5, seed=1.0),
    ),
    "seed None": (
        TypeError,
        "seed must be an int, got None of type NoneType",
        lambda: dropout_keep_mask((2,), 0.5, seed=None),
    ),
    "stream unknown": (
        ValueError,
        "stream must be one of ['mkl', 'torch'], got 'MKL'",
        lambda: dropout_keep_mask((2,), 0.5, seed=0, stream="MKL"),
    ),
    "stream None": (
        TypeError,
        "stream must be a str, got None of type NoneType",
        lambda: dropout_keep_mask((2,), 0.5, seed=0, stream=None),
    ),
    "stream a list": (
        TypeError,
        "stream must be a str, got ['torch'] of type list",
        lambda: dropout_keep_mask((2,), 0.5, seed=0, stream=["torch"]),
    ),
}


@pytest.mark.parametrize(("kind", "message", "call"), REFUSED.values(), ids=REFUSED)
def test_refused(kind, message, call):
    before = Unchanged(WEIGHTS, KEEP)
    assert_refused(kind, message, call)
    before.check()


@pytest.mark.parametrize("stream", ["torch", "mkl"])
def test_a_number_on_the_border_is_dropped(stream):
    """Kept is what lies below 1 - dropout_p, not on it. With a first number above a half, 1 - u is exact."""
    draw = dropout._STREAMS[stream]
    seed = next(seed for seed in range(99) if draw((1,), seed) > 0.5)
    share = 1 - draw((1,), seed).item()
    assert not dropout_keep_mask((1,), share, seed=seed, stream=stream)
    assert dropout_keep_mask((1,), share - 1e-12, seed=seed, stream=stream)
