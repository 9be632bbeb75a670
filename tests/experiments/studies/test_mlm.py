"""The study of masked tokens: a run from the command line to the report, and verdicts from made-up figures."""

import json

import msgspec
import pandas as pd
import pytest

from experiments import load
from experiments.cli import main
from experiments.commands import run_training
from experiments.records.schema import NEXT_BYTE
from experiments.studies.decay.measure import uniform_weight
from experiments.studies.registry import STUDIES
from experiments.train.tokens import TextTokenizer
from linear_rope.heads import MaskedLM
from tests.made_up import trained_here

from .conftest import opened

STUDY = STUDIES["mlm"]
GATED = "elu+1-rope-after@decay=gate@local_conv=4"
ENDS = {"softmax-learned": 6.0, "softmax-rope": 5.5, "elu+1-learned": 6.2, "elu+1-rope-after": 5.9}
NOISE = (0.0, 0.002, -0.002)


@pytest.fixture
def found(make_comparison, tmp_path):
    """Three seeds of every variant; the four without settings end as in ``ends``, all others at 5.4."""

    def make(ends=ENDS):
        def loss(name, seed, step):
            falling = 8 - step / 12.5 if step < 100 else 0
            return ends.get(name, 5.4) + falling + NOISE[(seed + len(name)) % 3]

        objective = {"name": "masked token", "metric": "nats_per_masked_token", "unit": "nats per masked token"}
        objective |= {"better": "lower", "vocabulary": 300}
        return opened(
            make_comparison(tmp_path / "made-up", ",".join(STUDY.variants), 3, loss=loss, objective=objective)
        )

    return make


@pytest.mark.slow
def test_a_run_has_a_tokenizer_an_encoder_and_a_report(tmp_path):
    out = tmp_path / "mlm"
    words = ["run", "mlm", "--preset", "smoke", "--steps", "4", "--evaluate-every", "2", "--workers", "1"]
    with trained_here():
        assert main([*words, "--variants", f"softmax-learned,{GATED}", "--out", str(out)]) == 0
    record = json.loads((out / "comparison.json").read_text())
    assert record["objective"]["name"] == "masked token"
    assert (out / "tokenizer.json").exists()
    assert isinstance(load(out).run(GATED).model(), MaskedLM)
    assert "RoFormer's figure 3" in (out / "report.md").read_text(encoding="utf-8")


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


def test_equal_weights_on_all_keys_are_those_of_an_encoder(found):
    measured = pd.DataFrame({"distance": range(64)})
    record = found()[1]
    assert uniform_weight(measured, record) == 1 / 128
    causal = msgspec.structs.replace(record, objective=NEXT_BYTE)
    assert uniform_weight(measured, causal) == pytest.approx(sum(1 / seen for seen in range(65, 129)) / 64)
