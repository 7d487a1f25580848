"""Execute the code cells of a notebook in this process, and note every number that they print, unrounded.

Much faster than a kernel, and it sees what a kernel hides: the number behind the digits. Pictures are described and
not drawn. Meanwhile no address can be connected to or looked up, and no other program started.
"""

import ast
import atexit
import builtins
import dataclasses
import functools
import json
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib.figure
import nbformat
import torch
from IPython.core.displayhook import CapturingDisplayHook
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from nbformat import NotebookNode
from nbformat.v4 import new_output
from traitlets.config import Config

from attention_core.exercises import _check

FIXED = re.compile(r"(?:\.(\d+))?([fF%])$")
NETWORK = (
    "socket.connect",
    "socket.getaddrinfo",
    "socket.gethostby",
    "socket.getnameinfo",
    "socket.sendto",
    "socket.bind",
)
PROGRAMS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.startfile")
ROUNDOFF = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


@dataclass(frozen=True)
class Number:
    """A number as it was printed, and what it was before it was rounded."""

    printed: str
    value: float
    decimals: int
    roundoff: float  # the relative error of one operation in the number's type
    margin: float  # how far the value is from the next one that prints another digit

    @property
    def roundings(self) -> float:
        """The margin, in rounding errors of float32, or of the number's type where that is coarser."""
        return self.margin / (abs(self.value) * max(self.roundoff, 2.0**-24)) if self.value else float("inf")


def distance_to_edge(value: float, decimals: int) -> float:
    return float(abs(abs(value) * 10.0**decimals % 1 - 0.5) / 10.0**decimals)


@dataclass
class ExecutedCell:
    id: str
    outputs: list[NotebookNode]
    numbers: list[Number] = field(default_factory=list)


class Refused(BaseException):
    """Code reached for the network or started a program; no `except Exception` swallows it."""


# --- no network, no other programs -------------------------------------------------------------------------------


@functools.cache
def _guard() -> dict[str, bool]:
    """An audit hook cannot be removed, so it asks a switch."""
    switch = {"on": False}

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if switch["on"] and event.startswith(NETWORK + PROGRAMS):
            raise Refused(f"{event} {arguments[-2:]!r}")

    sys.addaudithook(hook)
    return switch


@contextmanager
def offline() -> Iterator[None]:
    """Raise `Refused` where the code inside connects, looks up an address or starts a program."""
    switch = _guard()
    switch["on"] = True
    try:
        yield
    finally:
        switch["on"] = False


# --- the numbers behind the digits -------------------------------------------------------------------------------


class Notes:
    """Collects the numbers that are turned into text."""

    def __init__(self) -> None:
        self.numbers: list[Number] = []

    def add(self, printed: str, value: float, decimals: int, roundoff: float, margin: float | None = None) -> None:
        if math.isfinite(value):
            near = distance_to_edge(value, decimals) if margin is None else margin
            self.numbers.append(Number(printed.strip(), value, decimals, roundoff, near))

    def described(self, values: list[float]) -> None:
        """Note what a picture's description may say: a number rounded to 4 decimals, then to 2."""
        for value in values:
            said = f"{round(value, 4):z.2f}"
            near = min(abs(abs(value) * 100 % 1 - edge) for edge in (0.495, 0.505)) / 100
            self.add(said, value, 2, 2.0**-24, near)

    def formatted(self, value: Any, spec: str) -> Any:
        """Note what a replacement field such as {value:.4f} prints; return the value."""
        number, roundoff = _as_float(value)
        fixed = FIXED.search(spec)
        if number is not None and fixed:
            percent = fixed[2] == "%"
            decimals = 6 if fixed[1] is None else int(fixed[1])
            self.add(format(number, spec), number * 100 if percent else number, decimals, roundoff)
        return value


def _as_float(value: Any) -> tuple[float | None, float]:
    if isinstance(value, torch.Tensor) and value.dim() == 0 and value.is_floating_point():
        return value.item(), ROUNDOFF.get(value.dtype, 2.0**-53)
    if isinstance(value, float):
        single = torch.tensor(value, dtype=torch.float64).float().item() == value
        return value, 2.0**-24 if single else 2.0**-53
    return None, 0.0


class NoteFields(ast.NodeTransformer):
    """Passes the value of every replacement field of an f-string through `noted`."""

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.FormattedValue:
        self.generic_visit(node)
        if node.conversion == -1 and node.format_spec is not None:
            noted = ast.Name("__noted__", ast.Load())
            node.value = ast.Call(noted, [node.value, node.format_spec], [])
        return node


