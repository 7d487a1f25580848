"""What the package promises as a whole: docstrings, signatures, what an import costs and leaves behind."""

import importlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import attention_core
from attention_core import plots

FOLDER = Path(attention_core.__file__).parent
PUBLIC = {name: getattr(attention_core, name) for name in attention_core.__all__}
PICTURES = {name: getattr(plots, name) for name in ("heatmap", "head_grid", "word_vectors", "curves")}
DOCUMENTED = {**PUBLIC, **PICTURES}
WITHOUT_FORMULA = {"load_sentence", "load_published", "check_parameters", *PICTURES}
WITHOUT_SOURCE = {*WITHOUT_FORMULA, "padding_mask"}
WITHOUT_RESULT = {"check_parameters"}
LESSON_PLACES = re.compile(r"(?:Built|First used|Shown) in notebooks? ([\d, and]+)\.")
MODULES = {path.stem for path in FOLDER.glob("*.py")} - {"__init__", "plots"}


def lines(name):
    return inspect.getdoc(DOCUMENTED[name]).splitlines()


# Docstrings


@pytest.mark.parametrize("name", DOCUMENTED)
def test_docstring_is_short_and_starts_with_what_it_does(name):
    first, second, *_ = lines(name)
    assert len([line for line in lines(name) if line.strip()]) <= 15
    assert re.fullmatch(r"[A-Z].*\.", first)
    assert not re.match(r"(\w+s|This|The|A|An|Function|Class|Returns?) ", first), "an imperative: Score, not Scores"
    assert second == ""


@pytest.mark.parametrize("name", DOCUMENTED)
def test_docstring_has_its_parts_in_order(name):
    text = "\n".join(lines(name))
    parts = ["Args:", "Returns:", "Raises:", "\n>>> ", "in notebook"]
    places = [text.find(part) for part in parts if not (part == "Returns:" and name in WITHOUT_RESULT)]
    assert min(places) > 0
    assert places == sorted(places)
    assert name in WITHOUT_SOURCE or re.search(r"^Source: .+\d{4}.*\.", text, re.MULTILINE)
    assert name in WITHOUT_FORMULA or re.search(r"^\S.* = \S", text[: text.find("Args")], re.MULTILINE)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_docstring_names_every_argument(name):
    text = "\n".join(lines(name))
    described = text[text.find("Args:") : text.find("Raises:")]
    if name == "FusedMultiHeadAttention":
        assert "those of `MultiHeadAttention`" in described
        return
    for parameter in inspect.signature(DOCUMENTED[name]).parameters:
        assert re.search(rf"\b{parameter}\b", described), parameter


@pytest.mark.parametrize("name", DOCUMENTED)
def test_docstring_names_lessons_that_exist(name):
    named = re.findall(r"\d+", LESSON_PLACES.search("\n".join(lines(name)))[1])
    assert named
    folder = FOLDER.parent / "notebooks"
    assert all(list(folder.glob(f"{number}_*.ipynb")) for number in named)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_signature_is_typed(name):
    documented = DOCUMENTED[name]
    functions = [documented]
    if inspect.isclass(documented):
        functions = [documented.__init__, documented.forward, documented.attention_weights]
    for function in functions:
        signature = inspect.signature(function)
        untyped = [p for p in signature.parameters.values() if p.annotation is p.empty and p.name != "self"]
        assert not untyped
        assert signature.return_annotation is not signature.empty


# Surface


def test_everything_public_is_listed_in_order():
    assert attention_core.__all__ == sorted(attention_core.__all__)
    defined = {
        name
        for module in MODULES - {"_checks"}
        for name, value in vars(importlib.import_module(f"attention_core.{module}")).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == f"attention_core.{module}"
    }
    assert set(attention_core.__all__) == defined


def test_package_says_that_it_is_typed():
    assert (FOLDER / "py.typed").is_file()


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_no_prints_in_the_package(path):
    assert not re.search(r"^\s*print\(", path.read_text("utf-8"), re.MULTILINE)


# Import

