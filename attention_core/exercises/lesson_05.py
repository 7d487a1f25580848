"""The exercises of lesson 05: dropout."""

from collections.abc import Callable

import torch
from torch import Tensor

from attention_core.dropout import apply_dropout
from attention_core.exercises._compare import UnreadableError, read_tensor
from attention_core.exercises._spec import Case, Exercise, Mistake, chosen, normal, random_weights, with_flaw
from attention_core.functional import context_vectors


def _factor(keep: Tensor, dropout_p: float, scale: str) -> Tensor | float:
    kept_in_row = keep.float().mean(dim=-1, keepdim=True)
    factors: dict[str, Tensor | float] = {
        "right": 1 / (1 - dropout_p),
        "none": 1.0,
        "shrink": 1 - dropout_p,
        "p": 1 / dropout_p if dropout_p else torch.inf,
        "times p": dropout_p,
        "counted": 1 / kept_in_row.clamp_min(1e-9),
    }
    return factors[scale]


def _apply(weights: Tensor, keep: Tensor, dropout_p: float, *, scale: str = "right", dropped: bool = False) -> Tensor:
    kept = ~keep if dropped else keep
    return weights * kept * _factor(kept, dropout_p, scale)


def _apply_renormalised(weights: Tensor, keep: Tensor, dropout_p: float) -> Tensor:
    kept = weights * keep
    return kept / kept.sum(dim=-1, keepdim=True).clamp_min(1e-9)


def _apply_in_place(weights: Tensor, keep: Tensor, dropout_p: float) -> Tensor:
    weights[~keep] = 0.0
    return weights / (1 - dropout_p)


def _apply_cases() -> list[Case]:
    return [
        Case(
            "2 by 3, p = 0.2",
            (random_weights(501, 2, 3), torch.tensor([[True, False, True], [True, True, False]]), 0.2),
        ),
        Case("4 by 4, p = 0.1", (random_weights(502, 4, 4), chosen(503, 0.7, 4, 4), 0.1)),
        Case("one query, p = 0.25", (random_weights(504, 1, 4), torch.tensor([[True, True, False, True]]), 0.25)),
        Case("p = 0", (random_weights(505, 2, 5), torch.tensor([[True] * 5, [True] * 4 + [False]]), 0.0)),
        Case("a batch of 2, p = 0.7", (random_weights(506, 2, 3, 5), chosen(507, 0.4, 2, 3, 5), 0.7)),
        Case("large numbers, p = 0.5", (normal(508, 3, 4, scale=1000.0), chosen(509, 0.5, 3, 4), 0.5)),
    ]


APPLY_DROPOUT = Exercise(
    id="05.apply_dropout",
    arguments=("weights", "keep", "dropout_p"),
    gives=("dropped",),
    reference=apply_dropout,
    cases=_apply_cases,
    picture="scores",
    mistakes=(
        Mistake(
            "kept weights not enlarged",
            "The right entries are 0, but the others are as before: on average each weight has become "
            "smaller. By which "
            "factor must the kept ones grow, so that the average stays?",
            with_flaw(_apply, scale="none"),
        ),
        Mistake(
            "made smaller",
            "The kept weights were multiplied by 1 - p and so became smaller. They should make up for what is lost.",
            with_flaw(_apply, scale="shrink"),
        ),
        Mistake(
            "divided by p",
            "The kept weights were divided by p. p is the share that is dropped: which share is kept?",
            with_flaw(_apply, scale="p"),
        ),
        Mistake(
            "multiplied by p",
            "The kept weights were multiplied by p. Which factor makes up for the share that is lost?",
            with_flaw(_apply, scale="times p"),
        ),
        Mistake(
            "keep reversed",
            "You dropped what should be kept: in `keep`, True means kept.",
            with_flaw(_apply, dropped=True),
        ),
        Mistake(
            "counted instead of p",
            "The factor comes from counting how many of a row are kept. It is the same for all rows and comes from "
            "dropout_p alone.",
            with_flaw(_apply, scale="counted"),
        ),
        Mistake(
            "rows made to sum to 1",
            "Your rows sum to 1 again. Dropout does not renormalise: only on average over many draws do the "
            "rows sum to 1.",
            _apply_renormalised,
        ),
        Mistake(
            "nothing dropped",
            "All weights were enlarged and none was dropped: `keep` is not used.",
            lambda weights, keep, dropout_p: weights / (1 - dropout_p),
        ),
        Mistake(
            "weights changed in place",
            "The numbers are right, but the weights that were handed over have changed. Make a new tensor.",
            _apply_in_place,
        ),
    ),
)


