"""Text shown to people, which cannot act on their terminal."""

import json

from dafuse.wording import first_line, shown, shown_json, shown_lines


def test_what_a_terminal_would_obey_is_spelt_out() -> None:
    assert shown("a\x1b[2Jb\n\x9bc\u202e\udcff") == r"a\x1b[2Jb\n\x9bc\u202e\udcff"
    assert shown_lines(["one", "two\n"]) == "one\ntwo\\n"


def test_names_of_people_stay_as_they_are() -> None:
    for name in ("größer", "نمی\u200cخواهم", "👩\u200d🔬", "a\u202fb\u00a0c", "日本"):
        assert shown(name) == name


def test_json_says_the_same_without_acting() -> None:
    value = [{"file": 'a\x1b\x7f\x9b\u202e\n"\\ü', "top": []}]
    text = shown_json(value)
    assert json.loads(text) == value
    assert "\\u001b" in text
    assert not {"\x1b", "\x7f", "\x9b", "\u202e"} & set(text)
    assert "ü" in text


def test_an_error_has_a_first_line_even_without_a_message() -> None:
    assert first_line(ValueError("\none\ntwo")) == "one"
    assert first_line(RuntimeError()) == first_line(RuntimeError("\n")) == "RuntimeError"
