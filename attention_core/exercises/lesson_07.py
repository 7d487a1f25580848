"""The exercises of lesson 07: from one form of attention to another."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from attention_core.exercises._spec import Case, Exercise, Mistake, always, normal, with_flaw
from attention_core.functional import scaled_dot_product_attention
from attention_core.masks import causal_mask


def _pack(
    W_query: Tensor,
    W_key: Tensor,
    W_value: Tensor,
    *,
    turn: str = "transposed",
    order: tuple[int, int, int] = (0, 1, 2),
    join: str = "below",
) -> Tensor:
    turned = {
        "transposed": lambda W: W.mT,
        "none": lambda W: W,
        "reshaped": lambda W: W.reshape(W.shape[1], W.shape[0]),
    }[turn]
    parts = [turned((W_query, W_key, W_value)[i]) for i in order]
    return {
        "below": lambda: torch.cat(parts, dim=0),
        "beside": lambda: torch.cat(parts, dim=1),
        "stacked": lambda: torch.stack(parts),
        "in turn": lambda: torch.stack(parts, dim=1).flatten(0, 1),
    }[join]()


def _pack_cases() -> list[Case]:
    sizes = (("3 to 2", 3, 2), ("4 to 4", 4, 4), ("2 to 5", 2, 5), ("one column each", 3, 1))
    return [
        Case(name, tuple(normal(700 + 3 * number + i, d_in, d_out) for i in range(3)))
        for number, (name, d_in, d_out) in enumerate(sizes)
    ]


PACK_PROJECTIONS = Exercise(
    id="07.pack_projections",
    arguments=("W_query", "W_key", "W_value"),
    gives=("packed",),
    reference=_pack,
    cases=_pack_cases,
    picture="scores",
    mistakes=(
        Mistake(
            "not transposed",
            "The matrices stand below each other as they are. PyTorch keeps a weight as (d_out, d_in) and multiplies "
            "by its transpose; square ones fit either way and are wrong.",
            with_flaw(_pack, turn="none"),
        ),
        Mistake(
            "packed for x @ W",
            "Your matrix is (d_in, 3 * d_out): right for x @ packed. PyTorch's layer keeps it the other way round.",
            with_flaw(_pack, turn="none", join="beside"),
        ),
        Mistake(
            "side by side",
            "Your matrix is (d_out, 3 * d_in): the three stand side by side, which makes the input three times as wide "
            "and not the output. In a weight of shape (out, in), what does a row make?",
            with_flaw(_pack, join="beside"),
        ),
        Mistake(
            "a dimension of their own",
            "The three got a dimension of their own (torch.stack). One matrix is asked for.",
            with_flaw(_pack, join="stacked"),
        ),
        Mistake(
            "keys first",
            "The keys' part comes first. PyTorch's layer expects the queries on top, then the keys, then the values.",
            with_flaw(_pack, order=(1, 0, 2)),
        ),
        Mistake(
            "keys and values exchanged",
            "The keys' part and the values' part have changed places. The shape cannot tell.",
            with_flaw(_pack, order=(0, 2, 1)),
        ),
        Mistake(
            "reverse order",
            "The values' part is on top and the queries' at the bottom: the order is upside down.",
            with_flaw(_pack, order=(2, 1, 0)),
        ),
        Mistake(
            "one matrix twice",
            "The keys' part is there twice and the values' part is missing.",
            with_flaw(_pack, order=(0, 1, 1)),
        ),
        Mistake(
            "reshaped",
            "The shape is right and the numbers are scrambled: view or reshape to (d_out, d_in) does not exchange rows "
            "and columns.",
            with_flaw(_pack, turn="reshaped"),
        ),
        Mistake(
            "rows in turn",
            "Rows of the three take turns. All rows of the queries come first: the result is cut into three pieces of "
            "neighbouring numbers.",
            with_flaw(_pack, join="in turn"),
        ),
        Mistake(
            "joined, then reshaped",
            "The shape is right and the numbers are scrambled: the three were joined side by side and then cut anew by "
            "view or reshape, which does not exchange rows and columns.",
            lambda W_query, W_key, W_value: torch.cat([W_query, W_key, W_value], dim=1).reshape(-1, len(W_query)),
        ),
    ),
)


def _cached(
    queries: Tensor, keys: Tensor, values: Tensor, *, mask: str = "last", scale: str = "root", kind: str = "bool"
) -> Tensor:
    num_queries, num_keys = queries.shape[-2], keys.shape[-2]
    everything = torch.ones(num_queries, num_keys, dtype=torch.bool)
    past = num_keys - num_queries
    allowed = {
        "last": everything.tril(past),
        "first": everything.tril(),
        "none": everything,
        "ahead": everything.tril(past + 1),
        "strict": everything.tril(past - 1),
        "hidden": ~everything.tril(past),
        "wrong sign": everything.tril(-past),
        "new only": everything.tril(past).triu(past),
        "no cache": everything.tril(past) & (torch.arange(num_keys) >= past),
    }[mask]
    attn_mask = allowed.float() if kind == "float" else allowed
    factor = {"root": None, "none": 1.0, "width": 1 / queries.shape[-1]}[scale]
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=attn_mask, scale=factor)


def _by_hand(queries: Tensor, keys: Tensor, values: Tensor, *, diagonal: int = 0, hidden: bool = False) -> Tensor:
    scores = queries @ keys.mT / queries.shape[-1] ** 0.5
    allowed = torch.ones_like(scores, dtype=torch.bool).tril(keys.shape[-2] - queries.shape[-2] + diagonal)
    allowed = ~allowed if hidden else allowed
    return torch.softmax(scores.masked_fill(~allowed, -torch.inf), dim=-1) @ values


def _cached_reference(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    mask = causal_mask(queries.shape[-2], keys.shape[-2])
    return scaled_dot_product_attention(queries, keys, values, mask)[0]


def _cached_cases() -> list[Case]:
    return [
        Case("2 new tokens of 4", (normal(721, 2, 3), normal(722, 4, 3), normal(723, 4, 2))),
        Case("one new token of 3", (normal(724, 1, 3), normal(725, 3, 3), normal(726, 3, 2))),
        Case("3 tokens, all of them new", (normal(727, 3, 5), normal(728, 3, 5), normal(729, 3, 4))),
        Case("3 new tokens of 7", (normal(730, 3, 2), normal(731, 7, 2), normal(732, 7, 2))),
        Case("a batch of 2 with 3 heads", (normal(733, 2, 3, 2, 4), normal(734, 2, 3, 5, 4), normal(735, 2, 3, 5, 3))),
        Case("large numbers", (normal(736, 2, 4, scale=9.0), normal(737, 5, 4, scale=9.0), normal(738, 5, 3))),
    ]


FIND_THE_MISTAKE = Exercise(
    id="07.find_the_mistake",
    arguments=("queries", "keys", "values"),
    gives=("context",),
    reference=_cached_reference,
    cases=_cached_cases,
    mistakes=(
        Mistake(
            "still from the top left",
            "The mistake is still there: the new tokens see the oldest keys, as if they were the first of the "
            "sentence. The last of them should see every key.",
            with_flaw(_cached, mask="first"),
        ),
        Mistake(
            "nothing hidden",
            "Now every new token sees every key. That is right for a single new token; with several, the first of them "
            "must not see the others.",
            with_flaw(_cached, mask="none"),
        ),
        Mistake(
            "one token too many",
            "Each new token also sees the one right after it: the triangle reaches one place too far to the right.",
            with_flaw(_cached, mask="ahead"),
        ),
        Mistake(
            "does not see itself",
            "The new tokens do not see themselves: the triangle ends one place too early. The last token should see "
            "every key.",
            with_flaw(_cached, mask="strict"),
        ),
        Mistake(
            "True means hidden",
            "Your mask is right for nn.MultiheadAttention, where True means 'hidden'. In "
            "F.scaled_dot_product_attention it means 'may attend'.",
            with_flaw(_cached, mask="hidden"),
        ),
        Mistake(
            "mask of zeros and ones",
            "The pattern of your mask is right, but as decimal numbers it is added to the scores and hides nothing. "
            "Make it boolean.",
            with_flaw(_cached, kind="float"),
        ),
        Mistake(
            "cache not used",
            "The new tokens see each other and nothing older: the keys and values of the cache are left out.",
            with_flaw(_cached, mask="no cache"),
        ),
        Mistake(
            "itself only",
            "Each new token sees itself and nothing else, so its context vector is its own value.",
            with_flaw(_cached, mask="new only"),
        ),
        Mistake(
            "not scaled",
            "The scores are not divided by the square root of the width. PyTorch's function does that by itself.",
            with_flaw(_cached, scale="none"),
        ),
        Mistake(
            "scaled twice",
            "The scores are divided by the width and not by its square root. PyTorch's function scales by itself: are "
            "they scaled a second time?",
            with_flaw(_cached, scale="width"),
        ),
        Mistake(
            "NaN where nothing is visible",
            "The new tokens do not see themselves. With nothing in the cache the first of them sees nothing at all, "
            "and its row is NaN: the triangle ends one place too early.",
            lambda queries, keys, values: _by_hand(queries, keys, values, diagonal=-1),
        ),
        Mistake(
            "mask reversed",
            "What should be visible is hidden, and the other way round: the last token sees nothing, and its row is "
            "NaN. masked_fill hides where its mask is True; in causal_mask True means 'may attend'.",
            lambda queries, keys, values: _by_hand(queries, keys, values, hidden=True),
        ),
        Mistake(
            "diagonal with the wrong sign",
            "The triangle is moved down to the left and not to the right, so the first new tokens see nothing: the "
            "sign of the diagonal is wrong.",
            with_flaw(_cached, mask="wrong sign"),
        ),
        Mistake(
            "right for a single token only",
            "A single new token sees everything now. With several the mistake is still there: their triangle begins at "
            "the top left, at the oldest keys.",
            lambda queries, keys, values: _cached(
                queries, keys, values, mask="first" if queries.shape[-2] > 1 else "none"
            ),
        ),
        Mistake(
            "nothing hidden with a cache",
            "Without a cache your function hides what is to be hidden, and with one it hides nothing: then the first "
            "of several new tokens sees those after it.",
            lambda queries, keys, values: _cached(
                queries, keys, values, mask="first" if queries.shape[-2] == keys.shape[-2] else "none"
            ),
        ),
        Mistake(
            "mask for the new tokens only",
            "Your mask is (L, L), as if the new tokens were all there is. It needs a row for each query and a column "
            "for each key, the old ones too: (L, S).",
            lambda queries, keys, values: F.scaled_dot_product_attention(
                queries, keys, values, attn_mask=causal_mask(queries.shape[-2])
            ),
        ),
        Mistake(
            "mask for all tokens",
            "Your mask is (S, S), with a row for each key. There are only L queries: of its rows, which belong to the "
            "newest tokens?",
            lambda queries, keys, values: F.scaled_dot_product_attention(
                queries, keys, values, attn_mask=causal_mask(keys.shape[-2])
            ),
        ),
    ),
)

Layer = Callable[[Tensor], Tensor]


def _attend(x: Tensor) -> Tensor:
    return scaled_dot_product_attention(x, x.flip(-1), x)[0]


def _tokens_first(x: Tensor) -> Tensor:
    return _attend(x.transpose(0, 1)).transpose(0, 1)


def _last_reads_first(x: Tensor) -> Tensor:
    return torch.cat([x[:-1], x[-1:] + x[:1, -1:]]) if len(x) > 1 else x  # its last token: not all change a whole one


def _second_reads_third(x: Tensor) -> Tensor:
    return torch.cat([x[:1], x[1:2] * x[2:3], x[2:]]) if len(x) > 2 else x


def _second_reads_first_token_of_first(x: Tensor) -> Tensor:
    return torch.cat([x[:1], x[1:2] + x[:1, :1], x[2:]])


def _layer_cases() -> list[Case]:
    x = normal(741, 3, 4, 2)
    return [
        Case("attention within each sentence", (_attend, x)),
        Case("attention that takes the first dimension for the tokens", (_tokens_first, x)),
        Case("each token by itself", (lambda y: 0 * y, x)),  # no change shows, not even in the changed sentence
        Case("the mean over the sentences taken off", (lambda y: y - y.mean(dim=0), x)),
        Case("the mean over the tokens taken off", (lambda y: 2 * y - y.mean(dim=1, keepdim=True), x)),
        Case("only the second sentence reads the third", (_second_reads_third, x)),
        Case("only the last sentence reads the first", (_last_reads_first, x)),
        Case("only a first token is read by another sentence", (_second_reads_first_token_of_first, x)),
        Case("one sentence", (_attend, normal(742, 1, 3, 2))),
    ]


def _mixes(
    layer: Layer, batch: Tensor, *, changed: str = "each", compared: str = "others", tokens: slice = slice(None)
) -> bool:
    before = layer(batch)
    everyone = range(len(batch))
    places = {"each": everyone, "first": everyone[:1], "last": everyone[-1:]}[changed]
    for place in places:
        other = batch.clone()
        other[place, tokens] += 1.0 + torch.arange(batch.shape[-1])
        rows = {
            "others": [i for i in everyone if i != place],
            "all": list(everyone),
            "next": [i for i in everyone if i == place + 1],
        }[compared]
        if not torch.allclose(before[rows], layer(other)[rows], atol=1e-5):
            return True
    return False


def _mixes_once_copied(layer: Layer, batch: Tensor) -> bool:
    before, other = layer(batch), batch.clone()
    for place in range(len(batch)):
        other[place] += 1.0 + torch.arange(batch.shape[-1])
        rows = [i for i in range(len(batch)) if i != place]
        if not torch.allclose(before[rows], layer(other)[rows], atol=1e-5):
            return True
    return False


def _tokens_mix(layer: Layer, batch: Tensor) -> bool:
    return _mixes(lambda x: layer(x.transpose(0, 1)).transpose(0, 1), batch.transpose(0, 1))


def _mixes_in_place(layer: Layer, batch: Tensor) -> bool:
    answer = _mixes(layer, batch)
    batch[-1] += 1.0
    return answer


MIXES_SENTENCES = Exercise(
    id="07.mixes_sentences",
    arguments=("layer", "batch"),
    gives=("answer",),
    reference=_mixes,
    cases=_layer_cases,
    mistakes=(
        always(True),
        always(False),
        Mistake(
            "the changed sentence compared",
            "You say True as soon as anything changes. The output of the changed sentence itself may change: compare "
            "only the other sentences.",
            with_flaw(_mixes, compared="all"),
        ),
        Mistake(
            "tokens in place of sentences",
            "You changed a token and looked at other tokens. Tokens of one sentence may read each other. The sentences "
            "are the first dimension.",
            _tokens_mix,
        ),
        Mistake(
            "first sentence only",
            "You changed the first sentence only, or compared only sentences after the changed one. A layer may let "
            "the second read the third: change each in turn, and compare all others.",
            with_flaw(_mixes, changed="first"),
        ),
        Mistake(
            "last sentence only",
            "You changed the last sentence only. A layer may let a sentence read the first: change each in turn.",
            with_flaw(_mixes, changed="last"),
        ),
        Mistake(
            "first output only",
            "You looked only at what comes out for the first sentence. Another one may have read its neighbour: look "
            "at all of them.",
            lambda layer, batch: not torch.allclose(layer(batch)[0], layer(batch[:1])[0], atol=1e-5),
        ),
        Mistake(
            "next sentence only",
            "You looked only at the sentence after the changed one. Any other may have read it.",
            with_flaw(_mixes, compared="next"),
        ),
        Mistake(
            "first token only",
            "You changed the first token of a sentence only. Another sentence may read a later one: change all of "
            "its tokens.",
            with_flaw(_mixes, tokens=slice(1)),
        ),
        Mistake(
            "last token only",
            "You changed the last token of a sentence only. Another sentence may read an earlier one: change all of "
            "its tokens.",
            with_flaw(_mixes, tokens=slice(-1, None)),
        ),
        Mistake(
            "copied once",
            "The copy is made once, before the loop: when the second sentence is changed, the first one still is, and "
            "its output differs with good reason. Make a fresh copy for each.",
            _mixes_once_copied,
        ),
        Mistake(
            "a sentence without its batch",
            "You gave the layer a single sentence as (T, D). It expects a batch (1, T, D): with a dimension less, it "
            "may take the tokens for sentences.",
            lambda layer, batch: (
                not torch.allclose(layer(batch), torch.stack([layer(sentence) for sentence in batch]), atol=1e-5)
            ),
        ),
        Mistake(
            "answer reversed",
            "You say True where each sentence keeps to itself, and False where one reads another.",
            lambda layer, batch: not _mixes(layer, batch),
        ),
        Mistake(
            "batch changed",
            "The answer is right, but batch has changed: your function wrote into it. Change a copy, batch.clone().",
            _mixes_in_place,
        ),
    ),
)

EXERCISES = (PACK_PROJECTIONS, FIND_THE_MISTAKE, MIXES_SENTENCES)
