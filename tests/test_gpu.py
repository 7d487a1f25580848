"""On a GPU the package gives the CPU's numbers; skipped where there is none."""

import copy

import pytest
import torch
from test_properties import FUNCTIONS, LAYERS, randn

from attention_core import apply_dropout, causal_mask, dropout_keep_mask, scaled_dot_product_attention, tiled_attention

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that PyTorch can use on this machine")


def agree(on_gpu, on_cpu):
    assert on_gpu.device.type == "cuda"
    torch.testing.assert_close(on_gpu.cpu(), on_cpu, rtol=1e-5, atol=1e-5)


@pytest.fixture(autouse=True)
def float32_as_such():
    """No TensorFloat-32, which keeps 10 bits of each number."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("attend", [scaled_dot_product_attention, tiled_attention])
def test_attention_and_its_gradient(attend, dtype):
    tensors = [randn(2, 3, 300, 16, seed=i).to(dtype).requires_grad_() for i in range(3)]
    copies = [x.detach().cuda().requires_grad_() for x in tensors]
    contexts = [attend(*x, causal_mask(300).to(x[0].device)) for x in (tensors, copies)]
    contexts = [x[0] if isinstance(x, tuple) else x for x in contexts]
    agree(contexts[1], contexts[0])
    for context in contexts:
        context.square().mean().backward()
    for x, y in zip(tensors, copies, strict=True):
        agree(y.grad, x.grad)


@pytest.mark.parametrize("build", LAYERS.values(), ids=LAYERS)
def test_layers(build):
    layer, x = build().eval(), randn(2, 3, 2).float()
    on_gpu = copy.deepcopy(layer).cuda()
    agree(on_gpu(x.cuda()), layer(x))
    agree(on_gpu.attention_weights(x.cuda()), layer.attention_weights(x))


UNMASKED = [
    name for name in FUNCTIONS if name.startswith(("dot", "scale_", "entropy", "softmax", "context", "split", "merge"))
]


@pytest.mark.parametrize("name", UNMASKED)
def test_functions(name):
    function, *arguments = FUNCTIONS[name]
    agree(function(*(x.float().cuda() for x in arguments)), function(*(x.float() for x in arguments)))


@pytest.mark.parametrize("stream", ["torch", "mkl"])
def test_dropout_masks(stream):
    """They are drawn on the CPU, so that they are the same everywhere, also where the GPU is the default device."""
    keep = dropout_keep_mask((50, 50), 0.2, seed=123, stream=stream)
    with torch.device("cuda"):
        assert torch.equal(dropout_keep_mask((50, 50), 0.2, seed=123, stream=stream).cpu(), keep)
    weights = randn(50, 50).float()
    agree(apply_dropout(weights.cuda(), keep.cuda(), 0.2), apply_dropout(weights, keep, 0.2))