def _draw(
    weights: Tensor,
    dropout_p: float,
    training: bool,
    generator: torch.Generator | None,
    *,
    scale: str = "right",
    evaluation: str = "same",
    kept_share: str = "right",
    source: str = "generator",
    pattern: str = "entries",
) -> Tensor:
    if training is False or evaluation == "always evaluation":
        if evaluation == "scaled":
            return weights * (1 - dropout_p)
        if evaluation == "enlarged":
            return weights / (1 - dropout_p)
        if evaluation == "zero":
            return torch.zeros_like(weights)
        if evaluation != "dropped":
            return weights
    if evaluation == "only in evaluation":
        return weights
    generator = {"generator": generator, "global": None, "seeded": torch.Generator().manual_seed(0)}[source]
    size = {"entries": weights.shape, "rows": weights.shape[-1:], "columns": (*weights.shape[:-1], 1)}[pattern]
    share = 1 - dropout_p if kept_share == "right" else dropout_p
    keep = (torch.rand(size, generator=generator) < share).expand(weights.shape)
    return weights * keep * _factor(keep, dropout_p, scale)


def _observe(
    function: Callable[..., object], weights: Tensor, dropout_p: float, training: bool, generator: torch.Generator
) -> dict[str, bool | float]:
    other = torch.Generator().manual_seed(generator.initial_seed() + 1)
    own, again = generator.clone_state(), generator.clone_state()
    before = weights.clone()
    first = _drawn(function(weights, dropout_p, training, own), weights)
    second = _drawn(function(weights, dropout_p, training, own), weights)
    repeated = _drawn(function(weights, dropout_p, training, again), weights)
    elsewhere = _drawn(function(weights, dropout_p, training, other), weights)
    unchanged: dict[str, bool | float] = {
        "the weights that were handed over stay as they are": torch.equal(before, weights)
    }
    kept = first != 0
    ratios = (first / before)[kept]
    if not training:
        same = torch.allclose(first, before, atol=1e-5)
        share = round(first.sum().item() / before.sum().item(), 2) if bool(kept.all()) else 0.0
        return unchanged | {
            "in evaluation the weights come back unchanged": same,
            "in evaluation nothing becomes 0": bool(kept.all()),
            "in evaluation the weights are multiplied by": share,
        }
    one_factor = ratios.numel() > 0 and bool(((ratios - ratios[0]).abs() < 1e-4 * (1 + ratios[0].abs())).all())
    facts = unchanged | {
        "all kept weights are multiplied by one factor": one_factor,
        "that factor": round(ratios[0].item(), 3) if one_factor else 0.0,
        "the share kept, rounded to a tenth": round(kept.float().mean().item(), 1),
        "another seed gives another result": not torch.equal(first, elsewhere),
        "the same state of the generator gives the same result": torch.equal(first, repeated),
        "a second draw from the same generator gives another result": not torch.equal(first, second),
        "different rows are dropped differently": not bool((kept == kept[..., :1, :]).all()),
        "entries of one row are dropped one by one": not bool((kept == kept[..., :1]).all()),
    }
    return facts


def _drawn(value: object, weights: Tensor) -> Tensor:
    drawn = read_tensor(value)
    if drawn.shape != weights.shape:
        raise UnreadableError(
            f"Your answer has shape {tuple(drawn.shape)}; expected is that of the weights, {tuple(weights.shape)}."
        )
    return drawn.float()


def _dropout_cases() -> list[Case]:
    def seeded(seed: int) -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    return [
        Case("evaluation, 20 by 10, p = 0.2", (random_weights(511, 20, 10), 0.2, False, seeded(1))),
        Case("training, 60 by 50, p = 0.2", (random_weights(512, 60, 50), 0.2, True, seeded(2))),
        Case("training, a batch of 2, p = 0.7", (random_weights(513, 2, 50, 40), 0.7, True, seeded(3))),
        Case("evaluation, a batch of 2, p = 0.5", (random_weights(514, 2, 8, 10), 0.5, False, seeded(4))),
        Case("training, 30 by 80, p = 0.4", (random_weights(515, 30, 80), 0.4, True, seeded(5))),
    ]


