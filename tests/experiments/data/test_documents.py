"""Where the documents of real texts begin."""

import numpy as np
import pytest


@pytest.mark.slow
@pytest.mark.parametrize(("name", "number"), [("imdb", 75_000), ("newsgroups-text", 18_846)])
def test_documents_begin_behind_blank_lines(name, number, real):
    corpus = real(name)
    content = np.concatenate([corpus.train, corpus.validation, corpus.test])
    begins = corpus.documents()
    assert len(begins) == number
    assert (begins[1:] > begins[:-1]).all()
    assert all(content[begin - 2 : begin].tobytes() == b"\n\n" for begin in begins[1::500])
