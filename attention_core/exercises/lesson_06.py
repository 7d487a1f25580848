"""The exercises of lesson 06: several heads."""

import torch
from torch import Tensor

from attention_core.exercises._spec import Case, Exercise, Mistake, normal, with_flaw
from attention_core.functional import merge_heads, scaled_dot_product_attention, split_heads


def _split(x: Tensor, num_heads: int, *, how: str = "right") -> Tensor:
    *batch, tokens, width = x.shape
    head_dim = width // num_heads
    if how == "view":
        return x.reshape(*batch, num_heads, tokens, head_dim)
    if how == "tokens first":
        return x.reshape(*batch, tokens, num_heads, head_dim)
    if how == "interleaved":
        return x.reshape(*batch, tokens, head_dim, num_heads).movedim(-1, -3)
    if how == "tokens last":
        return x.reshape(*batch, tokens, num_heads, head_dim).transpose(-3, -2).mT
    if how == "sizes exchanged":
        return x.reshape(*batch, tokens, head_dim, num_heads).transpose(-3, -2)
    return x.reshape(*batch, tokens, num_heads, head_dim).transpose(-3, -2)


def _split_front(x: Tensor, num_heads: int) -> Tensor:
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2 if x.dim() > 2 else 0)


def _split_cases() -> list[Case]:
    return [
        Case("2 tokens, 2 heads of width 2", (normal(601, 2, 4), 2)),
        Case("3 tokens, 2 heads of width 3", (normal(602, 3, 6), 2)),
        Case("one token, 3 heads", (normal(603, 1, 6), 3)),
        Case("one head", (normal(604, 3, 5), 1)),
        Case("heads of width 1", (normal(605, 4, 3), 3)),
        Case("a batch of 2, 3 heads of width 2", (normal(606, 2, 5, 6), 3)),
    ]


VIEW_WITHOUT_TRANSPOSE = (
    "The shape is right and the numbers are scrambled: view or reshape straight to (heads, tokens, width) cuts "
    "the numbers "
    "anew in the order in which they lie in memory, so one head gets pieces of several tokens. First give the heads a "
    "dimension of their own where they lie, then exchange two dimensions."
)

SPLIT_HEADS = Exercise(
    id="06.split_heads",
    arguments=("x", "num_heads"),
    gives=("heads",),
    reference=split_heads,
    cases=_split_cases,
    mistakes=(
        Mistake("view without transpose", VIEW_WITHOUT_TRANSPOSE, with_flaw(_split, how="view")),
        Mistake(
            "tokens before heads",
            "Each token is cut into heads, and the tokens still come first. The heads should stand before "
            "the tokens, so "
            "that each head is a matrix of its own: exchange two dimensions.",
            with_flaw(_split, how="tokens first"),
        ),
        Mistake(
            "every other number",
            "Head 0 gets every so many-th number of a vector. Each head gets a piece of neighbouring "
            "numbers: head 0 the "
            "first ones, head 1 the next.",
            with_flaw(_split, how="interleaved"),
        ),
        Mistake(
            "tokens last",
            "Within each head rows and columns are exchanged: tokens go down, the width goes across.",
            with_flaw(_split, how="tokens last"),
        ),
        Mistake(
            "head_dim and num_heads exchanged",
            "You made as many heads as a head should be wide. num_heads is the number of heads; the width of "
            "each is what "
            "is left.",
            with_flaw(_split, how="sizes exchanged"),
        ),
        Mistake(
            "dimensions counted from the front",
            "transpose(1, 2) fits a batch only: without one it exchanges other dimensions. Count from the end.",
            lambda x, num_heads: x.unflatten(-1, (num_heads, -1)).transpose(1, 2),
        ),
        Mistake(
            "tokens shared out",
            "You shared out the tokens over the heads. Every head sees all tokens: it is each vector that is cut.",
            lambda x, num_heads: torch.stack(x.chunk(num_heads, dim=-2), dim=-3),
        ),
        Mistake(
            "copied, not cut",
            "Every head has the whole vector. Each one gets a piece of it.",
            lambda x, num_heads: torch.stack([x] * num_heads, dim=-3),
        ),
    ),
)


