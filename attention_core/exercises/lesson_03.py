"""The exercises of lesson 03: softmax, weights, context vectors, self-attention."""

import torch
from torch import Tensor

from attention_core.exercises._spec import (
    Case,
    Exercise,
    Mistake,
    always,
    normal,
    random_weights,
    with_flaw,
)
from attention_core.functional import attention_weights, context_vectors, scaled_dot_product_attention, softmax

OVER_THE_QUERIES = Mistake(
    "softmax over the queries",
    "Every column sums to 1 and no row does: the softmax ran over the queries (dim=-2, or dim=0). Each "
    "query shares out "
    "its attention over the keys.",
    lambda: None,
)


def _softmax(
    scores: Tensor, *, dim: int = -1, shift: str = "row", base: float = torch.e, how: str = "sum", keepdim: bool = True
) -> Tensor:
    dim = -1 if scores.dim() == 1 else dim
    shifts = {
        "row": lambda: scores.amax(dim=dim, keepdim=True),
        "all": lambda: scores.max(),
        "none": lambda: torch.zeros(()),
        "smallest": lambda: scores.amin(dim=dim, keepdim=True),
        "mean": lambda: scores.mean(dim=dim, keepdim=True),
    }
    exponentials = base ** (scores - shifts[shift]())
    if how == "nothing":
        return exponentials
    total = exponentials.sum() if how == "everything" else exponentials.sum(dim=dim, keepdim=keepdim)
    return exponentials / total


def _softmax_in_place(scores: Tensor) -> Tensor:
    scores -= scores.amax(dim=-1, keepdim=True)
    return scores.exp() / scores.exp().sum(dim=-1, keepdim=True)


def _softmax_cases() -> list[Case]:
    far_apart = torch.tensor([[1000.0, 999.0, 998.5], [-1000.0, -1001.5, -1000.5]])
    return [
        Case("2 rows of 3", (normal(301, 2, 3),)),
        Case("3 rows of 3", (normal(302, 3, 3),)),
        Case("a single row of 4", (normal(303, 4),)),
        Case("one token", (normal(304, 1, 1),)),
        Case("a batch of 2", (normal(305, 2, 3, 4),)),
        Case("large numbers", (normal(306, 2, 4, scale=500.0),)),
        Case("rows of large numbers, far apart", (far_apart,)),
        Case("large negative numbers", (normal(307, 2, 3) - 200.0,)),
    ]