@contextmanager
def noting(notes: Notes) -> Iterator[None]:
    """Note the entries of tensors that are printed, and what f-strings format."""
    formatter = torch._tensor_str._Formatter
    start, write, rounded = formatter.__init__, formatter.format, torch.Tensor.round

    def started(self: Any, tensor: torch.Tensor) -> None:
        start(self, tensor)
        self.noted_dtype = tensor.dtype

    def written(self: Any, value: float) -> str:
        text: str = write(self, value)
        if self.noted_dtype.is_floating_point:
            decimals = 0 if self.int_mode else torch._tensor_str.PRINT_OPTS.precision
            if self.sci_mode and value and math.isfinite(value):
                decimals -= math.floor(math.log10(abs(value)))
            notes.add(text, value, decimals, ROUNDOFF.get(self.noted_dtype, 2.0**-53))
        return text

    def rounding(self: torch.Tensor, *, decimals: int = 0) -> torch.Tensor:
        if decimals == 4 and self.dtype.is_floating_point:
            notes.described(self.flatten().tolist())
        return rounded(self, decimals=decimals)

    formatter.__init__, formatter.format, torch.Tensor.round = started, written, rounding
    builtins.__dict__["__noted__"] = notes.formatted
    try:
        yield
    finally:
        formatter.__init__, formatter.format, torch.Tensor.round = start, write, rounded
        del builtins.__dict__["__noted__"]


# --- executing ---------------------------------------------------------------------------------------------------


def execute(path: Path, parameters: Mapping[str, Any] | None = None) -> list[ExecutedCell]:
    """Execute the code cells of a notebook, in its folder; the state of torch and of this process is put back.

    Of the parameters those count that the notebook has, as with papermill. An error ends it with a RuntimeError.
    """
    notes, executed = Notes(), []
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    with as_before(path.parent), _shell() as shell, noting(notes), offline():
        for cell in cells:
            executed.append(_execute_cell(shell, cell, notes))
            if parameters and "parameters" in cell.metadata.get("tags", []):
                shell.push({name: value for name, value in parameters.items() if name in shell.user_ns})
    return executed


def to_json(cells: list[ExecutedCell]) -> str:
    return json.dumps([dataclasses.asdict(cell) for cell in cells])


def from_json(text: str) -> list[ExecutedCell]:
    return [
        ExecutedCell(cell["id"], nbformat.from_dict(cell["outputs"]), [Number(**number) for number in cell["numbers"]])
        for cell in json.loads(text)
    ]


def _execute_cell(shell: InteractiveShell, cell: NotebookNode, notes: Notes) -> ExecutedCell:
    notes.numbers = []
    publisher = CapturingDisplayPublisher()
    results = CapturingDisplayHook(shell)
    shell.display_pub, shell.display_trap.hook = publisher, results
    with capture_output(display=False) as streams:
        result = shell.run_cell(cell.source)
    error = result.error_before_exec or result.error_in_exec
    if error is not None:
        raise RuntimeError(f"cell {cell.id} raised {error!r}") from error
    texts = [new_output("stream", name=name, text=getattr(streams, name)) for name in ("stdout", "stderr")]
    outputs = [text for text in texts if text.text]
    outputs += [
        new_output("display_data", shown["data"], metadata=shown["metadata"] or {}) for shown in publisher.outputs
    ]
    outputs += [new_output("execute_result", data=shown["data"]) for shown in results.outputs if shown["data"]]
    return ExecutedCell(cell.id, outputs, notes.numbers)


@contextmanager
def _shell() -> Iterator[InteractiveShell]:
    """A shell of its own, which `display` finds."""
    before = InteractiveShell._instance
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    shell.ast_transformers.append(NoteFields())
    try:
        yield shell
    finally:
        atexit.unregister(shell.atexit_operations)  # which searches all memory, when the tests end
        InteractiveShell.clear_instance()
        InteractiveShell._instance = before


@contextmanager
def as_before(folder: Path) -> Iterator[None]:
    """Work in a folder, draw nothing, and put back what a lesson may change."""
    here, grad, generator = Path.cwd(), torch.is_grad_enabled(), torch.get_rng_state()
    options = dict(torch._tensor_str.PRINT_OPTS.__dict__)
    dtype, draw = torch.get_default_dtype(), matplotlib.figure.Figure.savefig
    results = dict(_check._recorded)
    _check._recorded.clear()  # each notebook's exercises start from nothing
    matplotlib.figure.Figure.savefig = _draw_nothing  # type: ignore[method-assign]
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(here)
        _check._recorded.clear()
        _check._recorded.update(results)
        matplotlib.figure.Figure.savefig = draw  # type: ignore[method-assign]
        torch._tensor_str.PRINT_OPTS.__dict__.update(options)
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(grad)
        torch.set_rng_state(generator)


def _draw_nothing(figure: object, file: Any = None, **options: Any) -> None:
    pass