def _merge(x: Tensor, *, how: str = "right") -> Tensor:
    *batch, heads, tokens, width = x.shape
    if how == "view":
        return x.reshape(*batch, tokens, heads * width)
    if how == "interleaved":
        return x.movedim(-3, -1).reshape(*batch, tokens, width * heads)
    if how == "reversed":
        return x.flip(-3).transpose(-3, -2).reshape(*batch, tokens, heads * width)
    return x.transpose(-3, -2).reshape(*batch, tokens, heads * width)


def _merge_cases() -> list[Case]:
    return [
        Case("2 heads, 2 tokens, width 2", (normal(611, 2, 2, 2),)),
        Case("2 heads, 3 tokens, width 5", (normal(612, 2, 3, 5),)),
        Case("one token, 3 heads", (normal(613, 3, 1, 2),)),
        Case("one head", (normal(614, 1, 3, 4),)),
        Case("a batch of 2, 3 heads", (normal(615, 2, 3, 4, 5),)),
    ]


MERGE_HEADS = Exercise(
    id="06.merge_heads",
    arguments=("x",),
    gives=("merged",),
    reference=merge_heads,
    cases=_merge_cases,
    mistakes=(
        Mistake(
            "view without transpose",
            "The shape is right and the numbers are scrambled: view or reshape alone strings the numbers "
            "together head by "
            "head, so one row gets several tokens of one head. Bring the tokens to the front first.",
            with_flaw(_merge, how="view"),
        ),
        Mistake(
            "numbers of the heads in turn",
            "The numbers of the heads take turns within a row. They should lie side by side: all of head 0, "
            "then all of "
            "head 1.",
            with_flaw(_merge, how="interleaved"),
        ),
        Mistake(
            "heads in reverse order",
            "The heads stand in reverse order: head 0 comes first.",
            with_flaw(_merge, how="reversed"),
        ),
        Mistake(
            "heads added", "You added the heads up. They are put side by side, nothing is lost.", lambda x: x.sum(-3)
        ),
        Mistake("heads averaged", "You took the mean of the heads. They are put side by side.", lambda x: x.mean(-3)),
        Mistake(
            "heads below each other",
            "The heads stand below each other, as if there were more tokens. They belong side by side, in one "
            "row for each "
            "token.",
            lambda x: x.flatten(-3, -2),
        ),
        Mistake(
            "not joined",
            "The tokens come first now; heads and width are still two dimensions. Make one of them.",
            lambda x: x.transpose(-3, -2),
        ),
        Mistake(
            "dimensions counted from the front",
            "transpose(1, 2) fits a batch only: without one it exchanges other dimensions. Count from the end.",
            lambda x: x.transpose(1, 2).flatten(-2),
        ),
    ),
)


def _stack_reference(head_weights: list[Tensor]) -> Tensor:
    return torch.cat(list(head_weights), dim=-1)


def _stack_cases() -> list[Case]:
    return [
        Case("2 heads, 3 to 2", ([normal(621, 3, 2), normal(622, 3, 2)],)),
        Case("3 heads, 4 to 2", ([normal(623, 4, 2), normal(624, 4, 2), normal(625, 4, 2)],)),
        Case("one head", ([normal(626, 3, 4)],)),
        Case("2 heads, 4 to 4", ([normal(627, 4, 4), normal(628, 4, 4)],)),
    ]


STACK_PROJECTIONS = Exercise(
    id="06.stack_projections",
    arguments=("head_weights",),
    gives=("W",),
    reference=_stack_reference,
    cases=_stack_cases,
    picture="scores",
    mistakes=(
        Mistake(
            "below each other",
            "The matrices stand below each other: that makes the input wider, not the output. Each column "
            "makes one number "
            "of the output.",
            lambda head_weights: torch.cat(list(head_weights), dim=0),
        ),
        Mistake(
            "a dimension of their own",
            "The heads got a dimension of their own (torch.stack). One matrix is asked for.",
            lambda head_weights: torch.stack(list(head_weights)),
        ),
        Mistake("added", "You added the matrices up. Nothing should be lost.", lambda head_weights: sum(head_weights)),
        Mistake(
            "averaged",
            "You took the mean of the matrices. Nothing should be lost.",
            lambda head_weights: torch.stack(list(head_weights)).mean(0),
        ),
        Mistake(
            "reverse order",
            "The heads stand in reverse order: the columns of head 0 come first.",
            lambda head_weights: torch.cat(list(reversed(head_weights)), dim=-1),
        ),
        Mistake(
            "columns in turn",
            "The columns of the heads take turns. All columns of head 0 come first, then those of head 1: "
            "split_heads cuts "
            "pieces of neighbouring numbers.",
            lambda head_weights: torch.stack(list(head_weights), dim=-1).flatten(-2),
        ),
        Mistake(
            "turned for nn.Linear",
            "Your matrix is (d_out, d_in), as nn.Linear keeps it. Here W is used as x @ W: (d_in, d_out).",
            lambda head_weights: torch.cat(list(head_weights), dim=-1).mT,
        ),
        Mistake(
            "stacked and cut anew",
            "The shape is right and the numbers are scrambled: stack followed by view or reshape cuts the "
            "matrices anew. "
            "Put them side by side.",
            lambda head_weights: torch.stack(list(head_weights)).reshape(head_weights[0].shape[0], -1),
        ),
        Mistake(
            "the first head only",
            "Only the first head is in your matrix.",
            lambda head_weights: head_weights[0],
        ),
    ),
)


