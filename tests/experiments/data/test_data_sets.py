"""Every data set of the catalogue, from small files; the real ones where LINEAR_ROPE_DATA has them."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from experiments.cli import main
from experiments.data.corpus import Corpus, corpus_of_text
from experiments.data.files import Download, Files, file_sha256
from experiments.data.registry import CATALOG, DATA_SETS, data_set, load_data, row_of
from tests.experiments.data.made_up_files import (
    DOWNLOADED,
    OF_FILES,
    ROWS,
    contents,
    documents,
    numbered,
    place,
    reader_of,
    small,
    tar,
    text_of,
    write,
)

SPLITS = ("train", "validation", "test")
KINDS = {"Tables": ("text", "pair"), "Triplets": ("triplet",), "Translations": ("translation",)}
KINDS |= {"LabelledDocuments": ("text",)}


def whole(corpus):
    return b"".join(getattr(corpus, split).tobytes() for split in SPLITS)


def test_what_is_there_without_any_data():
    here = {name for name, data_set in DATA_SETS.items() if data_set.find(None) is not None}
    generated = {name for name in CATALOG["data"] if reader_of(name) == "Generated"}
    assert len(generated) == 21
    assert here == {"stdlib", "late-verdicts", "numerals", *generated}
    assert not [name for name, data_set in DATA_SETS.items() if "$" in f"{data_set}"], "a word that is not filled in"
    row = row_of("sst-2")
    for wrong in (row | {"colums": {}}, {key: row[key] for key in row if key != "columns"}):
        with pytest.raises(ValueError, match=r"^data set sst-2: .*colum"):
            data_set("sst-2", **wrong)


@dataclass(frozen=True, kw_only=True)
class Letters(Files):
    """A reader of somebody's own, with a default, a place and a download that are not those of ``Files``."""

    forms: Sequence[Sequence[str]] = (("letters.txt",),)

    @property
    def downloads(self):
        return [Download("https://example.org/letters.txt", "0" * 64, "letters.txt", "letters.txt")]

    def find(self, data_dir):
        return f"{self.forms[0][0]} in a drawer"

    def load(self, data_dir, data_file):
        return corpus_of_text(self.name, b"letters " * 1000, "a drawer")


def test_a_reader_of_one_s_own_says_where_its_files_are():
    made = data_set("letters", description="", reader=f"{__name__}:Letters")
    assert (made.find(None), made.url) == ("letters.txt in a drawer", "https://example.org/letters.txt")
    assert made.fetch == ("curl -fL --create-dirs -o DIR/letters.txt https://example.org/letters.txt",)


def test_arguments_that_do_not_fit_together(tmp_path, capsys):
    mine = write(tmp_path / "enwik8", text_of("mine"))
    for name, file, told in (
        ("enwik9", None, r"--data: there is no data set 'enwik9'; did you mean 'enwik8'\? .*text"),
        ("text", None, "--data-file FILE"),
        ("stdlib", mine, "--data text"),
    ):
        with pytest.raises(ValueError, match=told):
            load_data(name, data_file=file)
    for name, data_file in (("copying-32", None), ("text", mine)):
        assert load_data(name, data_file=data_file, may_download=False).name == name
    with pytest.raises(ValueError, match="damaged or another file"):
        load_data("enwik8", tmp_path, may_download=False)
    for name in DOWNLOADED:
        with pytest.raises(ValueError, match=r"would be downloaded from http\S+, .*run without --dry-run"):
            load_data(name, may_download=False)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("command", ["list", "doctor"])