SOFTMAX = Exercise(
    id="03.softmax",
    arguments=("scores",),
    gives=("weights",),
    reference=softmax,
    cases=_softmax_cases,
    picture="weights",
    mistakes=(
        Mistake(
            OVER_THE_QUERIES.name,
            OVER_THE_QUERIES.says,
            with_flaw(_softmax, dim=-2),
        ),
        Mistake(
            "dim=0",
            "The sums are taken over the first dimension: dim=0. Each query shares out its attention over "
            "the keys, and "
            "these stand in the last dimension.",
            with_flaw(_softmax, dim=0),
        ),
        Mistake(
            "dim=1",
            "For two dimensions your answer is right; otherwise dim=1 is another dimension than the last. "
            "Count from the "
            "end.",
            lambda scores: torch.softmax(scores, dim=1),
        ),
        Mistake(
            "overflow",
            "For small scores your answer is right. For large ones exp becomes infinite, and infinity divided "
            "by infinity "
            "is NaN. A softmax does not change when the same number is subtracted from a whole row: which one helps?",
            with_flaw(_softmax, shift="none"),
        ),
        Mistake(
            "one maximum for everything",
            "You subtracted the largest of all scores. A row that lies far below it becomes all 0, and 0/0 is "
            "NaN: each row "
            "needs its own.",
            with_flaw(_softmax, shift="all"),
        ),
        Mistake(
            "smallest subtracted",
            "You subtracted the smallest score of a row, so the others stay large and exp overflows. What should the "
            "largest exponent be?",
            with_flaw(_softmax, shift="smallest"),
        ),
        Mistake(
            "mean subtracted",
            "You subtracted the mean of a row. What lies far above the mean still overflows in exp. What should "
            "the largest "
            "exponent be?",
            with_flaw(_softmax, shift="mean"),
        ),
        Mistake(
            "everything sums to 1",
            "All entries together sum to 1. Each row is to sum to 1 by itself: add up over the last dimension only.",
            with_flaw(_softmax, how="everything"),
        ),
        Mistake(
            "not divided",
            "Your rows do not sum to 1: the exponentials are there, the division by their sum is missing.",
            with_flaw(_softmax, how="nothing"),
        ),
        Mistake(
            "no exp",
            "You divided the scores by their sum. With negative scores that gives weights below 0 or above "
            "1: something "
            "has to make the scores positive first.",
            lambda scores: scores / scores.sum(dim=-1, keepdim=True),
        ),
        Mistake(
            "powers of 2",
            "You took powers of 2. The softmax takes powers of e.",
            with_flaw(_softmax, base=2.0),
        ),
        Mistake(
            "keepdim forgotten",
            "The sums have lost their dimension, so they were laid along the columns: with as many rows as "
            "columns that "
            "divides by the wrong sums without an error. Keep the dimension when you add up.",
            with_flaw(_softmax, keepdim=False),
        ),
        Mistake(
            "logarithm",
            "Your numbers are negative: the logarithms of the weights (log_softmax). The weights themselves "
            "are asked for.",
            lambda scores: torch.log_softmax(scores, dim=-1),
        ),
        Mistake(
            "sigmoid",
            "Each score was squeezed between 0 and 1 by itself (a sigmoid). In a softmax the scores of a row compete: "
            "together they sum to 1.",
            lambda scores: torch.sigmoid(scores),
        ),
        Mistake(
            "scores changed",
            "The weights are right, but the scores that were handed over have changed: -= writes into them.",
            _softmax_in_place,
        ),
    ),
)


def _attend(
    queries: Tensor,
    keys: Tensor,
    *,
    scale: str = "root",
    dim: int = -1,
    exchanged: bool = False,
    normalise: str = "softmax",
    causal: bool = False,
) -> Tensor:
    scores = keys @ queries.mT if exchanged else queries @ keys.mT
    width = queries.shape[-1]
    factors = {
        "root": width**-0.5,
        "none": 1.0,
        "width": 1 / width,
        "times": width**0.5,
        "keys": keys.shape[-2] ** -0.5,
    }
    scores = scores * factors[scale]
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    if normalise == "none":
        return scores
    if normalise == "sum":
        return scores / scores.sum(dim=dim, keepdim=True)
    return torch.softmax(scores, dim=dim)


def _scaled_afterwards(queries: Tensor, keys: Tensor) -> Tensor:
    return torch.softmax(queries @ keys.mT, dim=-1) / queries.shape[-1] ** 0.5


def _weights_cases() -> list[Case]:
    return [
        Case("2 queries, 3 keys", (normal(311, 2, 5), normal(312, 3, 5))),
        Case("3 queries, 3 keys", (normal(313, 3, 3), normal(314, 3, 3))),
        Case("one token", (normal(315, 1, 5), normal(316, 1, 5))),
        Case("4 queries, 2 keys", (normal(317, 4, 7), normal(318, 2, 7))),
        Case("a batch of 2", (normal(319, 2, 3, 5), normal(320, 2, 4, 5))),
        Case("large numbers", (normal(321, 3, 6, scale=30.0), normal(322, 4, 6, scale=30.0))),
    ]


def _weights_reference(queries: Tensor, keys: Tensor) -> Tensor:
    return attention_weights(queries, keys)


