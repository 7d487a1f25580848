"""How nbval's cells are compared here: exactly, in the order of the outputs too, and pictures by how they look.

On request `TolerantCell` forgives the last digit of a long number, for processors that round differently.
"""

import base64
import io
import re
from decimal import Decimal
from typing import Any

from nbformat import NotebookNode
from nbval.plugin import IPyNbCell
from PIL import Image, ImageChops

FLOAT = re.compile(r"(?P<pad> *)(?P<number>(?<![\w.])[-+]?\d+\.\d{4,})(?![\d.])")
SIDE = 48  # pictures are compared at this size, where the fonts of another machine look alike
LARGEST_CHANGE, LARGEST_STRETCH = 40, 0.05  # of 255; of the side of the picture


class ExactCell(IPyNbCell):
    """nbval alone forgets the order of different kinds of outputs, and does not look at pictures."""

    def compare_outputs(self, test: Any, ref: Any, skip_compare: Any = None) -> bool:
        if not super().compare_outputs(test, ref, skip_compare):
            return False
        for found, stored in zip(test, ref, strict=True):
            for what, computed, kept in (
                ("kinds of outputs", _kind(found), _kind(stored)),
                ("descriptions", self._alt(found), self._alt(stored)),
            ):
                if computed != kept:
                    self.comparison_traceback.append(f"the {what} differ: stored {kept}, computed {computed}")
                    return False
            if not same_picture(_png(found), _png(stored)):
                self.comparison_traceback.append("the stored picture looks different from the computed one")
                return False
        return True

    def _alt(self, output: NotebookNode) -> Any:
        return self.sanitize(output.get("metadata", {}).get("image/png", {}).get("alt"))


def _kind(output: NotebookNode) -> tuple[str, str, list[str]]:
    return output.output_type, output.get("name", ""), sorted(output.get("data", {}))


def _png(output: NotebookNode) -> str:
    return "".join(output.get("data", {}).get("image/png", "").split())


def same_picture(left: str, right: str) -> bool:
    """Whether two pictures, as base64, look alike from afar; a broken one looks like itself only."""
    if left == right:
        return True
    try:
        (one, size), (other, other_size) = (_seen_from_afar(base64.b64decode(text)) for text in (left, right))
    except (ValueError, OSError, SyntaxError):
        return False
    if any(abs(a - b) > LARGEST_STRETCH * max(a, b) for a, b in zip(size, other_size, strict=True)):
        return False
    return max(high for _, high in ImageChops.difference(one, other).getextrema()) <= LARGEST_CHANGE


def _seen_from_afar(png: bytes) -> tuple[Image.Image, tuple[int, int]]:
    with Image.open(io.BytesIO(png)) as picture:
        return picture.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BOX), picture.size


class Rounded(str):
    """Text that equals another one where only numbers of 4 or more decimals differ, each by one unit at most."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and same_but_for_rounding(str(self), str(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def same_but_for_rounding(left: str, right: str) -> bool:
    if left == right:
        return True
    if FLOAT.sub("#", left) != FLOAT.sub("#", right):
        return False
    return all(_close(one, other) for one, other in zip(FLOAT.finditer(left), FLOAT.finditer(right), strict=True))


def _close(one: re.Match[str], other: re.Match[str]) -> bool:
    if one[0] == other[0]:
        return True
    same_padding = one["pad"] == other["pad"] or len(one[0]) == len(other[0])
    a, b = Decimal(one["number"]), Decimal(other["number"])
    places = a.as_tuple().exponent, b.as_tuple().exponent
    return same_padding and places[0] == places[1] and abs(a - b) <= Decimal(1).scaleb(int(places[0]))


class TolerantCell(ExactCell):
    """Compares text as `Rounded` text."""

    def sanitize(self, s: object) -> object:
        text = super().sanitize(s)
        return Rounded(text) if isinstance(text, str) else text
