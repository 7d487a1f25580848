"""The exercises of lesson 01: dot products, scores, projections."""

import torch
from torch import Tensor

from attention_core.exercises._spec import Case, Exercise, Mistake, always, normal, with_flaw
from attention_core.functional import dot_product_scores


def _dot_product(a: Tensor, b: Tensor) -> Tensor:
    return dot_product_scores(a.unsqueeze(0), b.unsqueeze(0))[0, 0]


def _dot_product_cases() -> list[Case]:
    return [
        Case("3 numbers", (normal(1, 3), normal(2, 3))),
        Case("one number", (normal(3, 1), normal(4, 1))),
        Case("7 numbers", (normal(5, 7), normal(6, 7))),
        Case("large numbers", (normal(7, 5, scale=1000.0), normal(8, 5, scale=1000.0))),
        Case("200 numbers", (normal(9, 200), normal(10, 200))),
    ]


DOT_PRODUCT = Exercise(
    id="01.dot_product",
    arguments=("a", "b"),
    gives=("product",),
    reference=_dot_product,
    cases=_dot_product_cases,
    mistakes=(
        Mistake(
            "products not added up",
            "You gave one number for each place, a[0] * b[0] and so on. A dot product is a single number: "
            "one step is left to do with these products.",
            lambda a, b: a * b,
        ),
        Mistake(
            "sums multiplied",
            "You added up each vector first and multiplied the two sums. The order is the other way round: "
            "which two numbers belong together in each product?",
            lambda a, b: a.sum() * b.sum(),
        ),
        Mistake(
            "averaged",
            "Your number is the dot product divided by the length of the vectors: an average. No division "
            "is asked for.",
            lambda a, b: (a * b).mean(),
        ),
        Mistake(
            "cosine",
            "Your number always lies between -1 and 1: it is the cosine of the angle, the dot product divided by the "
            "lengths of both vectors. Here the lengths count too.",
            lambda a, b: (a @ b) / (a.norm() * b.norm()),
        ),
        Mistake(
            "outer product",
            "You multiplied every number of a with every number of b: a whole table. Only numbers at the same place "
            "meet in a dot product.",
            lambda a, b: torch.outer(a, b),
        ),
        Mistake(
            "last number left out",
            "The last place is missing from your sum. Look at where your loop ends: range(n) already stops before n.",
            lambda a, b: (a[:-1] * b[:-1]).sum(),
        ),
        Mistake(
            "first number left out",
            "The first place is missing from your sum. Python counts from 0.",
            lambda a, b: (a[1:] * b[1:]).sum(),
        ),
        Mistake(
            "added, not multiplied",
            "You added the two numbers at each place. The numbers at the same place are combined in another way.",
            lambda a, b: (a + b).sum(),
        ),
        Mistake(
            "only the last product",
            "Your number is the last product alone. Inside the loop the total is overwritten: it should grow.",
            lambda a, b: a[-1] * b[-1],
        ),
        Mistake(
            "returned inside the loop",
            "Your number is the first product alone. Is the `return` indented so far that it stands inside the loop?",
            lambda a, b: a[0] * b[0],
        ),
    ),
)


def _scores(
    queries: Tensor, keys: Tensor, *, swapped: bool = False, scaled: bool = False, softmaxed: bool = False
) -> Tensor:
    if swapped:
        queries, keys = keys, queries
    scores = queries @ keys.mT
    if scaled:
        scores = scores / queries.shape[-1] ** 0.5
    return torch.softmax(scores, dim=-1) if softmaxed else scores


def _scores_cases() -> list[Case]:
    return [
        Case("2 queries, 3 keys", (normal(11, 2, 5), normal(12, 3, 5))),
        Case("as many queries as keys as features", (normal(13, 3, 3), normal(14, 3, 3))),
        Case("one query, one key", (normal(15, 1, 5), normal(16, 1, 5))),
        Case("4 queries, 2 keys", (normal(17, 4, 7), normal(18, 2, 7))),
        Case("a batch of 2", (normal(19, 2, 3, 5), normal(20, 2, 4, 5))),
        Case("large numbers", (normal(21, 3, 5, scale=1000.0), normal(22, 2, 5, scale=1000.0))),
    ]