ATTENTION_WEIGHTS = Exercise(
    id="03.attention_weights",
    arguments=("queries", "keys"),
    gives=("weights",),
    reference=_weights_reference,
    cases=_weights_cases,
    picture="weights",
    mistakes=(
        Mistake(
            "not scaled",
            "Your weights are too peaked: the scores were not divided by the square root of the width before "
            "the softmax.",
            with_flaw(_attend, scale="none"),
        ),
        Mistake(
            "divided by the width",
            "Your weights are too even: the scores were divided by the width and not by its square root.",
            with_flaw(_attend, scale="width"),
        ),
        Mistake(
            "multiplied",
            "Your weights are far too peaked: the scores were multiplied by the square root of the width.",
            with_flaw(_attend, scale="times"),
        ),
        Mistake(
            "number of keys",
            "The scores were divided by the root of the number of keys. What counts is the width of a query.",
            with_flaw(_attend, scale="keys"),
        ),
        Mistake(
            OVER_THE_QUERIES.name,
            OVER_THE_QUERIES.says,
            with_flaw(_attend, dim=-2),
        ),
        Mistake(
            "queries and keys exchanged",
            "Rows belong to the keys in your answer: queries and keys have changed places.",
            with_flaw(_attend, exchanged=True),
        ),
        Mistake(
            "no softmax",
            "These are the scaled scores: the softmax is missing.",
            with_flaw(_attend, normalise="none"),
        ),
        Mistake(
            "no exp",
            "The rows sum to 1, but some weights are negative or above 1: you divided the scores by their sum. "
            "A softmax makes them positive first.",
            with_flaw(_attend, normalise="sum"),
        ),
        Mistake(
            "scaled after the softmax",
            "Your rows sum to less than 1: the division by the root of the width came after the softmax. It "
            "belongs to the "
            "scores.",
            _scaled_afterwards,
        ),
        Mistake(
            "future hidden",
            "You hid the future. That is lesson 04; here every query sees every key.",
            with_flaw(_attend, causal=True),
        ),
    ),
)


def _context_cases() -> list[Case]:
    dropped = random_weights(331, 3, 4) * torch.tensor([[1.25, 0.0, 1.25, 1.25], [0.0, 1.25, 1.25, 0.0], [1.25] * 4])
    return [
        Case("2 queries, 3 keys", (random_weights(332, 2, 3), normal(333, 3, 2))),
        Case("3 queries, 3 keys, width 3", (random_weights(334, 3, 3), normal(335, 3, 3))),
        Case("one token", (random_weights(336, 1, 1), normal(337, 1, 3))),
        Case("rows that do not sum to 1", (dropped, normal(338, 4, 2))),
        Case("a batch of 2", (random_weights(339, 2, 3, 4), normal(340, 2, 4, 5))),
        Case("large numbers", (random_weights(341, 4, 2), normal(342, 2, 3, scale=1000.0))),
    ]


CONTEXT_VECTORS = Exercise(
    id="03.context_vectors",
    arguments=("weights", "values"),
    gives=("context",),
    reference=context_vectors,
    cases=_context_cases,
    picture="scores",
    mistakes=(
        Mistake(
            "weights transposed",
            "The weights were transposed first: each value is shared out by a column. The shares of one query "
            "stand in its "
            "row.",
            lambda weights, values: weights.mT @ values,
        ),
        Mistake(
            "values transposed",
            "The values were transposed first. Each value is a row, and a row is what gets mixed.",
            lambda weights, values: weights @ values.mT,
        ),
        Mistake(
            "values first",
            "The values stand to the left of the weights. Which of the two has one column for each row of the other?",
            lambda weights, values: values @ weights,
        ),
        Mistake(
            "plain sum",
            "Every query got the plain sum of the values: the weights are not used.",
            lambda weights, values: values.sum(dim=-2, keepdim=True).expand(*weights.shape[:-1], -1),
        ),
        Mistake(
            "plain average",
            "Every query got the average of the values: the weights are not used.",
            lambda weights, values: values.mean(dim=-2, keepdim=True).expand(*weights.shape[:-1], -1),
        ),
        Mistake(
            "softmax once more",
            "The weights went through a softmax again, which evens them out. They are weights already.",
            lambda weights, values: torch.softmax(weights, dim=-1) @ values,
        ),
        Mistake(
            "rows made to sum to 1",
            "You divided each row by its sum. Where dropout has removed weights the rows do not sum to 1, and "
            "are used as "
            "they are.",
            lambda weights, values: weights / weights.sum(dim=-1, keepdim=True) @ values,
        ),
        Mistake(
            "entry by entry",
            "You multiplied entry by entry. Each query needs a sum over all values.",
            lambda weights, values: weights * values,
        ),
        Mistake(
            "averaged",
            "Your numbers are too small by the number of keys: you took the mean over the keys. The weights are shares "
            "already, so the sum is asked for.",
            lambda weights, values: (weights.unsqueeze(-1) * values.unsqueeze(-3)).mean(dim=-2),
        ),
        Mistake(
            "one query only",
            "You gave the context of a single query. There is one for each row of the weights.",
            lambda weights, values: (weights @ values)[..., 0, :],
        ),
    ),
)


