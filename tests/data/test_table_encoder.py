"""Number formats of table columns, and columns in which some cells are not numbers."""

import pytest

from metalabelnet.data.cells import COMMA, PLAIN, POINT, is_identifier, number_format, parse_number
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
        ("1.234", 1.234, 1.234, None),  # ambiguous beside decimal commas: a thousand or a fraction
        ("1 234 567,5", None, None, 1234567.5),
        ("1'234.5", None, 1234.5, None),
        ("1,23,4", None, None, None),
        ("12.x", None, None, None),
        ("3 %", None, None, None),
        ("", None, None, None),
        ("True", 1.0, 1.0, 1.0),
    ],
)
def test_number_in_each_format(cell: str, plain: float | None, point: float | None, comma: float | None) -> None:
    assert [parse_number(cell, form) for form in (PLAIN, POINT, COMMA)] == [plain, point, comma]


def test_format_of_a_column() -> None:
    assert number_format(["1", "2.5"]) == PLAIN
    assert number_format(["999", "1,234"]) == POINT
    assert number_format(["999.5", "1,234.25"]) == POINT
    assert number_format(["1,234", "0,5"]) == COMMA
    assert number_format(["1,234.5", "1.234,5"]) is None
    many = ["10.123"] * 30
    assert number_format([*many, "12,5"]) is None  # never as 10123 and 12.5
    assert number_format([*many, "12,5"], strict=False) == PLAIN
    assert number_format(["a", "1"], strict=False) is None


def encode(table: TableEncoder, *cells: str) -> list[object]:
    return [result if isinstance(result, str) else result.tolist() for result in table.encode([[c] for c in cells])]


def test_number_format_is_stored() -> None:
    table = TableEncoder.fit(["price"], [["1.000,50"], ["0,50"]])
    assert table.column_configs == [
        {"name": "price", "mean": 500.5, "deviation": 500.0, "missing_indicator": False, "number_format": COMMA}
    ]
    restored = TableEncoder.from_json(table.to_json())
    assert encode(restored, "1.000,50", "0,50", "1.500", "") == [
        [1.0],
        [-1.0],
        "has '1.500' in the numeric column 'price'",
        [0.0],
    ]


def test_mistyped_number_is_an_error_of_its_row_only() -> None:
    cells = [[f"{k}.25"] for k in range(60)]
    mistyped = [*cells[:30], ["12.x"], *cells[30:]]
    assert not is_identifier([cell for (cell,) in mistyped])
    table = TableEncoder.fit(["v"], mistyped)
    assert table.column_configs[0]["mean"] == pytest.approx(29.75)
    assert encode(table, "12.x", "29.75") == ["has '12.x' in the numeric column 'v'", [0.0]]


def test_few_distinct_values_with_a_word_are_a_category() -> None:
    """For example numeric codes and "unknown"."""
    cells = [[str(k % 3)] for k in range(98)] + [["unknown"]] * 2
    assert TableEncoder.fit(["code"], cells).column_configs == [{"name": "code", "values": ["0", "1", "2", "unknown"]}]


def test_identifiers_are_not_numeric() -> None:
    names = [f"Ticket {k}" if k % 4 == 0 else str(1000 + k) for k in range(80)]
    assert is_identifier(names)
    with pytest.raises(InputError, match="column 'ticket' has 80 different texts in 80 rows"):
        TableEncoder.fit(["ticket"], [[name] for name in names])


@pytest.mark.parametrize("cell", ["1e300", "-1e39", "1e308"])
def test_number_that_overflows_when_standardized_is_an_error_of_its_row(cell: str) -> None:
    table = TableEncoder.fit(["v"], [["1.5"], ["2.5"], ["2"]])
    good, bad = table.encode([["2"], [cell]])
    assert not isinstance(good, str)
    assert bad == f"has '{cell}' in the column 'v', too far from its mean 2"


def test_numbers_too_large_to_standardize_are_refused() -> None:
    with pytest.raises(InputError, match=r"column 'v' has numbers up to 1e\+300, too large to standardize"):
        TableEncoder.fit(["v"], [["1"], ["2"], ["1e300"]])
