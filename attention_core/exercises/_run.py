"""Call a student's function without letting it disturb anything: its own copies of the arguments, a time limit, its
prints caught, and every global state that it may change put back."""

import contextlib
import copy
import ctypes
import dis
import inspect
import linecache
import os
import random
import re
import signal
import sys
import sysconfig
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

LONGEST_PRINT = 2_000
LONGEST_ERROR = 400
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIBRARIES = tuple(os.path.abspath(sysconfig.get_path(kind)) + os.sep for kind in ("stdlib", "purelib", "platlib"))


class TimeUp(BaseException):
    """The function ran past its limit. Not an Exception, so that `except Exception` in the function lets it through."""


@dataclass(frozen=True)
class StudentError:
    """An exception of the student's code: its kind, its text, and the line where it arose."""

    kind: str
    text: str
    line_number: int
    line: str
    not_written: bool


@dataclass(frozen=True)
class Call:
    """What one call gave: a value or an error, the arguments it changed, and what it printed."""

    value: Any = None
    error: StudentError | None = None
    timed_out: bool = False
    changed: tuple[int, ...] = ()
    printed: str = ""


def call(function: Callable[..., Any], arguments: tuple[Any, ...], seconds: float) -> Call:
    """Call `function` on copies of the arguments; never raises."""
    own = copied(arguments)
    writer = _Writer()
    value, error, over = None, None, threading.Event()
    try:
        with _world_put_back(), contextlib.redirect_stdout(writer), contextlib.redirect_stderr(writer):
            with time_limit(seconds, over):
                value = function(*own)
            value = _snapshot(value)
    except TimeUp:
        over.set()
    except BaseException as exception:
        error = _describe_error(exception)
    changed = tuple(i for i, (mine, theirs) in enumerate(zip(arguments, own, strict=True)) if not _equal(mine, theirs))
    return Call(value, error, over.is_set(), changed, writer.text())


def copied(arguments: Any) -> Any:
    """Copies of tensors, of generators and of lists of tensors; anything else as it is."""
    if isinstance(arguments, Tensor):
        return arguments.clone()
    if isinstance(arguments, torch.Generator):
        return arguments.clone_state()
    if isinstance(arguments, (tuple, list)):
        return type(arguments)(copied(argument) for argument in arguments)
    return arguments


@contextlib.contextmanager
def time_limit(seconds: float, over: threading.Event) -> Iterator[None]:
    """Set `over` and raise TimeUp in the body after `seconds`, again and again if the body catches it.

    In the main thread, where the system has one, an alarm signal does it, which interrupts waiting too; elsewhere a
    second thread does, which can only interrupt Python code.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    with _alarm(seconds, over) if hasattr(signal, "setitimer") and in_main_thread else _watchdog(seconds, over):
        yield


@contextlib.contextmanager
def _alarm(seconds: float, over: threading.Event) -> Iterator[None]:
    active = True

    def interrupt(number: int, frame: Any) -> None:
        if active:
            over.set()
            raise TimeUp

    before = signal.signal(signal.SIGALRM, interrupt)
    left_before, _ = signal.setitimer(signal.ITIMER_REAL, seconds, 0.1)
    try:
        yield
    finally:
        active = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left_before:
            signal.setitimer(signal.ITIMER_REAL, left_before)


@contextlib.contextmanager
def _watchdog(seconds: float, over: threading.Event) -> Iterator[None]:
    finished = threading.Event()
    lock = threading.Lock()
    thread = ctypes.c_ulong(threading.get_ident())

    def watch() -> None:
        delay = seconds
        while not finished.wait(delay):
            with lock:
                if not finished.is_set():
                    over.set()
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(TimeUp))
            delay = 0.1

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        with lock:
            finished.set()
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, None)


@contextlib.contextmanager
def _world_put_back() -> Iterator[None]:
    random_state, numpy_state, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    dtype, gradients, depth = torch.get_default_dtype(), torch.is_grad_enabled(), sys.getrecursionlimit()
    device = torch.get_default_device()
    folder = os.getcwd()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            random.seed(0)
            np.random.seed(0)
            torch.default_generator.manual_seed(0)
            yield
    finally:
        random.setstate(random_state)
        np.random.set_state(numpy_state)
        if torch.get_default_device() != device:
            torch.set_default_device(device)
        torch.set_rng_state(torch_state)
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(gradients)
        sys.setrecursionlimit(depth)
        os.chdir(folder)


class _Writer:
    """A place for prints that keeps the first few thousand characters and cannot be closed."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._length = 0

    def write(self, text: str) -> int:
        text = str(text)
        if self._length < LONGEST_PRINT:
            self._parts.append(text[: LONGEST_PRINT - self._length])
            self._length += len(text)
        return len(text)

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def isatty(self) -> bool:
        return False

    def text(self) -> str:
        return "".join(self._parts)


