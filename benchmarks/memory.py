"""Peak memory of one case, in a process of its own.

    python benchmarks/memory.py attention|layer CANDIDATE LENGTH DEVICE DTYPE forward|backward

Prints the bytes held at the peak beyond the inputs, the output, and the gradients of inputs and parameters. On the CPU
that is the growth of the process's largest resident set, which counts a kernel's own scratch memory too; PyTorch's
profiler would not see that. A process reports the largest size it ever had, so each case needs a new one. On a GPU it
is what PyTorch's allocator held.
"""

import resource
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from alternatives import Textbook, textbook_attention
from torch import Tensor, nn
from torch.nn import functional as F

from attention_core import FusedMultiHeadAttention, MultiHeadAttention, tiled_attention

HEAD_DIM = 64
BATCH, WIDTH, NUM_HEADS = 2, 768, 12  # of a layer; attention is measured with one head


def textbook(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    length = queries.shape[-2]
    future = torch.ones(length, length, dtype=torch.bool, device=queries.device).triu(1)
    return textbook_attention(queries, keys, values, future)


def fused(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(queries, keys, values, is_causal=True)


def tiled(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return tiled_attention(queries, keys, values, is_causal=True)


CANDIDATES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "textbook": textbook,
    "tiled_attention": tiled,
    "F.scaled_dot_product_attention": fused,
}
LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "textbook layer": lambda length: Textbook(WIDTH, length, 0.0, NUM_HEADS),
    "MultiHeadAttention": lambda length: MultiHeadAttention(WIDTH, WIDTH, length, 0.0, NUM_HEADS),
    "FusedMultiHeadAttention": lambda length: FusedMultiHeadAttention(WIDTH, WIDTH, length, 0.0, NUM_HEADS),
}


def make_inputs(heads: int, length: int, device: str, dtype: torch.dtype, backward: bool) -> list[Tensor]:
    inputs = [torch.randn(1, heads, length, HEAD_DIM, device=device, dtype=dtype) for _ in range(3)]
    return [x.requires_grad_(backward) for x in inputs]


def run(attend: Callable[..., Tensor], inputs: list[Tensor], backward: bool) -> Tensor:
    with torch.set_grad_enabled(backward):
        output = attend(*inputs)
        if backward:
            output.sum().backward()
    return output.detach()


def peak(device: str) -> int:
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    status = Path("/proc/self/status")
    if status.exists():  # on Linux getrusage would count what the process that started this one held
        (line,) = [line for line in status.read_text("utf-8").splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def size_of(tensors: list[Tensor]) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)


def bytes_beyond(case: str, candidate: str, length: int, device: str, dtype: torch.dtype, backward: bool) -> int:
    def inputs_of(tokens: int) -> list[Tensor]:
        if case == "attention":
            return make_inputs(1, tokens, device, dtype, backward)
        return [torch.randn(BATCH, tokens, WIDTH, device=device, dtype=dtype, requires_grad=backward)]

    layer = LAYERS[candidate](length).to(device, dtype) if case == "layer" else nn.Identity()
    attend = layer if case == "layer" else CANDIDATES[candidate]
    run(attend, inputs_of(16), backward)  # what the first call loads is no part of it
    layer.zero_grad()
    inputs = inputs_of(length)
    before = peak(device)
    output = run(attend, inputs, backward)
    gradients = [x for x in (*inputs, *layer.parameters()) if backward]
    return max(peak(device) - before - size_of([output, *gradients]), 0)


if __name__ == "__main__":
    case, name, length, device, dtype, which_pass = sys.argv[1:]
    torch.set_num_threads(2)
    print(bytes_beyond(case, name, int(length), device, getattr(torch, dtype), which_pass == "backward"))