DROPOUT = Exercise(
    id="05.dropout",
    arguments=("weights", "dropout_p", "training", "generator"),
    gives=("dropped",),
    reference=_draw,
    observe=_observe,
    cases=_dropout_cases,
    mistakes=(
        Mistake(
            "kept weights not enlarged",
            "The kept weights are as before. On average each weight has become smaller: the factor 1/(1 - p) "
            "of the last "
            "exercise is missing.",
            with_flaw(_draw, scale="none"),
        ),
        Mistake(
            "made smaller",
            "The kept weights were multiplied by 1 - p and so became smaller. They should make up for what is lost.",
            with_flaw(_draw, scale="shrink"),
        ),
        Mistake(
            "divided by p",
            "The kept weights were divided by p. p is the share that is dropped: which share is kept?",
            with_flaw(_draw, scale="p"),
        ),
        Mistake(
            "dropped in evaluation",
            "You drop in evaluation too. Where training is False the weights go through untouched.",
            with_flaw(_draw, evaluation="dropped"),
        ),
        Mistake(
            "made smaller in evaluation",
            "In evaluation you multiplied by 1 - p. That belongs to the other recipe, in which training does "
            "not enlarge; "
            "here training makes up for it, and evaluation changes nothing.",
            with_flaw(_draw, evaluation="scaled"),
        ),
        Mistake(
            "enlarged in evaluation",
            "In evaluation you divided by 1 - p. Nothing is dropped there, so nothing has to be made up for.",
            with_flaw(_draw, evaluation="enlarged"),
        ),
        Mistake(
            "never dropped",
            "In training nothing is dropped: all weights come back as they were.",
            with_flaw(_draw, evaluation="always evaluation"),
        ),
        Mistake(
            "training reversed",
            "You drop in evaluation and not in training: the `if` is the wrong way round.",
            lambda weights, dropout_p, training, generator: _draw(weights, dropout_p, not training, generator),
        ),
        Mistake(
            "p taken as the share kept",
            "The share that stays is p. p is the share that is dropped: look at the direction of your < or at "
            "what you hand "
            "to bernoulli.",
            with_flaw(_draw, kept_share="p"),
        ),
        Mistake(
            "generator not used",
            "The same generator state gives different results: you draw from PyTorch's global generator. Hand "
            "the generator "
            "to the function that draws.",
            with_flaw(_draw, source="global"),
        ),
        Mistake(
            "a new seed at every call",
            "Every call gives the same pattern, whatever the generator: a seed is set inside the function. "
            "Draw from the "
            "generator that was handed over.",
            with_flaw(_draw, source="seeded"),
        ),
        Mistake(
            "one pattern for all rows",
            "All rows lose the same keys: one row was drawn and used for all. Each entry is drawn by itself.",
            with_flaw(_draw, pattern="rows"),
        ),
        Mistake(
            "whole rows dropped",
            "A row is kept or dropped as a whole. Each entry is drawn by itself.",
            with_flaw(_draw, pattern="columns"),
        ),
        Mistake(
            "rows made to sum to 1",
            "The kept weights grow by a factor of their own in each row: you made the rows sum to 1 again. The factor "
            "depends on p alone.",
            lambda weights, dropout_p, training, generator: (
                _apply_renormalised(weights, torch.rand(weights.shape, generator=generator) >= dropout_p, dropout_p)
                if training
                else weights
            ),
        ),
    ),
)


def _mix(
    weights: Tensor, values: Tensor, keep: Tensor, dropout_p: float, *, scale: str = "right", dropped: bool = False
) -> Tensor:
    return _apply(weights, keep, dropout_p, scale=scale, dropped=dropped) @ values


def _mix_reference(weights: Tensor, values: Tensor, keep: Tensor, dropout_p: float) -> Tensor:
    return context_vectors(apply_dropout(weights, keep, dropout_p), values)


def _mix_cases() -> list[Case]:
    keep = torch.tensor([[True, False, True], [True, True, False]])
    return [
        Case("2 queries, 3 keys, p = 0.2", (random_weights(521, 2, 3), normal(522, 3, 2), keep, 0.2)),
        Case("4 tokens, p = 0.1", (random_weights(523, 4, 4), normal(524, 4, 3), chosen(525, 0.7, 4, 4), 0.1)),
        Case("one query, p = 0.3", (random_weights(526, 1, 3), normal(527, 3, 2), keep[:1], 0.3)),
        Case(
            "a batch of 2, p = 0.6",
            (random_weights(528, 2, 3, 5), normal(529, 2, 5, 4), chosen(530, 0.4, 2, 3, 5), 0.6),
        ),
    ]