def _multi_head(
    x: Tensor,
    W_query: Tensor,
    W_key: Tensor,
    W_value: Tensor,
    W_out: Tensor,
    num_heads: int,
    *,
    scale: str = "head",
    split: str = "right",
    merge: str = "right",
    out: str = "right",
    dim: int = -1,
    causal: bool = False,
    exchanged: bool = False,
    transposed: bool = False,
) -> Tensor:
    if transposed:
        W_query, W_key, W_value = W_query.mT, W_key.mT, W_value.mT
    q, k, v = (_split(x @ W, num_heads, how=split) for W in (W_query, W_key, W_value))
    head_dim = q.shape[-1]
    divisor = {"head": head_dim, "total": head_dim * num_heads, "none": 1, "squared": head_dim**2}[scale]
    scores = (k @ q.mT if exchanged else q @ k.mT) / divisor**0.5
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    merged = _merge(torch.softmax(scores, dim=dim) @ v, how=merge)
    return merged @ {"right": W_out, "none": torch.eye(len(W_out)), "transposed": W_out.mT}[out]


def _multi_head_reference(
    x: Tensor, W_query: Tensor, W_key: Tensor, W_value: Tensor, W_out: Tensor, num_heads: int
) -> Tensor:
    queries, keys, values = (split_heads(x @ W, num_heads) for W in (W_query, W_key, W_value))
    return merge_heads(scaled_dot_product_attention(queries, keys, values)[0]) @ W_out


def _matrices(seed: int, d_in: int, d_out: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        normal(seed, d_in, d_out),
        normal(seed + 1, d_in, d_out),
        normal(seed + 2, d_in, d_out),
        normal(seed + 3, d_out, d_out),
    )


def _multi_head_cases() -> list[Case]:
    return [
        Case("2 tokens, 2 heads of width 2", (normal(631, 2, 3), *_matrices(632, 3, 4), 2)),
        Case("4 tokens, 2 heads of width 3", (normal(637, 4, 6, scale=0.5), *_matrices(638, 6, 6), 2)),
        Case("one token", (normal(643, 1, 3), *_matrices(644, 3, 6), 3)),
        Case("one head", (normal(649, 3, 2), *_matrices(650, 2, 3), 1)),
        Case("a batch of 2, 3 heads", (normal(655, 2, 5, 4, scale=0.5), *_matrices(656, 4, 6), 3)),
    ]


