"""The exercises of lesson 02: scaling, and how evenly weights are spread."""

import math
from typing import Any

import torch
from torch import Tensor

from attention_core.exercises._spec import Case, Exercise, Mistake, always, normal, random_weights, with_flaw
from attention_core.functional import dot_product_scores, entropy, scale_scores


def _in_place(scores: Tensor, head_dim: int) -> Tensor:
    scores /= head_dim**0.5
    return scores


def _scale_cases() -> list[Case]:
    return [
        Case("2 by 3, width 5", (normal(101, 2, 3), 5)),
        Case("width 2", (normal(102, 3, 4), 2)),
        Case("one token, width 7", (normal(103, 1, 1), 7)),
        Case("width 64", (normal(104, 4, 5, scale=8.0), 64)),
        Case("a batch of 2, width 10", (normal(105, 2, 3, 4), 10)),
        Case("large numbers", (normal(106, 3, 2, scale=1e4), 3)),
    ]


SCALE_SCORES = Exercise(
    id="02.scale_scores",
    arguments=("scores", "head_dim"),
    gives=("scaled",),
    reference=scale_scores,
    cases=_scale_cases,
    picture="scores",
    mistakes=(
        Mistake(
            "divided by the width",
            "You divided by the width itself. The variance of a dot product grows with the width, but the numbers "
            "themselves, their standard deviation, grow more slowly: with what?",
            lambda scores, head_dim: scores / head_dim,
        ),
        Mistake(
            "multiplied",
            "Your scores have become larger: you multiplied by the square root of the width. They should shrink.",
            lambda scores, head_dim: scores * head_dim**0.5,
        ),
        Mistake(
            "multiplied by the width",
            "You multiplied by the width. The scores should become smaller, and by another factor.",
            lambda scores, head_dim: scores * head_dim,
        ),
        Mistake(
            "not scaled",
            "The scores come back as they were.",
            lambda scores, head_dim: scores,
        ),
        Mistake(
            "1 / 2 without brackets",
            "You wrote ** 1 / 2: Python takes the power first, ** 1, and divides the whole by 2 afterwards. "
            "Brackets, 0.5 or math.sqrt say what you mean.",
            lambda scores, head_dim: scores / head_dim**1 / 2,
        ),
        Mistake(
            "half of the width",
            "You divided by half of the width. A square root is not a half.",
            lambda scores, head_dim: scores / (head_dim / 2),
        ),
        Mistake(
            "number of keys",
            "You took the root of the number of keys, the last size of the scores. What counts is how many products "
            "were added up in each score: the width, head_dim.",
            lambda scores, head_dim: scores / scores.shape[-1] ** 0.5,
        ),
        Mistake(
            "root cut to a whole number",
            "The square root was cut down to a whole number. Keep its decimals (math.isqrt, int and // drop them).",
            lambda scores, head_dim: scores / math.isqrt(head_dim),
        ),
        Mistake(
            "square",
            "You divided by the square of the width. The square root is the other way round.",
            lambda scores, head_dim: scores / head_dim**2,
        ),
        Mistake(
            "scores changed in place",
            "The numbers are right, but the scores that were handed over have changed too: /= writes into them. "
            "Make a new tensor.",
            _in_place,
        ),
    ),
)


def _divisor(queries: Tensor, keys: Tensor, by: str) -> float:
    width = queries.shape[-1]
    sizes = {
        "root": width**0.5,
        "width": float(width),
        "nothing": 1.0,
        "times": width**-0.5,
        "keys": keys.shape[-2] ** 0.5,
        "queries": queries.shape[-2] ** 0.5,
        "first": queries.shape[0] ** 0.5,
        "half": width**1 / 2,
        "one over width over two": 2.0 * width,
    }
    return sizes[by]


def _scaled(
    queries: Tensor, keys: Tensor, *, by: str = "root", swapped: bool = False, softmaxed: bool = False
) -> Tensor:
    divisor = _divisor(queries, keys, by)
    scores = keys @ queries.mT if swapped else queries @ keys.mT
    return torch.softmax(scores / divisor, dim=-1) if softmaxed else scores / divisor


def _scaled_cases() -> list[Case]:
    return [
        Case("2 queries, 3 keys, width 5", (normal(111, 2, 5), normal(112, 3, 5))),
        Case("one query, one key", (normal(113, 1, 7), normal(114, 1, 7))),
        Case("4 queries, 2 keys, width 6", (normal(115, 4, 6), normal(116, 2, 6))),
        Case("as many queries as keys as features", (normal(117, 3, 3), normal(118, 3, 3))),
        Case("a batch of 2", (normal(119, 2, 3, 5), normal(120, 2, 4, 5))),
        Case("large numbers", (normal(121, 3, 10, scale=100.0), normal(122, 2, 10, scale=100.0))),
    ]