AFTER_IMPORT = """
import json, random, sys, warnings
import numpy as np, torch

def state():
    return [
        torch.get_rng_state().tolist(), repr(random.getstate()), np.random.get_state()[1].tolist(),
        str(torch.get_default_dtype()), str(torch.get_default_device()), torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(), torch.get_num_threads(),
        repr(torch._tensor_str.PRINT_OPTS), repr(np.get_printoptions()), repr(warnings.filters),
    ]

before, loaded = state(), set(sys.modules)
import attention_core
print(json.dumps([state() == before, sorted(set(sys.modules) - loaded)]))
"""


@pytest.mark.slow
def test_import_is_cheap_and_leaves_nothing_behind():
    """What costs time in an import is other modules: beyond those of PyTorch there are three small ones."""
    done = subprocess.run([sys.executable, "-c", AFTER_IMPORT], capture_output=True, text=True, check=True)
    unchanged, modules = json.loads(done.stdout)
    assert done.stderr == ""
    assert unchanged, "random state, settings and warning filters are the caller's"
    ours = {name for name in modules if name.partition(".")[0] == "attention_core"}
    assert ours == {"attention_core"} | {f"attention_core.{module}" for module in MODULES}
    assert set(modules) - ours <= {"_csv", "csv", "tomllib", "tomllib._parser", "tomllib._re", "tomllib._types"}


@pytest.mark.slow
def test_pictures_are_imported_on_their_own():
    code = "import sys, attention_core; print('matplotlib' in sys.modules, 'IPython' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_random_numbers_are_drawn_by_layers_only():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    attention_core.causal_mask(3)
    attention_core.dropout_keep_mask((2, 3), 0.5, seed=1)
    attention_core.load_sentence("journey")
    attention_core.SelfAttentionV1(2, 3)
    assert torch.get_rng_state().tolist() != before.tolist()
    torch.manual_seed(0)
    attention_core.causal_mask(3)
    attention_core.dropout_keep_mask((2, 3), 0.5, seed=1, stream="mkl")
    attention_core.load_published("000.queries")
    assert torch.equal(torch.get_rng_state(), before)


# Parameters of the lessons

GOOD = [
    {},
    {"sentence": "journey", "seed": 0, "d_out": 1},
    {"seed": 2**32 - 1, "other_seed": 5, "num_heads": 64, "dropout_p": 0.0},
]
BAD = {
    "sentence": ({"sentence": "Journey"}, ValueError, "unknown sentence 'Journey'; known: "),
    "sentence None": ({"sentence": None}, TypeError, "the name of a sentence must be a str, got None of type NoneType"),
    "seed": ({"seed": -1}, ValueError, "seed must be at least 0, got -1"),
    "large seed": ({"v2_seed": 2**32}, ValueError, "v2_seed must be at most 4294967295, got 4294967296"),
    "seed as text": ({"seed": "1"}, TypeError, "seed must be an int, got '1' of type str"),
    "dropout": ({"dropout_p": 1.0}, ValueError, "dropout_p is the share dropped and must be in [0, 1), got 1.0"),
    "size": ({"d_out": 0}, ValueError, "d_out must be at least 1, got 0"),
    "large size": ({"d_out": 65}, ValueError, "d_out must be at most 64, got 65"),
    "float size": ({"num_heads": 2.0}, TypeError, "num_heads must be an int, got 2.0 of type float"),
    "bool size": ({"num_heads": True}, TypeError, "num_heads must be an int, got True of type bool"),
    "second of two": ({"d_out": 2, "seed": None}, TypeError, "seed must be an int, got None of type NoneType"),
}


@pytest.mark.parametrize("parameters", GOOD, ids=str)
def test_parameters_in_range(parameters):
    assert attention_core.check_parameters(**parameters) is None


@pytest.mark.parametrize(("parameters", "kind", "message"), BAD.values(), ids=BAD)
def test_parameters_out_of_range(parameters, kind, message):
    with pytest.raises(kind, match=f"^{re.escape(message)}"):
        attention_core.check_parameters(**parameters)
