"""The study of masked tokens; test_glue.py has a run of it, from the command line to the report."""

import json

import pandas as pd
import pytest
from msgspec.structs import asdict

from experiments.cli import main
from experiments.commands import run_training
from experiments.records.schema import NEXT_BYTE
from experiments.studies.decay.measure import uniform_weight
from experiments.train.tokens import TextTokenizer
from tests.made_up import make_record


@pytest.mark.slow
def test_one_that_ends_among_its_trials_goes_on_with_its_tokenizer(tmp_path, monkeypatch):
    def killed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(run_training, "follow", killed)
    words = ["run", "mlm", "--preset", "smoke", "--variants", "softmax-rope", "--learning-rates", "0.001,0.002"]
    with pytest.raises(KeyboardInterrupt):
        main([*words, "--out", str(tmp_path / "mlm")])
    record = json.loads((tmp_path / "mlm" / "comparison.json").read_text())
    kept = TextTokenizer.read(tmp_path / "mlm" / "tokenizer.json")
    assert kept.sha256 == record["objective"]["tokenizer_sha256"]


def test_equal_weights_on_all_keys_are_those_of_an_encoder():
    measured, masked = pd.DataFrame({"distance": range(64)}), asdict(NEXT_BYTE) | {"name": "masked token"}
    assert uniform_weight(measured, make_record(objective=masked)) == 1 / 128
    assert uniform_weight(measured, make_record()) == pytest.approx(sum(1 / seen for seen in range(65, 129)) / 64)
