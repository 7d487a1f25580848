"""`check`: try a student's function on the hidden inputs of its exercise and say in words what came of it."""

import sys
import textwrap
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attention_core.exercises._compare import (
    GIVES_DOTS,
    GIVES_NONE,
    Answer,
    entry,
    first_difference,
    lines_of,
    same_tensor,
)
from attention_core.exercises._diagnose import Diagnosis, Trial, attempt, diagnose, prepared
from attention_core.exercises._lessons import EXERCISES, of_lesson
from attention_core.exercises._run import StudentError, arity_problem, does_nothing
from attention_core.exercises._spec import Exercise, Result

SECONDS = 10.0
WIDTH = 100

_recorded: dict[str, Result] = {}


def check(exercise: str | None = None, function: Any = ...) -> None:
    """Try your function, and print whether it is right or what is probably wrong with it.

    Args:
        exercise: the exercise's name, such as "04.causal_mask". Alone, a lesson's number ("04") lists that lesson's
            exercises, done, wrong or open; without any argument, those of the lessons that you have worked on.
        function: your function, without brackets.
    """
    if function is ...:
        print(_overview(exercise))
        return
    result = evaluate(str(exercise), function)
    if result.exercise in EXERCISES:
        _recorded[result.exercise] = result
    print(result.message)
    _show_picture(result)


def recorded() -> dict[str, Result]:
    """What the checks of this session came to: the last result of each exercise."""
    return dict(_recorded)


def evaluate(exercise: str, function: Any, *, seconds: float = SECONDS) -> Result:
    """Try `function` on the hidden inputs of an exercise. Prints nothing and never raises.

    Args:
        exercise: its id.
        function: what the student handed in, whatever it is.
        seconds: how long all calls together may take.
    Returns: a Result.
    """
    if exercise not in EXERCISES:
        return Result(exercise, "wrong", "no such exercise", _unknown(exercise))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the inputs are tiny: on a busy machine threads cost far more than they save
    try:
        return _evaluate(EXERCISES[exercise], function, seconds)
    except Exception as error:
        says = (
            f"The checker itself failed on this answer ({type(error).__name__}), which says nothing about "
            f"your function."
        )
        return Result(exercise, "wrong", "checker failed", f"{exercise}: {says}")
    finally:
        torch.set_num_threads(threads)


def _evaluate(exercise: Exercise, function: Any, seconds: float) -> Result:
    if function is None or not callable(function):
        return _wrong(exercise, "no function", [_not_callable(exercise, function)])
    problem = arity_problem(function, exercise.arguments)
    if problem:
        return _wrong(exercise, "wrong arguments", [problem])
    trials = _try_all(exercise, function, seconds)
    if _is_open(trials[0], function):
        says = "not done yet.\nReplace `raise NotImplementedError` by your own lines, and run the cell again."
        return Result(exercise.id, "open", "", f"{exercise.id}: {says}")
    wrong = [trial for trial in trials if not trial.right]
    if not wrong:
        return _right(exercise, trials)
    first = min(wrong, key=lambda trial: trial.size)
    return _explain(exercise, trials, first, seconds)


def _try_all(exercise: Exercise, function: Callable[..., Any], seconds: float) -> list[Trial]:
    """One trial for each input, up to the first that runs out of time or is not written yet."""
    end = time.monotonic() + seconds
    trials: list[Trial] = []
    for case, expected in prepared(exercise):
        left = max(0.1, end - time.monotonic())
        trials.append(attempt(exercise, function, case, expected, left))
        error = trials[-1].call.error
        if trials[-1].call.timed_out or (
            error is not None and (error.not_written or error.kind == "KeyboardInterrupt")
        ):
            return trials[-1:]
    return trials


def _is_open(first: Trial, function: Any) -> bool:
    error = first.call.error
    if error is not None and error.not_written:
        return True
    return first.problem in (GIVES_NONE, GIVES_DOTS) and does_nothing(function)


def _right(exercise: Exercise, trials: list[Trial]) -> Result:
    names = "; ".join(trial.case.name for trial in trials)
    message = f"Right: {exercise.id}. Tried on {len(trials)} inputs: {names}."
    if any(trial.call.printed for trial in trials):
        message += " (What your function printed meanwhile is left out.)"
    return Result(exercise.id, "right", "", textwrap.fill(message, WIDTH, break_on_hyphens=False))


