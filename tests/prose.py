"""Check the voice of docstrings and documents: `python -m tests.prose [FOLDER ...]`.

A docstring begins with a verb, so never with "Of", "What", "Who", "Whose" or "The same". No sentence begins with "Of".
It has at most 25 words; one of more than 40 fails. The mean of all documents, and of all docstrings, is at most 18
words. Code, tables, headings and indented blocks are no prose.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
WARN_WORDS: Final = 25
FAIL_WORDS: Final = 40
MEAN_WORDS: Final = 18.0
BEGINNINGS: Final = ("Of", "What", "Who", "Whose", "The same")
LEFT_OUT: Final = (".git", "build", "runs", "node_modules")
ENVIRONMENT: Final = ".venv"
"""Begins the name of a folder with a virtual environment."""
EXCEPTIONS: Final[frozenset[str]] = frozenset()
"""Paths that are not checked. Empty, and meant to stay so."""

_ABBREVIATIONS = re.compile(r"\b(e\.g|i\.e|cf|vs|etc|al|Sec|Fig|Eq|No|approx|resp|Thm|App|pp?)\.", re.IGNORECASE)
_END = re.compile(r"(?<=[.!?])[\")']*\s+(?=[\"(']*[A-Z0-9`])")
_WORD = re.compile(r"[A-Za-z0-9]")
_BEGINNING = re.compile(rf"({'|'.join(BEGINNINGS)})\b")
_OF = re.compile(r"[*_\"'(]*Of\b")
_LIST_ITEM = re.compile(r"\s*([-*+]|\d+[.)])\s+")


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence of prose, and where its paragraph begins."""

    path: str
    line: int
    text: str

    @property
    def words(self) -> int:
        """Count what has a letter or a digit; a formula or name in backticks is one word."""
        return sum(1 for token in self.text.split() if _WORD.search(token))


@dataclass(frozen=True, slots=True)
class Finding:
    """A sentence that breaks a rule."""

    path: str
    line: int
    fails: bool
    rule: str
    text: str

    def __str__(self) -> str:
        kind = "error" if self.fails else "warning"
        return f"{self.path}:{self.line}: {kind}: {self.rule}: {self.text[:70]}"


def sentences_of(text: str, path: str, line: int = 1) -> list[Sentence]:
    """Split prose into sentences. `line` is that of the text's first line."""
    found = []
    for start, paragraph in _paragraphs(text):
        plain = _ABBREVIATIONS.sub(r"\1", _without_code(paragraph))
        found += [Sentence(path, line + start, " ".join(part.split())) for part in _END.split(plain) if part.strip()]
    return found


def _without_code(text: str) -> str:
    """Put one word in the place of inline code, and a link's words in the place of the link."""
    text = re.sub(r"``?[^`]+``?", "`code`", text)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"https?://\S+", "address", text)


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield paragraphs and list items with the number of their first line, without what is no prose."""
    begun, lines, is_code = 0, list[str](), False
    for i, line in enumerate([*text.splitlines(), ""]):
        stripped = line.strip()
        fence = stripped.startswith(("```", "~~~"))
        is_item = _LIST_ITEM.match(line) is not None
        ends = fence or is_code or is_item or not stripped or _is_no_prose(line, continues=bool(lines))
        if ends and lines:
            yield begun, " ".join(lines)
            lines = []
        if fence:
            is_code = not is_code
        elif is_item and not is_code:
            begun, lines = i, [_LIST_ITEM.sub("", line, count=1)]
        elif not ends:
            begun = begun if lines else i
            lines.append(stripped)


def _is_no_prose(line: str, *, continues: bool) -> bool:
    """Tell tables, headings, quoted markup and indented blocks; a list item's second line is indented too."""
    return line.lstrip().startswith(("|", "#", "<")) or (line.startswith("    ") and not continues)


def docstrings_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield every docstring with its line: of the module, of classes and functions, and below attributes."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for inner in body if isinstance(body, list) else ():
            if (
                isinstance(inner, ast.Expr)
                and isinstance(inner.value, ast.Constant)
                and isinstance(inner.value.value, str)
            ):
                first, *rest = inner.value.value.splitlines() or [""]
                yield inner.lineno, "\n".join([first, *(line.removeprefix(" " * inner.col_offset) for line in rest)])


