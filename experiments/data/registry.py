"""The data sets: a new one is a file beside this one, with a ``TASK`` (or several), and a line here."""

from experiments.data import associative_recall, copying, enwik8, enwik8_4mb, imdb, stdlib, text
from experiments.data.corpus import Task

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        stdlib.TASK,
        enwik8.TASK,
        enwik8_4mb.TASK,
        imdb.TASK,
        text.TASK,
        *associative_recall.TASKS,
        *copying.TASKS,
    )
}
