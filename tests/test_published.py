"""The published tensors: well-formed files, the package's digits against theirs, and loaders that say what is wrong."""

import functools
import math
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from attention_core import (
    CausalAttention,
    MultiHeadAttention,
    MultiHeadAttentionWrapper,
    SelfAttentionV1,
    SelfAttentionV2,
    apply_dropout,
    attention_weights,
    causal_mask,
    context_vectors,
    data,
    dot_product_scores,
    dropout_keep_mask,
    load_published,
    load_sentence,
    masked_softmax,
    scale_scores,
    softmax,
)

DOCUMENTS = {
    path.stem: tomllib.loads(path.read_text("utf-8")) for path in sorted((data.FOLDER / "published").glob("*"))
}
ENTRIES = {f"{document}.{step}": entry for document, steps in DOCUMENTS.items() for step, entry in steps.items()}
REPRODUCIBLE = [name for name, entry in ENTRIES.items() if entry["status"] != "unseeded"]
HALF_A_UNIT = 0.5e-4  # how far a number printed with 4 decimals may be from the number itself


# The files


def leaves(value: object) -> Iterator[object]:
    if isinstance(value, list):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def test_there_are_five_documents():
    assert list(DOCUMENTS) == ["000", "001", "002", "003", "004"]


@pytest.mark.parametrize("name", ENTRIES)
def test_entry_is_well_formed(name):
    entry = ENTRIES[name]
    assert re.fullmatch(r"\d{3}\.[a-z0-9]+(_[a-z0-9]+)*", name)
    assert (
        {"title", "status", "lesson", "values"}
        <= set(entry)
        <= {"title", "status", "lesson", "values", "printed", "why"}
    )
    assert entry["status"] in {"right", "wrong", "cut off", "unseeded"}
    assert entry["lesson"] in {"01", "02", "03", "04", "05", "06"}
    assert entry["title"].strip()
    assert ("printed" in entry) == (entry["status"] == "wrong"), "printed belongs to what the document got wrong"
    assert entry["status"] == "right" or entry.get("why", "").strip(), "an error or omission needs its reason"
    for field in {"values", "printed"} & set(entry):
        assert {type(leaf) for leaf in leaves(entry[field])} == {float}
        assert not any(math.isnan(leaf) for leaf in leaves(entry[field]))


@pytest.mark.parametrize("name", ENTRIES)
def test_entry_loads_as_a_tensor(name):
    entry, values, printed = ENTRIES[name], load_published(name), load_published(name, printed=True)
    assert values.dtype == printed.dtype == torch.float32
    assert values.shape == printed.shape
    assert torch.equal(values, printed) == ("printed" not in entry)
    assert values.flatten().tolist() == pytest.approx(list(leaves(entry["values"])))


# The package gives the published digits


def document_000() -> dict[str, Tensor]:
    _, inputs = load_sentence("journey")
    torch.manual_seed(123)
    w_query, w_key, w_value = (torch.rand(3, 2) for _ in range(3))
    queries, keys, values = inputs @ w_query, inputs @ w_key, inputs @ w_value
    scores = dot_product_scores(queries, keys)
    scaled_scores = scale_scores(scores, head_dim=2)
    weights = softmax(scaled_scores)
    context = context_vectors(weights, values)
    return {
        "inputs": inputs,
        "w_query": w_query,
        "w_key": w_key,
        "w_value": w_value,
        "query_journey": inputs[1] @ w_query,
        "key_journey": inputs[1] @ w_key,
        "value_journey": inputs[1] @ w_value,
        "queries": queries,
        "keys": keys,
        "values": values,
        "scores_journey": dot_product_scores(queries[1:2], keys)[0],
        "scores": scores,
        "scaled_scores": scaled_scores,
        "weights": weights,
        "context_journey": context_vectors(weights[1:2], values)[0],
        "context": context,
        "context_v1": seeded(123, SelfAttentionV1, 3, 2)(inputs),
        "context_v2": seeded(78, SelfAttentionV2, 3, 2)(inputs),
    }


def document_001() -> dict[str, Tensor]:
    weights = torch.tensor([[0.2, 0.3, 0.5], [0.1, 0.8, 0.1], [0.4, 0.1, 0.5]])
    values = torch.arange(1, 13).reshape(3, 4) / 10
    return {
        "embeddings": load_sentence("positions")[1].unsqueeze(0),
        "sqrt_head_dim": 1 / scale_scores(torch.ones(1, 1), head_dim=5)[0, 0],
        "example_weights": weights,
        "example_values": values,
        "example_output": context_vectors(weights, values),
    }


