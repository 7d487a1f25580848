"""The exercises of lesson 08: a softmax, and attention, one block at a time."""

import math

import torch
from torch import Tensor

from attention_core.exercises._spec import Case, Exercise, Mistake, normal, with_flaw
from attention_core.functional import scaled_dot_product_attention


def _online(
    scores: Tensor,
    *,
    correct: str = "old sum",
    start: str = "nothing",
    maximum_at_start: float = -math.inf,
    kept: bool = True,
    added: bool = True,
) -> tuple[Tensor, Tensor]:
    largest, total = torch.tensor(maximum_at_start), torch.tensor(0.0)
    rest = scores
    if start != "nothing":
        largest = scores[0]
        total = torch.tensor(0.0 if start == "lost" else 1.0)
        rest = scores if start == "twice" else scores[1:]
    for score in rest:
        new = torch.maximum(largest, score)
        factor = {
            "old sum": (largest - new).exp(),
            "both": (largest - new).exp(),
            "upside down": (new - largest).exp(),
            "none": torch.tensor(1.0),
        }[correct]
        term = (score - new).exp()
        total = total * factor if added else torch.tensor(0.0)
        total = total + (term * factor if correct == "both" else term)
        largest = new if kept else largest
    return largest, total


def _new_maximum_lost(scores: Tensor) -> tuple[Tensor, Tensor]:
    largest, total = torch.tensor(-torch.inf), torch.tensor(0.0)
    for score in scores:
        if score > largest:
            total, largest = total * (largest - score).exp(), score
        else:
            total = total + (score - largest).exp()
    return largest, total


def _online_if(scores: Tensor) -> tuple[Tensor, Tensor]:
    largest, total = torch.tensor(-torch.inf), torch.tensor(0.0)
    for score in scores:
        if score > largest:
            total, largest = torch.tensor(1.0), score
        else:
            total = total + (score - largest).exp()
    return largest, total


def _relative_to_the_old(scores: Tensor) -> tuple[Tensor, Tensor]:
    largest, total = torch.tensor(-torch.inf), torch.tensor(0.0)
    for score in scores:
        new = torch.maximum(largest, score)
        total = total * (largest - new).exp() + (score - largest).exp()
        largest = new
    return largest, total


def _divided_by_the_correction(scores: Tensor) -> tuple[float, float]:
    largest, total = -math.inf, 0.0
    for score in scores.tolist():
        new = max(largest, score)
        total = total / math.exp(largest - new) + math.exp(score - new)
        largest = new
    return largest, total


def _online_reference(scores: Tensor) -> tuple[Tensor, Tensor]:
    return scores.max(), (scores - scores.max()).exp().sum()


def _online_cases() -> list[Case]:
    return [
        Case("one score", (normal(801, 1),)),
        Case("2 scores, the larger one last", (torch.tensor([0.3, 1.5]),)),
        Case("2 scores, the larger one first", (torch.tensor([1.2, -0.4]),)),
        Case("5 scores", (normal(802, 5),)),
        Case("rising scores", (normal(803, 6).sort().values,)),
        Case("negative scores", (normal(804, 4) - 5.0,)),
        Case("large numbers", (1000 + normal(805, 7, scale=10.0),)),
    ]


