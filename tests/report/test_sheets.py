"""Whatever a user calls things, a table shows it as words."""

from __future__ import annotations

from html.parser import HTMLParser

from fedtailor.report.page import section_text
from fedtailor.report.sections import Section
from fedtailor.report.sheets import Best, Sheet, as_latex, as_markdown

EVIL = '</script><script>alert("1")</script> | a_b*c* [x](javascript:1) \\ 50% & {~^$#} `code`\n# heading'
SHEET = Sheet(EVIL, ("name", "value ± std"), [(EVIL, "1"), ("ours", Best("2"))], notes=[EVIL])


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)

    def handle_data(self, data):
        self.words.append(data)


def test_html_has_only_the_tables_own_tags():
    page = Tags(section_text(Section("a", "b", sheets=[SHEET])))
    assert page.tags == {"div", "table", "thead", "tbody", "tr", "th", "td", "p", "strong"}
    assert " ".join(EVIL.split()) in page.words


def test_markdown_keeps_its_shape_and_marks_nothing_up():
    title, _, header, rule, evil, ours, *_ = as_markdown(SHEET).splitlines()
    assert title.startswith("### &lt;/script&gt;")
    assert (header, rule, ours) == ("| name | value ± std |", "| --- | ---: |", "| ours | **2** |")
    assert "<" not in as_markdown(SHEET)
    assert r"\| a\_b\*c\* \[x\](javascript:1) \\ 50% &amp; \{\~^\$\#\} \`code\` \# heading |" in evil


def test_latex_escapes_every_special_sign():
    text = as_latex(SHEET)
    assert r"\textless{}/script\textgreater{}\textless{}script\textgreater{}alert(" in text
    assert (
        r"\textbar{} a\_b*c* [x](javascript:1) \textbackslash{} 50\% \& \{\textasciitilde{}\textasciicircum{}\$\#\} `code` \# heading"
        in text
    )
    assert r"name & value $\pm$ std \\" in text
    assert r"ours & \textbf{2} \\" in text
    assert text.count(r"\\" + "\n") == 3