def _scaled_reference(queries: Tensor, keys: Tensor) -> Tensor:
    return scale_scores(dot_product_scores(queries, keys), queries.shape[-1])


_SCALED_MISTAKES = (
    Mistake(
        "not scaled",
        "These are the plain scores: the division is missing.",
        with_flaw(_scaled, by="nothing"),
    ),
    Mistake(
        "divided by the width",
        "You divided by the width and not by its square root.",
        with_flaw(_scaled, by="width"),
    ),
    Mistake(
        "multiplied",
        "You multiplied by the square root of the width. The scores should become smaller.",
        with_flaw(_scaled, by="times"),
    ),
    Mistake(
        "number of keys",
        "You took the root of the number of keys. What counts is the width: how many products are added up in a score?",
        with_flaw(_scaled, by="keys"),
    ),
    Mistake(
        "number of queries",
        "You took the root of the number of queries. What counts is the width: how many products are added "
        "up in a score?",
        with_flaw(_scaled, by="queries"),
    ),
    Mistake(
        "queries and keys exchanged",
        "Row and column have changed places: queries go down, keys go across.",
        with_flaw(_scaled, swapped=True),
    ),
    Mistake(
        "already a softmax",
        "Each row sums to 1: these are weights already. The scaled scores are asked for.",
        with_flaw(_scaled, softmaxed=True),
    ),
)

SCALED_SCORES = Exercise(
    id="02.scaled_scores",
    arguments=("queries", "keys"),
    gives=("scaled",),
    reference=_scaled_reference,
    cases=_scaled_cases,
    picture="scores",
    mistakes=(
        *_SCALED_MISTAKES,
        Mistake(
            "batch size",
            "With a batch you took the root of the batch size: shape[0] is the first size. The width is the last one.",
            lambda queries, keys: queries @ keys.mT / _divisor(queries, keys, "first" if queries.dim() > 2 else "root"),
        ),
        Mistake(
            "keys not transposed",
            "The matrices are multiplied as they are. Each key is a row: turn the keys' rows into columns first.",
            lambda queries, keys: queries @ keys / queries.shape[-1] ** 0.5,
        ),
        Mistake(
            "scaled twice",
            "The division happens twice: in all you divided by the width. Were queries and keys both divided "
            "by the root?",
            lambda queries, keys: (queries / queries.shape[-1] ** 0.5) @ (keys / keys.shape[-1]).mT,
        ),
    ),
)


def _entropy_cases() -> list[Case]:
    one_key = torch.tensor([[1.0, 0.0, 0.0], [0.2, 0.5, 0.3]])
    return [
        Case("2 rows of 3", (random_weights(131, 2, 3),)),
        Case("weights of exactly 0", (one_key,)),
        Case("one token", (torch.tensor([[1.0]]),)),
        Case("a single row of 4", (random_weights(132, 4),)),
        Case("4 rows of 5", (random_weights(133, 4, 5),)),
        Case("a batch of 2", (random_weights(134, 2, 3, 4),)),
    ]


def _entropy(
    weights: Tensor, *, sign: int = -1, log: Any = torch.log, dim: int = -1, zeros: bool = True, how: str = "sum"
) -> Tensor:
    safe = weights.clamp_min(1e-30) if zeros else weights
    terms = sign * weights * log(safe)
    if how == "total":
        return terms.sum()
    dim = -1 if weights.dim() == 1 else dim
    return terms.mean(dim) if how == "mean" else terms.sum(dim)


ENTROPY = Exercise(
    id="02.entropy",
    arguments=("weights",),
    gives=("entropy",),
    reference=entropy,
    cases=_entropy_cases,
    mistakes=(
        Mistake(
            "no minus",
            "Your entropies are negative. The logarithm of a number below 1 is negative: the formula has a "
            "minus in front.",
            with_flaw(_entropy, sign=1),
        ),
        Mistake(
            "bits",
            "Your numbers are 1.4427 times too large: they count bits (log2). Nats use the natural logarithm.",
            with_flaw(_entropy, log=torch.log2),
        ),
        Mistake(
            "log10",
            "You took the logarithm to base 10. Nats use the natural logarithm.",
            with_flaw(_entropy, log=torch.log10),
        ),
        Mistake(
            "NaN where a weight is 0",
            "Where a weight is exactly 0 your answer is NaN: the log of 0 is minus infinity, and 0 times that is no "
            "number. Such a term counts as 0: treat it so.",
            with_flaw(_entropy, zeros=False),
        ),
        Mistake(
            "over the columns",
            "You added up the columns. The weights of one query stand in a row, and each row has its own entropy.",
            with_flaw(_entropy, dim=-2),
        ),
        Mistake(
            "one number for everything",
            "You gave one number for all rows together. Each row has its own entropy: add up over the last "
            "dimension only.",
            with_flaw(_entropy, how="total"),
        ),
        Mistake(
            "averaged",
            "You took the mean over the keys. The terms are added up.",
            with_flaw(_entropy, how="mean"),
        ),
        Mistake(
            "logarithms not weighted",
            "You added up the logarithms alone. Each one counts with the weight it belongs to.",
            lambda weights: -weights.clamp_min(1e-30).log().sum(-1),
        ),
        Mistake(
            "divided by its largest value",
            "Your numbers lie between 0 and 1: you divided by ln(number of keys), the largest possible entropy. "
            "The entropy in nats is asked for.",
            lambda weights: entropy(weights) / math.log(max(2, weights.shape[-1])),
        ),
        Mistake(
            "dimension kept",
            "The numbers are right, but a last dimension of size 1 is left over. One number for each row: no keepdim.",
            lambda weights: entropy(weights).unsqueeze(-1),
        ),
    ),
)