def _self_attend(
    x: Tensor,
    W_query: Tensor,
    W_key: Tensor,
    W_value: Tensor,
    *,
    scale: str = "root",
    dim: int = -1,
    exchanged: bool = False,
    normalise: str = "softmax",
    mix: str = "values",
    transposed: bool = False,
    causal: bool = False,
) -> Tensor:
    if transposed:
        W_query, W_key, W_value = W_query.mT, W_key.mT, W_value.mT
    queries, keys, values = x @ W_query, x @ W_key, x @ W_value
    if scale == "d_in":
        queries, scale = queries * (queries.shape[-1] / x.shape[-1]) ** 0.5, "root"
    weights = _attend(queries, keys, scale=scale, dim=dim, exchanged=exchanged, normalise=normalise, causal=causal)
    if mix == "weights":
        return weights
    return weights @ {"values": values, "x": x, "keys": keys, "queries": queries}[mix]


def _self_reference(x: Tensor, W_query: Tensor, W_key: Tensor, W_value: Tensor) -> Tensor:
    return scaled_dot_product_attention(x @ W_query, x @ W_key, x @ W_value)[0]


def _self_cases() -> list[Case]:
    return [
        Case("2 tokens, 3 to 2", (normal(351, 2, 3), normal(352, 3, 2), normal(353, 3, 2), normal(354, 3, 2))),
        Case("4 tokens, 3 to 3", (normal(355, 4, 3), normal(356, 3, 3), normal(357, 3, 3), normal(358, 3, 3))),
        Case("one token", (normal(359, 1, 3), normal(360, 3, 2), normal(361, 3, 2), normal(362, 3, 2))),
        Case("wider than the input", (normal(363, 3, 2), normal(364, 2, 5), normal(365, 2, 5), normal(366, 2, 5))),
        Case("a batch of 2", (normal(367, 2, 4, 3), normal(368, 3, 2), normal(369, 3, 2), normal(370, 3, 2))),
    ]


SELF_ATTENTION = Exercise(
    id="03.self_attention",
    arguments=("x", "W_query", "W_key", "W_value"),
    gives=("context",),
    reference=_self_reference,
    cases=_self_cases,
    mistakes=(
        Mistake(
            "not scaled",
            "The scores were not divided by the square root of the width before the softmax.",
            with_flaw(_self_attend, scale="none"),
        ),
        Mistake(
            "divided by the width",
            "The scores were divided by the width and not by its square root.",
            with_flaw(_self_attend, scale="width"),
        ),
        Mistake(
            "width of the input",
            "The scores were divided by the root of d_in, the width of x. What is multiplied and added up are "
            "queries and "
            "keys: their width counts.",
            with_flaw(_self_attend, scale="d_in"),
        ),
        Mistake(
            "softmax over the queries",
            "The softmax ran over the queries (dim=-2, or dim=0). Each query shares out its attention over the keys.",
            with_flaw(_self_attend, dim=-2),
        ),
        Mistake(
            "queries and keys exchanged",
            "Queries and keys have changed places in the scores.",
            with_flaw(_self_attend, exchanged=True),
        ),
        Mistake(
            "no softmax",
            "The scores were used as weights: the softmax is missing.",
            with_flaw(_self_attend, normalise="none"),
        ),
        Mistake(
            "values not projected",
            "The weights mix the input x. What they should mix are the values, x times W_value.",
            with_flaw(_self_attend, mix="x"),
        ),
        Mistake(
            "keys in place of values",
            "The weights mix the keys. What a token hands on are its values.",
            with_flaw(_self_attend, mix="keys"),
        ),
        Mistake(
            "weights returned",
            "You gave the attention weights. One step is left: mix the values in these shares.",
            with_flaw(_self_attend, mix="weights"),
        ),
        Mistake(
            "matrices transposed",
            "The matrices are used transposed, as nn.Linear keeps them. Here each W is (d_in, d_out) and stands to the "
            "right of x as it is.",
            with_flaw(_self_attend, transposed=True),
        ),
        Mistake(
            "future hidden",
            "You hid the future. That is lesson 04; here every token sees every other.",
            with_flaw(_self_attend, causal=True),
        ),
    ),
)


