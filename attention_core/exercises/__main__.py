"""List the exercises: `python -m attention_core.exercises`."""

from attention_core.exercises import EXERCISES

HEAD = ("exercise", "inputs", "known mistakes")


def main() -> None:
    print(f"{HEAD[0]:<28}{HEAD[1]:>8}{HEAD[2]:>16}")
    for name, exercise in EXERCISES.items():
        print(f"{name:<28}{len(exercise.cases()):>8}{len(exercise.mistakes):>16}")
    inputs = sum(len(exercise.cases()) for exercise in EXERCISES.values())
    mistakes = sum(len(exercise.mistakes) for exercise in EXERCISES.values())
    print(f"{f'{len(EXERCISES)} exercises':<28}{inputs:>8}{mistakes:>16}")


if __name__ == "__main__":
    main()
