"""Fails if a retired word appears in code, documentation or output: `python tools/check_vocabulary.py`.

`retired_words.txt` lists the words. A line that must quote one ends with the comment `vocabulary: allowed`.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_name("retired_words.txt")
SUFFIXES = {".py", ".pyi", ".sql", ".md", ".js", ".html", ".css", ".toml", ".service", ".example"}
ALLOWED = "vocabulary: allowed"
PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def retired_words(text: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the retired words and the retired phrases, each with its replacement."""
    words: dict[str, str] = {}
    phrases: dict[str, str] = {}
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            word, replacement = re.split(r"\s{2,}", line.strip(), maxsplit=1)
            (phrases if " " in word else words)[word] = replacement
    return words, phrases


def find(line: str, words: dict[str, str], phrases: dict[str, str]) -> list[str]:
    """Return the retired words and phrases of one line."""
    if ALLOWED in line:
        return []
    lower = line.lower()
    parts = {part.lower() for part in PARTS.findall(line)}
    return [word for word in words if word in parts] + [
        phrase for phrase in phrases if re.search(rf"\b{re.escape(phrase)}\b", lower)
    ]


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S607
    paths = [ROOT / name for name in listed.stdout.splitlines()]
    return [path for path in paths if path.suffix in SUFFIXES and path.exists() and path.name != Path(__file__).name]


def main() -> int:
    words, phrases = retired_words(LIST.read_text(encoding="utf-8"))
    count = 0
    for path in tracked_files():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for found in find(line, words, phrases):
                replacement = words.get(found) or phrases[found]
                sys.stdout.write(f"{path.relative_to(ROOT)}:{number}: {found!r} is retired; use {replacement}\n")
                count += 1
    if count:
        sys.stdout.write(f"{count} retired words. tools/retired_words.txt lists their replacements.\n")
    return 1 if count else 0


if __name__ == "__main__":
    raise SystemExit(main())
