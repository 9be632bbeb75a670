"""A study as data: a folder with its words and its claims, as a user would write one."""

from dataclasses import asdict

import pytest

from experiments.judge.claims import claims_of, load_claims
from experiments.presets import get_preset
from experiments.studies.registry import STUDIES
from experiments.study import read_study

WORDS = """
question = "Is it so?"
method = "With {SMALLEST_SAMPLE} seeds."
not_shown = "All else."
measure = "tests.made_up:make_record"
constants = "experiments.judge.statistics"
variants = ["softmax-none", "softmax-rope"]
[presets.smoke]
steps = 7
[words.text]
seeds = "{number} seeds"
"""
CLAIMS = """
[all]
margin = 0.01
[text]
OURS = "none found; our own"
[[group]]
family = "loss"
sample = "paired"
key = "{variant}-helps"
statement = "{variant} has a lower loss than {other}."
published = "{OURS}"
quantity = "test loss, bits per byte"
region = [-inf, 0]
resolution = "{BITS_PER_BYTE}"
claims = [{ variant = "softmax-rope", other = "softmax-none" }, { variant = "softmax-learned", other = "softmax-none" }]
[like.lower]
sample = "paired"
region = [-inf, 0]
published = "none found"
claims = [{ variant = "softmax-rope" }, { variant = "elu+1-rope-after", margin = 0.02 }]
[[group]]
like = "lower"
over = { other = ["softmax-none", "elu+1-none"] }
key = "{variant}-{other}"
statement = "{variant} is lower."
quantity = "loss"
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "study.toml").write_text(WORDS)
    (tmp_path / "claims.toml").write_text(CLAIMS)
    return tmp_path


def test_a_folder_is_a_study(folder):
    study = read_study(folder)
    assert (study.name, study.said(study.method)) == (folder.name.replace("_", "-"), "With 3 seeds.")
    assert get_preset("smoke", study).config.steps == 7
    with pytest.raises(ValueError, match=r"--preset is cpu, which .* does not have; choose from smoke"):
        get_preset("cpu", study)


def test_a_claim_has_what_its_group_shares_and_is_like_and_there_is_one_for_each_combination_of_values(folder):
    first, *others = claims_of(read_study(folder))
    assert (first.key, first.statement) == ("softmax-rope-helps", "softmax-rope has a lower loss than softmax-none.")
    assert (first.published, first.region, first.margin) == ("none found; our own", (float("-inf"), 0.0), 0.01)
    assert (first.resolution, first.family) == (1e-6, "loss")
    assert [(claim.key, claim.margin) for claim in others] == [
        ("softmax-learned-helps", 0.01),
        ("softmax-rope-softmax-none", 0.01),
        ("elu+1-rope-after-softmax-none", 0.02),
        ("softmax-rope-elu+1-none", 0.01),
        ("elu+1-rope-after-elu+1-none", 0.02),
    ]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"paired"', '"guessed"', "guessed"),
        ("{OURS}", "{THEIRS}", "THEIRS"),
        ("margin = 0.01", "margin = 0", "margin is 0"),
        ('variant = "softmax-rope", other', 'variant = "softmax-rope", mother', "other"),
        ("[[group]]", "[[group", "not TOML"),
    ],
)
def test_a_claim_that_is_wrong_is_named_with_its_file(folder, old, new, said):
    path = folder / "claims.toml"
    path.write_text(CLAIMS.replace(old, new))
    with pytest.raises(ValueError, match=rf"claims\.toml.*{said}"):
        load_claims(path)


def test_the_preset_v0_is_without_the_recipe_of_the_study():
    convergence, mlm = STUDIES["convergence"], STUDIES["mlm"]
    old = {"optimizer": "adamw", "schedule": "cosine", "initial_spread": 0.0}
    for size, name, rate in (("cpu", "v0", 2e-3), ("gpu", "gpu,v0", 6e-4)):
        now, before = (asdict(get_preset(each, convergence).config) for each in (size, name))
        assert {key for key in now if now[key] != before[key]} == {*old, "learning_rate"}
        assert before == before | old | {"learning_rate": rate}
        assert get_preset(size, mlm) == get_preset(name, mlm)
    with pytest.raises(ValueError, match="one-thread"):
        get_preset("one-thread,v0", convergence)
    for name in ("convergence", "forgetting", "tokens", "positions"):  # the run chooses what the tokens are
        assert "byte-level" not in STUDIES[name].method.lower()
