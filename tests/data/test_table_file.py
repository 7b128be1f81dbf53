"""Table files with many columns, duplicate names and skipped rows."""

from pathlib import Path

import pytest

from metalabelnet.data.files import table_file
from metalabelnet.data.files.list_data import ReadOptions
from metalabelnet.data.files.listing import Columns, find_columns, from_table
from metalabelnet.data.files.reader import read
from metalabelnet.errors import InputError

WIDE = 4000


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    file = tmp_path / "wide.csv"
    lines = [[f"c{k}" for k in range(WIDE)], *([str(n + k) for k in range(WIDE)] for n in range(6))]
    behind = ["label,ok", "a,1", "b,1", "a,0", "b,0", "a,0", "b,0"]
    file.write_text("".join(f"{','.join(line)},{end}\n" for line, end in zip(lines, behind, strict=True)))
    return file


def test_header_is_read_once(wide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []
    lines = table_file._lines
    monkeypatch.setattr(table_file, "_lines", lambda path: opened.append(path) or lines(path))  # type: ignore[func-returns-value]
    rows = list(table_file.iterate_rows(wide, [f"c{k}" for k in reversed(range(WIDE))]))
    assert rows[1] == [str(1 + k) for k in reversed(range(WIDE))]
    assert len(opened) == 2  # for the header, and for the rows
    read(wide, ReadOptions(clean_column="ok"))
    assert len(opened) < 10


def test_many_named_columns(wide: Path) -> None:
    names = tuple(f"c{k}" for k in range(WIDE))
    found = find_columns(wide, Columns(kind="table", samples=names), None)
    assert found.label == "label"
    assert from_table(wide, found).items[0] == [str(k) for k in range(WIDE)]
    with pytest.raises(InputError, match="unknown column 'C7': did you mean 'c7'"):
        next(table_file.iterate_rows(wide, ["c1", "C7"]))
    with pytest.raises(
        InputError, match=rf"did you mean 'label'\? choose from label, c0, .*, … \({WIDE + 2} in all\)$"
    ) as refused:
        next(table_file.iterate_rows(wide, ["labell"]))
    assert len(str(refused.value)) < 300


def test_duplicate_column_names_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("a,b,c,b,a\n1,2,3,4,5\n")
    with pytest.raises(InputError, match="two columns have the name 'a'; rename one of them"):
        table_file.column_names(file)


def test_index_is_the_row_number_in_the_table(tmp_path: Path) -> None:
    """Also if rows are clean, or cannot be read."""
    file = tmp_path / "t.csv"
    cells = [("1.x" if k in (3, 8) else f"{k}.5", "ab"[k % 2], int(k in (0, 1, 6))) for k in range(60)]
    file.write_text("v,label,ok\n" + "".join(f"{v},{label},{ok}\n" for v, label, ok in cells))
    data = read(file, ReadOptions(clean_column="ok", on_error="skip"))
    assert data.clean is not None
    assert (data.train.index.tolist()[:5], data.clean.index.tolist()) == ([2, 4, 5, 7, 9], [0, 1, 6])
    assert data.train.ids == tuple(map(str, data.train.index.tolist()))
    assert (data.index_size, len(data.train)) == (60, 55)