ONLINE_SUM = Exercise(
    id="08.online_sum",
    arguments=("scores",),
    gives=("maximum", "total"),
    reference=_online_reference,
    cases=_online_cases,
    mistakes=(
        Mistake(
            "no correction",
            "The sum still holds numbers that refer to an old maximum: it is too large as soon as a new maximum comes. "
            "What is the old sum to be multiplied by then?",
            with_flaw(_online, correct="none"),
        ),
        Mistake(
            "correction upside down",
            "NaN comes from the very first score: infinity times 0. The correction of the old sum is upside down; a "
            "new maximum makes old exponentials smaller, not larger.",
            with_flaw(_online, correct="upside down"),
        ),
        Mistake(
            "old sum made larger",
            "The old sum grows when a new maximum comes. Relative to a larger maximum, old exponentials are smaller: "
            "which of the two maxima is subtracted from which?",
            with_flaw(_online, correct="upside down", start="first"),
        ),
        Mistake(
            "new term corrected too",
            "The correction also multiplies the new term, which refers to the new maximum already. The first score is "
            "lost at once: its correction is exp(-infinity).",
            with_flaw(_online, correct="both"),
        ),
        Mistake(
            "maximum starts at 0",
            "The running maximum starts at 0, so scores that are all negative never replace it. Which start is smaller "
            "than every score?",
            with_flaw(_online, maximum_at_start=0.0),
        ),
        Mistake(
            "first score counted twice",
            "You start with the first score in the sum, and the loop adds it again.",
            with_flaw(_online, start="twice"),
        ),
        Mistake(
            "first score lost",
            "The first score is the maximum to begin with, but its exponential is missing from the sum.",
            with_flaw(_online, start="lost"),
        ),
        Mistake(
            "maximum not kept",
            "Your running maximum is still what it was before the loop: the new one is used and then forgotten.",
            with_flaw(_online, kept=False),
        ),
        Mistake(
            "overwritten",
            "Your sum holds the last score's exponential only: each one takes the place of the sum before it.",
            with_flaw(_online, added=False),
        ),
        Mistake(
            "new maximum not added",
            "The old sum is corrected, but a score that is a new maximum is not added itself. Relative to itself it "
            "counts exp(0) = 1.",
            _new_maximum_lost,
        ),
        Mistake(
            "old sum thrown away",
            "With a new maximum your sum begins anew at 1, and all scores before it are lost. They still count: "
            "multiply the old sum, and then add the 1.",
            _online_if,
        ),
        Mistake(
            "relative to the old maximum",
            "The old sum is corrected, but the new term still refers to the old maximum, which at the first score is "
            "minus infinity: the sum is infinite at once.",
            _relative_to_the_old,
        ),
        Mistake(
            "divided by the correction",
            "At the first score exp(old - new) is exp(-infinity), which is 0. The old sum is to be multiplied by it "
            "and not divided.",
            _divided_by_the_correction,
        ),
        Mistake(
            "relative to the first score",
            "The exponentials refer to the first score and not to the largest one.",
            lambda scores: (scores.max(), (scores - scores[0]).exp().sum()),
        ),
        Mistake(
            "maximum not subtracted",
            "You added up exp(score). Relative to the maximum it should be exp(score - maximum); as it is, large "
            "scores overflow.",
            lambda scores: (scores.max(), scores.exp().sum()),
        ),
        Mistake(
            "exchanged",
            "Maximum and sum have changed places: the maximum comes first.",
            lambda scores: _online_reference(scores)[::-1],
        ),
        Mistake(
            "logarithm",
            "Your second number is the logarithm of the sum of all exp(score). The sum of exp(score - maximum) is "
            "asked for.",
            lambda scores: (scores.max(), scores.logsumexp(dim=0)),
        ),
    ),
)


def _in_blocks(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    block_size: int,
    *,
    context_correction: str = "right",
    sum_correction: str = "right",
    scaled: bool = True,
    divide: str = "at the end",
    rest: bool = True,
) -> Tensor:
    largest = torch.full((len(queries), 1), -torch.inf)
    total, context = torch.zeros(len(queries), 1), torch.zeros(len(queries), values.shape[-1])
    stop = len(keys) if rest else len(keys) // block_size * block_size
    for begin in range(0, stop, block_size):
        block = slice(begin, begin + block_size)
        scores = queries @ keys[block].mT / (queries.shape[-1] ** 0.5 if scaled else 1.0)
        new = torch.maximum(largest, scores.amax(dim=-1, keepdim=True))
        shares = (scores - new).exp()
        total = _corrected(total, shares.sum(dim=-1, keepdim=True), largest, new, sum_correction)
        found = shares / shares.sum(dim=-1, keepdim=True) if divide == "each by itself" else shares
        context = _corrected(context, found @ values[block], largest, new, context_correction)
        if divide == "each time":
            context = context / total
        largest = new
    return context / total if divide == "at the end" else context


def _corrected(old: Tensor, more: Tensor, largest: Tensor, new: Tensor, how: str) -> Tensor:
    if how == "both":
        return (old + more) * (largest - new).exp()
    if how == "new part":
        return old + more * (largest - new).exp()
    factors = {
        "right": (largest - new).exp(),
        "none": torch.ones_like(new),
        "upside down": (new - largest).exp(),
        "overwritten": torch.zeros_like(new),
    }
    return old * factors[how] + more


