"""Peak memory of one case, in a process of its own.

    python benchmarks/memory.py CANDIDATE LENGTH HEADS DEVICE DTYPE forward|backward

Prints the bytes held at the peak beyond the inputs and the output. On the CPU that is the growth of the process's
largest resident set, which counts a kernel's own scratch memory too; PyTorch's profiler would not see that. A process
reports the largest size it ever had, so each case needs a new one. On a GPU it is what PyTorch's allocator held.
"""

import math
import resource
import sys
from collections.abc import Callable

import torch
from alternatives import textbook_attention
from torch import Tensor
from torch.nn import functional as F

from attention_core import tiled_attention

HEAD_DIM = 64


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


def run(attend: Callable[[Tensor, Tensor, Tensor], Tensor], inputs: list[Tensor], backward: bool) -> Tensor:
    with torch.set_grad_enabled(backward):
        output = attend(*inputs)
        if backward:
            output.sum().backward()
    return output.detach()


def make_inputs(heads: int, length: int, device: str, dtype: torch.dtype, backward: bool) -> list[Tensor]:
    inputs = [torch.randn(1, heads, length, HEAD_DIM, device=device, dtype=dtype) for _ in range(3)]
    return [x.requires_grad_(backward) for x in inputs]


def peak(device: str) -> int:
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def bytes_beyond(candidate: str, length: int, heads: int, device: str, dtype: torch.dtype, backward: bool) -> int:
    attend = CANDIDATES[candidate]
    run(attend, make_inputs(heads, 16, device, dtype, backward), backward)  # what the first call loads is no part of it
    inputs = make_inputs(heads, length, device, dtype, backward)
    before = peak(device)
    run(attend, inputs, backward)
    kept = (4 if backward else 1) * math.prod(inputs[0].shape) * inputs[0].element_size()  # output, three gradients
    return max(peak(device) - before - kept, 0)


if __name__ == "__main__":
    name, length, heads, device, dtype, which_pass = sys.argv[1:]
    torch.set_num_threads(2)
    print(bytes_beyond(name, int(length), int(heads), device, getattr(torch, dtype), which_pass == "backward"))