def _elementwise(queries: Tensor, keys: Tensor) -> Tensor:
    return (queries * keys).sum(dim=-1)


DOT_PRODUCT_SCORES = Exercise(
    id="01.dot_product_scores",
    arguments=("queries", "keys"),
    gives=("scores",),
    reference=dot_product_scores,
    cases=_scores_cases,
    picture="scores",
    mistakes=(
        Mistake(
            "keys not transposed",
            "You multiplied the matrices as they are: rows of the queries met columns of the keys. "
            "Each key is a row: what has to be done to the keys so that their rows become columns?",
            lambda queries, keys: queries @ keys,
        ),
        Mistake(
            "queries and keys exchanged",
            "Row and column have changed places: your entry [i, j] belongs to query j and key i. "
            "Queries go down, keys go across.",
            with_flaw(_scores, swapped=True),
        ),
        Mistake(
            "already scaled",
            "Your scores are divided by the square root of the width. That is the next lesson; here the plain dot "
            "products are asked for.",
            with_flaw(_scores, scaled=True),
        ),
        Mistake(
            "already a softmax",
            "Each row of your answer sums to 1: these are weights. The scores before the softmax are asked for.",
            with_flaw(_scores, softmaxed=True),
        ),
        Mistake(
            "dimensions counted from the front",
            "For two matrices your answer is right, with a batch in front it fails: .T, t() or transpose(0, 1) also "
            "move the batch. Name the last two dimensions by counting from the end.",
            lambda queries, keys: queries @ keys.transpose(0, 1),
        ),
        Mistake(
            "queries against queries",
            "Your scores compare the queries with each other; the keys are never used.",
            lambda queries, keys: queries @ queries.mT,
        ),
        Mistake(
            "keys against keys",
            "Your scores compare the keys with each other; the queries are never used.",
            lambda queries, keys: keys @ keys.mT,
        ),
        Mistake(
            "each query with its own key only",
            "You compared query 0 with key 0, query 1 with key 1, and so on. Every query meets every key.",
            _elementwise,
        ),
        Mistake(
            "one query only",
            "You gave the scores of a single query. There is one row of scores for every query.",
            lambda queries, keys: (queries @ keys.mT)[..., 0, :],
        ),
        Mistake(
            "distance",
            "Your numbers are small where a query and a key are alike: they are distances. "
            "A dot product is large where two vectors point the same way.",
            lambda queries, keys: torch.cdist(queries, keys),
        ),
    ),
)


