"""The batches and windows that are cut from a corpus."""

import math

import numpy as np
import pytest
import torch

from experiments.data.corpus import Corpus, corpus_of_text
from experiments.training.objectives import NextByte, bits_per_byte


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


class TestBatches:
    MODEL = NextByte(numbered(240, 100, 100), context=16, batch_size=8)

    def test_are_windows_of_consecutive_bytes(self) -> None:
        batch = whole(self.MODEL.batch(seed=0, step=0))
        assert batch.shape == (8, 17)
        assert batch.dtype == torch.int64
        assert torch.equal(batch, batch[:, :1] + torch.arange(17))

    def test_are_a_pure_function_of_seed_and_step(self) -> None:
        forwards = [whole(self.MODEL.batch(seed=3, step=step)) for step in range(5)]
        np.random.seed(1)
        torch.manual_seed(1)
        expected_next = (np.random.RandomState(1).random(), torch.rand(1, generator=torch.Generator().manual_seed(1)))
        again = NextByte(self.MODEL.corpus, context=16, batch_size=8)
        backwards = [whole(again.batch(seed=3, step=step)) for step in reversed(range(5))][::-1]
        assert all(torch.equal(a, b) for a, b in zip(forwards, backwards, strict=True))
        assert (np.random.random(), torch.rand(1)) == expected_next

    def test_differ_between_steps_and_seeds(self) -> None:
        batches = {tuple(whole(self.MODEL.batch(seed, step))[:, 0].tolist()) for seed in range(4) for step in range(4)}
        assert len(batches) == 16

    def test_reach_every_byte_of_the_training_split(self) -> None:
        model = NextByte(numbered(20, 17, 17), context=16, batch_size=8)
        starts = torch.cat([whole(model.batch(0, step))[:, 0] for step in range(20)])
        assert set(starts.tolist()) == {0, 1, 2, 3}


class TestWindows:
    @pytest.mark.parametrize("length", [17, 18, 33, 100, 160, 161, 200])
    @pytest.mark.parametrize("count", [1, 2, 5, 1000])
    def test_are_spread_evenly_and_predict_no_byte_twice(self, length: int, count: int) -> None:
        model = NextByte(numbered(100, length, 100), context=16, batch_size=1)
        windows = whole(model.windows("validation", count))
        assert windows.dtype == torch.int64
        assert windows.shape == (min(count, (length - 1) // 16), 17)
        assert torch.equal(windows, windows[:, :1] + torch.arange(17))
        starts = windows[:, 0].tolist()
        gaps = np.diff(starts)
        assert starts[0] == 0
        if len(starts) > 1:
            assert starts[-1] == length - 17
            assert gaps.min() >= 16
            assert gaps.max() - gaps.min() <= 1
        assert torch.equal(windows, whole(model.windows("validation", count)))

    def test_cover_a_split_that_they_fit(self) -> None:
        windows = NextByte(numbered(100, 161, 100), context=16, batch_size=1).windows("validation", 10)[1]
        assert windows.flatten().tolist() == list(range(1, 161))

    def test_come_from_the_split_named(self) -> None:
        corpus = corpus_of_text("three", b"a" * 900 + b"b" * 50 + b"c" * 50, "", "")
        model = NextByte(corpus, context=4, batch_size=1)
        for split, letter in (("train", "a"), ("validation", "b"), ("test", "c")):
            assert whole(model.windows(split, 3)).unique().tolist() == [ord(letter)]


class TestLengths:
    @pytest.mark.parametrize("split", ["train", "validation", "test"])
    def test_a_split_shorter_than_a_window_is_refused(self, split: str) -> None:
        lengths = {"train": 17, "validation": 17, "test": 17}
        NextByte(numbered(**lengths), context=16, batch_size=1)
        lengths[split] = 16
        message = rf"numbered \(counted\): the {split} split has 16 bytes, fewer than the 17 .* smaller --context"
        with pytest.raises(ValueError, match=message):
            NextByte(numbered(**lengths), context=16, batch_size=1)

    def test_bits_per_byte_of_a_uniform_guess(self) -> None:
        assert bits_per_byte(math.log(256)) == pytest.approx(8)
