"""The checker: right solutions pass, each known mistake is named by its own sentence, nothing breaks it."""

import asyncio
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from exercises_careless import CARELESS
from exercises_right import RIGHT
from torch import Tensor

from attention_core.exercises import EXERCISES, Result, check, evaluate, recorded
from attention_core.exercises import _check as check_module
from attention_core.exercises._compare import same
from attention_core.exercises._diagnose import _committed, _pairs
from attention_core.exercises._picture import beside

pytestmark = pytest.mark.slow

FIXED = {
    "01.dot_product": "a b",
    "01.dot_product_scores": "queries keys",
    "01.project": "x W_query W_key W_value",
    "02.scale_scores": "scores head_dim",
    "02.scaled_scores": "queries keys",
    "02.entropy": "weights",
    "03.softmax": "scores",
    "03.attention_weights": "queries keys",
    "03.context_vectors": "weights values",
    "03.self_attention": "x W_query W_key W_value",
    "04.causal_mask": "num_tokens",
    "04.masked_softmax": "scores mask",
    "04.causal_attention": "queries keys values",
    "05.apply_dropout": "weights keep dropout_p",
    "05.dropout": "weights dropout_p training generator",
    "06.split_heads": "x num_heads",
    "06.merge_heads": "x",
    "06.stack_projections": "head_weights",
    "06.multi_head_attention": "x W_query W_key W_value W_out num_heads",
}
MISTAKES = [(name, number) for name, exercise in EXERCISES.items() for number in range(len(exercise.mistakes))]
SOLUTIONS = [(name, number) for name in EXERCISES for number in range(len(RIGHT[name]))]
ALL = list(EXERCISES)


@cache
def tried(name: str, kind: str, number: int) -> Result:
    functions = RIGHT[name] if kind == "right" else [mistake.commit for mistake in EXERCISES[name].mistakes]
    return evaluate(name, functions[number])


def test_the_promised_exercises_are_there() -> None:
    assert {name: " ".join(EXERCISES[name].arguments) for name in FIXED} == FIXED
    lessons = [exercise.lesson for exercise in EXERCISES.values()]
    assert {lesson: 3 <= lessons.count(lesson) <= 6 for lesson in lessons} == dict.fromkeys(sorted(set(lessons)), True)
    assert all(f"{lesson}.find_the_mistake" in EXERCISES for lesson in lessons)


def test_rates(capsys: pytest.CaptureFixture[str]) -> None:
    named = sum(tried(name, "wrong", i).mistake == EXERCISES[name].mistakes[i].name for name, i in MISTAKES)
    accepted = sum(tried(name, "right", i).status == "right" for name, i in SOLUTIONS)
    careless = sum(evaluate(name, function).mistake == mistake for name, function, mistake in CARELESS)
    with capsys.disabled():
        print(
            f"\nexercises: {len(ALL)}; known mistakes named by their own sentence: {named} of {len(MISTAKES)}; "
            f"careless solutions told their mistake: {careless} of {len(CARELESS)}; "
            f"right solutions accepted: {accepted} of {len(SOLUTIONS)}"
        )
    assert len(MISTAKES) >= 60
    assert (named, accepted) == (len(MISTAKES), len(SOLUTIONS))


@pytest.mark.parametrize("name", ALL)
def test_each_mistake_is_told_by_its_own_sentence(name: str) -> None:
    for number, mistake in enumerate(EXERCISES[name].mistakes):
        result = tried(name, "wrong", number)
        assert (result.status, result.mistake) == ("wrong", mistake.name)
        assert " ".join(mistake.says.split()) in " ".join(result.message.split())


@pytest.mark.parametrize("name", ALL)
def test_the_sentences_of_an_exercise_differ(name: str) -> None:
    mistakes = EXERCISES[name].mistakes
    assert len({mistake.name for mistake in mistakes}) == len({mistake.says for mistake in mistakes}) == len(mistakes)


@pytest.mark.parametrize("name", ALL)
def test_the_reference_and_every_right_solution_pass(name: str) -> None:
    assert len(RIGHT[name]) >= 2
    for result in (
        evaluate(name, EXERCISES[name].reference),
        *(tried(name, "right", i) for i in range(len(RIGHT[name]))),
    ):
        assert result.status == "right", result.message
        assert result.message.startswith(f"Right: {name}. Tried on {len(EXERCISES[name].cases())} inputs")