def document_002() -> dict[str, Tensor]:
    _, inputs = load_sentence("attention")
    torch.manual_seed(123)
    queries, keys, values = (inputs @ torch.rand(3, 5) for _ in range(3))
    torch.manual_seed(123)
    # In float32 scores[4, 2] = 2.72445004 comes out on either side of its rounding edge, depending on the processor.
    exact_queries, exact_keys = (inputs.double() @ torch.rand(3, 5).double() for _ in range(2))
    weights = attention_weights(queries, keys)
    return {
        "inputs": inputs,
        "queries": queries,
        "keys": keys,
        "values": values,
        "scores": dot_product_scores(exact_queries, exact_keys),
        "weights": weights,
        "context": context_vectors(weights, values),
        "class_context": seeded(123, SelfAttentionV1, 3, 5)(inputs),
    }


def document_003() -> dict[str, Tensor]:
    steps = document_000()
    scores = dot_product_scores(steps["queries"], steps["keys"])
    weights = softmax(scale_scores(scores, head_dim=2))
    return {
        "scores_journey": scores[1],
        "scores": scores,
        "weights_journey": weights[1],
        "context_journey": context_vectors(weights, steps["values"])[1],
        "context_v1": seeded(123, SelfAttentionV1, 3, 2)(steps["inputs"]),
        "inputs": steps["inputs"],
        "context_v2": seeded(123, SelfAttentionV2, 3, 2)(steps["inputs"]),
    }


def document_004() -> dict[str, Tensor]:
    return {**without_trainable_weights(), **causal_and_dropout(), **several_heads()}


def without_trainable_weights() -> dict[str, Tensor]:
    _, inputs = load_sentence("journey")
    scores = dot_product_scores(inputs, inputs)
    weights = softmax(scores)
    return {
        "inputs": inputs,
        "scores_journey": torch.stack([torch.dot(x, inputs[1]) for x in inputs]),
        "scores_journey_sum": scores[1].sum(),
        "normalised_journey": scores[1] / scores[1].sum(),
        "normalised_journey_sum": (scores[1] / scores[1].sum()).sum(),
        "weights_journey": softmax(scores[1]),
        "weights_journey_sum": softmax(scores[1]).sum(),
        "context_start": torch.zeros(3),
        "context_journey": context_vectors(weights[1:2], inputs)[0],
        "scores": torch.stack([torch.stack([torch.dot(query, key) for key in inputs]) for query in inputs]),
        "scores_matmul": scores,
        "weights": weights,
        "context": context_vectors(weights, inputs),
    }


def causal_and_dropout() -> dict[str, Tensor]:
    _, inputs = load_sentence("journey")
    layers = seeded(789, SelfAttentionV2, 3, 2)
    scores = dot_product_scores(layers.W_query(inputs), layers.W_key(inputs))
    mask = causal_mask(6)
    masked_weights = layers.attention_weights(inputs) * mask
    causal_weights = masked_softmax(scale_scores(scores, head_dim=2), mask)
    keep = dropout_keep_mask((6, 6), 0.5, seed=123, stream="mkl")
    return {
        "context_v1": seeded(123, SelfAttentionV1, 3, 2)(inputs),
        "context_v2": layers(inputs),
        "weights_seed_789": layers.attention_weights(inputs),
        "lower_triangular_mask": mask.float(),
        "masked_weights": masked_weights,
        "renormalised_weights": masked_weights / masked_weights.sum(dim=-1, keepdim=True),
        "masked_scores": scores.masked_fill(~mask, -torch.inf),
        "causal_weights": causal_weights,
        "causal_context": context_vectors(causal_weights, layers.W_value(inputs)),
        "dropout_ones": apply_dropout(torch.ones(6, 6), keep, 0.5),
        "dropout_weights": apply_dropout(causal_weights, keep, 0.5),
    }


def several_heads() -> dict[str, Tensor]:
    _, inputs = load_sentence("journey")
    batch = torch.stack([inputs, inputs])
    a = load_published("004.a")
    return {
        "causal_attention": seeded(123, CausalAttention, 3, 2, 6, 0.0)(batch),
        "multi_head_wrapper": seeded(123, MultiHeadAttentionWrapper, 3, 4, 6, 0.0, num_heads=2)(batch),
        "a": a,
        "a_product": dot_product_scores(a, a),
        "a_product_head_1": dot_product_scores(a[0, 0], a[0, 0]),
        "a_product_head_2": dot_product_scores(a[0, 1], a[0, 1]),
        "multi_head_attention": seeded(123, MultiHeadAttention, 3, 2, 6, 0.0, num_heads=2)(batch),
    }