FIND_THE_MISTAKE = Exercise(
    id="02.find_the_mistake",
    arguments=("queries", "keys"),
    gives=("scaled",),
    reference=_scaled_reference,
    cases=_scaled_cases,
    picture="scores",
    mistakes=(
        Mistake(
            "1 / 2 without brackets",
            "The mistake is still there: your scores are divided by twice the width. In what order does Python take "
            "the power and the division?",
            with_flaw(_scaled, by="one over width over two"),
        ),
        Mistake(
            "half of the width",
            "Now the scores are divided by half of the width. A square root is not a half.",
            with_flaw(_scaled, by="half"),
        ),
        *_SCALED_MISTAKES,
    ),
)


def _keeps_the_order(before: Tensor, after: Tensor, *, how: str = "order", dim: int = -1) -> bool:
    if how == "values":
        return torch.allclose(before, after)
    if how == "favourite":
        return torch.equal(before.argmax(-1), after.argmax(-1))
    if how == "flat":
        return torch.equal(before.flatten().argsort(), after.flatten().argsort())
    same = before.argsort(dim=dim) == after.argsort(dim=dim)
    return bool(same.all(dim=dim).any()) if how == "any" else bool(same.all())


def _order_cases() -> list[Case]:
    before = normal(141, 3, 4)
    factors = torch.tensor([[0.5], [3.0], [1.0]])
    other_places = before.clone()
    order = before[1].argsort()
    other_places[1, order[0]], other_places[1, order[1]] = before[1, order[1]], before[1, order[0]]
    other_favourite = before.clone()
    other_favourite[2, order[1]] = 5.0 if before[2].argmax() != order[1] else -5.0
    return [
        Case("scaled", (before, before / 2)),
        Case("the same scores", (before, before.clone())),
        Case("another favourite in one row", (before, other_favourite)),
        Case("sign changed", (before, -before)),
        Case("each row scaled by another factor", (before, before * factors)),
        Case("softmax", (before, torch.softmax(before, dim=-1))),
        Case("two keys of one row exchanged", (before, other_places)),
        Case("other scores", (normal(142, 2, 3), normal(143, 2, 3))),
        Case("columns scaled", (before, before * torch.tensor([3.0, 0.1, 2.0, 0.5]))),
    ]


KEEPS_THE_ORDER = Exercise(
    id="02.keeps_the_order",
    arguments=("before", "after"),
    gives=("answer",),
    reference=_keeps_the_order,
    cases=_order_cases,
    mistakes=(
        always(True),
        always(False),
        Mistake(
            "numbers compared",
            "You asked whether the numbers stay the same. They may change, as long as each row still ranks its keys "
            "in the same order.",
            with_flaw(_keeps_the_order, how="values"),
        ),
        Mistake(
            "favourite only",
            "You compared the favourite key of each query. The order of the other keys counts as well.",
            with_flaw(_keeps_the_order, how="favourite"),
        ),
        Mistake(
            "all rows mixed",
            "You ranked all numbers of all rows together. Each query ranks its own keys: look at one row at a time.",
            with_flaw(_keeps_the_order, how="flat"),
        ),
        Mistake(
            "one row is enough",
            "One row that keeps its order is enough for you. Every row must keep it.",
            with_flaw(_keeps_the_order, how="any"),
        ),
        Mistake(
            "columns ranked",
            "You ranked the queries within each column. A query ranks the keys in its row.",
            with_flaw(_keeps_the_order, dim=-2),
        ),
        Mistake(
            "answer reversed",
            "You say True where the order changes, and False where it stays.",
            lambda before, after: not _keeps_the_order(before, after),
        ),
    ),
)

EXERCISES = (SCALE_SCORES, SCALED_SCORES, ENTROPY, FIND_THE_MISTAKE, KEEPS_THE_ORDER)