@pytest.mark.parametrize("name", ALL)
def test_a_mistake_is_far_from_right(name: str) -> None:
    for mistake, trials in _committed(EXERCISES[name])[: len(EXERCISES[name].mistakes)]:
        assert any(not trial.right for trial in trials), mistake.name
        for trial in trials:
            if trial.answer is None or same(trial.answer, trial.expected):
                continue
            gaps = [
                _gap(trial.answer[key], expected) for key, expected in trial.expected.items() if key in trial.answer
            ]
            assert not gaps or max(gaps) > 2e-4, (mistake.name, trial.case.name, max(gaps))


def _gap(a: Tensor, b: Tensor) -> float:
    if a.shape != b.shape or a.dtype == torch.bool or b.dtype == torch.bool:
        return 1.0
    apart = torch.where(a == b, 0.0, (a.double() - b.double()).abs()).nan_to_num(1.0, posinf=1.0)
    return apart.max().item() / (1 + b.nan_to_num(0.0, 0.0, 0.0).abs().max().item())


def test_hidden_inputs_hide_no_mistake() -> None:
    yes_or_no = {"answer"}
    for exercise in EXERCISES.values():
        for case in exercise.cases():
            for argument in case.arguments:
                tensors = argument if isinstance(argument, list) else [argument]
                for tensor in tensors:
                    if isinstance(tensor, Tensor) and tensor.numel() > 1 and not yes_or_no & set(exercise.gives):
                        where = f"{exercise.id}, {case.name}"
                        assert tensor.unique().numel() > 1, f"constant: {where}"
                        square = tensor.dim() >= 2 and tensor.shape[-1] == tensor.shape[-2]
                        assert not (square and torch.equal(tensor, tensor.mT)), f"symmetric: {where}"


def test_yes_or_no_exercises_have_inputs_of_both_sorts() -> None:
    for exercise in EXERCISES.values():
        if exercise.gives == ("answer",):
            assert {exercise.reference(*case.arguments) for case in exercise.cases()} == {True, False}, exercise.id


def test_hidden_inputs_are_the_same_every_time() -> None:
    for exercise in EXERCISES.values():
        for one, two in zip(exercise.cases(), exercise.cases(), strict=True):
            for a, b in zip(one.arguments, two.arguments, strict=True):
                assert not isinstance(a, Tensor) or torch.equal(a, b)


def test_two_mistakes_at_once_are_both_named() -> None:
    pairs = [(name, pair) for name, exercise in EXERCISES.items() for pair in _pairs(exercise.mistakes)]
    assert len(pairs) > 300
    for name, pair in pairs:
        told = evaluate(name, pair.commit).mistake
        equal_to_one = told in {mistake.name for mistake in EXERCISES[name].mistakes}
        assert equal_to_one or set(told.split(" + ")) & set(pair.name.split(" + ")), (name, pair.name, told)


@pytest.mark.parametrize(("name", "function", "mistake"), CARELESS)
def test_a_careless_solution_is_told_its_mistake(name: str, function: Callable[..., Any], mistake: str) -> None:
    result = evaluate(name, function)
    assert (result.status, result.mistake) == ("wrong", mistake), result.message


def test_unscaled_over_the_wrong_axis() -> None:
    result = evaluate("03.attention_weights", lambda queries, keys: torch.softmax(queries @ keys.mT, dim=-2))
    assert result.mistake == "not scaled + softmax over the queries"
    assert "Two things at once" in result.message


def test_a_known_mistake_transposed() -> None:
    result = evaluate("03.attention_weights", lambda queries, keys: torch.softmax(queries @ keys.mT, dim=-1).mT)
    assert result.mistake == "not scaled + transposed"


# General properties, for answers that no known mistake gives