MULTI_HEAD_ATTENTION = Exercise(
    id="06.multi_head_attention",
    arguments=("x", "W_query", "W_key", "W_value", "W_out", "num_heads"),
    gives=("out",),
    reference=_multi_head_reference,
    cases=_multi_head_cases,
    mistakes=(
        Mistake(
            "scaled by the total width",
            "The scores were divided by the root of d_out. Each head works with queries and keys of its own "
            "width: that one "
            "counts.",
            with_flaw(_multi_head, scale="total"),
        ),
        Mistake(
            "not scaled",
            "The scores were not divided by the root of the width of a head.",
            with_flaw(_multi_head, scale="none"),
        ),
        Mistake(
            "divided by the width",
            "The scores were divided by the width of a head and not by its square root.",
            with_flaw(_multi_head, scale="squared"),
        ),
        Mistake(
            "split by view alone",
            "The heads are scrambled on the way in: view without transpose gives one head pieces of several tokens.",
            with_flaw(_multi_head, split="view"),
        ),
        Mistake(
            "merged by view alone",
            "The heads are scrambled on the way out: bring the tokens to the front before you join heads and width.",
            with_flaw(_multi_head, merge="view"),
        ),
        Mistake(
            "every other number",
            "Each head gets every so many-th column. It should get a piece of neighbouring ones.",
            with_flaw(_multi_head, split="interleaved"),
        ),
        Mistake(
            "no last projection",
            "The merged heads come out as they are: W_out is not used.",
            with_flaw(_multi_head, out="none"),
        ),
        Mistake(
            "W_out transposed",
            "W_out is used transposed, as nn.Linear keeps it. Here it stands to the right as it is.",
            with_flaw(_multi_head, out="transposed"),
        ),
        Mistake(
            "softmax over the queries",
            "The softmax ran over the queries (dim=-2). Each query shares out its attention over the keys.",
            with_flaw(_multi_head, dim=-2),
        ),
        Mistake(
            "queries and keys exchanged",
            "Queries and keys have changed places in the scores.",
            with_flaw(_multi_head, exchanged=True),
        ),
        Mistake(
            "future hidden",
            "You hid the future. This exercise asks for no mask: every token sees every other.",
            with_flaw(_multi_head, causal=True),
        ),
        Mistake(
            "one head",
            "You attended with one head over the whole width: num_heads changes nothing.",
            lambda x, q, k, v, o, num_heads: _multi_head(x, q, k, v, o, 1),
        ),
        Mistake(
            "matrices transposed",
            "The matrices are used transposed, as nn.Linear keeps them. Here each W stands to the right of x as it is.",
            with_flaw(_multi_head, transposed=True),
        ),
    ),
)


def _head_scores(
    queries: Tensor,
    keys: Tensor,
    num_heads: int,
    *,
    split: str = "right",
    scaled: bool = False,
    exchanged: bool = False,
) -> Tensor:
    q, k = _split(queries, num_heads, how=split), _split(keys, num_heads, how=split)
    scores = k @ q.mT if exchanged else q @ k.mT
    return scores / q.shape[-1] ** 0.5 if scaled else scores


def _head_scores_reference(queries: Tensor, keys: Tensor, num_heads: int) -> Tensor:
    return split_heads(queries, num_heads) @ split_heads(keys, num_heads).mT


def _head_scores_cases() -> list[Case]:
    return [
        Case("3 tokens, 2 heads of width 2", (normal(671, 3, 4), normal(672, 3, 4), 2)),
        Case("one token", (normal(673, 1, 4), normal(674, 1, 4), 2)),
        Case("5 tokens, 3 heads of width 2", (normal(675, 5, 6), normal(676, 5, 6), 3)),
        Case("a batch of 2", (normal(677, 2, 4, 6), normal(678, 2, 4, 6), 2)),
        Case("as many tokens as heads", (normal(679, 3, 6), normal(680, 3, 6), 3)),
    ]


FIND_THE_MISTAKE = Exercise(
    id="06.find_the_mistake",
    arguments=("queries", "keys", "num_heads"),
    gives=("scores",),
    reference=_head_scores_reference,
    cases=_head_scores_cases,
    mistakes=(
        Mistake(
            "still scrambled",
            "The mistake is still there: the shapes are right, but each head works with pieces of several "
            "tokens. Where "
            "does a view need a transpose beside it?",
            with_flaw(_head_scores, split="view"),
        ),
        Mistake(
            "heads compared within a token",
            "Your scores compare the heads of one token with each other. In each head, tokens are compared "
            "with tokens: "
            "the heads should stand before the tokens.",
            with_flaw(_head_scores, split="tokens first"),
        ),
        Mistake(
            "every other number",
            "Each head gets every so many-th number of a vector. It should get a piece of neighbouring ones.",
            with_flaw(_head_scores, split="interleaved"),
        ),
        Mistake(
            "scaled as well",
            "The heads are right now. The scores are divided by the root of the width, which this function "
            "was not to do.",
            with_flaw(_head_scores, scaled=True),
        ),
        Mistake(
            "queries and keys exchanged",
            "Row and column of the scores have changed places: queries go down, keys go across.",
            with_flaw(_head_scores, exchanged=True),
        ),
        Mistake(
            "queries only",
            "Only the queries are split rightly; the keys are still scrambled.",
            lambda queries, keys, num_heads: _split(queries, num_heads) @ _split(keys, num_heads, how="view").mT,
        ),
        Mistake(
            "heads added",
            "You gave one table of scores: the heads were added up. Each head has its own.",
            lambda queries, keys, num_heads: queries @ keys.mT,
        ),
    ),
)


