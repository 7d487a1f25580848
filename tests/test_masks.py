"""Both masks against tables written by hand and against PyTorch's own, and their refusals word for word."""

import numpy as np
import pytest
import torch
from refusals import Unchanged, assert_refused
from torch import tensor
from torch.nn import functional as F

from attention_core import attention_weights, causal_mask, padding_mask


def table(*rows):
    return tensor([[cell == "1" for cell in row] for row in rows])


CAUSAL = {
    (1, None): table("1"),
    (3, None): table("100", "110", "111"),
    (3, 3): table("100", "110", "111"),
    (3, 5): table("11100", "11110", "11111"),
    (1, 4): table("1111"),
    (2, 3): table("110", "111"),
}


@pytest.mark.parametrize(("sizes", "expected"), CAUSAL.items(), ids=str)
def test_causal_mask_by_hand(sizes, expected):
    assert torch.equal(causal_mask(*sizes), expected)


@pytest.mark.parametrize("num_tokens", [1, 2, 7])
def test_causal_mask_is_torchs(num_tokens):
    x = torch.randn(num_tokens, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ours = F.scaled_dot_product_attention(x, x, x, causal_mask(num_tokens))
    torch.testing.assert_close(ours, F.scaled_dot_product_attention(x, x, x, is_causal=True))
    hidden = torch.nn.Transformer.generate_square_subsequent_mask(num_tokens) == -torch.inf
    assert torch.equal(causal_mask(num_tokens), ~hidden)


def test_causal_mask_with_more_keys_is_the_end_of_the_square_one():
    assert torch.equal(causal_mask(3, 7), causal_mask(7)[-3:])


PADDING = {
    "list": ([1, 3, 2], None, ["100", "111", "110"]),
    "tuple": ((2, 1), None, ["11", "10"]),
    "tensor": (tensor([3, 1]), None, ["111", "100"]),
    "narrow tensor": (tensor([3, 1], dtype=torch.uint8), None, ["111", "100"]),
    "longer than any": ([1, 2], 4, ["1000", "1100"]),
    "as long as the longest": ([1, 2], 2, ["10", "11"]),
    "a sequence of nothing": ([0, 2], None, ["00", "11"]),
    "nothing but nothing": ([0, 0], 3, ["000", "000"]),
}


@pytest.mark.parametrize(("lengths", "max_length", "rows"), PADDING.values(), ids=PADDING)
def test_padding_mask_by_hand(lengths, max_length, rows):
    before = Unchanged(lengths)
    mask = padding_mask(lengths, max_length)
    assert torch.equal(mask, table(*rows).unsqueeze(1))
    before.check()


def test_padding_mask_hides_the_filler():
    lengths = [4, 7]
    queries = torch.randn(2, 3, 5, 11, generator=torch.Generator().manual_seed(0))
    keys = torch.randn(2, 3, 7, 11, generator=torch.Generator().manual_seed(1))
    weights = attention_weights(queries, keys, padding_mask(lengths).unsqueeze(1))
    for sequence, length in enumerate(lengths):
        alone = attention_weights(queries[sequence], keys[sequence, :, :length])
        torch.testing.assert_close(weights[sequence, ..., :length], alone)
        assert (weights[sequence, ..., length:] == 0).all()


def test_masks_combine():
    both = causal_mask(3) & padding_mask([2, 3])
    assert torch.equal(both[0], table("100", "110", "110"))
    assert torch.equal(both[1], table("100", "110", "111"))


LARGE = 2147483647
REFUSED = {
    "no queries": (ValueError, "num_queries must be at least 1, got 0", lambda: causal_mask(0)),
    "negative queries": (ValueError, "num_queries must be at least 1, got -3", lambda: causal_mask(-3)),
    "no keys": (ValueError, "num_keys must be at least 1, got 0", lambda: causal_mask(3, 0)),
    "fewer keys than queries": (
        ValueError,
        "num_keys must be at least num_queries, so that every query sees a key: num_queries=3, num_keys=2",
        lambda: causal_mask(3, 2),
    ),
    "float": (TypeError, "num_queries must be an int, got 3.0 of type float", lambda: causal_mask(3.0)),
    "bool": (TypeError, "num_queries must be an int, got True of type bool", lambda: causal_mask(True)),
    "None": (TypeError, "num_queries must be an int, got None of type NoneType", lambda: causal_mask(None)),
    "text": (TypeError, "num_queries must be an int, got '3' of type str", lambda: causal_mask("3")),
    "tensor": (TypeError, "num_queries must be an int, got tensor(3) of type Tensor", lambda: causal_mask(tensor(3))),
    "shape": (TypeError, "num_queries must be an int, got (3, 3) of type tuple", lambda: causal_mask((3, 3))),
    "keys float": (TypeError, "num_keys must be an int, got 4.0 of type float", lambda: causal_mask(3, 4.0)),
    "huge": (
        ValueError,
        f"the mask may hold at most {LARGE} numbers, got shape (1000000, 1000000)",
        lambda: causal_mask(10**6),
    ),
    "too many keys": (
        ValueError,
        f"the mask may hold at most {LARGE} numbers, got shape (1, {LARGE + 1})",
        lambda: causal_mask(1, LARGE + 1),
    ),
    "number for lengths": (
        TypeError,
        "lengths must be a list of ints or a 1-D tensor, got int",
        lambda: padding_mask(3),
    ),
    "None for lengths": (
        TypeError,
        "lengths must be a list of ints or a 1-D tensor, got NoneType",
        lambda: padding_mask(None),
    ),
    "NumPy array for lengths": (
        TypeError,
        "lengths must be a list of ints or a 1-D tensor, got ndarray",
        lambda: padding_mask(np.array([1, 2])),
    ),
    "no lengths": (ValueError, "lengths must hold at least one number, got none", lambda: padding_mask([])),
    "empty tensor": (
        ValueError,
        "lengths must hold at least one number, got none",
        lambda: padding_mask(torch.empty(0, dtype=torch.int64)),
    ),
    "two dimensions": (
        ValueError,
        "lengths must be 1-D, one number a sequence, got shape (1, 2)",
        lambda: padding_mask(tensor([[1, 2]])),
    ),
    "no dimension": (
        ValueError,
        "lengths must be 1-D, one number a sequence, got shape ()",
        lambda: padding_mask(tensor(2)),
    ),
    "sparse lengths": (
        TypeError,
        "lengths must be a dense tensor, got layout torch.sparse_coo; convert it with .to_dense()",
        lambda: padding_mask(tensor([1, 2]).to_sparse()),
    ),
    "lengths without numbers": (
        ValueError,
        "lengths must hold numbers, got a tensor on device meta, which holds none",
        lambda: padding_mask(tensor([1, 2]).to("meta")),
    ),
    "float lengths": (
        TypeError,
        "every length must be an int, got 1.0 of type float",
        lambda: padding_mask(tensor([1.0, 2.0])),
    ),
    "a float among ints": (
        TypeError,
        "every length must be an int, got 2.5 of type float",
        lambda: padding_mask([1, 2.5]),
    ),
    "boolean lengths": (
        TypeError,
        "every length must be an int, got True of type bool",
        lambda: padding_mask(tensor([True, False])),
    ),
    "negative length": (ValueError, "every length must be at least 0, got -1", lambda: padding_mask([2, -1])),
    "every sequence empty": (ValueError, "max_length must be at least 1, got 0", lambda: padding_mask([0, 0])),
    "max_length float": (TypeError, "max_length must be an int, got 3.0 of type float", lambda: padding_mask([2], 3.0)),
    "length beyond max_length": (
        ValueError,
        "no length may exceed max_length: lengths=[1, 4], max_length=3",
        lambda: padding_mask([1, 4], 3),
    ),
    "huge length": (
        ValueError,
        f"the mask may hold at most {LARGE} numbers, got shape (2, 1, {10**30})",
        lambda: padding_mask([1, 10**30]),
    ),
}


@pytest.mark.parametrize(("kind", "message", "call"), REFUSED.values(), ids=REFUSED)
def test_refused(kind, message, call):
    assert_refused(kind, message, call)
