import csv
import io

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.records.csv_files import TEXT, number, read_csv, read_table, to_csv, whole
from experiments.records.parquet import read_texts, texts_as_parquet

COLUMNS = {"name": TEXT, "count": whole(0, 100), "value": number(-10)}


def cells(table):
    return list(csv.reader(io.StringIO(to_csv(table), newline="")))[1:]


@pytest.mark.parametrize(
    "formula",
    ["=1+1", "+1+cmd|' /C calc'!A0", "-2+3+cmd|' /C calc'!A0", "@SUM(1)", "\t=1", '=HYPERLINK("x")', "'=1"],
)
def test_a_text_that_begins_like_a_formula_gets_an_apostrophe(tmp_path, formula):
    table = pd.DataFrame({"name": [formula], "count": 1, "value": -0.5})
    assert cells(table) == [[f"'{formula}", "1", "-0.5"]]
    (tmp_path / "t.csv").write_text(to_csv(table), newline="")
    assert read_csv(tmp_path / "t.csv", COLUMNS, key=["name"])["name"].tolist() == [formula], "and is read as it was"


def test_a_carriage_return_ends_no_row():
    table = pd.DataFrame({"reason": ["\r=1", "a\rb\r\nc"], "count": 1})
    assert cells(table) == [["'\n=1", "1"], ["a\nb\nc", "1"]]


def test_numbers_and_other_texts_stay_as_they_are():
    table = pd.DataFrame(
        {"a": [-1.5, 2.0], "b": ["+33.4% [+20.6%, +34.9%]", "-"], "c": ["it's", "'quoted'"], "d": [None, "a=b"]}
    )
    assert to_csv(table) == table.to_csv(index=False)
    assert to_csv(table, "%.3g") == table.to_csv(index=False, float_format="%.3g")


def test_texts_that_look_like_something_else_are_read_as_text(tmp_path):
    names = ["NA", "nan", "", "1", "null", "a,b", 'a"b', "a\nb", "'x"]
    table = pd.DataFrame({"name": names, "count": 1, "value": 1.0})
    (tmp_path / "t.csv").write_text(to_csv(table), newline="")
    read = read_csv(tmp_path / "t.csv", COLUMNS, key=["name"])
    assert read["name"].tolist() == names
    assert read["count"].tolist() == [1] * len(names)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no CSV"),
        (b"name,count\na,1\n", "has no column value"),
        (b"name,count,value\n", "has no rows"),
        (b"name,count,value\na,1,2\na,2,2\na,1,3\n", "has two rows of the same name, count"),
        (b"name,count,value\na,1\n", "row 1, column value is ''"),
        (b"name,count,value\na,1,2,3\n", "is no CSV"),
        (b"name,count,value\na,1,2\nb,1,\n", "row 2, column value is '', expected a number from -10 to 1e+100"),
        (b"name,count,value\na,1,nan\n", "row 1, column value is 'nan'"),
        (b"name,count,value\na,1,=1+1\n", "row 1, column value is '=1+1'"),
        (b"name,count,value\na,1,-11\n", "row 1, column value is '-11'"),
        (b"name,count,value\na,1.5,1\n", "row 1, column count is '1.5', expected a number from 0 to 100"),
        (b"name,count,value\na," + b"9" * 5000 + b",1\n", "row 1, column count is '999"),
        (b'name,count,value\n"a,1,2\n', "is no CSV"),
        (b"name\xff\x00", "is no CSV"),
    ],
)
def test_a_table_that_is_wrong_is_named_with_row_and_column(tmp_path, content, message):
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(ValueError, match=r"t\.csv") as error:
        read_csv(tmp_path / "t.csv", COLUMNS, key=["name", "count"])
    said = str(error.value).partition("t.csv")[2]
    assert message in said
    assert "\n" not in said
    assert len(said) < 300


CELLS = st.text(st.characters(codec="utf-8")) | st.integers().map(str) | st.floats().map("{:.9g}".format)
CELLS |= st.sampled_from(["", "1.0", "-0", "01", "nan", "1e5", "inf", "'x", "=1"])


@given(st.lists(st.tuples(CELLS, st.integers(-(2**65), 2**65).map(str), st.floats().map("{:.9g}".format))))
def test_a_packed_table_has_the_very_texts(rows):
    pytest.importorskip("pyarrow", reason='pyarrow is not installed: pip install -e ".[packed]"')
    table = pd.DataFrame(rows, columns=["text", "whole", "number"], dtype=str)
    pd.testing.assert_frame_equal(read_texts(texts_as_parquet(table)), table)


def test_a_packed_table_is_read_as_the_csv_file_and_its_numbers_are_numbers(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason='pyarrow is not installed: pip install -e ".[packed]"')
    names = ["=1", "'=1", "nan", "1.50", ""]
    table = pd.DataFrame({"name": names, "count": range(5), "value": [0.1, -2, 1e-7, 3, 1 / 3]})
    (tmp_path / "t.csv").write_text(to_csv(table, "%.9g"), newline="")
    expected = read_csv(tmp_path / "t.csv", COLUMNS, key=["name"])
    (tmp_path / "t.parquet").write_bytes(texts_as_parquet(read_table(tmp_path / "t.csv")))
    (tmp_path / "t.csv").unlink()
    pd.testing.assert_frame_equal(read_csv(tmp_path / "t.csv", COLUMNS, key=["name"]), expected)
    assert expected["name"].tolist() == names
    assert [str(field.type) for field in parquet.read_schema(tmp_path / "t.parquet")] == ["string", "int64", "double"]
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"t\.parquet is no Parquet file .*; remove it, or run the comparison again"):
        read_csv(tmp_path / "t.csv", COLUMNS, key=["name"])