def _wrong(exercise: Exercise, mistake: str, lines: list[str]) -> Result:
    wrapped = [_wrap(line) if "\n" not in line else line for line in lines]
    return Result(exercise.id, "wrong", mistake, "\n".join([f"Not right yet: {exercise.id}", *wrapped]))


def _wrap(line: str) -> str:
    indent = " " * (len(line) - len(line.lstrip()))
    return textwrap.fill(line, WIDTH, subsequent_indent=indent, replace_whitespace=False) if line else line


def _explain(exercise: Exercise, trials: list[Trial], first: Trial, seconds: float) -> Result:
    right = sum(trial.right for trial in trials)
    head = f"Tried on {len(trials)} inputs, {right} of them right. The simplest that is not: {first.case.name}."
    if first.call.timed_out:
        says = f"Your function did not come back within {seconds:g} seconds and was stopped. Does a loop never end?"
        return _wrong(exercise, "endless", [f"Tried with: {first.case.name}.", says, *_printed(first)])
    lines = [head, *_arguments(exercise, first)]
    if first.problem:
        found = diagnose(exercise, trials, first)
        name, likely = (found.name, _likely(found)) if found.says else ("no answer", [])
        return _wrong(exercise, name, [*lines, first.problem, *likely, *_printed(first)])
    if first.call.error is not None:
        return _explain_error(exercise, trials, first, lines, first.call.error)
    assert first.answer is not None
    found = diagnose(exercise, trials, first)
    name, given, expected = _first_wrong(first)
    if exercise.observe is not None:
        lines += _facts(first)
    elif not same_tensor(given, expected):
        lines += _side_by_side(name, given, expected, many=len(first.expected) > 1)
    lines += [*_likely(found), *_printed(first)]
    result = _wrong(exercise, found.name, lines)
    picture = exercise.picture if not same_tensor(given, expected) else ""
    return _with_picture(result, given, expected, picture)


def _explain_error(
    exercise: Exercise, trials: list[Trial], first: Trial, lines: list[str], error: StudentError
) -> Result:
    if error.kind == "KeyboardInterrupt":
        return _wrong(exercise, "interrupted", ["Your function was interrupted before it gave an answer."])
    where = f"  line {error.line_number}: {error.line}" if error.line else f"  line {error.line_number}"
    shown = [*lines, "Your code stopped with an error:", *([where] if error.line_number else [])]
    shown.append("\n".join(f"  {line}" for line in f"{error.kind}: {error.text}".rstrip(": ").splitlines()))
    found = diagnose(exercise, trials, first)
    name = found.name if found.says else error.kind
    return _wrong(exercise, name, [*shown, *(_likely(found) if found.says else []), *_printed(first)])


def _likely(found: Diagnosis) -> list[str]:
    if found.says:
        return ["", f"What probably happened: {found.says}"]
    return ["", "This matches no mistake known here. Work the simplest input out by hand and compare each step."]


def _printed(trial: Trial) -> list[str]:
    text = trial.call.printed.strip()
    if not text:
        return []
    lines = text.splitlines()
    return ["", "Your function printed:", *(f"  {line[:WIDTH]}" for line in lines[:10]), *["  ..."] * (len(lines) > 10)]


def _arguments(exercise: Exercise, trial: Trial) -> list[str]:
    """The arguments of a trial: numbers where they are few, shapes otherwise."""
    lines = []
    for name, argument in zip(exercise.arguments, trial.case.arguments, strict=True):
        if isinstance(argument, Tensor):
            rows = lines_of(argument) if argument.numel() <= 16 else []
            lines += _indented(f"  {name} {tuple(argument.shape)}" + (" = " if rows else ""), rows)
        elif isinstance(argument, (bool, int, float)):
            lines.append(f"  {name} = {argument}")
        elif isinstance(argument, list):
            lines.append(f"  {name}: a list of {len(argument)}, shapes {[tuple(part.shape) for part in argument]}")
    return ["\n".join(lines)] if lines else []


def _indented(head: str, rows: list[str]) -> list[str]:
    return [head + (rows[0] if rows else ""), *(" " * len(head) + row for row in rows[1:])]


def _first_wrong(trial: Trial) -> tuple[str, Tensor, Tensor]:
    answer: Answer = trial.answer or {}
    for name, expected in trial.expected.items():
        if not same_tensor(answer[name], expected):
            return name, answer[name], expected
    name = next(iter(trial.expected))
    return name, answer[name], trial.expected[name]


