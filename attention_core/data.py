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
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = [(number, row) for number, row in enumerate(csv.reader(file), start=1) if row]
    where = f"data/sentences/{path.name}"
    if not rows or rows[0][1][0] != "token" or len(rows[0][1]) < 2:
        raise ValueError(f"{where}, line 1: expected a header 'token,feature_1,...', got {_line(rows)!r}")
    if len(rows) < 2:
        raise ValueError(f"{where}: expected at least one token below the header, got none")
    d_in = len(rows[0][1]) - 1
    tokens = [row[0].strip() for _, row in rows[1:]]
    vectors = [_vector(f"{where}, line {number}", row, d_in) for number, row in rows[1:]]
    return tokens, torch.tensor(vectors)  # (T, d_in)


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
    document, _, step = str(name).partition(".")
    path = _find("published document", document, FOLDER / "published", ".toml")
    entries = tomllib.loads(path.read_text(encoding="utf-8"))
    if step not in entries:
        raise ValueError(f"unknown step {step!r} in document {document}; known: {', '.join(entries)}")
    entry = entries[step]
    return torch.tensor(entry["printed"] if printed and "printed" in entry else entry["values"])


def _find(kind: str, name: str, folder: Path, suffix: str) -> Path:
    if not isinstance(name, str):
        raise TypeError(f"the name of a {kind} must be a str, got {name!r} of type {type(name).__name__}")
    known = sorted(path.stem for path in folder.glob(f"*{suffix}"))
    if name not in known:
        raise ValueError(f"unknown {kind} {name!r}; known: {', '.join(known)}")
    return folder / f"{name}{suffix}"


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
    if not math.isfinite(number):
        raise ValueError(f"{where}: expected a finite number, got {text.strip()!r}")
    return number


def _line(rows: list[tuple[int, list[str]]]) -> str:
    return ",".join(rows[0][1]) if rows else ""