@pytest.mark.parametrize(
    ("name", "function", "mistake"),
    [
        ("03.softmax", lambda s: 3 * torch.softmax(s, -1), "rows do not sum to 1"),
        ("03.softmax", lambda s: torch.softmax(3 * s, -1), "other weights"),
        ("03.attention_weights", lambda q, k: torch.full((q.shape[-2], k.shape[-2]), torch.nan), "NaN"),
        ("03.context_vectors", lambda w, v: w @ v / 0.0, "infinity"),
        ("01.dot_product_scores", lambda q, k: 3 * (q @ k.mT), "constant factor"),
        ("01.dot_product_scores", lambda q, k: -(q @ k.mT), "sign"),
        ("01.dot_product_scores", lambda q, k: q @ k.mT + 1, "constant added"),
        ("01.dot_product_scores", lambda q, k: (q @ k.mT).flip(-1), "right numbers, wrong places"),
        ("01.dot_product_scores", lambda q, k: (q @ k.mT).unsqueeze(0), "shape"),
        ("01.dot_product_scores", lambda q, k: (q @ k.mT).round(decimals=2), "nearly right"),
        ("02.scale_scores", lambda s, d: torch.cat([s[..., :1, :] / d, s[..., 1:, :] / d**0.5], -2), "some rows"),
        ("04.causal_mask", lambda n: torch.ones(n, n).tril().bool() ^ (torch.arange(n) > 1), "some entries"),
        ("04.masked_softmax", lambda s, m: torch.softmax(s, -1) * 2, "rows do not sum to 1"),
        ("06.merge_heads", lambda x: x.transpose(-3, -2).flatten(-2).sort().values, "right numbers, wrong places"),
        ("01.dot_product", lambda a, b: (a @ b) ** 2, "differs"),
    ],
)
def test_general_properties(name: str, function: Callable[..., Any], mistake: str) -> None:
    result = evaluate(name, function)
    assert (result.status, result.mistake) == ("wrong", mistake), result.message


def test_a_changed_argument_is_told() -> None:
    def function(queries: Tensor, keys: Tensor) -> Tensor:
        scores = queries @ keys.mT
        keys.zero_()
        return scores

    result = evaluate("01.dot_product_scores", function)
    assert result.mistake == "argument changed"
    assert "its argument keys" in result.message


def test_wrong_with_a_batch_only() -> None:
    result = evaluate("02.scale_scores", lambda s, d: s / d**0.5 if s.dim() == 2 else (s / d**0.5).sin())
    assert "batch" in result.message


def test_a_wrong_answer_is_shown_beside_the_expected_one() -> None:
    message = evaluate("04.causal_mask", lambda n: torch.ones(n, n, dtype=torch.bool).triu()).message
    assert message.splitlines()[:3] == [
        "Not right yet: 04.causal_mask",
        "Tried on 5 inputs, 1 of them right. The simplest that is not: 2 tokens.",
        "  num_tokens = 2",
    ]
    assert "Your answer has shape (2, 2), expected is (2, 2)." in message
    assert "  [ True   True]    [ True  False]" in message
    assert "First difference, at [0, 1]: yours True, expected False." in message


# Not written yet


def _raise(x: Any) -> Any:
    raise NotImplementedError


def _pass(x: Any) -> Any:
    pass


def _dots(x: Any) -> Any:
    """A docstring."""
    ...


@pytest.mark.parametrize("stub", [_raise, _pass, _dots, lambda x: None, lambda x: ...])
@pytest.mark.parametrize("name", ["03.softmax", "06.merge_heads", "04.causal_mask"])
def test_a_stub_is_open(name: str, stub: Callable[..., Any]) -> None:
    result = evaluate(name, stub)
    assert (result.status, result.mistake) == ("open", "")
    assert "not done yet" in result.message
    assert "Traceback" not in result.message


def test_a_forgotten_return_is_not_open() -> None:
    def softmax(scores: Tensor) -> None:
        weights = torch.softmax(scores, dim=-1)  # noqa: F841

    result = evaluate("03.softmax", softmax)
    assert result.status == "wrong"
    assert "Is a `return` missing" in result.message


def test_an_error_from_inside_torch_is_not_open() -> None:
    def softmax(scores: Tensor) -> Tensor:
        raise NotImplementedError("this operator is not there")[0]  # type: ignore[index]

    assert evaluate("03.softmax", softmax).status == "wrong"


# Errors of the student's code


