import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.records.csv_files import read_csv, read_table
from experiments.records.parquet import read_texts, texts_as_parquet

COLUMNS = {"name": str, "count": int, "value": float}
NAMES = ["NA", "nan", "", "1", "null", "a,b", 'a"b', "a\nb", "'x", "=1", "1.50"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no CSV"),
        (b"name,count\na,1\n", "has no column value"),
        (b"name,count,value\n", "has no rows"),
        (b"name,count,value\na,1,2\na,2,2\na,1,3\n", "has two rows of the same name, count"),
        (b"name,count,value\na,1,2,3\n", "is no CSV"),
        (b"name,count,value\na,1,2\nb,1,\n", "could not convert string to float"),
        (b"name,count,value\na,1,nan\n", "not finite in the column value"),
        (b"name,count,value\na,1.5,1\n", "column 'count'"),
        (b"name,count,value\na," + b"9" * 5000 + b",1\n", "column 'count'"),
        (b"name,count,value\na," + b"9" * 50 + b",1\n", "too large"),
        (b"name\xff\x00", "is no CSV"),
    ],
)
def test_a_table_that_is_wrong_is_named(tmp_path, content, message):
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(ValueError, match=r"t\.csv") as error:
        read_csv(tmp_path / "t.csv", COLUMNS, key=["name", "count"])
    said = str(error.value).partition("t.csv")[2]
    assert message in said
    assert "\n" not in said
    assert len(said) < 300


CELLS = st.text(st.characters(codec="utf-8")) | st.integers().map(str) | st.floats().map("{:.9g}".format)
CELLS |= st.sampled_from(["", "1.0", "-0", "01", "nan", "1e5", "inf", "'x", "=1"])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(CELLS, st.integers(-(2**65), 2**65).map(str), st.floats().map("{:.9g}".format))))
def test_a_packed_table_has_the_very_texts(rows):
    pytest.importorskip("pyarrow", reason='pyarrow is not installed: pip install -e ".[packed]"')
    table = pd.DataFrame(rows, columns=["text", "whole", "number"], dtype=str)
    pd.testing.assert_frame_equal(read_texts(texts_as_parquet(table)), table)


def test_texts_stay_texts_and_a_packed_table_is_read_as_the_csv_file_with_numbers_that_are_numbers(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason='pyarrow is not installed: pip install -e ".[packed]"')
    table = pd.DataFrame({"name": NAMES, "count": range(11), "value": [0.1, -2, 1e-7, 3, 1 / 3, *range(6)]})
    (tmp_path / "t.csv").write_text(table.to_csv(index=False, float_format="%.9g"), newline="")
    expected = read_csv(tmp_path / "t.csv", COLUMNS, key=["name"])
    assert expected["name"].tolist() == NAMES
    assert expected["count"].tolist() == [*range(11)]
    (tmp_path / "t.parquet").write_bytes(texts_as_parquet(read_table(tmp_path / "t.csv")))
    (tmp_path / "t.csv").unlink()
    pd.testing.assert_frame_equal(read_csv(tmp_path / "t.csv", COLUMNS, key=["name"]), expected)
    assert [str(field.type) for field in parquet.read_schema(tmp_path / "t.parquet")] == ["string", "int64", "double"]
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"t\.parquet is no Parquet file .*; remove it, or run the comparison again"):
        read_csv(tmp_path / "t.csv", COLUMNS, key=["name"])
