"""The study of forgetting: verdicts and the headline, of all of its variants or of some."""

import re

import pytest

from experiments.studies.registry import STUDIES

from .conftest import headline_of, opened, verdicts

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

        return opened(make_comparison(tmp_path / "made-up", variants, 3, loss=loss))

    return make


def test_what_was_trained_is_judged_and_the_rest_is_not_run(found):
    told = {key: verdict for key, verdict in verdicts(FORGETTING, *found(2.9)).items() if verdict != "not run"}
    assert told == {
        "fixed-below-softmax": "supported",
        "rope-after-with-fixed": "supported",
        "elu+1-rope-after-gap": "not supported",
        "elu+1-none@decay=fixed-gap": "not supported",
        "elu+1-rope-after@decay=fixed-gap": "supported",
    }


def test_the_headline_is_the_gap_and_what_rope_adds(found):
    said = headline_of(FORGETTING, *found(2.9))
    assert "closes 110% of the gap to softmax attention with RoPE; without the decay 25%" in said
    assert re.search(r"its test loss is -0.100 \[-0.1.., -0.0..\] \(elu\+1 lower\), in bits per byte\.", said)
    assert "RoPE after the map changes the loss by -0.200 [-0.200, -0.200] (with RoPE lower)." in said
    assert "RetNet" not in said, "it was not trained"


def test_a_headline_that_is_not_sure_says_so(found):
    assert not re.search(r"elu\+1 (lower|higher)", headline_of(FORGETTING, *found(2.999)))


def test_without_its_variants_it_says_which_is_best(found):
    assert "Softmax attention with RoPE ends lowest" in headline_of(FORGETTING, *found(3.0, "softmax-rope,elu+1-none"))
