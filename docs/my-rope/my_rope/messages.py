"""Labelled examples from a table in the data directory: is a message wanted?"""

from experiments.data.registry import data_set

MESSAGES = data_set(
    "messages",
    reader="experiments.data.tables:Tables",
    description="Is a message wanted?",
    forms=[["messages.tsv"]],
    columns={"message": "text", "is_unwanted": "label"},
    classes={"0": "wanted", "1": "unwanted"},  # what the file says, and what it is called
    parts=[0.8, 0.1, 0.1],
    note="My messages, cut 80/10/10.",
    when_missing="place messages.tsv in --data-dir",
    licence="my own",
    fetch=["scp me@example.org:messages.tsv DIR/messages.tsv"],  # `data` prints it
)
