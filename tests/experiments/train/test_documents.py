"""--packing documents: in a window no byte sees another document's, and the first byte of each is not scored."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from experiments.cli import main
from experiments.data.corpus import NOT_SCORED, begins, corpus_of_text
from experiments.data.registry import load_data
from experiments.data.texts import source_files
from experiments.train.objectives import NextByteOfDocuments
from linear_rope import CausalLM, ModelConfig

# Each document is a letter of its own, so that a window shows where documents end.
LENGTHS = [1, 30, 7, 20, 2, 60] * 30
LETTERS = b"".join(bytes([number]) * length for number, length in enumerate(LENGTHS))
CORPUS = corpus_of_text("letters", LETTERS, documents=begins(LENGTHS))
OBJECTIVE = NextByteOfDocuments(CORPUS, context=40, batch_size=16)


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_segments_are_documents_and_their_first_bytes_are_not_scored(split):
    batches = [OBJECTIVE.batch(0, 0), OBJECTIVE.batch(5, 3)] if split == "train" else [OBJECTIVE.windows(split, 99)]
    for inputs, segments, targets in batches:
        same = inputs[:, 1:] == inputs[:, :-1]
        assert torch.equal(segments[:, 1:] == segments[:, :-1], same)
        scored = targets != NOT_SCORED
        assert torch.equal(scored[:, :-1], same)
        assert torch.equal(targets[scored], inputs[scored])
        assert not scored.all()


def test_the_loss_is_that_of_documents_alone():
    model = CausalLM(ModelConfig(feature_map="elu+1", dim=16, layers=2, heads=2, vocab_size=256)).double()
    batch = OBJECTIVE.batch(0, 0)
    nats, number = 0.0, 0
    for inputs, segments, targets in zip(*batch, strict=True):
        for segment in segments.unique():
            at = segments == segment
            losses = F.cross_entropy(model(inputs[at][None])[0], targets[at], reduction="none", ignore_index=NOT_SCORED)
            nats, number = nats + losses.sum().item(), number + int((targets[at] != NOT_SCORED).sum())
    assert OBJECTIVE.scored(batch) == number
    assert OBJECTIVE.loss(model, batch).item() == pytest.approx(nats / number, rel=1e-12)


def test_documents_of_the_standard_library_are_its_files():
    corpus, files = load_data("stdlib"), source_files()
    content = np.concatenate([corpus.train, corpus.validation, corpus.test])
    at = corpus.documents
    assert len(at) == len(files)
    for begin, end, path in [*zip(at, at[1:], files, strict=False)][::97]:
        assert content[begin:end].tobytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--variants", "performer-pytorch"], "packing is documents"),
        (["--tokenizer", "bpe", "--vocabulary-size", "300"], "packing is documents with the tokenizer bpe"),
    ],
)
def test_what_has_no_documents_is_refused(words, message, tmp_path, capsys):
    command = ["run", "convergence", "--preset", "smoke", "--packing", "documents", "--out", str(tmp_path / "run")]
    assert main([*command, *words]) == 2
    assert message in capsys.readouterr().err
