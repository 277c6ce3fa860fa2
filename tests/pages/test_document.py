"""The frame of a figure."""

from calopd.pages.document import figure_html


def test_names_in_a_note_are_code_and_everything_is_escaped() -> None:
    page = figure_html("A < B", "Set by `a.b<c>`, not by <b>", {"data": []})
    assert "<h3>A &lt; B</h3><p>Set by <code>a.b&lt;c&gt;</code>, not by &lt;b&gt;</p>" in page
