"""What a study says is checked when it is read."""

import dataclasses
from fnmatch import fnmatch

import pytest

from experiments.show.keys import shown_of
from experiments.studies.registry import STUDIES


@pytest.mark.parametrize("study", STUDIES.values(), ids=lambda study: study.name)
def test_every_study_has_known_keys_only_and_quantities_that_there_are(study):
    shown = shown_of(study)
    for entry in (*shown.figures, *shown.tables):
        assert {*entry.quantities} <= {*shown.quantities}
    stems = [figure.stem.replace("{each}", "*") for figure in shown.figures]
    assert not study.main_figure or any(fnmatch(study.main_figure, stem) for stem in stems)
    for text in (study.question, study.method, study.not_shown, study.table_note):
        assert "{" not in study.said(text)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"figures": [{"like": "validation", "colour": "red"}]}, r"study mlm: .*unknown field `colour`.*figures\[0\]"),
        ({"figures": [{"like": "no-such"}]}, "study mlm: 'no-such'"),
        ({"figures": [{"stem": "a", "title": "b"}]}, r"missing required field `caption`.*figures\[0\]"),
        ({"quantities": {"a": {"format": 3}}}, r"Expected `str`, got `int`.*quantities"),
        ({"headline": [{"text": "a"}]}, r"Expected `str`, got `object`.*headline\[0\]"),
    ],
)
def test_what_is_wrong_is_named(other, message):
    with pytest.raises(ValueError, match=message):
        shown_of(dataclasses.replace(STUDIES["mlm"], **other))