def _softmax_of_blocks(queries: Tensor, keys: Tensor, values: Tensor, block_size: int, *, together: str) -> Tensor:
    contexts = [
        scaled_dot_product_attention(queries, block_keys, block_values)[0]
        for block_keys, block_values in zip(keys.split(block_size), values.split(block_size), strict=True)
    ]
    return torch.stack(contexts).mean(dim=0) if together == "averaged" else torch.stack(contexts).sum(dim=0)


def _blocks_reference(queries: Tensor, keys: Tensor, values: Tensor, block_size: int) -> Tensor:
    return scaled_dot_product_attention(queries, keys, values)[0]


def _blocks_cases() -> list[Case]:
    return [
        Case("one query, 2 keys, blocks of 1", (normal(811, 1, 3), normal(812, 2, 3), normal(813, 2, 2), 1)),
        Case("2 queries, 4 keys, blocks of 2", (normal(814, 2, 3), normal(815, 4, 3), normal(816, 4, 2), 2)),
        Case("3 queries, 5 keys, blocks of 2", (normal(817, 3, 5), normal(818, 5, 5), normal(819, 5, 4), 2)),
        Case("all keys in one block", (normal(820, 2, 3), normal(821, 3, 3), normal(822, 3, 2), 8)),
        Case("3 queries, 6 keys, blocks of 1", (normal(823, 3, 2), normal(824, 6, 2), normal(825, 6, 3), 1)),
        Case(
            "large numbers",
            (normal(826, 2, 4, scale=20.0), normal(827, 6, 4, scale=20.0), normal(828, 6, 3), 2),
        ),
    ]


FIND_THE_MISTAKE = Exercise(
    id="08.find_the_mistake",
    arguments=("queries", "keys", "values", "block_size"),
    gives=("context",),
    reference=_blocks_reference,
    cases=_blocks_cases,
    mistakes=(
        Mistake(
            "still not corrected",
            "The mistake is still there: when a new maximum comes, one of the running numbers still refers to the old "
            "one. With all keys in a single block nothing shows.",
            with_flaw(_in_blocks, context_correction="none"),
        ),
        Mistake(
            "sum not corrected",
            "The context is corrected now and the sum is not: when a new maximum comes, both refer to the old one.",
            with_flaw(_in_blocks, sum_correction="none"),
        ),
        Mistake(
            "nothing corrected",
            "Now neither the sum nor the context is corrected when a new maximum comes.",
            with_flaw(_in_blocks, context_correction="none", sum_correction="none"),
        ),
        Mistake(
            "correction upside down",
            "NaN comes from the first block: infinity times 0. The correction of the context is upside down; a new "
            "maximum makes what is already there smaller.",
            with_flaw(_in_blocks, context_correction="upside down"),
        ),
        Mistake(
            "new part corrected too",
            "The correction also multiplies what the new block brings, which refers to the new maximum already. The "
            "first block is lost entirely.",
            with_flaw(_in_blocks, context_correction="both"),
        ),
        Mistake(
            "new part corrected instead",
            "The correction multiplies what the new block brings, and it is the old context that refers to an old "
            "maximum. The first block is lost entirely.",
            with_flaw(_in_blocks, context_correction="new part"),
        ),
        Mistake(
            "last block only",
            "The context holds the last block only: what came before is overwritten.",
            with_flaw(_in_blocks, context_correction="overwritten"),
        ),
        Mistake(
            "divided in every block",
            "The context is divided by the sum in every block, and so some of it more than once. Divide when all "
            "blocks are in.",
            with_flaw(_in_blocks, divide="each time"),
        ),
        Mistake(
            "each block divided by its own sum",
            "Each block's part is divided by the sum of that block alone, as if it were the whole row. Divide once, at "
            "the end, by the sum of all blocks.",
            with_flaw(_in_blocks, divide="each by itself"),
        ),
        Mistake(
            "blocks averaged",
            "Each block has a softmax of its own, and the results are averaged. A block with large scores should count "
            "for more than one with small ones.",
            with_flaw(_softmax_of_blocks, together="averaged"),
        ),
        Mistake(
            "blocks added up",
            "Each block has a softmax of its own, and the results are added up: the shares of a row add up to the "
            "number of blocks.",
            with_flaw(_softmax_of_blocks, together="added"),
        ),
        Mistake(
            "not divided",
            "The context is not divided by the sum: the shares of a row do not add up to 1.",
            with_flaw(_in_blocks, divide="never"),
        ),
        Mistake(
            "not scaled",
            "The scores are no longer divided by the square root of the width.",
            with_flaw(_in_blocks, scaled=False),
        ),
        Mistake(
            "short block left out",
            "The last block is left out where it is shorter than the others.",
            with_flaw(_in_blocks, rest=False),
        ),
    ),
)