def check_sentences(sentences: Sequence[Sentence]) -> list[Finding]:
    """Return the sentences that are too long, and those that begin with "Of"."""
    found = [Finding(s.path, s.line, True, "begins with 'Of'", s.text) for s in sentences if _OF.match(s.text)]
    return found + [
        Finding(s.path, s.line, s.words > FAIL_WORDS, f"{s.words} words, at most {WARN_WORDS}", s.text)
        for s in sentences
        if s.words > WARN_WORDS
    ]


def check_beginning(docstring: str, path: str, line: int) -> list[Finding]:
    """Return a finding if a docstring begins with a noun clause."""
    said = docstring.strip()
    begins = _BEGINNING.match(said)
    return [Finding(path, line, True, f"begins with {begins[1]!r}, not with a verb", said)] if begins else []


def check_mean(sentences: Sequence[Sentence], what: str) -> list[Finding]:
    """Return a finding if the mean sentence is too long."""
    mean = mean_of(sentences)
    rule = f"mean sentence of {mean:.1f} words, at most {MEAN_WORDS:.0f}"
    return [Finding(what, 0, True, rule, "")] if mean > MEAN_WORDS else []


def mean_of(sentences: Sequence[Sentence]) -> float:
    """Return the mean number of words."""
    return sum(s.words for s in sentences) / max(1, len(sentences))


def _files(root: Path, folders: Sequence[str]) -> Iterator[Path]:
    for folder in folders or (".",):
        start = root / folder
        for path in sorted(start.rglob("*")) if start.is_dir() else [start]:
            inside = path.relative_to(root)
            if path.suffix not in (".py", ".md") or path.is_symlink() or "_pb2" in path.name:
                continue
            linked = any((root / parent).is_symlink() for parent in inside.parents)
            foreign = any(part.startswith(ENVIRONMENT) for part in inside.parts)
            if not (linked or foreign) and not {*inside.parts} & {*LEFT_OUT} and inside.as_posix() not in EXCEPTIONS:
                yield path


def check(root: Path, folders: Sequence[str] = ()) -> tuple[list[Finding], dict[str, list[Sentence]]]:
    """Check every document and docstring. Return the findings, and the sentences of both kinds for statistics."""
    findings: list[Finding] = []
    prose: dict[str, list[Sentence]] = {"documents": [], "docstrings": []}
    for file in _files(root, folders):
        name, text = file.relative_to(root).as_posix(), file.read_text(encoding="utf-8")
        if file.suffix == ".md":
            prose["documents"] += sentences_of(text, name)
            continue
        for line, docstring in docstrings_of(text):
            findings += check_beginning(docstring, name, line)
            prose["docstrings"] += sentences_of(docstring, name, line)
    for kind, sentences in prose.items():
        findings += check_sentences(sentences) + check_mean(sentences, kind)
    return findings, prose


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the findings, one a line. Return 1 if one of them fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.prose", description="Check the voice of texts.")
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help="only these folders or files")
    parser.add_argument("--summary", action="store_true", help="count by folder instead")
    parser.add_argument("--quiet", action="store_true", help="only what fails")
    given = parser.parse_args(arguments)
    findings, prose = check(ROOT, given.folders)
    failed = [finding for finding in findings if finding.fails]
    if given.summary:
        _print_summary(findings)
    else:
        print(*(failed if given.quiet else findings), sep="\n", end="\n" if findings else "")
    means = ", ".join(f"{kind} {mean_of(found):.1f} words" for kind, found in prose.items())
    print(f"{len(failed)} errors, {len(findings) - len(failed)} warnings; mean sentence: {means}")
    return bool(failed)


def _print_summary(findings: Sequence[Finding]) -> None:
    """Print how many findings each folder has, by rule."""
    kinds: Counter[tuple[str, str]] = Counter()
    for finding in findings:
        kind = "begins" if "begins" in finding.rule else "mean" if not finding.line else f"{finding.fails}"
        kinds[finding.path.rpartition("/")[0] or finding.path, kind] += 1
    for folder in sorted({folder for folder, _ in kinds}):
        counts = [f"{kinds[folder, kind]:5d} {words}" for kind, words in _KINDS.items() if kinds[folder, kind]]
        print(f"{folder:40s}", *counts)


_KINDS: Final = {
    "begins": "begin with no verb",
    "True": f"over {FAIL_WORDS} words",
    "False": f"over {WARN_WORDS} words",
    "mean": "mean too high",
}


if __name__ == "__main__":
    sys.exit(main())
