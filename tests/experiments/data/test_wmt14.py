"""WMT 2014 and its sample."""

import pytest

from experiments.data import wmt14
from experiments.data.registry import DATA_SETS
from tests.experiments.data.made_up_files import write

SENTENCES = dict.fromkeys(wmt14.SENTENCES, 2)


def place(directory):
    for name in (*wmt14.TRAINING, wmt14.VALIDATION, wmt14.TEST):
        for language in ("en", "de"):
            second = "\n" if name.startswith("training/europarl") and language == "de" else f"{language} 2\n"
            write(directory / "wmt14" / f"{name}.{language}.gz", f"{name} {language}\n{second}")


def test_the_official_files_are_joined_and_empty_sentences_left_out(tmp_path):
    place(tmp_path)
    examples = wmt14.load(tmp_path, sentences=SENTENCES)
    assert tuple(examples.describe().splits.values()) == (5, 2, 2)
    assert examples.train["target"].tolist()[:2] == ["training/europarl-v7.de-en de", "commoncrawl.de-en de"]
    assert examples.test["source"].tolist() == ["newstest2014 en", "en 2"]
    assert DATA_SETS["wmt14"].find(tmp_path) == str(tmp_path / "wmt14")
    for name, expected in wmt14.SENTENCES.items():
        told = rf"--data wmt14: .*{name}\.en\.gz: it has 2 lines, expected {expected:,}"
        with pytest.raises(ValueError, match=told):
            wmt14.load(tmp_path, sentences=SENTENCES | {name: expected})
    (tmp_path / "wmt14/newstest2014.de.gz").unlink()
    assert DATA_SETS["wmt14"].find(tmp_path) is None
    with pytest.raises(ValueError, match=r"wmt14/newstest2014\.de is not there; .*or use --data multi30k"):
        wmt14.load(tmp_path)


def test_escapes_of_the_sample_are_undone(tmp_path):
    for name in wmt14.SAMPLE:
        write(tmp_path / f"wmt_ende_sample/{name}.txt", f"{name} &apos;s &quot; a &amp;lt; b &#91; ; &#124; &gt;\n")
    examples = wmt14.load_sample(tmp_path, pairs={"train": 1, "val": 1, "test": 1}, sha256={})
    assert examples.train.iloc[0].tolist() == [f"{side}-train 's \" a &lt; b [ ; | >" for side in ("src", "tgt")]
    with pytest.raises(ValueError, match=r"--data wmt14-sample: .*src-train\.txt: it has 1 lines, expected 10,000"):
        wmt14.load_sample(tmp_path)


def test_the_real_sample(real):
    examples = real("wmt14-sample")
    assert tuple(examples.describe().splits.values()) == (10_000, 3_000, 2_737)
    assert examples.test["source"][0] == "Orlando Bloom and Miranda Kerr still love each other"
    assert examples.test["target"][0] == "Orlando Bloom und Miranda Kerr lieben sich noch immer"
    assert "Parliament 's legislative" in examples.train["source"][0]
    assert "A sample of WMT 2014" in examples.note
    for split in ("train", "validation", "test"):
        assert not getattr(examples, split).map(lambda text: "&apos;" in text or "&quot;" in text).to_numpy().any()