def test_an_error_is_shown_with_its_line() -> None:
    def softmax(scores: Tensor) -> Tensor:
        shifted = scores - scores.max()
        return shifted.no_such_thing()

    message = evaluate("03.softmax", softmax).message
    assert "Your code stopped with an error:" in message
    assert "return shifted.no_such_thing()" in message
    assert "AttributeError: 'Tensor' object has no attribute 'no_such_thing'" in message
    assert "Traceback" not in message
    assert __file__ not in message


class BrokenText(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise ValueError("no text")


class BrokenTensor(Tensor):
    @classmethod
    def __torch_function__(cls, *arguments: Any, **more: Any) -> Any:
        raise RuntimeError("touched")


def _raiser(error: BaseException) -> Callable[..., Any]:
    def raises(*arguments: Any) -> Any:
        raise error

    return raises


def _recurse(*arguments: Any) -> Any:
    return _recurse(*arguments)


def _generate(*arguments: Any) -> Any:
    yield arguments


async def _wait(*arguments: Any) -> Any:
    await asyncio.sleep(0)


GARBAGE: dict[str, Callable[..., Any]] = {
    "None": lambda *a: None,
    "a string": lambda *a: "tensor([1.])",
    "bytes": lambda *a: b"1",
    "a class": lambda *a: Tensor,
    "an object": lambda *a: object(),
    "a function": lambda *a: torch.softmax,
    "a dict": lambda *a: {"x": 1},
    "a set": lambda *a: {1, 2},
    "an empty list": lambda *a: [],
    "an empty tensor": lambda *a: torch.empty(0),
    "a ragged list": lambda *a: [[1.0], [1.0, 2.0]],
    "a nested list": lambda *a: [[[[[[1.0]]]]]],
    "a list that holds itself": lambda *a: (lambda x: (x.append(x), x)[1])([]),
    "a tuple of None": lambda *a: (None, None, None),
    "complex": lambda *a: torch.ones(2, 3, dtype=torch.complex64),
    "sparse": lambda *a: torch.eye(3).to_sparse(),
    "integers": lambda *a: torch.ones(2, 3, dtype=torch.int64),
    "a number": lambda *a: 7,
    "infinity": lambda *a: float("inf"),
    "NaN": lambda *a: torch.full((2, 3), torch.nan),
    "meta": lambda *a: torch.empty(2, 3, device="meta"),
    "huge": lambda *a: torch.zeros(1).expand(10**6, 10**6),
    "float16": lambda *a: torch.ones(2, 3, dtype=torch.float16),
    "an array of objects": lambda *a: np.array([None, "x"], dtype=object),
    "a broken tensor": lambda *a: torch.ones(2, 3).as_subclass(BrokenTensor),
    "a nested tensor": lambda *a: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "a quantized tensor": lambda *a: torch.quantize_per_tensor(torch.ones(2, 3), 0.1, 0, torch.qint8),
    "a generator": _generate,
    "a coroutine": _wait,
    "a class to call": dict,
    "exit": lambda *a: sys.exit(0),
    "an interrupt": _raiser(KeyboardInterrupt()),
    "a broken error": _raiser(BrokenText()),
    "an error of unreadable text": _raiser(ValueError("\x00\ud800")),
    "recursion": _recurse,
    "wrong arity": lambda: 1,
    "too many arguments": lambda a, b, c, d, e, f, g, h: 1,
    "no function": None,  # type: ignore[dict-item]
    "a tensor instead of a function": torch.ones(2),  # type: ignore[dict-item]
}


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_is_wrong_in_every_exercise_and_breaks_nothing(garbage: str) -> None:
    for name in EXERCISES:
        result = evaluate(name, GARBAGE[garbage])
        says_nothing = garbage in ("None", "a tuple of None")
        assert result.status == "wrong" or (says_nothing and result.status == "open"), result.message
        assert result.mistake != "checker failed", result.message
        assert "Traceback" not in result.message
        assert "0x7" not in result.message


def _loop(*arguments: Any) -> Any:
    while True:
        pass


def _stubborn_loop(*arguments: Any) -> Any:
    for _ in range(3):
        try:
            while True:
                pass
        except BaseException:
            pass
    raise ValueError("stopped at last")


@pytest.mark.parametrize("loop", [_loop, _stubborn_loop])
def test_an_endless_loop_is_stopped(loop: Callable[..., Any]) -> None:
    result = evaluate("03.softmax", loop, seconds=0.2)
    assert (result.status, result.mistake) == ("wrong", "endless")


def test_an_endless_loop_is_stopped_outside_the_main_thread() -> None:
    results = []
    thread = threading.Thread(target=lambda: results.append(evaluate("03.softmax", _loop, seconds=0.2)))
    thread.start()
    thread.join(timeout=30)
    assert [result.mistake for result in results] == ["endless"]


def test_the_functions_side_effects_stay_inside(capsys: pytest.CaptureFixture[str]) -> None:
    def function(scores: Tensor) -> Tensor:
        print("looking at", tuple(scores.shape))
        torch.manual_seed(1), np.random.seed(1), random.seed(1)
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        return torch.softmax(scores, dim=-1) + 0.1

    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # type: ignore[index]
    message = evaluate("03.softmax", function).message
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])  # type: ignore[index]
    assert random.getstate() == states[2]
    assert torch.get_default_dtype() == torch.float32
    assert torch.is_grad_enabled()
    assert capsys.readouterr().out == ""
    assert "Your function printed:\n  looking at (1, 1)" in message


