"""Say what is probably wrong with an answer: a known mistake, two of them at once, a general property, or only where
the answer differs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import combinations

import torch
from torch import Tensor

from attention_core.exercises._compare import (
    Answer,
    UnreadableError,
    differing,
    number,
    read_answer,
    same,
    same_tensor,
)
from attention_core.exercises._run import Call, call
from attention_core.exercises._spec import Case, Exercise, Mistake


@dataclass(frozen=True)
class Trial:
    """What a function gave for one hidden input, beside what was expected."""

    case: Case
    expected: Answer
    call: Call
    answer: Answer | None
    problem: str

    @cached_property
    def right(self) -> bool:
        return self.answer is not None and same(self.answer, self.expected) and not self.call.changed

    @property
    def size(self) -> int:
        return sum(_size(argument) for argument in self.case.arguments)


@dataclass(frozen=True)
class Diagnosis:
    """The likely mistake: a few words for tables and the sentences for the student."""

    name: str
    says: str


def attempt(exercise: Exercise, function: Callable[..., object], case: Case, expected: Answer, seconds: float) -> Trial:
    """Try `function` on one input."""
    tried = function if exercise.observe is None else partial(exercise.observe, function)
    outcome = call(tried, case.arguments, seconds)
    if outcome.timed_out:
        return Trial(case, expected, outcome, None, "")
    if outcome.error is not None:
        problem = outcome.error.text if outcome.error.kind == UnreadableError.__name__ else ""
        return Trial(case, expected, outcome, None, problem)
    try:
        answer = read_answer(outcome.value, exercise.gives, observed=exercise.observe is not None)
    except UnreadableError as error:
        return Trial(case, expected, outcome, None, str(error))
    except Exception:
        return Trial(case, expected, outcome, None, "Your answer cannot be read as a tensor of numbers.")
    return Trial(case, expected, outcome, answer, "")


@cache
def prepared(exercise: Exercise) -> list[tuple[Case, Answer]]:
    """The hidden inputs with the expected answers."""
    return [(case, _expected_answer(exercise, case)) for case in exercise.cases()]


def _expected_answer(exercise: Exercise, case: Case) -> Answer:
    tried = exercise.reference if exercise.observe is None else partial(exercise.observe, exercise.reference)
    outcome = call(tried, case.arguments, seconds=60)
    if outcome.error is not None or outcome.changed:
        raise RuntimeError(f"the reference of {exercise.id} fails on {case.name!r}: {outcome.error}")
    return read_answer(outcome.value, exercise.gives, observed=exercise.observe is not None)


def diagnose(exercise: Exercise, trials: list[Trial], first: Trial) -> Diagnosis:
    """The likely mistake behind `trials`, of which `first` is the simplest wrong one."""
    known = _committed(exercise)
    for explains in (_explains_all, _explains_readable):
        for mistake, theirs in known:
            if explains(trials, theirs):
                return Diagnosis(mistake.name, mistake.says)
    single = [number for number, trial in enumerate(trials) if "batch" not in trial.case.name]
    for mistake, theirs in known:
        if _explains_readable([trials[number] for number in single], [theirs[number] for number in single]):
            return Diagnosis(mistake.name, f"{mistake.says} With a batch in front something else is wrong as well.")
    if first.answer is not None:
        found = _changed(exercise, first) or _turned(trials, known) or _only_some(trials) or _general(trials)
        if found is not None:
            return found
    if exercise.observe is not None:
        return Diagnosis("several properties", "each line above is a thing of its own to put right.")
    return _only_some(trials) or Diagnosis("differs", "")


@cache
def _committed(exercise: Exercise) -> list[tuple[Mistake, list[Trial]]]:
    """What each known mistake, and each two of them at once, give for the hidden inputs."""
    right = prepared(exercise)
    mistakes = [*exercise.mistakes, *_pairs(exercise.mistakes)]
    return [
        (mistake, [attempt(exercise, mistake.commit, case, expected, seconds=10) for case, expected in right])
        for mistake in mistakes
    ]


def _pairs(mistakes: tuple[Mistake, ...]) -> Iterator[Mistake]:
    """Two mistakes at once, where both are switches of one solution."""
    for one, two in combinations(mistakes, 2):
        a, b = one.commit, two.commit
        if not (isinstance(a, partial) and isinstance(b, partial) and a.func is b.func):
            continue
        if a.keywords.keys() & b.keywords.keys():
            continue
        both = partial(a.func, **a.keywords, **b.keywords)
        yield Mistake(f"{one.name} + {two.name}", f"Two things at once. First: {one.says} Second: {two.says}", both)


def _explains_all(mine: list[Trial], theirs: list[Trial]) -> bool:
    """The same outcome on every input, errors included."""
    wrong = [(a, b) for a, b in zip(mine, theirs, strict=True) if not a.right]
    if all(a.right for a in mine) or not all(_same_outcome(a, b) for a, b in zip(mine, theirs, strict=True)):
        return False
    return len(wrong) < len(mine) or any(a.answer is not None or _same_text(a, b) for a, b in wrong)


def _same_text(a: Trial, b: Trial) -> bool:
    """Neither gave an answer, and both for the same reason, word for word."""
    if a.call.error is not None and b.call.error is not None:
        return a.call.error.text == b.call.error.text
    return a.problem == b.problem != ""


def _explains_readable(mine: list[Trial], theirs: list[Trial]) -> bool:
    """The same outcome wherever my function gave an answer, some of them wrong."""
    answered = [(a, b) for a, b in zip(mine, theirs, strict=True) if a.answer is not None]
    return any(not a.right for a, _ in answered) and all(_same_outcome(a, b) for a, b in answered)


def _same_outcome(a: Trial, b: Trial) -> bool:
    if a.answer is not None and b.answer is not None:
        return same(a.answer, b.answer) and a.call.changed == b.call.changed
    if a.call.error is not None and b.call.error is not None:
        return a.call.error.kind == b.call.error.kind
    return a.answer is None and b.answer is None and a.problem == b.problem != ""


TURNS: tuple[tuple[str, str, Callable[[Tensor], Tensor]], ...] = (
    ("transposed", "Rows and columns are exchanged: your answer is the expected one transposed.", lambda x: x.mT),
    ("sign", "Every sign is turned round: your answer is the expected one times -1.", lambda x: -x),
)


def _turned(trials: list[Trial], known: list[tuple[Mistake, list[Trial]]]) -> Diagnosis | None:
    """The expected answer, or that of a known mistake, transposed or with the other sign."""
    answered = [trial for trial in trials if trial.answer is not None]
    for name, says, turn in TURNS:
        if all(_is_turned(trial, trial.expected, turn) for trial in answered):
            return Diagnosis(name, says)
    for mistake, theirs in known:
        pairs = [(a, b.answer) for a, b in zip(trials, theirs, strict=True) if a.answer is not None]
        for name, says, turn in TURNS:
            if all(answer is not None and _is_turned(a, answer, turn) for a, answer in pairs):
                return Diagnosis(
                    f"{mistake.name} + {name}", f"Two things at once. First: {mistake.says} Second: {says}"
                )
    return None


def _is_turned(trial: Trial, origin: Answer, turn: Callable[[Tensor], Tensor]) -> bool:
    answer = trial.answer or {}
    if tuple(answer) != tuple(origin):
        return False
    floats = [(answer[name], origin[name]) for name in origin]
    return all(b.dim() >= 2 and b.is_floating_point() and same_tensor(a, turn(b)) for a, b in floats)


def _changed(exercise: Exercise, first: Trial) -> Diagnosis | None:
    if not first.call.changed or first.answer is None or not same(first.answer, first.expected):
        return None
    names = " and ".join(exercise.arguments[i] for i in first.call.changed)
    return Diagnosis(
        "argument changed",
        f"The numbers are right, but your function changed its argument {names}. Whoever calls it may still need the "
        f"old numbers: work on a copy, or avoid operations that write in place (those ending in _, and +=, "
        f"/=, x[...] =).",
    )


def _general(trials: list[Trial]) -> Diagnosis | None:
    """What can be said of an answer without knowing the exercise, from the simplest wrong input that shows it."""
    wrong = [trial for trial in trials if trial.answer is not None and not trial.right]
    found = (_general_of(trial) for trial in sorted(wrong, key=lambda trial: trial.size))
    return next((diagnosis for diagnosis in found if diagnosis is not None), None)


def _general_of(trial: Trial) -> Diagnosis | None:
    answer: Answer = trial.answer or {}
    for name, expected in trial.expected.items():
        given = answer.get(name)
        if given is None:
            continue
        if given.shape != expected.shape or (given.dtype == torch.bool) != (expected.dtype == torch.bool):
            return _kind(given, expected) or _shape(given, expected)
        if not same_tensor(given, expected):
            if expected.dtype == torch.bool:
                return _boolean(given, expected)
            for look in (_not_finite, _future, _sums, _factor, _shift, _same_numbers, _close, _only_some_rows):
                found = look(given.double(), expected.double())
                if found is not None:
                    return found
    return None


def _kind(given: Tensor, expected: Tensor) -> Diagnosis | None:
    if given.shape != expected.shape or (given.dtype == torch.bool) == (expected.dtype == torch.bool):
        return None
    if expected.dtype == torch.bool:
        return Diagnosis(
            "not boolean",
            f"True and False are asked for; your answer holds numbers ({_dtype(given)}). Compare, or use .bool().",
        )
    return Diagnosis("boolean", "Numbers are asked for; your answer holds True and False.")


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _shape(given: Tensor, expected: Tensor) -> Diagnosis:
    mine, wanted = tuple(given.shape), tuple(expected.shape)
    squeezed = [size for size in mine if size != 1] == [size for size in wanted if size != 1]
    if given.dim() >= 2 and given.mT.shape == expected.shape:
        says = "Your answer has rows and columns exchanged. Which of them belongs to the queries?"
    elif squeezed:
        says = "Your answer has a dimension of size 1 too many or too few. Look at unsqueeze, squeeze and keepdim."
    elif given.numel() == expected.numel():
        says = "The number of entries is right, their arrangement is not. Which dimension should come first?"
    elif given.dim() < expected.dim():
        says = (
            f"A dimension is missing: {len(wanted)} are expected, yours has {len(mine)}. Was something added "
            f"up or picked out?"
        )
    elif given.dim() > expected.dim():
        says = (
            f"There is a dimension too many: {len(wanted)} are expected, yours has {len(mine)}. Is something "
            f"left to add up?"
        )
    else:
        says = (
            "Write down the shape of each step beside the line that makes it, and see where it leaves the expected one."
        )
    return Diagnosis("shape", says)


def _boolean(given: Tensor, expected: Tensor) -> Diagnosis | None:
    if expected.dim() == 0:
        return None
    if torch.equal(given, ~expected):
        return Diagnosis("reversed", "Every True is a False and the other way round. What does True stand for here?")
    extra, missing = int((given & ~expected).sum()), int((expected & ~given).sum())
    return Diagnosis(
        "some entries", f"{extra} entries are True that should be False, {missing} are False that should be True."
    )


def _not_finite(given: Tensor, expected: Tensor) -> Diagnosis | None:
    if not expected.isfinite().all():
        return None
    if given.isnan().any():
        return Diagnosis(
            "NaN",
            "Your answer holds NaN, 'not a number'. It comes from 0/0, inf - inf, inf/inf or 0 times inf: look "
            "for an exp of a "
            "large number, and for a row that sums to 0.",
        )
    if given.isinf().any():
        return Diagnosis(
            "infinity", "Your answer holds an infinity: something grew too large (exp?), or was divided by 0."
        )
    return None


def _future(given: Tensor, expected: Tensor) -> Diagnosis | None:
    if expected.dim() < 2 or expected.shape[-1] != expected.shape[-2] or expected.shape[-1] < 2:
        return None
    above = torch.ones(expected.shape[-2:], dtype=torch.bool).triu(1)
    if (expected[..., above] == 0).all() and not (given[..., above].abs() < 1e-6).all():
        return Diagnosis(
            "leak from the future", "Entries above the diagonal are not 0: a token attends to one that comes after it."
        )
    return None


def _sums(given: Tensor, expected: Tensor) -> Diagnosis | None:
    if expected.dim() < 2 or not _all_one(expected.sum(-1)):
        return None
    if _all_one(given.sum(-1)):
        return Diagnosis(
            "other weights",
            "Every row sums to 1, as it should. The shares within the rows are not the expected ones: look at "
            "what went into the softmax.",
        )
    if _all_one(given.sum(-2)):
        return Diagnosis(
            "columns sum to 1",
            "Every column sums to 1 and no row needs to: the shares were made over the queries. Over which "
            "dimension should they sum to 1?",
        )
    return Diagnosis(
        "rows do not sum to 1",
        f"Each row should sum to 1; your first one sums to "
        f"{number(given.reshape(-1, given.shape[-1])[0].sum().item())}.",
    )


def _all_one(sums: Tensor) -> bool:
    return bool(((sums - 1).abs() < 1e-3).all())


def _factor(given: Tensor, expected: Tensor) -> Diagnosis | None:
    square = (expected * expected).sum()
    if expected.numel() < 2 or square == 0:
        return None
    factor = ((given * expected).sum() / square).item()
    if abs(factor - 1) < 1e-4 or abs(factor) < 1e-6 or not same_tensor(given, factor * expected):
        return None
    return Diagnosis(
        "constant factor",
        f"Every entry is {number(factor)} times the expected one: only a constant factor is wrong. Which factor "
        f"belongs there?",
    )


def _shift(given: Tensor, expected: Tensor) -> Diagnosis | None:
    shift = (given - expected).mean()
    if expected.numel() < 3 or shift.abs() < 1e-4 or not same_tensor(given - shift, expected):
        return None
    return Diagnosis(
        "constant added", f"Every entry is {number(shift.item())} more than expected: a constant was added."
    )


def _same_numbers(given: Tensor, expected: Tensor) -> Diagnosis | None:
    if expected.numel() < 2 or not same_tensor(given.flatten().sort().values, expected.flatten().sort().values):
        return None
    return Diagnosis(
        "right numbers, wrong places",
        "Your answer holds the right numbers in the wrong places. Look at each transpose, view and reshape: a "
        "view cuts the "
        "numbers into rows anew, a transpose exchanges dimensions, and the two are not the same.",
    )


def _close(given: Tensor, expected: Tensor) -> Diagnosis | None:
    if not expected.isfinite().all():
        return None
    if (given - expected).abs().max() > 1e-2 * (1 + expected.abs().max()) or not differing(given, expected).any():
        return None
    gap = (given - expected).abs().max().item()
    return Diagnosis(
        "nearly right",
        f"Your answer is close (off by {number(gap)} at most), and not close enough to be rounding. Is a number "
        f"rounded, cut off, or a small constant added?",
    )


def _only_some_rows(given: Tensor, expected: Tensor) -> Diagnosis | None:
    if expected.dim() < 2 or expected.shape[-2] < 2:
        return None
    wrong = differing(given, expected).any(dim=-1).flatten().tolist()
    right = len(wrong) - sum(wrong)
    if not right:
        return None
    places = ", ".join(str(i) for i, row in enumerate(wrong) if row)
    return Diagnosis(
        "some rows",
        f"{right} of {len(wrong)} rows are right. Wrong are (counted from 0): {places}. What is special about them?",
    )


SPECIAL = {
    "batch": Diagnosis(
        "only with a batch",
        "Without a batch your function is right, with a batch dimension in front it is not. Count dimensions "
        "from the end "
        "(-1, -2): then it does not matter how many stand before them.",
    ),
    "large": Diagnosis(
        "only with large numbers",
        "Your function is right for small numbers and not for large ones. exp of a number above 88 is "
        "infinite in float32.",
    ),
    "one": Diagnosis(
        "only with one token",
        "Your function is right, except where there is only one of something. Did a squeeze, or a special case, remove "
        "that dimension?",
    ),
}


def _only_some(trials: list[Trial]) -> Diagnosis | None:
    """All wrong inputs are of one special sort."""
    wrong = [trial for trial in trials if not trial.right]
    for word, diagnosis in SPECIAL.items():
        if len(wrong) < len(trials) and all(word in trial.case.name.split() for trial in wrong):
            return diagnosis
    return None


def _size(argument: object) -> int:
    if isinstance(argument, Tensor):
        return argument.numel()
    if isinstance(argument, (list, tuple)):
        return sum(_size(part) for part in argument)
    return 0