def test_those_of_installed_packages_and_of_one_that_cannot_be_imported(command, tmp_path, monkeypatch, capsys):
    write(
        tmp_path / "own_data.py",
        "from experiments.data.corpus import DataSet, corpus_of_text\n"
        "mine = DataSet('mine', 'My text.', lambda data_dir, data_file: corpus_of_text('mine', b'abc' * 100))\n",
    )
    write(tmp_path / "own-1.0.dist-info" / "METADATA", "Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    groups = "[linear_rope.data]\nbad = no:bad\nmine = own_data:mine\n[linear_rope.studies]\nasked = no:asked\n"
    write(tmp_path / "own-1.0.dist-info" / "entry_points.txt", groups)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(DATA_SETS, "_items", dict(DATA_SETS._items))
    assert main([command]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "data set 'bad' cannot be imported (ModuleNotFoundError: No module named 'no')" in told
    assert ("My text." if command != "doctor" else "mine here: made by its own code") in told
    assert load_data("mine", may_download=False).describe().bytes == 300
    with pytest.raises(ValueError, match=r"cannot be imported \(ModuleNotFoundError: .*mend or remove"):
        load_data("bad")


@pytest.mark.parametrize(
    ("length", "sizes"),
    [(100, (90, 5, 5)), (39, (35, 2, 2)), (1, (0, 0, 1))],
)
def test_split_sizes_and_record_of_a_text(length, sizes):
    content = np.random.default_rng(0).integers(0, 256, length, dtype=np.uint8)
    corpus = corpus_of_text("mine", content, source="a test", note="Only a test.")
    record = corpus.describe()
    assert (record.name, record.source, record.note, record.bytes) == ("mine", "a test", "Only a test.", length)
    assert record.splits == dict(zip(SPLITS, sizes, strict=True))
    assert record.sha256 == hashlib.sha256(content).hexdigest()
    assert whole(corpus) == content.tobytes()


def offered(name, server):
    """A data set whose last form the server has."""
    row, files = row_of(name), contents(name, -1)
    end = ".gz" if row["address"].endswith("{}.gz") else ""
    paths = {file: write(server.directory / f"{file}{end}", content) for file, content in files.items()}
    sha256 = {file: file_sha256(path, "") for file, path in paths.items()}
    return small(name, address=f"{server.url}/{{}}{end}", sha256=sha256), list(paths.values())


# Those left out differ from another one in their test split alone.
@pytest.mark.parametrize("name", [name for name in OF_FILES if not name.startswith(("multi30k-", "imdb-sentiment-l"))])
def test_from_the_data_directory_or_downloaded(tmp_path, name, server):
    paths, made = place(name, tmp_path, end=".gz"), small(name)
    found = made.load(tmp_path, None)
    assert found.source == " and ".join(str(path.relative_to(tmp_path)) for path in paths) + " in the data directory"
    assert found.note.startswith(row_of(name).get("note"))
    told = made.find(tmp_path)
    assert told == str(paths[0]) or told.startswith(f"{len(paths)} files in {tmp_path}")
    for form in (0, -1):
        place(name, tmp_path / str(form), form)
        assert small(name).load(tmp_path / str(form), None).sha256 == found.sha256
    if name in DOWNLOADED:
        made, files = offered(name, server)
        downloaded = made.load(None, None)
        assert downloaded.source == " and ".join(f"downloaded from {server.url}/{path.name}" for path in files)
        assert made.load(None, None).sha256 == downloaded.sha256 == found.sha256
        assert server.requests == len(files), "downloaded once"
        assert made.find(None) is not None
        place(name, tmp_path / "half")[0].unlink()
        assert made.load(tmp_path / "half", None).source == downloaded.source, "half of the files are not enough"
    if isinstance(found, Corpus):
        assert len(whole(found)) > 100
        return
    assert min(found.describe().splits.values()) > 0
    assert found.kind in KINDS[reader_of(name)]
    classes = row_of(name).get("classes", found.classes)
    assert found.classes == tuple(classes.values() if isinstance(classes, dict) else classes)
    if found.kind in ("text", "pair"):
        training, validation = (set(found.texts(split).to_numpy().ravel()) for split in SPLITS[:2])
        assert not training & validation


@pytest.mark.parametrize("name", ["imdb", "sst-2", "wikitext-2", "multi30k", "cail2019-scm-sample"])
def test_another_file_than_the_known_one_is_refused(tmp_path, name, server):
    made, paths = offered(name, server)
    write(place(name, tmp_path, form=-1)[0], b"something else")
    with pytest.raises(ValueError, match=rf"--data {name}: .* is damaged or another file"):
        made.load(tmp_path, None)
    write(paths[-1], b"something else")
    with pytest.raises(ValueError, match=r"sent does not have the known hash .*; try again, or download it elsewhere"):
        made.load(None, None)


@pytest.mark.parametrize("name", ["qnli-part", "cail2019-scm", "wmt14"])
def test_what_is_not_downloaded_is_told_with_what_would_do(tmp_path, name):
    for _ in range(2):
        with pytest.raises(ValueError, match=rf"--data {name}: \S+ is not there; place it in --data-dir .*use --data "):
            load_data(name, tmp_path)
        place(name, tmp_path)[-1].unlink()
        assert DATA_SETS[name].find(tmp_path) is None


def test_the_standard_library_in_order_and_without_what_is_not_it(tmp_path):
    kept = ["a/z.py", "a.py", "b/latest.py", "os.py", "unittest/case.py"]
    left_out = ["site-packages/torch.py", "test/test_os.py", "a/tests/helper.py", "idlelib/idle_test/mock.py"]
    left_out += ["config-3.11-linux/python-config.py", "_sysconfigdata_linux.py", "sitecustomize.py", "LICENSE.txt"]
    for name in reversed(kept + left_out):
        write(tmp_path / name, f"# {name}\n")
    assert whole(small("stdlib", directory=tmp_path).load(None, None)).decode() == "".join(
        f"# {name}\n" for name in sorted(kept)
    )
    with pytest.raises(ValueError, match=r"no standard library sources in .*--data text --data-file FILE"):
        small("stdlib", directory=tmp_path / "python311.zip").load(None, None)


def test_enwik8_is_checked_and_its_beginning_cut(tmp_path):
    content = text_of("enwik8")
    write(tmp_path / "enwik8/enwik8.gz", content + b"!")
    with pytest.raises(ValueError, match=r"enwik8/enwik8\.gz in the data directory is damaged or another file"):
        small("enwik8").load(tmp_path, None)
    cut = small("enwik8-4MB").load(tmp_path, None)
    assert whole(cut) == content
    assert cut.source == f"the first {len(content):,} bytes of enwik8/enwik8.gz in the data directory"
    write(tmp_path / "enwik8_prefix/enwik8_first4000000", content)
    assert small("enwik8-4MB").load(tmp_path, None).source.startswith("enwik8_prefix/enwik8_first4000000 in the")


def test_joined_reviews_are_mixed_and_kept_and_checked(tmp_path, own_cache):
    place("imdb", tmp_path)
    expected = sorted(documents("imdb"), key=lambda item: hashlib.sha256(item[0].encode()).hexdigest())
    corpus = small("imdb").load(tmp_path, None)
    assert whole(corpus) == b"\n\n".join(text for _, text in expected)
    assert len(corpus.documents) == 3 * ROWS
    assert all(whole(corpus)[begin - 2 : begin] == b"\n\n" for begin in corpus.documents[1:])
    assert {path.name for path in tmp_path.iterdir()} == {"imdb", "cache"}, "nothing is unpacked"
    # A wrong expectation shows whether the archives are read: not while the kept text is whole.
    elsewhere = small("imdb", expected={})
    assert whole(elsewhere.load(tmp_path, None)) == whole(corpus)
    for joined in own_cache.rglob("*.npy"):
        content = joined.read_bytes()
        joined.unlink()
        joined.write_bytes(b"x" + content[1:])
        with pytest.raises(ValueError, match="expected"):
            elsewhere.load(tmp_path, None)
        assert whole(small("imdb").load(tmp_path, None)) == whole(corpus)
        assert joined.read_bytes() == content
    changed = [(name, text + b"!") for name, text in documents("imdb") if "unsup" in name]
    write(tmp_path / "imdb/aclImdb_unsup.tar.xz", tar(changed, "xz"))
    assert whole(small("imdb").load(tmp_path, None)).count(b"!") == ROWS


def test_labels_and_scores_stay_with_their_texts(tmp_path):
    for name in ("sst-2", "sts-b", "imdb-sentiment", "newsgroups", "cail2019-scm"):
        place(name, tmp_path)
    rows = dict(small("sst-2").load(tmp_path, None).test.itertuples(index=False))
    assert rows['SST-2/dev.tsv "sentence 7'] == "positive"
    scores = small("sts-b").load(tmp_path, None).test
    assert scores["label"][scores["first"] == 'STS-B/dev.tsv "sentence1 7'].tolist() == [2.5]
    rows = dict(small("imdb-sentiment").load(tmp_path, None).test.itertuples(index=False))
    assert (rows["test/neg 3 é<br />"], rows["test/pos 3 é<br />"]) == ("negative", "positive")
    found = small("newsgroups").load(tmp_path, None)
    assert dict(found.test.itertuples(index=False))["test 3 café\n\n-- \nsigned"] == "comp.sys.ibm.pc.hardware"
    assert not any("Newsgroups" in text for text in found.train["text"])
    found = small("cail2019-scm").load(tmp_path, None).train
    assert dict(zip(found["one"], found["label"], strict=True))["被告3"] == "other"
    # F1 is of the pairs that are alike.
    assert [row_of(name)["classes"]["1"] for name in ("mrpc", "qqp")] == ["equivalent", "duplicate"]


def test_short_reviews_can_be_left_out_of_validation_and_test_alone(tmp_path):
    long = [(name, text + b" and so on" * 3 * ("1" in name)) for name, text in documents("imdb-sentiment")]
    write(tmp_path / "imdb/aclImdb_labelled.tar.xz", tar(long, "xz"))
    every, judged = (small("imdb-sentiment-long", shortest=words).load(tmp_path, None) for words in (0, 10))
    assert judged.train.equals(every.train)
    assert 0 < len(judged.test) < len(every.test)
    for split in (judged.test, judged.validation):
        assert split["text"].str.contains("and so on").all()


def test_the_nearer_texts_of_the_sample_are_first_in_half_of_them(tmp_path):
    place("cail2019-scm-sample", tmp_path)
    found = small("cail2019-scm-sample").load(tmp_path, None)
    rows = [row for split in SPLITS for row in getattr(found, split).itertuples()]
    assert 120 < sum(row.label == "one" for row in rows) < 180
    assert all(re.match("被告", row.one if row.label == "one" else row.other) for row in rows)
    assert sum(getattr(found, split)["text"].nunique() for split in SPLITS) == len(numbered(found.name)) / 3


def test_parts_of_a_training_split_are_joined(tmp_path):
    write(tmp_path / "glue/CoLA/train.tsv", "".join(f"gj04\t1\t\tSentence {n // 4}.\n" for n in range(400)))
    write(tmp_path / "glue/CoLA/val.tsv", "gj04\t0\t*\tSentence bad.\n" * 3)
    write(tmp_path / "glue/CoLA/dev.tsv", "gj04\t1\t\tGood.")
    found = small("cola", rows=[403, 1]).load(tmp_path, None)
    assert len(found.train) + len(found.validation) == 403
    with pytest.raises(ValueError, match=r"train\.tsv: with val\.tsv it has 403 rows, expected 8,551; replace"):
        load_data("cola", tmp_path)
    for path in place("wmt14", tmp_path):
        if path.name == "europarl-v7.de-en.de":
            write(path, "\n" + path.read_text().partition("\n")[2])
    found = small("wmt14").load(tmp_path, None)
    assert tuple(found.describe().splits.values()) == (3 * ROWS - 1, ROWS, ROWS), "an empty sentence is left out"
    assert found.test["source"][0].startswith("newstest2014.en")


def test_escapes_of_the_sample_are_undone(tmp_path):
    for path in place("wmt14-sample", tmp_path):
        write(path, f"{path.stem} &apos;s &quot; a &amp;lt; b &#91; ; &#124; &gt;\n")
    found = small("wmt14-sample", rows=[1, 1, 1]).load(tmp_path, None)
    assert found.train.iloc[0].tolist() == [f"{side}-train 's \" a &lt; b [ ; | >" for side in ("src", "tgt")]


def test_a_copy_with_another_content_is_noted(tmp_path, monkeypatch):
    place("qqp-part", tmp_path)
    monkeypatch.setitem(DATA_SETS._items, "qqp-part", small("qqp-part"))
    assert "This copy has another content than that of the committed results" in load_data("qqp-part", tmp_path).note


REAL = {
    "enwik8-4MB": ((3_600_000, 200_000, 200_000), "9f9ca3a41e2b", None),
    "sst-2": ((60_722, 6_627, 872), "2b735236546b", "it 's a charming and often affecting journey ."),
    "mrpc": ((3_654, 422, 1_725), "4f34ab2980ec", "PCCW's chief operating officer, Mike Butcher, and Alex Arena"),
    "sts-b": ((5_231, 518, 1_500), "2377781e600d", "A man with a hard hat is dancing."),
    "cola": ((7_735, 816, 1_043), "b7c817f83eac", "The sailors rode the breeze clear of the rocks."),
    "rte": ((2_244, 246, 277), "479e03b56653", "Dana Reeve, the widow of the actor Christopher Reeve"),
    "qnli-part": ((4_343, 628, 492), "ad344ac36107", None),
    "qqp-part": ((18_877, 2_297, 2_322), "46fe8d71e3de", None),
    "cail2019-scm-sample": ((391, 58, 51), "3c959d2e659f", None),
    "multi30k": ((29_000, 1_014, 1_000), "270738cafd92", "A man in an orange hat starring at something."),
    "multi30k-2017": ((29_000, 1_014, 1_000), "f07e19dbcef7", None),
    "multi30k-2017-mscoco": ((29_000, 1_014, 461), "714e1c7558de", None),
    "multi30k-2018": ((29_000, 1_014, 1_071), "39da9559780b", None),
    "wmt14-sample": ((10_000, 3_000, 2_737), "e53cd4ab1fc5", "Orlando Bloom and Miranda Kerr still love each other"),
    "newsgroups": ((10_258, 1_056, 7_532), "b616b12ca9ea", None),
    "newsgroups-text": ((29_053_412, 1_614_078, 1_614_079), "d464a9271866", None),
    "imdb-sentiment": ((22_560, 2_440, 25_000), "ae4129f6f32b", None),
    "imdb-sentiment-long": ((22_560, 362, 3_147), "41d308bb14c9", None),
    "imdb": (None, "1c4818dc5345", None),
}
SLOW = dict.fromkeys(("newsgroups", "sst-2"), (pytest.mark.slow,))
# They take long, or differ from others in the split for testing alone.
OF_FULL = (
    "imdb imdb-sentiment imdb-sentiment-long newsgroups-text multi30k-2017 multi30k-2017-mscoco multi30k-2018".split()
)
SLOW |= dict.fromkeys(OF_FULL, (pytest.mark.slow, pytest.mark.full))


@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW.get(name, ())) for name in REAL])
def test_the_real_ones(real, name):
    """Their content is that of the committed results, and no text is in two splits that were cut."""
    found, (counts, sha256, first) = real(name), REAL[name]
    assert found.sha256.startswith(sha256)
    assert counts in (None, tuple(found.describe().splits.values()))
    assert "another content" not in found.note
    if isinstance(found, Corpus):
        begins = np.array([0]) if found.documents is None else found.documents
        assert len(begins) == {"imdb": 75_000, "newsgroups-text": 18_846}.get(name, 1)
        content = np.frombuffer(whole(found), np.uint8)
        assert all(content[begin - 2 : begin].tobytes() == b"\n\n" for begin in begins[1::500])
        return
    if first:
        assert found.texts("test").iloc[:, 0].str.startswith(first).any()
    if found.classes:
        assert {*found.test["label"]} == {*found.classes}
        kept = SPLITS if name.endswith("-part") else SPLITS[:2]
        columns = ["text"] if found.kind == "triplet" else found.texts("test").columns
        seen = [{*getattr(found, split)[list(columns)].to_numpy().ravel()} for split in kept]
        assert not any(one & other for number, one in enumerate(seen) for other in seen[:number])
    if name.startswith("imdb-sentiment"):
        shared = {*found.train["text"], *found.validation["text"]} & {*found.test["text"]}
        assert f" {len(shared)} reviews of the test split" in found.note
