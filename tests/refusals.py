"""What a refused call must look like: the right type, the exact words, raised by the package, nothing changed."""

import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import attention_core

PACKAGE = Path(attention_core.__file__).parent


class Unchanged:
    """Hold what tensors were, and say later whether they still are."""

    def __init__(self, *arguments: object) -> None:
        self.tensors = [x for x in arguments if isinstance(x, Tensor)]
        self.versions = [x._version for x in self.tensors]
        self.copies = [x.detach().clone() if _readable(x) else None for x in self.tensors]

    def check(self) -> None:
        for x, version, copy in zip(self.tensors, self.versions, self.copies, strict=True):
            assert x._version == version, "an argument was written to"
            if copy is not None:
                torch.testing.assert_close(x.detach(), copy, rtol=0, atol=0, equal_nan=True)


def _readable(x: Tensor) -> bool:
    return not (x.is_meta or x.is_nested) and x.layout == torch.strided


def raised_by_package(error: BaseException) -> bool:
    return Path(traceback.extract_tb(error.__traceback__)[-1].filename).is_relative_to(PACKAGE)


def assert_refused(kind: type[Exception], message: str, function: Callable, *args: object, **kwargs: object) -> None:
    before = Unchanged(*args, *kwargs.values())
    with pytest.raises(kind) as caught:
        function(*args, **kwargs)
    assert type(caught.value) is kind
    assert str(caught.value) == message
    assert raised_by_package(caught.value), "the message must be ours, not that of a library"
    before.check()