def _project_reference(x: Tensor, W_query: Tensor, W_key: Tensor, W_value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x @ W_query, x @ W_key, x @ W_value


def _project_cases() -> list[Case]:
    return [
        Case("2 tokens, 3 to 2", (normal(31, 2, 3), normal(32, 3, 2), normal(33, 3, 2), normal(34, 3, 2))),
        Case("3 to 3", (normal(35, 4, 3), normal(36, 3, 3), normal(37, 3, 3), normal(38, 3, 3))),
        Case("one token", (normal(39, 1, 3), normal(40, 3, 2), normal(41, 3, 2), normal(42, 3, 2))),
        Case("wider than the input", (normal(43, 5, 3), normal(44, 3, 5), normal(45, 3, 5), normal(46, 3, 5))),
        Case("a batch of 2", (normal(47, 2, 4, 3), normal(48, 3, 2), normal(49, 3, 2), normal(50, 3, 2))),
    ]


PROJECT = Exercise(
    id="01.project",
    arguments=("x", "W_query", "W_key", "W_value"),
    gives=("queries", "keys", "values"),
    reference=_project_reference,
    cases=_project_cases,
    mistakes=(
        Mistake(
            "matrices transposed",
            "The matrices are used transposed. nn.Linear keeps its weight as (d_out, d_in); here each W is "
            "(d_in, d_out), made to stand to the right of x as it is.",
            lambda x, q, k, v: (x @ q.mT, x @ k.mT, x @ v.mT),
        ),
        Mistake(
            "one matrix for all three",
            "All three are made with W_query. Each has a matrix of its own: that is what lets a token ask for one "
            "thing and offer another.",
            lambda x, q, k, v: (x @ q, x @ q, x @ q),
        ),
        Mistake(
            "keys and queries exchanged",
            "Queries and keys have changed places. The order asked for is queries, keys, values.",
            lambda x, q, k, v: (x @ k, x @ q, x @ v),
        ),
        Mistake(
            "keys and values exchanged",
            "Keys and values have changed places. The order asked for is queries, keys, values.",
            lambda x, q, k, v: (x @ q, x @ v, x @ k),
        ),
        Mistake(
            "values not projected",
            "Queries and keys are right; the values are still the input itself. They have a matrix too.",
            lambda x, q, k, v: (x @ q, x @ k, x),
        ),
        Mistake(
            "projected one after another",
            "The keys are made from the queries, and the values from the keys. All three start from x.",
            lambda x, q, k, v: (x @ q, x @ q @ k, x @ q @ k @ v),
        ),
        Mistake(
            "x on the wrong side",
            "The matrix stands to the left of x. Each token is a row of x, so x comes first.",
            lambda x, q, k, v: (q @ x, k @ x, v @ x),
        ),
        Mistake(
            "only the queries",
            "You gave the queries alone. Three things are asked for: return queries, keys, values.",
            lambda x, q, k, v: x @ q,
        ),
    ),
)


def _word_scores(inputs: Tensor, position: int) -> Tensor:
    return dot_product_scores(inputs[position : position + 1], inputs)[0]


def _word_cases() -> list[Case]:
    return [
        Case("3 tokens, position 1", (normal(51, 3, 2), 1)),
        Case("the first token", (normal(52, 4, 3), 0)),
        Case("the last token", (normal(53, 5, 3), 4)),
        Case("6 tokens, position 2", (normal(54, 6, 3), 2)),
        Case("one token", (normal(55, 1, 3), 0)),
        Case("as many tokens as features", (normal(56, 4, 4), 3)),
    ]


def _broken_word_scores(inputs: Tensor, position: int) -> Tensor:
    query = inputs.shape[0]
    return torch.stack([torch.dot(x_i, query) for x_i in inputs])  # type: ignore[arg-type]


FIND_THE_MISTAKE = Exercise(
    id="01.find_the_mistake",
    arguments=("inputs", "position"),
    gives=("scores",),
    reference=_word_scores,
    cases=_word_cases,
    mistakes=(
        Mistake(
            "the number of tokens as query",
            "inputs.shape[0] is how many tokens there are, a plain number. The query is a vector: "
            "how do you take one row out of inputs?",
            _broken_word_scores,
        ),
        Mistake(
            "always the same word",
            "The scores are those of the row inputs[1] whatever the position is. Use the position that was "
            "handed over.",
            lambda inputs, position: inputs @ inputs[min(1, len(inputs) - 1)],
        ),
        Mistake(
            "counted from 1",
            "The scores are those of the token before the one asked for. Python counts from 0, and so does position.",
            lambda inputs, position: inputs @ inputs[position - 1],
        ),
        Mistake(
            "always the last word",
            "The scores are those of the last token, whatever the position is. Does your loop overwrite the query?",
            lambda inputs, position: inputs @ inputs[-1],
        ),
        Mistake(
            "all words at once",
            "You gave the scores of every token. One row is asked for: that of the token at the position.",
            lambda inputs, position: inputs @ inputs.mT,
        ),
        Mistake(
            "a column as query",
            "You took a column of inputs: one feature of all tokens. A token is a row.",
            lambda inputs, position: inputs @ inputs[:, position],
        ),
        Mistake(
            "without itself",
            "The score of the token with itself is missing or 0. A token attends to itself as well.",
            lambda inputs, position: (inputs @ inputs[position]).index_fill(0, torch.tensor(position), 0.0),
        ),
    ),
)


def _same_both_ways(scores: Tensor, *, exact: bool = False, only: str = "") -> bool:
    if scores.shape[0] != scores.shape[1]:
        return False
    if only == "sums":
        return torch.allclose(scores.sum(0), scores.sum(1), atol=1e-4)
    if only == "first":
        return torch.allclose(scores[0], scores[:, 0], atol=1e-4)
    if only == "any":
        above = torch.ones_like(scores, dtype=torch.bool).triu(1)
        close = torch.isclose(scores, scores.mT, atol=1e-4)
        return bool(close[above].any()) if above.any() else True
    return torch.equal(scores, scores.mT) if exact else torch.allclose(scores, scores.mT, atol=1e-4)


def _symmetric_cases() -> list[Case]:
    x, queries, keys = normal(61, 4, 3), normal(62, 4, 3), normal(63, 4, 3)
    symmetric = x @ x.mT
    rounded = symmetric * (1 + 1e-6 * torch.ones(4, 4).triu(1))
    ring = torch.tensor([[0.5, 2.0, -1.0], [-1.0, 0.5, 2.0], [2.0, -1.0, 0.5]])
    late = symmetric.clone()
    late[2, 3] += 0.5
    single = queries @ keys.mT
    single[2, 3] = single[3, 2]
    return [
        Case("a sentence with itself", (symmetric,)),
        Case("queries and keys of their own", (queries @ keys.mT,)),
        Case("2 queries, 3 keys", (normal(64, 2, 3),)),
        Case("the same up to rounding", (rounded,)),
        Case("equal sums only", (ring,)),
        Case("one pair differs", (late,)),
        Case("one pair agrees", (single,)),
        Case("one token", (normal(65, 1, 1),)),
    ]


SAME_BOTH_WAYS = Exercise(
    id="01.same_both_ways",
    arguments=("scores",),
    gives=("answer",),
    reference=_same_both_ways,
    cases=_symmetric_cases,
    mistakes=(
        always(True),
        always(False),
        Mistake(
            "exact comparison",
            "You asked for exactly equal numbers. Computed decimals differ in their last digits: "
            "0.1 + 0.2 == 0.3 is False too. Compare with a small tolerance.",
            with_flaw(_same_both_ways, exact=True),
        ),
        Mistake(
            "sums compared",
            "You compared the sums of the rows with those of the columns. They can agree while the entries do not: "
            "compare entry by entry.",
            with_flaw(_same_both_ways, only="sums"),
        ),
        Mistake(
            "first row only",
            "You compared the first row with the first column. The other pairs count too.",
            with_flaw(_same_both_ways, only="first"),
        ),
        Mistake(
            "one equal pair is enough",
            "One pair that agrees is enough for you. Every pair must agree: think of all, and not any.",
            with_flaw(_same_both_ways, only="any"),
        ),
        Mistake(
            "error for other shapes",
            "With more keys than queries your function stops with an error. Such scores cannot be the same both ways: "
            "look at the shape first and say False.",
            lambda scores: bool(torch.allclose(scores, scores.mT, atol=1e-4)),
        ),
        Mistake(
            "answer reversed",
            "You say True where the scores differ, and False where they agree.",
            lambda scores: not _same_both_ways(scores),
        ),
    ),
)

EXERCISES = (DOT_PRODUCT, DOT_PRODUCT_SCORES, PROJECT, FIND_THE_MISTAKE, SAME_BOTH_WAYS)