def _wrong_entries(weights: Tensor, values: Tensor, printed: Tensor, *, slack: float = 0.006, how: str = "") -> Tensor:
    right = weights.mT @ values if how == "transposed" else weights @ values
    if how == "exact":
        return printed != right
    wrong = (right - printed).abs() > slack
    return ~wrong if how == "reversed" else wrong


DOCUMENT_VALUES = ((0.1, 0.2, 0.3, 0.4), (0.5, 0.6, 0.7, 0.8), (0.9, 1.0, 1.1, 1.2))
DOCUMENT_WEIGHTS = ((0.2, 0.3, 0.5), (0.1, 0.8, 0.1), (0.4, 0.1, 0.5))
DOCUMENT_PRINTED = ((0.62, 0.74, 0.86, 0.98), (0.42, 0.54, 0.66, 0.78), (0.64, 0.76, 0.88, 1.00))


def _printed_cases() -> list[Case]:
    cases = [
        Case(
            "the worked example of document 001",
            (torch.tensor(DOCUMENT_WEIGHTS), torch.tensor(DOCUMENT_VALUES), torch.tensor(DOCUMENT_PRINTED)),
        )
    ]
    errors = torch.tensor([[0.0, 0.02, 0.0], [-0.05, 0.0, 0.0], [0.0, 0.0, 0.3]])
    for seed, name, rows, keys in ((381, "3 rows of 3", 3, 3), (383, "2 rows, 4 keys", 2, 4)):
        weights, values = random_weights(seed, rows, keys), normal(seed + 1, keys, 3)
        printed = (weights @ values).round(decimals=2) + errors[:rows]
        cases.append(Case(name, (weights, values, printed)))
    return cases


FIND_THE_MISTAKE = Exercise(
    id="03.find_the_mistake",
    arguments=("weights", "values", "printed"),
    gives=("wrong",),
    reference=_wrong_entries,
    cases=_printed_cases,
    picture="mask",
    mistakes=(
        Mistake(
            "True where right",
            "Your answer is True where the printed number is right. The wrong ones are asked for.",
            with_flaw(_wrong_entries, how="reversed"),
        ),
        Mistake(
            "exact comparison",
            "You asked for exactly equal numbers, so even right ones count as wrong: what is printed is rounded to two "
            "decimals. Allow for half a unit of the last one, and a little more.",
            with_flaw(_wrong_entries, how="exact"),
        ),
        Mistake(
            "too generous",
            "You accept errors that no rounding explains. A number rounded to two decimals is off by 0.005 at most.",
            with_flaw(_wrong_entries, slack=0.03),
        ),
        Mistake(
            "far too generous",
            "You accept errors of 0.1. A number rounded to two decimals is off by 0.005 at most.",
            with_flaw(_wrong_entries, slack=0.1),
        ),
        Mistake(
            "weights transposed",
            "You compared with the product of the transposed weights. The shares of one query stand in its row.",
            with_flaw(_wrong_entries, how="transposed"),
        ),
        Mistake(
            "corrected numbers",
            "You gave the right product. Asked for is which of the printed entries are wrong: True or False for each.",
            lambda weights, values, printed: weights @ values,
        ),
        Mistake(
            "only too large ones",
            "You found the numbers that are printed too large. Some are too small: the sign of the difference does not "
            "matter.",
            lambda weights, values, printed: printed - weights @ values > 0.006,
        ),
    ),
)