def seeded(seed, layer, *args, **kwargs):
    torch.manual_seed(seed)
    return layer(*args, **kwargs)


@functools.cache
def computed() -> dict[str, Tensor]:
    functions = {
        "000": document_000,
        "001": document_001,
        "002": document_002,
        "003": document_003,
        "004": document_004,
    }
    return {f"{document}.{step}": t.detach() for document, steps in functions.items() for step, t in steps().items()}


def digits(tensor: Tensor) -> np.ndarray:
    """The numbers as they are printed, with 4 decimals; a zero has no sign."""
    return np.array([f"{number:z.4f}" for number in tensor.flatten().tolist()]).reshape(tensor.shape)


def assert_same_digits(name: str, ours: Tensor, published: Tensor) -> None:
    assert ours.shape == published.shape, f"{name}: package {tuple(ours.shape)}, document {tuple(published.shape)}"
    mine, theirs = digits(ours), digits(published)
    differing = [
        f"{name}{index.tolist()}: package {mine[tuple(index)]}, document {theirs[tuple(index)]}"
        for index in np.argwhere(mine != theirs)
    ]
    assert not differing, "\n".join(differing)


def test_every_reproducible_step_is_computed():
    assert list(computed()) == REPRODUCIBLE


@pytest.mark.parametrize("name", REPRODUCIBLE)
def test_package_reproduces(name):
    assert_same_digits(name, computed()[name], load_published(name))


def test_002_scores_in_float32_are_off_by_rounding_only():
    steps = computed()
    ours = dot_product_scores(steps["002.queries"], steps["002.keys"])
    assert (ours - steps["002.scores"]).abs().max() < 2e-6


def test_digits_that_differ_are_named():
    with pytest.raises(AssertionError, match=re.escape("x.step[1, 0]: package 0.3001, document 0.3000")):
        assert_same_digits("x.step", torch.tensor([[0.1], [0.3001]]), torch.tensor([[0.1], [0.3]]))
    with pytest.raises(AssertionError, match=re.escape("x.step: package (1,), document (1, 1)")):
        assert_same_digits("x.step", torch.ones(1), torch.ones(1, 1))


# What the documents got wrong, and what hangs together


def test_wrong_causal_context_mixes_two_sets_of_weights():
    mixed = context_vectors(computed()["004.causal_weights"], computed()["000.values"])
    assert_same_digits("004.causal_context", mixed, load_published("004.causal_context", printed=True))


def test_wrong_worked_example_has_one_right_entry():
    right, printed = load_published("001.example_output"), load_published("001.example_output", printed=True)
    assert (right == printed).nonzero().tolist() == [[0, 0]]


@pytest.mark.parametrize("width", [5, 100])
def test_scaled_variance_is_the_variance_divided_by_the_width(width):
    before, after = (DOCUMENTS["003"][f"variance_{when}_{width}"]["values"] for when in ("before", "after"))
    assert after == pytest.approx(before / width, rel=1e-12)


def test_documents_agree_with_each_other():
    heads = load_published("004.multi_head_wrapper")
    assert torch.equal(load_published("000.context_v1"), load_published("003.context_v1"))
    assert torch.equal(load_published("000.context_v1"), load_published("004.context_v1"))
    assert torch.equal(load_published("003.context_v2")[-1], heads[0, -1, :2])
    assert torch.equal(load_published("004.causal_attention"), heads[..., :2])
    for step in ("causal_attention", "multi_head_wrapper", "multi_head_attention"):
        assert torch.equal(*load_published(f"004.{step}"))


def test_001_visible_scores_are_scaled_dot_products():
    queries, keys = load_published("001.queries_head_1")[0], load_published("001.keys_head_1")[0]
    scores = load_published("001.scores_head_1")[0]
    num_queries, num_keys = len(scores), len(keys)
    ours = scale_scores(dot_product_scores(queries[:num_queries], keys), head_dim=5)
    # A number off by half a unit moves its product by half a unit times the other factor; the score is rounded too.
    reach = queries[:num_queries].abs().sum(-1, keepdim=True) + keys.abs().sum(-1)
    tolerance = HALF_A_UNIT * (reach / math.sqrt(5) + 1) + 1e-6
    assert (num_queries, num_keys) == (7, 4)
    assert ((ours - scores[:, :num_keys]).abs() <= tolerance).all()


