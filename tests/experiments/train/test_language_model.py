"""The batches and windows that are cut from a corpus."""

import numpy as np
import pytest
import torch

from experiments.data.corpus import Corpus
from experiments.train.objectives import NextByte


def numbered(train: int, validation: int, test: int) -> Corpus:
    """A corpus whose splits count 0, 1, 2, ..., 250, 0, ..., so that a window shows where it was cut."""
    splits = {"train": train, "validation": validation, "test": test}
    counted = {split: (np.arange(length) % 251).astype(np.uint8) for split, length in splits.items()}
    return Corpus("numbered", **counted, sha256="", source="counted", note="")


def whole(batch) -> torch.Tensor:
    """The windows that inputs and targets were cut from."""
    inputs, targets = batch
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    return torch.cat((inputs, targets[:, -1:]), dim=1)


MODEL = NextByte(numbered(240, 100, 100), context=16, batch_size=8)


def test_batches_are_windows_of_consecutive_bytes():
    for step in range(5):
        batch = whole(MODEL.batch(seed=3, step=step))
        assert (batch.shape, batch.dtype) == ((8, 17), torch.int64)
        assert torch.equal(batch, batch[:, :1] + torch.arange(17))


def test_batches_differ_and_reach_every_byte_of_the_training_split():
    assert len({tuple(whole(MODEL.batch(seed, step))[:, 0].tolist()) for seed in range(4) for step in range(4)}) == 16
    model = NextByte(numbered(20, 17, 17), context=16, batch_size=8)
    assert set(torch.cat([model.batch(0, step)[0][:, 0] for step in range(20)]).tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("length", [17, 33, 100, 161])
@pytest.mark.parametrize("count", [1, 2, 1000])
def test_windows_are_spread_evenly_over_the_split_named_and_predict_no_byte_twice(length, count):
    windows = whole(NextByte(numbered(100, length, 101), context=16, batch_size=1).windows("validation", count))
    assert windows.dtype == torch.int64
    assert windows.shape == (min(count, (length - 1) // 16), 17)
    assert torch.equal(windows, windows[:, :1] + torch.arange(17))
    starts = windows[:, 0].tolist()
    assert starts[0] == 0
    if len(starts) > 1:
        gaps = np.diff(starts)
        assert starts[-1] == length - 17
        assert gaps.min() >= 16
        assert gaps.max() - gaps.min() <= 1


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_a_split_shorter_than_a_window_is_refused(split):
    lengths = dict.fromkeys(("train", "validation", "test"), 17)
    NextByte(numbered(**lengths), context=16, batch_size=1)
    message = rf"numbered \(counted\): the {split} split has 16 tokens, fewer than the 17 .* smaller --context"
    with pytest.raises(ValueError, match=message):
        NextByte(numbered(**lengths | {split: 16}), context=16, batch_size=1)