def _rows_sum_to_one(weights: Tensor, *, dim: int = -1, slack: float = 1e-4, how: str = "all") -> bool:
    sums = weights.sum(dim=dim)
    if how == "total":
        return abs(weights.sum().item() - sums.numel()) < slack
    if how == "exact":
        return bool((sums == 1.0).all())
    close = (sums - 1).abs() < slack
    return {"all": close.all(), "any": close.any(), "first": close.flatten()[0]}[how].item()  # type: ignore[return-value]


def _sum_cases() -> list[Case]:
    good = random_weights(391, 3, 4)
    columns = random_weights(392, 4, 3).mT.contiguous()
    half_dropped = good * torch.tensor([[2.0, 0, 2, 0], [2, 2, 0, 0], [0, 2, 0, 2]])
    total_only = torch.tensor([[0.5, 0.2, 0.1], [0.6, 0.3, 0.3], [0.4, 0.3, 0.3]])
    nearly = good * torch.tensor([[1.0], [1.02], [1.0]])
    thirds = random_weights(393, 6, 7)
    thirds = thirds * (1 + 3e-6 * torch.tensor([[1.0], [-1], [1], [-1], [0], [1]]))
    return [
        Case("a softmax", (good,)),
        Case("columns that sum to 1", (columns,)),
        Case("after dropout", (half_dropped,)),
        Case("equal on average only", (total_only,)),
        Case("one row off by 0.02", (nearly,)),
        Case("one row off by a half", (good * torch.tensor([[1.0], [1.5], [1.0]]),)),
        Case("right up to rounding", (thirds,)),
        Case("a batch of 2", (random_weights(394, 2, 3, 5),)),
        Case("plain scores", (normal(395, 2, 3),)),
        Case("one token", (torch.tensor([[1.0]]),)),
        Case("a batch of 2, one row of them wrong", (torch.stack([good, nearly]),)),
    ]


ROWS_SUM_TO_ONE = Exercise(
    id="03.rows_sum_to_one",
    arguments=("weights",),
    gives=("answer",),
    reference=_rows_sum_to_one,
    cases=_sum_cases,
    mistakes=(
        always(True),
        always(False),
        Mistake(
            "columns",
            "You added up the columns. The weights of one query stand in a row.",
            with_flaw(_rows_sum_to_one, dim=-2),
        ),
        Mistake(
            "exact comparison",
            "You asked for sums of exactly 1. Computed decimals are off in their last digits: allow a small tolerance.",
            with_flaw(_rows_sum_to_one, how="exact"),
        ),
        Mistake(
            "too generous",
            "You accept a row that sums to 1.02. Rounding is a thousand times smaller.",
            with_flaw(_rows_sum_to_one, slack=0.1),
        ),
        Mistake(
            "total compared",
            "You compared the sum of everything with the number of rows. One row can be too large and "
            "another too small: "
            "look at each.",
            with_flaw(_rows_sum_to_one, how="total"),
        ),
        Mistake(
            "one row is enough",
            "One row that sums to 1 is enough for you. All of them must.",
            with_flaw(_rows_sum_to_one, how="any"),
        ),
        Mistake(
            "first row only",
            "You looked at the first row only. All of them must sum to 1.",
            with_flaw(_rows_sum_to_one, how="first"),
        ),
        Mistake(
            "answer reversed",
            "You say True where a row does not sum to 1, and False where all do.",
            lambda weights: not _rows_sum_to_one(weights),
        ),
    ),
)

EXERCISES = (SOFTMAX, ATTENTION_WEIGHTS, CONTEXT_VECTORS, SELF_ATTENTION, FIND_THE_MISTAKE, ROWS_SUM_TO_ONE)
