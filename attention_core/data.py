"""Sentences and published tensors, read from plain text in the data folder."""

import csv
import math
import tomllib
from pathlib import Path

import torch
from torch import Tensor

FOLDER = Path(__file__).resolve().parent.parent / "data"


def load_sentence(name: str) -> tuple[list[str], Tensor]:
    """Read a sentence, one token and its feature vector a line, from `data/sentences/NAME.csv`.

    Args:
        name: the file's name without `.csv`.
    Returns: the T tokens and a float32 tensor (T, d_in).
    Raises: TypeError where name is no str; ValueError for an unknown name (it lists the known ones) and for a
        malformed file (it names file, line and reason).

    >>> tokens, inputs = load_sentence("journey")
    >>> tokens[1], inputs[1]
    ('journey', tensor([0.5500, 0.8700, 0.6600]))

    First used in notebook 01.
    """
    path = _find("sentence", name, FOLDER / "sentences", ".csv")
    where = f"data/sentences/{path.name}"
    rows = _rows(where, path)
    number, header = rows[0] if rows else (1, [])
    if header[:1] != ["token"] or len(header) < 2:
        raise ValueError(f"{where}, line {number}: expected a header 'token,feature_1,...', got {','.join(header)!r}")
    if len(rows) < 2:
        raise ValueError(f"{where}, line {number}: expected at least one token below the header, got none")
    tokens = [row[0].strip() for _, row in rows[1:]]
    vectors = [_vector(f"{where}, line {number}", row, len(header) - 1) for number, row in rows[1:]]
    return tokens, torch.tensor(vectors, dtype=torch.float32)  # (T, d_in)


def load_published(name: str, *, printed: bool = False) -> Tensor:
    """Look up a tensor that one of the five documents prints, by document and step, such as "000.queries".

    Args:
        name: "DOCUMENT.STEP", with the document's three digits.
        printed: whether to give what the document printed in place of the right value; they differ only where it erred.
    Returns: float32 tensor, as printed: rounded to the document's digits.
    Raises: TypeError where name is no str; ValueError for an unknown name (it lists the known ones).

    >>> load_published("000.query_journey")
    tensor([0.4306, 1.4551])

    First used in notebook 01.
    """
    _check_name("published tensor", name)
    document, _, step = name.partition(".")
    path = _find("published document", document, FOLDER / "published", ".toml")
    entries = tomllib.loads(path.read_text(encoding="utf-8"))
    if step not in entries:
        raise ValueError(f"unknown step {step!r} in document {document}; known: {', '.join(entries)}")
    entry = entries[step]
    return torch.tensor(entry["printed"] if printed and "printed" in entry else entry["values"], dtype=torch.float32)


def _check_name(kind: str, name: str) -> None:
    if not isinstance(name, str):
        raise TypeError(f"the name of a {kind} must be a str, got {name!r} of type {type(name).__name__}")


def _find(kind: str, name: str, folder: Path, suffix: str) -> Path:
    _check_name(kind, name)
    known = sorted(path.stem for path in folder.glob(f"*{suffix}"))
    if name not in known:
        raise ValueError(f"unknown {kind} {name!r}; known: {', '.join(known)}")
    return folder / f"{name}{suffix}"


def _rows(where: str, path: Path) -> list[tuple[int, list[str]]]:
    lines = _text(where, path).split("\n")
    return [(number, _fields(f"{where}, line {number}", line)) for number, line in enumerate(lines, 1) if line.strip()]


def _text(where: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        byte = error.object[error.start]
        raise ValueError(f"{where}, line {line}: expected text saved as UTF-8, got the byte 0x{byte:02x}") from None


def _fields(where: str, line: str) -> list[str]:
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error as error:
        rule = "expected fields between commas, a quoted one with both its quotes"
        raise ValueError(f"{where}: {rule}, got {line!r} ({error})") from None


def _vector(where: str, row: list[str], d_in: int) -> list[float]:
    if not row[0].strip():
        raise ValueError(f"{where}: expected a token in the first column, got none")
    if len(row) - 1 != d_in:
        raise ValueError(f"{where}: expected {d_in} features, as the header names, got {len(row) - 1}")
    return [_number(where, text) for text in row[1:]]


def _number(where: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if "_" in text or not abs(number) <= torch.finfo(torch.float32).max:
        raise ValueError(f"{where}: expected a finite number, got {text.strip()!r}")
    return number
