"""What an exercise is made of, and the helpers that every declaration uses."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Case:
    """One hidden input: a name that a student can read, and the arguments in their order."""

    name: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Mistake:
    """A known mistake: a few words for tables, the sentences for the student, and code that commits it."""

    name: str
    says: str
    commit: Callable[..., Any]


@dataclass(frozen=True)
class Exercise:
    """All that the checker knows of an exercise.

    Args:
        id: "LESSON.NAME", such as "04.causal_mask".
        arguments: the names of the function's arguments.
        gives: the names of what it returns, more than one for a tuple.
        reference: the right function.
        cases: builds the hidden inputs, the simplest first.
        mistakes: the known mistakes; where two explain an answer equally well, the first one is named.
        observe: `observe(function, *arguments)`, for functions that are judged by facts and not by their values:
            returns a dict, fact -> bool or number.
        picture: how expected and given answer are drawn: "weights", "scores", "mask" or "" for no picture.
    """

    id: str
    arguments: tuple[str, ...]
    gives: tuple[str, ...]
    reference: Callable[..., Any]
    cases: Callable[[], list[Case]]
    mistakes: tuple[Mistake, ...]
    observe: Callable[..., dict[str, bool | float]] | None = None
    picture: str = ""

    @property
    def lesson(self) -> str:
        return self.id.partition(".")[0]

    @property
    def function_name(self) -> str:
        return self.id.partition(".")[2]


@dataclass(frozen=True)
class Result:
    """What came of trying a function.

    Args:
        exercise: its id.
        status: "right", "wrong" or "open".
        mistake: the mistake in a few words, for tables; empty where status is not "wrong".
        message: what the student reads.
        given, expected: the two matrices of the picture, where one helps.
        picture: how they are drawn.
    """

    exercise: str
    status: str
    mistake: str
    message: str
    given: Tensor | None = None
    expected: Tensor | None = None
    picture: str = ""

    def __repr__(self) -> str:
        return self.message


def normal(seed: int, *shape: int, scale: float = 1.0) -> Tensor:
    """Random numbers around 0, the same on every machine, as float32."""
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(shape, dtype=torch.float64, generator=generator)).float()


def uniform(seed: int, *shape: int) -> Tensor:
    """Random numbers in [0, 1), the same on every machine, as float32."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, dtype=torch.float64, generator=generator).float()


def random_weights(seed: int, *shape: int) -> Tensor:
    """Random attention weights: positive, and each row sums to 1."""
    return torch.softmax(2 * normal(seed, *shape), dim=-1)


def chosen(seed: int, share: float, *shape: int) -> Tensor:
    """A random boolean tensor in which about `share` of the entries is True."""
    return uniform(seed, *shape) < share


def with_flaw(solution: Callable[..., Any], **flaws: Any) -> Callable[..., Any]:
    """A solution with some of its switches set wrong. Two mistakes made of one solution's switches can be combined."""
    return partial(solution, **flaws)


def always(answer: bool) -> Mistake:
    """The mistake of a yes-or-no function that gives the same answer to everything."""
    return Mistake(
        f"always {answer}",
        f"Your function says {answer} to everything. Some of the inputs have the property and some do not: "
        f"let the answer depend on the numbers.",
        lambda *arguments: answer,
    )