def _snapshot(value: Any) -> Any:
    """A copy of an answer, so that a later call cannot change it."""
    try:
        if isinstance(value, Tensor):
            return value.detach().clone() if value.numel() < 10**6 else value.detach()
        if type(value) in (list, tuple) and len(value) <= 64:
            return type(value)(_snapshot(part) for part in value)
        return copy.copy(value) if isinstance(value, (list, dict, np.ndarray)) else value
    except Exception:
        return value


def _equal(before: Any, after: Any) -> bool:
    try:
        if isinstance(before, Tensor):
            return before.shape == after.shape and before.dtype == after.dtype and torch.equal(before, after.detach())
        if isinstance(before, (list, tuple)):
            return len(before) == len(after) and all(_equal(a, b) for a, b in zip(before, after, strict=True))
    except Exception:
        return False
    return True


def _describe_error(exception: BaseException) -> StudentError:
    number, line, owner = _place(exception)
    text = _text_of(exception)
    says_so = "NotImplementedError" in line or not text
    return StudentError(
        kind=type(exception).__name__,
        text=text,
        line_number=number,
        line=line,
        not_written=type(exception) is NotImplementedError and owner and says_so,
    )


def _text_of(exception: BaseException) -> str:
    try:
        text = str(exception)
    except BaseException:
        return "(its text cannot be shown)"
    text = re.sub(r"0x[0-9a-fA-F]+", "0x...", text.strip())
    return text if len(text) <= LONGEST_ERROR else text[:LONGEST_ERROR] + " ..."


def _place(exception: BaseException) -> tuple[int, str, bool]:
    """Number and text of the innermost line that the student wrote, and whether the exception was raised there."""
    number, line, is_innermost = 0, "", False
    traceback = exception.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        is_innermost = not _is_library(code.co_filename)
        if is_innermost:
            number = traceback.tb_lineno
            line = linecache.getline(code.co_filename, number).strip()
        traceback = traceback.tb_next
    return number, line, is_innermost


def _is_library(filename: str) -> bool:
    if filename.startswith("<ipython"):
        return False
    path = os.path.abspath(filename)
    return filename.startswith("<frozen") or path.startswith((PACKAGE + os.sep, *LIBRARIES))


def does_nothing(function: Any) -> bool:
    """Whether the body is only `pass`, `...` or a docstring."""
    code = getattr(function, "__code__", None)
    if code is None:
        return False
    idle = {"RESUME", "NOP", "LOAD_CONST", "RETURN_VALUE", "RETURN_CONST", "POP_TOP", "LOAD_SMALL_INT", "NOT_TAKEN"}
    return all(instruction.opname in idle for instruction in dis.get_instructions(code))


def arity_problem(function: Callable[..., Any], names: tuple[str, ...]) -> str:
    """In words, why the function cannot be called with these arguments; empty where it can."""
    try:
        signature = inspect.signature(function)
    except Exception:
        return ""
    try:
        signature.bind(*names)
    except TypeError:
        own = ", ".join(str(name) for name in signature.parameters) or "nothing"
        return (
            f"Your function takes ({own}). The exercise calls it with {len(names)} "
            f"argument{'s' * (len(names) != 1)}: ({', '.join(names)})."
        )
    return ""
