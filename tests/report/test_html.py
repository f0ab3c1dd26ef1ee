"""The only writer of HTML and SVG."""

from pathlib import Path

import pytest

import pretrain
from pretrain.report.html import framed, legend, paragraph, section, table

CORE = Path(pretrain.__file__).parent


def test_texts_are_escaped_everywhere():
    parts = [table(["<a>"], [("<b>", "<c>")]), paragraph(["<d>"]), legend([("c0", "<e>")]), section("<f>", "g")]
    page = framed("<h>", parts)
    for letter in "abcdefh":
        assert f"&lt;{letter}&gt;" in page
    assert page.count("<b>") == 0


@pytest.mark.parametrize("part", [table(["a"], []), paragraph([]), section("title", "")])
def test_a_part_without_content_is_left_out(part):
    assert part == ""


def test_no_other_module_writes_html():
    writers = {path.relative_to(CORE).as_posix() for path in CORE.rglob("*.py") if "</t" in path.read_text()}
    assert writers == {"report/html.py", "report/svg.py"}