def _facts(trial: Trial) -> list[str]:
    answer: Answer = trial.answer or {}
    wrong = [name for name, expected in trial.expected.items() if not same_tensor(answer[name], expected)]
    rows = [
        f"  {name}: yours {entry(answer[name], (), 2)}, expected {entry(trial.expected[name], (), 2)}" for name in wrong
    ]
    return ["What was looked at:", *rows]


def _side_by_side(name: str, given: Tensor, expected: Tensor, *, many: bool) -> list[str]:
    """Shapes first, then both answers where they are small, then the first entry that differs."""
    which = f" for {name}" if many else ""
    lines = [f"Your answer{which} has shape {tuple(given.shape)}, expected is {tuple(expected.shape)}."]
    mine, wanted = lines_of(given), lines_of(expected)
    if mine and wanted:
        lines.append(_columns(f"yours{which}", mine, f"expected{which}", wanted))
    if given.shape == expected.shape and given.dim() and (given.dtype == torch.bool) == (expected.dtype == torch.bool):
        place = first_difference(given, expected)
        digits = next((n for n in (4, 6, 8) if entry(given, place, n) != entry(expected, place, n)), 8)
        shown = ", ".join(str(i) for i in place)
        lines.append(
            f"First difference, at [{shown}]: yours {entry(given, place, digits)}, expected "
            f"{entry(expected, place, digits)}."
        )
    return lines


def _columns(left_title: str, left: list[str], right_title: str, right: list[str]) -> str:
    width = max(len(left_title), *(len(line) for line in left)) + 4
    height = max(len(left), len(right))
    rows = zip(
        [left_title, *left] + [""] * (height - len(left)),
        [right_title, *right] + [""] * (height - len(right)),
        strict=True,
    )
    return "\n".join(f"  {a.ljust(width)}{b}".rstrip() for a, b in rows)


def _not_callable(exercise: Exercise, function: Any) -> str:
    hint = f'check("{exercise.id}", {exercise.function_name})'
    if isinstance(function, Tensor):
        return f"You handed over a tensor. check calls your function itself, so give it without brackets: {hint}"
    return f"check needs your function, by its name and without brackets: {hint}. It got {type(function).__name__}."


def _unknown(exercise: str) -> str:
    lesson = exercise[:2]
    near = [known.id for known in of_lesson(lesson)] or list(EXERCISES)
    return f"There is no exercise {exercise[:60]!r}. Known: {', '.join(near)}"


def _overview(lesson: str | None) -> str:
    if lesson is not None and lesson in EXERCISES:
        name = EXERCISES[lesson].function_name
        return f'{lesson}: give your function too, without brackets: check("{lesson}", {name})'
    if lesson is not None and not of_lesson(str(lesson)):
        return _unknown(str(lesson))
    lessons = sorted({EXERCISES[name].lesson for name in _recorded}) if lesson is None else [lesson]
    if not lessons:
        return 'Nothing has been checked yet. check("04") lists the exercises of lesson 04.'
    return "\n".join(_lesson_overview(one) for one in lessons)


def _lesson_overview(lesson: str) -> str:
    marks = {"right": "done", "wrong": "wrong", "open": "open"}
    rows = [(marks[_recorded[e.id].status] if e.id in _recorded else "open", e.id) for e in of_lesson(lesson)]
    done = sum(mark == "done" for mark, _ in rows)
    head = f"Lesson {lesson}: {done} of {len(rows)} done"
    return "\n".join([head, *(f"  {mark:<6} {name}" for mark, name in rows)])


def _with_picture(result: Result, given: Tensor, expected: Tensor, picture: str) -> Result:
    if not picture or given.shape != expected.shape or expected.dim() < 2 or min(expected.shape[-2:]) < 2:
        return result
    if (given.dtype == torch.bool) != (expected.dtype == torch.bool) or max(expected.shape[-2:]) > 10:
        return result
    place = first_difference(given, expected)[:-2]
    return Result(
        result.exercise, result.status, result.mistake, result.message, given[place], expected[place], picture
    )


def _show_picture(result: Result) -> None:
    """Draw expected beside given, in a notebook only."""
    if result.given is None or result.expected is None or "ipykernel" not in sys.modules:
        return
    try:
        from attention_core.exercises._picture import beside
    except ImportError:
        return
    beside(result.expected, result.given, result.picture)._ipython_display_()
