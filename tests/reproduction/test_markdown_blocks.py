"""Generated blocks of a page; the committed page matches the committed results."""

import re
from pathlib import Path

import pytest

from metalabelnet.errors import InputError
from metalabelnet.reproduction.experiments import RUNNABLE
from metalabelnet.reproduction.markdown_blocks import fill_page, update_page
from metalabelnet.reproduction.results import Results
from metalabelnet.reproduction.tables import tables
from sample_results import result_line, run_spec, write_results

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results" / "reproduction.md"


def test_page_matches_the_results() -> None:
    """If this fails: make tables."""
    text = PAGE.read_text()
    assert fill_page(text, Results(ROOT / "results")) == text


def test_table_files_match_the_results() -> None:
    results = Results(ROOT / "results")
    for file in (PAGE.parent / "reproduction").glob("*.md"):
        assert file.read_text() == "\n".join(table.markdown() for table in tables(file.stem, results)), file.name


def test_figures_of_the_page_exist() -> None:
    for name in re.findall(r"\]\((reproduction/[^)]+)\)", PAGE.read_text()):
        assert (PAGE.parent / name).is_file(), name


def test_page_has_a_block_for_every_experiment() -> None:
    of_the_paper = {name for name in RUNNABLE if not name.startswith(("beyond", "field"))}
    assert of_the_paper <= set(re.findall(r"<!-- begin: ([\w-]+) -->", PAGE.read_text()))


def test_update_changes_only_the_blocks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- begin: agreement -->\nold\n<!-- end: agreement -->\nafter\n")
    results = write_results(tmp_path / "results", result_line(run_spec("cifar10-table"), 77.5))
    assert update_page(page, results)
    assert not update_page(page, results)
    text = page.read_text()
    assert text.startswith("before\n<!-- begin: agreement -->\n")
    assert text.endswith("<!-- end: agreement -->\nafter\n")
    assert "77.50 (1)" in text
    assert "old" not in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- begin: agreement -->\n", "1 markers for 'agreement'"),
        ("<!-- begin: agreement -->\n<!-- begin: agreement -->\n", r"2 markers for 'agreement' \(begin, begin\)"),
        ("<!-- end: agreement -->\n<!-- begin: agreement -->\n", r"2 markers for 'agreement' \(end, begin\)"),
        ("<!-- begin: agreement --> old\n<!-- end: agreement -->\n", "text follows the begin marker"),
        (
            "<!-- begin: claims -->\n<!-- begin: agreement -->\n<!-- end: agreement -->\n<!-- end: claims -->\n",
            "'agreement' are inside another block",
        ),
        ("<!-- begin: agreemen -->\n<!-- end: agreemen -->\n", "unknown block 'agreemen'"),
    ],
)
def test_wrong_markers_are_rejected(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        fill_page(text, Results(tmp_path))
    with pytest.raises(InputError, match="no file"):
        update_page(tmp_path / "none.md", Results(tmp_path))
