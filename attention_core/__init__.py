"""Attention, built by hand: the functions and classes of the notebooks, in the order of the lessons."""

from attention_core.data import load_published, load_sentence
from attention_core.dropout import apply_dropout, dropout_keep_mask
from attention_core.functional import (
    attention_weights,
    context_vectors,
    dot_product_scores,
    entropy,
    masked_softmax,
    merge_heads,
    scale_scores,
    scaled_dot_product_attention,
    softmax,
    split_heads,
)
from attention_core.masks import causal_mask, padding_mask
from attention_core.modules import (
    CausalAttention,
    FusedMultiHeadAttention,
    MultiHeadAttention,
    MultiHeadAttentionWrapper,
    SelfAttentionV1,
    SelfAttentionV2,
)
from attention_core.parameters import check_parameters
from attention_core.tiled import tiled_attention

__all__ = [
    "CausalAttention",
    "FusedMultiHeadAttention",
    "MultiHeadAttention",
    "MultiHeadAttentionWrapper",
    "SelfAttentionV1",
    "SelfAttentionV2",
    "apply_dropout",
    "attention_weights",
    "causal_mask",
    "check_parameters",
    "context_vectors",
    "dot_product_scores",
    "dropout_keep_mask",
    "entropy",
    "load_published",
    "load_sentence",
    "masked_softmax",
    "merge_heads",
    "padding_mask",
    "scale_scores",
    "scaled_dot_product_attention",
    "softmax",
    "split_heads",
    "tiled_attention",
]
