"""The list of mutants that may live speaks of the code as it is."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
LISTED = tomllib.loads((ROOT / "tests" / "mutants.toml").read_text("utf-8"))["mutant"]


def source_of(function: str) -> list[str]:
    """The lines of the module in which a function is, `attention_core.masks.causal_mask` in attention_core/masks.py."""
    module = ROOT.joinpath(*function.split(".")[:2]).with_suffix(".py")
    return [line.strip() for line in module.read_text("utf-8").splitlines()]


def test_every_listed_line_is_still_there():
    gone = [entry["removed"] for entry in LISTED if entry["removed"] not in source_of(entry["function"])]
    assert gone == []


def test_every_listed_mutant_is_a_change_and_has_a_reason():
    assert all(entry["removed"] != entry["added"] and len(entry["why"]) > 20 for entry in LISTED)
    assert len({(entry["function"], entry["removed"], entry["added"]) for entry in LISTED}) == len(LISTED)
