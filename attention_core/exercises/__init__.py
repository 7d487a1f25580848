"""Exercises that name the mistake: `check("04.causal_mask", causal_mask)` tries a function and says what is wrong.

Imported on its own: `import attention_core` needs none of it.
"""

from attention_core.exercises._check import check, evaluate, recorded
from attention_core.exercises._lessons import EXERCISES
from attention_core.exercises._spec import Case, Exercise, Mistake, Result

__all__ = ["EXERCISES", "Case", "Exercise", "Mistake", "Result", "check", "evaluate", "recorded"]
