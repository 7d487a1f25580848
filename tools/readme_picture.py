"""Copy the picture that the README shows out of lesson 04's stored outputs."""

import base64
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
LESSON = ROOT / "notebooks" / "04_causal_masking.ipynb"
CELL = "picture-causal-weights"
PICTURE = ROOT / "data" / "causal_weights.png"


def stored_picture() -> bytes:
    """The PNG in the output of the lesson's cell."""
    (cell,) = (cell for cell in nbformat.read(LESSON, as_version=4).cells if cell.id == CELL)
    (encoded,) = (output.data["image/png"] for output in cell.outputs if "image/png" in output.get("data", {}))
    return base64.b64decode(encoded)


def main() -> None:
    picture = stored_picture()
    if not PICTURE.exists() or PICTURE.read_bytes() != picture:
        PICTURE.write_bytes(picture)


if __name__ == "__main__":
    main()
