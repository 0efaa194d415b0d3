import pytest

from tests.proof import record

PAGE = "# Page\n\n<!-- begin a -->\nold\n<!-- end a -->\n\n<!-- begin b -->\nkept\n<!-- end b -->\n"


def test_section_is_replaced(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE, encoding="utf-8")
    for _ in range(2):
        record.write("a", "make a", [r"100 \1 of them"], page)
    lines = page.read_text(encoding="utf-8").splitlines()
    assert lines[2] == "<!-- begin a -->"
    assert lines[3].startswith(f"Run {record.today()} at commit `")
    assert lines[3].endswith(": `make a`")
    assert lines[4:] == ["", r"100 \1 of them", "<!-- end a -->", "", *PAGE.splitlines()[6:]]


def test_unknown_section(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE, encoding="utf-8")
    with pytest.raises(ValueError, match="must have one section 'c', got 0"):
        record.write("c", "make c", [], page)
    assert page.read_text(encoding="utf-8") == PAGE


def test_table():
    assert record.table(("name", "n"), [("a", 1_000)]) == ["| name | n |", "| --- | --- |", "| a | 1,000 |"]