FIND_THE_MISTAKE = Exercise(
    id="05.find_the_mistake",
    arguments=("weights", "values", "keep", "dropout_p"),
    gives=("context",),
    reference=_mix_reference,
    cases=_mix_cases,
    mistakes=(
        Mistake(
            "still not enlarged",
            "The mistake is still there: averaged over many draws the context vectors are too small. "
            "dropout_p is never "
            "used: what should it do to the weights that are kept?",
            with_flaw(_mix, scale="none"),
        ),
        Mistake(
            "made smaller",
            "The kept weights were multiplied by 1 - p: the context vectors became smaller still.",
            with_flaw(_mix, scale="shrink"),
        ),
        Mistake(
            "divided by p",
            "The kept weights were divided by p. p is the share that is dropped: which share is kept?",
            with_flaw(_mix, scale="p"),
        ),
        Mistake(
            "keep reversed",
            "You dropped what should be kept: in `keep`, True means kept.",
            with_flaw(_mix, dropped=True),
        ),
        Mistake(
            "counted instead of p",
            "The factor comes from counting how many of a row are kept. It comes from dropout_p alone.",
            with_flaw(_mix, scale="counted"),
        ),
        Mistake(
            "rows made to sum to 1",
            "The rows of the weights were made to sum to 1 again. The factor depends on p alone.",
            lambda weights, values, keep, dropout_p: _apply_renormalised(weights, keep, dropout_p) @ values,
        ),
        Mistake(
            "dropout forgotten",
            "Nothing is dropped any more: these are the context vectors of all weights.",
            lambda weights, values, keep, dropout_p: weights @ values,
        ),
    ),
)


def _share(weights: Tensor, dropped: Tensor, *, how: str = "right") -> Tensor:
    present = weights != 0
    gone = present & (dropped == 0)
    if how == "all zeros":
        return (dropped == 0).float().mean()
    if how == "of all places":
        return gone.float().mean()
    if how == "kept":
        return 1 - gone.sum() / present.sum()
    if how == "changed":
        return (weights != dropped)[present].float().mean()
    if how == "count":
        return gone.sum().float()
    if how == "rows":
        return gone.sum(dim=-1) / present.sum(dim=-1)
    if how == "lost weight":
        return 1 - dropped.sum() / weights.sum()
    if how == "percent":
        return 100 * gone.sum() / present.sum()
    return gone.sum() / present.sum()


def _share_cases() -> list[Case]:
    causal = torch.softmax(normal(531, 4, 4).masked_fill(torch.ones(4, 4).triu(1) == 1, -torch.inf), dim=-1)
    full = random_weights(532, 3, 5)
    batch = random_weights(533, 2, 3, 4)
    keep = torch.tensor([[True] * 4, [False, True, True, True], [True, False, True, False], [True, True, True, False]])
    return [
        Case("3 by 5, p = 0.2", (full, apply_dropout(full, chosen(534, 0.8, 3, 5), 0.2))),
        Case("causal weights, p = 0.5", (causal, apply_dropout(causal, keep, 0.5))),
        Case("nothing dropped", (full, full / 0.9)),
        Case("a batch of 2, p = 0.4", (batch, apply_dropout(batch, chosen(535, 0.6, 2, 3, 4), 0.4))),
    ]


SHARE_DROPPED = Exercise(
    id="05.share_dropped",
    arguments=("weights", "dropped"),
    gives=("share",),
    reference=_share,
    cases=_share_cases,
    mistakes=(
        Mistake(
            "old zeros counted",
            "You counted every 0. Causal weights are full of zeros before any dropout: only weights that were "
            "not 0 before "
            "can be dropped.",
            with_flaw(_share, how="all zeros"),
        ),
        Mistake(
            "share of all places",
            "You counted the right entries and divided by the number of all places. Places that were 0 "
            "before cannot be "
            "dropped: they do not count below the line either.",
            with_flaw(_share, how="of all places"),
        ),
        Mistake(
            "share kept",
            "That is the share that was kept.",
            with_flaw(_share, how="kept"),
        ),
        Mistake(
            "every change counted",
            "You counted every weight that changed. The kept ones change too, they are enlarged: look for "
            "the ones that "
            "became 0.",
            with_flaw(_share, how="changed"),
        ),
        Mistake(
            "a count",
            "You gave how many were dropped. A share is asked for: a number between 0 and 1.",
            with_flaw(_share, how="count"),
        ),
        Mistake(
            "one share for each row",
            "You gave one share for each row. One number for everything is asked for.",
            with_flaw(_share, how="rows"),
        ),
        Mistake(
            "lost weight",
            "You compared the sums of the weights. Kept weights are enlarged, so the sum says little: count "
            "the entries.",
            with_flaw(_share, how="lost weight"),
        ),
        Mistake(
            "percent",
            "Your number is in percent. A share between 0 and 1 is asked for.",
            with_flaw(_share, how="percent"),
        ),
    ),
)

EXERCISES = (APPLY_DROPOUT, DROPOUT, FIND_THE_MISTAKE, SHARE_DROPPED)
