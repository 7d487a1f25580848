"""What the parameters of a lesson may be."""

from attention_core._checks import check_dropout, check_int
from attention_core.data import load_sentence

LARGEST_SIZE = 64  # what a lesson can still print and draw


def check_parameters(**parameters: object) -> None:
    """Stop a lesson in its first cells where one of its parameters is out of range.

    Args:
        **parameters: the lesson's parameters by name: `sentence`, a name for `load_sentence`; `dropout_p`, the share
            dropped, in [0, 1); `seed` and names that end in `_seed`, ints in [0, 2**32); the others are sizes, ints
            from 1 to 64.
    Raises: TypeError or ValueError that names the parameter, what it must be, and what came.

    >>> check_parameters(sentence="journey", seed=123, d_out=2)

    First used in notebook 01.
    """
    for name, value in parameters.items():
        if name == "sentence":
            load_sentence(value)  # type: ignore[arg-type]
        elif name == "dropout_p":
            check_dropout(name, value)
        elif name == "seed" or name.endswith("_seed"):
            check_int(name, value, 0, 2**32 - 1)
        else:
            check_int(name, value, 1, LARGEST_SIZE)