def test_a_print_does_not_spoil_a_right_answer() -> None:
    def function(scores: Tensor) -> Tensor:
        print("x" * 100_000)
        sys.stdout.close()
        return torch.softmax(scores, dim=-1)

    result = evaluate("03.softmax", function)
    assert result.status == "right"
    assert len(result.message) < 1000


def test_wrong_arity_is_said() -> None:
    message = evaluate("04.masked_softmax", lambda scores: scores).message
    assert "Your function takes (scores). The exercise calls it with 2 arguments: (scores, mask)." in message


# check: what the student sees


@pytest.fixture
def nothing_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_module, "_recorded", {})


@pytest.mark.usefixtures("nothing_checked")
def test_check_prints_and_returns_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert check("04.causal_mask", RIGHT["04.causal_mask"][0]) is None
    assert capsys.readouterr().out.startswith("Right: 04.causal_mask. Tried on 5 inputs: one token; 2 tokens")
    assert recorded()["04.causal_mask"].status == "right"


@pytest.mark.parametrize("name", [name for name, exercise in EXERCISES.items() if exercise.picture])
def test_every_picture_can_be_drawn(name: str) -> None:
    for number in range(len(EXERCISES[name].mistakes)):
        result = tried(name, "wrong", number)
        if result.given is not None and result.expected is not None:
            picture = beside(result.expected, result.given, result.picture)
            assert "cells differ" in picture.description
            assert picture.png().startswith(b"\x89PNG")
            break


@pytest.mark.usefixtures("nothing_checked")
def test_progress(capsys: pytest.CaptureFixture[str]) -> None:
    check()
    assert "Nothing has been checked yet" in capsys.readouterr().out
    check("04.causal_mask", RIGHT["04.causal_mask"][0])
    check("04.masked_softmax", lambda scores, mask: scores)
    check("04.causal_attention", _raiser(NotImplementedError()))
    capsys.readouterr()
    check()
    assert capsys.readouterr().out.splitlines() == [
        "Lesson 04: 1 of 5 done",
        "  done   04.causal_mask",
        "  wrong  04.masked_softmax",
        "  open   04.causal_attention",
        "  open   04.find_the_mistake",
        "  open   04.sees_the_future",
    ]


@pytest.mark.usefixtures("nothing_checked")
@pytest.mark.parametrize(
    "arguments", [("04.nothing", len), ("99",), ("04.causal_mask",), (None, len), (3, 4), ([], {})]
)
def test_check_used_wrongly_says_so(arguments: Any, capsys: pytest.CaptureFixture[str]) -> None:
    check(*arguments)
    out = capsys.readouterr().out
    assert "There is no exercise" in out or "give your function too" in out


def test_the_package_does_not_import_the_exercises() -> None:
    code = "import sys, attention_core; sys.exit('attention_core.exercises' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_messages_are_the_same_every_time() -> None:
    for name, exercise in EXERCISES.items():
        wrong = partial(exercise.mistakes[-1].commit)
        assert evaluate(name, wrong).message == evaluate(name, wrong).message