def _columns(W: Tensor, num_heads: int, order: list[int]) -> Tensor:
    pieces = W.chunk(num_heads, dim=-1)
    return torch.cat([pieces[head] for head in order], dim=-1)


def _rows(W: Tensor, num_heads: int, order: list[int]) -> Tensor:
    pieces = W.chunk(num_heads, dim=0)
    return torch.cat([pieces[head] for head in order], dim=0)


def _permute(
    W_query: Tensor,
    W_key: Tensor,
    W_value: Tensor,
    W_out: Tensor,
    num_heads: int,
    order: tuple[int, ...],
    *,
    out: str = "rows",
    inverse: bool = False,
    single: bool = False,
    only: int = 3,
) -> tuple[Tensor, ...]:
    order_list = [order.index(head) for head in range(num_heads)] if inverse else list(order)
    projections = [_columns(W, num_heads, order_list) for W in (W_query, W_key, W_value)]
    if single:
        indices = torch.arange(W_query.shape[-1]).unflatten(0, (-1, num_heads))[:, order_list].flatten()
        projections = [W[:, indices] for W in (W_query, W_key, W_value)]
    projections = projections[:only] + [W_query, W_key, W_value][only:]
    outs = {"rows": _rows, "columns": _columns, "none": lambda W, num_heads, order: W}
    return *projections, outs[out](W_out, num_heads, order_list)


def _permute_cases() -> list[Case]:
    return [
        Case("2 heads exchanged", (*_matrices(681, 3, 4), 2, (1, 0))),
        Case("3 heads in a ring", (*_matrices(685, 4, 6), 3, (2, 0, 1))),
        Case("4 heads", (*_matrices(689, 5, 8), 4, (1, 3, 0, 2))),
        Case("the old order", (*_matrices(693, 3, 6), 3, (0, 1, 2))),
        Case("as wide as the input", (*_matrices(697, 6, 6), 2, (1, 0))),
    ]


PERMUTE_HEADS = Exercise(
    id="06.permute_heads",
    arguments=("W_query", "W_key", "W_value", "W_out", "num_heads", "order"),
    gives=("W_query", "W_key", "W_value", "W_out"),
    reference=_permute,
    cases=_permute_cases,
    mistakes=(
        Mistake(
            "W_out left as it was",
            "The heads have new places, but W_out still expects the old ones, so the result of the layer "
            "changes. What in "
            "W_out belongs to one head?",
            with_flaw(_permute, out="none"),
        ),
        Mistake(
            "columns of W_out",
            "You moved columns of W_out. A head's numbers meet the rows of W_out: x @ W takes the columns of x "
            "with the rows "
            "of W.",
            with_flaw(_permute, out="columns"),
        ),
        Mistake(
            "order inverted",
            "The heads went the other way. order says, for each new place, which old head comes there: place "
            "0 gets head "
            "order[0]. With two heads the difference does not show.",
            with_flaw(_permute, inverse=True),
        ),
        Mistake(
            "single columns moved",
            "You moved single columns. A head is a piece of neighbouring columns, and moves as a whole.",
            with_flaw(_permute, single=True),
        ),
        Mistake(
            "values left as they were",
            "Queries and keys have moved and the values have not: each head now mixes another head's values.",
            with_flaw(_permute, only=2),
        ),
        Mistake(
            "only the queries moved",
            "Only the queries have moved: each head now compares its queries with another head's keys.",
            with_flaw(_permute, only=1),
        ),
        Mistake(
            "nothing moved",
            "Nothing has moved. The result stays the same, but the heads should stand in the new order.",
            lambda W_query, W_key, W_value, W_out, num_heads, order: (W_query, W_key, W_value, W_out),
        ),
    ),
)

EXERCISES = (
    SPLIT_HEADS,
    MERGE_HEADS,
    STACK_PROJECTIONS,
    MULTI_HEAD_ATTENTION,
    FIND_THE_MISTAKE,
    PERMUTE_HEADS,
)
