"""The protocol page and the tests agree on rules and test names."""

import re
from pathlib import Path

TESTS = Path(__file__).parent.parent
PAGE = TESTS.parent / "docs" / "explanation" / "protocol.md"
ROW = re.compile(r"^\| (\d+) \| .+ \| `(test_\w+)` \|$", re.MULTILINE)


def sources() -> str:
    return "\n".join(
        file.read_text() for folder in (TESTS, TESTS.parent / "apps") for file in folder.rglob("test_*.py")
    )


def test_every_rule_names_an_existing_test() -> None:
    """A rule whose test was renamed or deleted fails here."""
    rules = ROW.findall(PAGE.read_text())
    suite = sources()
    assert [(number, test) for number, test in rules if f"def {test}(" not in suite] == []
    assert len(rules) == len({test for _, test in rules}) == 40


def test_every_rule_number_in_a_test_is_on_the_page() -> None:
    """Each number in a test name or docstring is explained on the page."""
    known = {int(number) for number, _ in ROW.findall(PAGE.read_text())}
    spoken = {int(number) for number in re.findall(r"(?:[Pp]rotocol |[Rr]ule[ _])0?(\d+)", sources())}
    assert spoken <= known