Blocks = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def _merge(
    max_a: Tensor,
    sum_a: Tensor,
    context_a: Tensor,
    max_b: Tensor,
    sum_b: Tensor,
    context_b: Tensor,
    *,
    factors: str = "right",
    sums: str = "right",
    contexts: str = "right",
    empty: str = "guarded",
    gives: str = "maximum",
    divided: str = "not",
    python_max: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    largest = max(max_a, max_b) if python_max else torch.maximum(max_a, max_b)
    shift = largest.masked_fill(largest == -torch.inf, 0.0) if empty == "guarded" else largest
    a, b = (max_a - shift).exp(), (max_b - shift).exp()
    one = torch.ones_like(a)
    a, b = {
        "right": (a, b),
        "none": (one, one),
        "exchanged": (b, a),
        "a only": (a, one),
        "b only": (one, b),
    }[factors]
    total = sum_a + sum_b if sums == "not corrected" else sum_a * a + sum_b * b
    context = {
        "right": context_a * a + context_b * b,
        "not corrected": context_a + context_b,
        "times sums": context_a * sum_a * a + context_b * sum_b * b,
    }[contexts]
    context = {"not": context, "all": context / total, "not empty": context / total.clamp(min=1e-9)}[divided]
    return {"shift": shift, "smallest": largest.nan_to_num()}.get(gives, largest), total, context


def _upside_down(
    max_a: Tensor, sum_a: Tensor, context_a: Tensor, max_b: Tensor, sum_b: Tensor, context_b: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    largest = torch.maximum(max_a, max_b)
    a, b = (largest - max_a).exp(), (largest - max_b).exp()
    return largest, sum_a * a + sum_b * b, context_a * a + context_b * b


def _second_maximum(
    max_a: Tensor, sum_a: Tensor, context_a: Tensor, max_b: Tensor, sum_b: Tensor, context_b: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    a = (max_a - max_b).exp()
    return max_b, sum_a * a + sum_b, context_a * a + context_b


def _each_to_the_other(
    max_a: Tensor, sum_a: Tensor, context_a: Tensor, max_b: Tensor, sum_b: Tensor, context_b: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    a, b = (max_a - max_b).exp(), (max_b - max_a).exp()
    return torch.maximum(max_a, max_b), sum_a * a + sum_b * b, context_a * a + context_b * b


def _one_maximum(
    max_a: Tensor, sum_a: Tensor, context_a: Tensor, max_b: Tensor, sum_b: Tensor, context_b: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    largest = torch.maximum(max_a.max(), max_b.max())
    a, b = (max_a - largest).exp(), (max_b - largest).exp()
    return largest.expand(max_a.shape), sum_a * a + sum_b * b, context_a * a + context_b * b


def _summary(scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    largest = scores.amax(dim=-1, keepdim=True)
    shares = (scores - largest.masked_fill(largest == -torch.inf, 0.0)).exp()
    return largest, shares.sum(dim=-1, keepdim=True), shares @ values


def _two_blocks(seed: int, num_queries: int, keys_a: int, keys_b: int, width: int, shift: float = 0.0) -> Blocks:
    scores_a = shift + normal(seed, num_queries, keys_a)
    scores_b = shift + normal(seed + 1, num_queries, keys_b)
    return *_summary(scores_a, normal(seed + 2, keys_a, width)), *_summary(scores_b, normal(seed + 3, keys_b, width))


def _with_empty_rows(seed: int, empty_a: list[int], empty_b: list[int]) -> Blocks:
    scores_a, scores_b = normal(seed, 3, 2), normal(seed + 1, 3, 4)
    scores_a[empty_a], scores_b[empty_b] = -torch.inf, -torch.inf
    return *_summary(scores_a, normal(seed + 2, 2, 2)), *_summary(scores_b, normal(seed + 3, 4, 2))


def _merge_cases() -> list[Case]:
    return [
        Case("one query, the larger maximum in the second block", _two_blocks(851, 1, 2, 3, 2)),
        Case("one query, the larger maximum in the first block", _two_blocks(855, 1, 3, 2, 2)),
        Case("4 queries", _two_blocks(859, 4, 2, 3, 3)),
        Case("large numbers", _two_blocks(863, 3, 3, 4, 2, shift=1000.0)),
        Case("a query that sees nothing in one of the blocks", _with_empty_rows(867, [0], [2])),
        Case("a query that sees nothing in both blocks", _with_empty_rows(871, [1, 2], [1])),
    ]


MERGE_BLOCKS = Exercise(
    id="08.merge_blocks",
    arguments=("max_a", "sum_a", "context_a", "max_b", "sum_b", "context_b"),
    gives=("maximum", "total", "context"),
    reference=_merge,
    cases=_merge_cases,
    mistakes=(
        Mistake(
            "no correction",
            "Sums and contexts are added as they are, though each block's refer to the maximum of that block.",
            with_flaw(_merge, factors="none"),
        ),
        Mistake(
            "first block only corrected",
            "Only the first block is corrected. The second one may have the smaller maximum: then its numbers must "
            "shrink.",
            with_flaw(_merge, factors="a only"),
        ),
        Mistake(
            "second block only corrected",
            "Only the second block is corrected. The first one may have the smaller maximum: then its numbers must "
            "shrink.",
            with_flaw(_merge, factors="b only"),
        ),
        Mistake(
            "corrections exchanged",
            "Each block is multiplied by the other one's correction: the block with the larger maximum shrinks.",
            with_flaw(_merge, factors="exchanged"),
        ),
        Mistake(
            "correction upside down",
            "The numbers of the block with the smaller maximum grow. Relative to a larger maximum, exponentials are "
            "smaller: which of the two maxima is subtracted from which?",
            _upside_down,
        ),
        Mistake(
            "context not corrected",
            "The sums are corrected and the contexts are not: both hold exponentials relative to an old maximum.",
            with_flaw(_merge, contexts="not corrected"),
        ),
        Mistake(
            "sum not corrected",
            "The contexts are corrected and the sums are not: both hold exponentials relative to an old maximum.",
            with_flaw(_merge, sums="not corrected"),
        ),
        Mistake(
            "NaN where nothing is visible",
            "A query that sees nothing in either block gives NaN: both maxima are minus infinity, and so is what is "
            "subtracted. Its sum and context should stay 0.",
            with_flaw(_merge, empty="nan"),
        ),
        Mistake(
            "divided already",
            "The context is divided by the sum already. The numbers of both blocks together are asked for, so that a "
            "third block could still be merged with them.",
            with_flaw(_merge, divided="all"),
        ),
        Mistake(
            "divided where not empty",
            "The context is divided by the sum already, except where a query sees nothing. It is asked for undivided, "
            "so that a third block could still be merged with it.",
            with_flaw(_merge, divided="not empty"),
        ),
        Mistake(
            "multiplied by the sums",
            "Each context is multiplied by the sum of its block. It has not been divided by it, so that sum is in it "
            "already.",
            with_flaw(_merge, contexts="times sums"),
        ),
        Mistake(
            "0 for the empty maximum",
            "Sum and context are right. A query that sees nothing in either block has the maximum 0 in your answer: "
            "that number is for subtracting only. Return the maximum itself, minus infinity.",
            with_flaw(_merge, gives="shift"),
        ),
        Mistake(
            "a number for minus infinity",
            "Sum and context are right. A query that sees nothing in either block has a huge negative number for its "
            "maximum: nan_to_num replaces infinities too. Keep minus infinity.",
            with_flaw(_merge, gives="smallest"),
        ),
        Mistake(
            "Python's max",
            "Python's max, or an if, compares one number with one other. Here each query has a maximum of its own.",
            with_flaw(_merge, python_max=True),
        ),
        Mistake(
            "second maximum taken",
            "Everything refers to the second block's maximum, as if it were always the larger one.",
            _second_maximum,
        ),
        Mistake(
            "each relative to the other",
            "Each block is corrected by the difference to the other block's maximum: the one with the larger maximum "
            "grows. Both should refer to the larger of the two.",
            _each_to_the_other,
        ),
        Mistake(
            "one maximum for all queries",
            "There is one maximum for all queries in your answer. Each row has its own.",
            _one_maximum,
        ),
    ),
)


EXERCISES = (ONLINE_SUM, FIND_THE_MISTAKE, MERGE_BLOCKS)
