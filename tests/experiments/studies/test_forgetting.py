"""The study of forgetting: verdicts and the answer, of all of its variants or of some."""

import pytest

from experiments.analysis.statistics import summarise
from experiments.report.answer import Findings
from experiments.studies.forgetting.answer import answer
from experiments.studies.registry import STUDIES

from .conftest import judged, opened

FORGETTING = STUDIES["forgetting"]
SOME = "softmax-rope,elu+1-none,elu+1-rope-after,elu+1-none@decay=fixed,elu+1-rope-after@decay=fixed"
ENDS = {"softmax-rope": 3.0, "elu+1-none": 4.0, "elu+1-rope-after": 3.75, "elu+1-none@decay=fixed": 3.1}
NOISE = (0.0, 0.002, -0.002)


@pytest.fixture
def found(make_comparison, tmp_path):
    """What is found where elu+1 with RoPE after the map and a fixed decay ends at ``best``."""

    def make(best, variants=SOME, ends=None):
        def loss(name, seed, step):
            falling = 8 - step / 12.5 if step < 100 else 0
            return (ENDS | (ends or {})).get(name, best) + falling + NOISE[(seed + len(name)) % 3]

        root, comparison, curves = opened(make_comparison(tmp_path / "made-up", variants, 3, loss=loss))
        rows = judged(FORGETTING, root, comparison, curves)
        return Findings(comparison, summarise(root, comparison, curves), rows, root)

    return make


def test_what_was_trained_is_judged_and_the_rest_is_not_run(found):
    rows = found(2.9).rows
    verdicts = {key: row.verdict for key, row in rows.items() if row.was_asked}
    assert verdicts == {
        "fixed-below-softmax": "supported",
        "rope-after-with-fixed": "supported",
        "elu+1-rope-after-gap": "not supported",
        "elu+1-none@decay=fixed-gap": "not supported",
        "elu+1-rope-after@decay=fixed-gap": "supported",
    }
    assert {row.verdict for row in rows.values() if not row.was_asked} == {"not run"}


def test_the_answer_is_the_gap_and_what_rope_adds(found):
    said = answer(found(2.9))
    assert "closes 110% of the gap to softmax attention with RoPE; without the decay 25%" in said
    assert "It ends 0.100 bits per byte below softmax attention with RoPE." in said
    assert "With the decay RoPE after the map lowers the loss by 0.200." in said


def test_the_answer_ends_with_softmax_attention_equipped_alike(found):
    ends = "elu+1-rope-after@decay=gate@local_conv=4", "softmax-rope@decay=gate@local_conv=4"
    said = answer(found(2.9, ",".join([SOME, *ends]), dict(zip(ends, (2.81, 2.80), strict=True))))
    assert said.endswith("With a gate and a local convolution on both, elu+1 minus softmax attention is +0.010.")


def test_the_answer_says_that_the_spread_of_decays_matters(found):
    retnet = "elu+1-rope-after@decay=retnet"
    said = answer(found(2.9, f"{SOME},{retnet}", {retnet: 3.2}))
    assert "with RetNet's it ends 0.200 bits per byte above." in said


@pytest.mark.parametrize(
    ("end", "told"),
    [(2.999, "0.001 bits per byte below"), (3.001, "0.001 bits per byte above"), (3.1, "0.100 bits per byte above")],
)
def test_an_answer_that_is_not_sure_says_so(found, end, told):
    doubt = ", not beyond doubt" * (end < 3.1)
    assert f"It ends {told} softmax attention with RoPE{doubt}." in answer(found(end))


def test_without_its_variants_it_has_the_general_answer(found):
    assert "Softmax attention with RoPE ends lowest" in answer(found(3.0, "softmax-rope,elu+1-none"))
