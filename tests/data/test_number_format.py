"""Numbers as people write them, and columns in which not every cell is one."""

import pytest
from metalabelnet.data.files.number_format import COMMA, PLAIN, POINT, number, number_format

from metalabelnet.data.encoders import tables
from metalabelnet.data.encoders.tables import TableEncoder
from metalabelnet.errors import InputError


@pytest.mark.parametrize(
    ("cell", "plain", "point", "comma"),
    [
        ("1234.5", 1234.5, 1234.5, None),
        ("-1e3", -1000.0, -1000.0, -1000.0),
        ("7", 7.0, 7.0, 7.0),
        ("1,234", None, 1234.0, 1.234),
        ("1,234.5", None, 1234.5, None),
        ("-12,345,678", None, -12345678.0, None),
        ("12,34", None, None, 12.34),
        ("0,123", None, None, 0.123),
        ("1.234,5", None, None, 1234.5),
        ("1.234.567", None, None, 1234567.0),
        ("1.234", 1.234, 1.234, None),  # a thousand or a fraction: beside decimal commas nobody can tell
        ("1 234 567,5", None, None, 1234567.5),
        ("1'234.5", None, 1234.5, None),
        ("1,23,4", None, None, None),
        ("12.x", None, None, None),
        ("3 %", None, None, None),
        ("", None, None, None),
        ("True", 1.0, 1.0, 1.0),
    ],
)
def test_a_number_in_each_form(cell: str, plain: float | None, point: float | None, comma: float | None) -> None:
    assert [number(cell, form) for form in (PLAIN, POINT, COMMA)] == [plain, point, comma]


def test_the_form_of_a_column_is_one_in_which_every_cell_is_a_number() -> None:
    assert number_format(["1", "2.5"]) == PLAIN
    assert number_format(["999", "1,234"]) == POINT
    assert number_format(["999.5", "1,234.25"]) == POINT
    assert number_format(["1,234", "0,5"]) == COMMA
    assert number_format(["1,234.5", "1.234,5"]) is None
    many = ["10.123"] * 30
    assert number_format([*many, "12,5"]) is None  # never as 10123 and 12.5
    assert number_format([*many, "12,5"], strict=False) == PLAIN
    assert number_format(["a", "1"], strict=False) is None


def encoded(table: TableEncoder, *cells: str) -> list[object]:
    return [result if isinstance(result, str) else result.tolist() for result in table.encode([[c] for c in cells])]


def test_decimal_commas_are_read_alike_ever_after() -> None:
    table = TableEncoder.fit(["price"], [["1.000,50"], ["0,50"]])
    assert table.parts == [{"name": "price", "mean": 500.5, "deviation": 500.0, "gaps": False, "form": COMMA}]
    again = TableEncoder.from_json(table.to_json())
    assert encoded(again, "1.000,50", "0,50", "1.500", "") == [
        [1.0],
        [-1.0],
        "has '1.500' in the column 'price' of numbers",
        [0.0],
    ]


def test_a_mistyped_number_is_an_error_of_its_row_and_not_the_end_of_its_column() -> None:
    cells = [[f"{k}.25"] for k in range(60)]
    mistyped = [*cells[:30], ["12.x"], *cells[30:]]
    assert not tables.is_name([cell for (cell,) in mistyped])
    table = TableEncoder.fit(["v"], mistyped)
    assert table.parts[0]["mean"] == pytest.approx(29.75)
    assert encoded(table, "12.x", "29.75") == ["has '12.x' in the column 'v' of numbers", [0.0]]


def test_few_numbers_with_a_word_among_them_are_a_category() -> None:
    """Codes, and a name for none: nothing is mistyped there."""
    cells = [[str(k % 3)] for k in range(98)] + [["unknown"]] * 2
    assert TableEncoder.fit(["code"], cells).parts == [{"name": "code", "values": ["0", "1", "2", "unknown"]}]


def test_names_are_no_numbers() -> None:
    names = [f"Ticket {k}" if k % 4 == 0 else str(1000 + k) for k in range(80)]
    assert tables.is_name(names)
    with pytest.raises(InputError, match="column 'ticket' has 80 different texts in 80 rows"):
        TableEncoder.fit(["ticket"], [[name] for name in names])


@pytest.mark.parametrize("cell", ["1e300", "-1e39", "1e308"])
def test_a_number_that_overflows_once_standardised_is_an_error_of_its_row(cell: str) -> None:
    table = TableEncoder.fit(["v"], [["1.5"], ["2.5"], ["2"]])
    good, bad = table.encode([["2"], [cell]])
    assert not isinstance(good, str)
    assert bad == f"has '{cell}' in the column 'v', too far from its mean 2"


def test_numbers_too_large_to_be_standardised_are_refused() -> None:
    with pytest.raises(InputError, match=r"column 'v' has numbers up to 1e\+300, too large to be standardised"):
        TableEncoder.fit(["v"], [["1"], ["2"], ["1e300"]])