def test_001_visible_weights_are_the_softmax_of_the_scores():
    scores, weights = load_published("001.scores_head_1")[0], load_published("001.weights_head_1")[0]
    # d softmax_j = w_j (d s_j - sum_k w_k d s_k): at most 2 w_j times half a unit; the weight is rounded too.
    tolerance = HALF_A_UNIT * (2 * weights[: len(scores)] + 1) + 1e-6
    assert ((softmax(scores) - weights[: len(scores)]).abs() <= tolerance).all()
    assert ((weights.sum(dim=-1) - 1).abs() <= 10 * HALF_A_UNIT).all()


def test_001_concatenation_is_head_1_beside_head_2():
    head_1, head_2 = load_published("001.output_head_1")[0], load_published("001.output_head_2")[0]
    concatenation = load_published("001.concatenation")[0]
    # Nothing is computed between the two prints, so the digits are the same.
    assert torch.equal(concatenation[:, :5], head_1[: len(concatenation)])
    assert torch.equal(concatenation[: len(head_2), 5:], head_2)


# The loaders


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Give a function that writes the sentence `mine`, the only one beside `other`."""
    folder = tmp_path / "sentences"
    folder.mkdir()
    (folder / "other.csv").write_text("token,feature_1\na,1\n")
    monkeypatch.setattr(data, "FOLDER", tmp_path)

    def _write(content: str | bytes) -> Path:
        raw = content.encode() if isinstance(content, str) else content
        return (folder / "mine.csv").write_bytes(raw)

    return _write


MALFORMED = {
    "empty file": ("", 1, "expected a header 'token,feature_1,...', got ''"),
    "blank file": ("\n \n", 1, "expected a header 'token,feature_1,...', got ''"),
    "no header": ("a,0.1,0.2\n", 1, "expected a header 'token,feature_1,...', got 'a,0.1,0.2'"),
    "header without features": ("token\na\n", 1, "expected a header 'token,feature_1,...', got 'token'"),
    "semicolons": ("token;x\na;1\n", 1, "expected a header 'token,feature_1,...', got 'token;x'"),
    "header below a blank line": ("\nword,x\na,1\n", 2, "expected a header 'token,feature_1,...', got 'word,x'"),
    "no tokens": ("token,x\n", 1, "expected at least one token below the header, got none"),
    "missing column": ("token,x,y\na,1,2\nb,1\n", 3, "expected 2 features, as the header names, got 1"),
    "column too many": ("token,x,y\na,1,2,3\n", 2, "expected 2 features, as the header names, got 3"),
    "decimal comma": ("token,x\na,0,5\n", 2, "expected 1 features, as the header names, got 2"),
    "text for a number": ("token,x\na, one\n", 2, "expected a finite number, got 'one'"),
    "nothing for a number": ("token,x,y\na,1,\n", 2, "expected a finite number, got ''"),
    "underscore in a number": ("token,x\na,1_0\n", 2, "expected a finite number, got '1_0'"),
    "nan": ("token,x\na,1\nb,nan\n", 3, "expected a finite number, got 'nan'"),
    "infinity": ("token,x\na,-inf\n", 2, "expected a finite number, got '-inf'"),
    "too large for float32": ("token,x\na,1e39\n", 2, "expected a finite number, got '1e39'"),
    "empty token": ("token,x\n ,1\n", 2, "expected a token in the first column, got none"),
    "line after blank lines": ("token,x\n\na,1\n \nb,c\n", 5, "expected a finite number, got 'c'"),
    "line after Windows line ends": ("token,x\r\na,1\r\nb,c\r\n", 3, "expected a finite number, got 'c'"),
    "quote left open": ('token,x\n"a,1\nb,2\n', 2, "expected fields between commas, a quoted one with both its quotes"),
    "text after a quote": ('token,x\n"a"b,1\n', 2, "expected fields between commas, a quoted one with both its quotes"),
    "not UTF-8": (b"token,x\na,1\ncaf\xe9,2\n", 3, "expected text saved as UTF-8, got the byte 0xe9"),
    "UTF-16 below a blank line": (
        b"\n" + "token,x\na,1\n".encode("utf-16"),
        2,
        "expected text saved as UTF-8, got the byte 0xff",
    ),
    "UTF-16": ("token,x\na,1\n".encode("utf-16"), 1, "expected text saved as UTF-8, got the byte 0xff"),
}


@pytest.mark.parametrize(("content", "line", "reason"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_sentence_names_file_line_and_reason(write, content, line, reason):
    write(content)
    with pytest.raises(ValueError, match=re.escape(f"data/sentences/mine.csv, line {line}: {reason}")):
        load_sentence("mine")


WELL_FORMED = {
    "byte order mark": (b"\xef\xbb\xbftoken,x\na,1\n", ["a"]),
    "Windows line ends": ("token,x\r\na,1\r\n", ["a"]),
    "no line end at the end": ("token,x\na,1", ["a"]),
    "blank lines": ("\ntoken,x\n\na,1\n  \nb,2\n\n", ["a", "b"]),
    "the same token twice": ("token,x\nthe,1\nthe,2\n", ["the", "the"]),
    "comma in quotes": ('token,x\n",",1\n', [","]),
    "quotes in quotes": ('token,x\n"say ""a""",1\n', ['say "a"']),
    "other alphabets": ("token,x\nθ,1\nсло́во,2\n", ["θ", "сло́во"]),
    "line separator of Unicode": ("token,x\na\u2028b,1\n", ["a\u2028b"]),
    "spaces around fields": ("token,x\n a , 1 \n", ["a"]),
}


