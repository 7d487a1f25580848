"""All exercises, by id, in the order of the lessons."""

from attention_core.exercises import (
    lesson_01,
    lesson_02,
    lesson_03,
    lesson_04,
    lesson_05,
    lesson_06,
    lesson_07,
    lesson_08,
)
from attention_core.exercises._spec import Exercise

LESSONS = (lesson_01, lesson_02, lesson_03, lesson_04, lesson_05, lesson_06, lesson_07, lesson_08)
EXERCISES: dict[str, Exercise] = {exercise.id: exercise for lesson in LESSONS for exercise in lesson.EXERCISES}


def of_lesson(lesson: str) -> list[Exercise]:
    return [exercise for exercise in EXERCISES.values() if exercise.lesson == lesson]
