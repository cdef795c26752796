"""A mutant: one small change of the source that breaks a promise."""

import re
from dataclasses import dataclass
from pathlib import Path

STARTS = re.compile(r"^(?:-- (?:name|fragment):|CREATE |(?:    )?(?:async )?def )", re.MULTILINE)
"""Where a statement, a trigger or a function starts."""


@dataclass(frozen=True)
class Mutant:
    """One change, and the tests that must fail with it."""

    name: str
    promise: str
    file: str
    """A file, or a folder of .sql files: then the one of them that has `after`."""
    after: str
    """Names the statement or function that has the text. The text follows it, before the next statement or function."""
    text: str
    instead: str
    tests: tuple[str, ...]
    only: str = ""
    """An expression for pytest's -k."""

    def find_file(self, tree: Path) -> Path:
        """Return the file to change, in the repository or a copy of it."""
        path = tree / self.file
        if not path.is_dir():
            return path
        found = [each for each in path.glob("*.sql") if self.after in each.read_text(encoding="utf-8")]
        if len(found) != 1:
            raise LookupError(f"{len(found)} files in {self.file} have {self.after!r}: change mutant {self.name!r}.")
        return found[0]

    def mutate(self, source: str) -> str:
        """Return the source with the change."""
        start = source.find(self.after)
        following = STARTS.search(source, start + len(self.after)) if self.after else None
        place = source.find(self.text, start, following.start() if following else len(source)) if start >= 0 else -1
        if place < 0:
            raise LookupError(f"{self.file} has no {self.text!r} after {self.after!r}: change mutant {self.name!r}.")
        return source[:place] + self.instead + source[place + len(self.text) :]