@pytest.mark.parametrize(("content", "tokens"), WELL_FORMED.values(), ids=WELL_FORMED)
def test_well_formed_sentence(write, content, tokens):
    write(content)
    loaded, inputs = load_sentence("mine")
    assert loaded == tokens
    assert inputs.tolist() == [[float(place)] for place in range(1, len(tokens) + 1)]
    assert inputs.dtype == torch.float32


def test_sentences_have_the_published_vectors():
    assert torch.equal(load_sentence("journey")[1], load_published("000.inputs"))
    assert torch.equal(load_sentence("attention")[1], load_published("002.inputs"))
    assert torch.equal(load_sentence("positions")[1], load_published("001.embeddings")[0])


@pytest.mark.parametrize(
    "name",
    ["nope", "", ".", "..", "other.csv", "OTHER ", "../sentences/other", "sentences/other", "/other", "*", "a\0b"],
)
def test_unknown_sentence_lists_the_known_ones(write, name):
    write("token,x\na,1\n")
    with pytest.raises(ValueError, match=re.escape(f"unknown sentence {name!r}; known: mine, other")):
        load_sentence(name)


@pytest.mark.parametrize("name", ["005.queries", "queries", "", ".queries", "../published/000.queries", "0.queries"])
def test_unknown_document_lists_the_known_ones(name):
    document = name.partition(".")[0]
    message = f"unknown published document {document!r}; known: 000, 001, 002, 003, 004"
    with pytest.raises(ValueError, match=re.escape(message)):
        load_published(name)


@pytest.mark.parametrize("step", ["query", "", "Queries", "queries.values", " queries"])
def test_unknown_step_lists_the_known_ones(step):
    message = f"unknown step {step!r} in document 002; known: inputs, queries, keys, values, scores, weights, "
    with pytest.raises(ValueError, match=re.escape(message)):
        load_published(f"002.{step}")


@pytest.mark.parametrize("name", [None, 0, 0.0, b"journey", ["journey"], Path("journey")])
def test_name_must_be_a_str(name):
    came = re.escape(f"must be a str, got {name!r} of type {type(name).__name__}")
    with pytest.raises(TypeError, match=f"the name of a sentence {came}"):
        load_sentence(name)
    with pytest.raises(TypeError, match=f"the name of a published tensor {came}"):
        load_published(name)


def test_loaded_tensors_do_not_share_memory():
    load_published("000.inputs").zero_()
    load_sentence("journey")[1].zero_()
    assert load_published("000.inputs").any()
    assert load_sentence("journey")[1].any()


def test_loaded_numbers_are_float32_whatever_the_default():
    torch.set_default_dtype(torch.float64)
    try:
        assert load_sentence("journey")[1].dtype == torch.float32
        assert load_published("004.a").dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_largest_float32_is_a_number(write):
    largest = torch.finfo(torch.float32).max
    write(f"token,x\na,{largest!r}\n")
    assert load_sentence("mine")[1].item() == largest
