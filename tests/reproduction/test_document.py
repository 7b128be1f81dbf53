"""The committed page is what the committed results say."""

import re
from pathlib import Path

import pytest

from made import entry, line, store
from metalabelnet.errors import InputError
from metalabelnet.reproduction.document import fill, update
from metalabelnet.reproduction.recipes import READY
from metalabelnet.reproduction.results import Results
from metalabelnet.reproduction.tables import tables

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reproduction.md"


def test_the_page_is_what_the_results_say() -> None:
    """If this fails: make tables."""
    text = PAGE.read_text()
    assert fill(text, Results(ROOT / "results")) == text


def test_so_are_the_tables_beside_it() -> None:
    results = Results(ROOT / "results")
    for file in (ROOT / "docs" / "reproduction").glob("*.md"):
        assert file.read_text() == "\n".join(table.markdown() for table in tables(file.stem, results)), file.name


def test_the_figures_it_shows_are_there() -> None:
    for name in re.findall(r"\]\((reproduction/[^)]+)\)", PAGE.read_text()):
        assert (PAGE.parent / name).is_file(), name


def test_it_has_a_part_for_everything_that_can_be_reproduced() -> None:
    of_the_paper = {name for name in READY if not name.startswith("beyond")}
    assert of_the_paper <= set(re.findall(r"<!-- begin: ([\w-]+) -->", PAGE.read_text()))


def test_filling_in_changes_what_is_between_the_marks_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- begin: agreement -->\nold\n<!-- end: agreement -->\nafter\n")
    results = store(tmp_path / "results", line(entry("cifar10-table"), 77.5))
    assert update(page, results)
    assert not update(page, results)
    text = page.read_text()
    assert text.startswith("before\n<!-- begin: agreement -->\n")
    assert text.endswith("<!-- end: agreement -->\nafter\n")
    assert "77.50 (1)" in text
    assert "old" not in text


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("<!-- begin: agreement -->\n", "1 marks for 'agreement'"),
        ("<!-- begin: agreement -->\n<!-- begin: agreement -->\n", r"2 marks for 'agreement' \(begin, begin\)"),
        ("<!-- end: agreement -->\n<!-- begin: agreement -->\n", r"2 marks for 'agreement' \(end, begin\)"),
        ("<!-- begin: agreement --> old\n<!-- end: agreement -->\n", "more is on the line of the first"),
        (
            "<!-- begin: claims -->\n<!-- begin: agreement -->\n<!-- end: agreement -->\n<!-- end: claims -->\n",
            "'agreement' lie within another part",
        ),
        ("<!-- begin: agreemen -->\n<!-- end: agreemen -->\n", "unknown part of the page 'agreemen'"),
    ],
)
def test_marks_that_mean_nothing_are_refused(text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=sentence):
        fill(text, Results(tmp_path))
    with pytest.raises(InputError, match="there is no page"):
        update(tmp_path / "none.md", Results(tmp_path))
