"""Check the message of a commit, as the hook `commit-msg` does: `python .ci/commit_message.py FILE`.

    place: do something          at most 72 characters, imperative, without a full stop

A place is a file or folder of the repository, named from its root; several are joined by commas. `ci` stands for `.ci`,
and `changelog` for CHANGELOG.md. Words that cannot begin an imperative are refused, by a list and by their endings; who
reads the commit judges the rest. Git's own subjects pass: merges, reverts and what a rebase squashes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
MOST: Final = 72
OF_GIT: Final = re.compile(r"(Merge|Revert|fixup!|squash!|amend!) ")
_SUBJECT: Final = re.compile(r"(?P<places>\S+(?:, \S+)*): (?P<what>\S.*)")
_NO_VERB: Final = re.compile(
    "a|an|the|this|that|these|those|one|two|three|four|five|no|every|each|all|both|any|some|another|other|more|fewer|"
    "it|we|they|i|you|he|she|its|our|their|what|when|where|which|who|whose|why|how|if|as|at|by|for|from|in|of|on|to|"
    "with|within|without|and|or|but|not|there|here|new|old|now"
)
"""Words that begin a statement, a question or a noun, and no command."""
_VERB: Final = re.compile(
    "bias|bring|canvas|embed|exceed|feed|focus|need|ping|proceed|seed|shed|speed|spring|string|succeed|wing"
)
"""Verbs that end as other words' forms do."""


def is_place(name: str, root: Path = ROOT) -> bool:
    """Tell whether a file or a folder has that name, with or without what its name begins and ends with."""
    candidates = (name, f".{name}", f"{name.upper()}.md", f".ci/{name}")
    return not name.startswith(("/", ".")) and any((root / one).exists() for one in candidates)


def is_imperative(word: str) -> bool:
    """Tell whether a word can be a command: no determiner, plural, past tense, third person or present participle."""
    said = word.lower().strip("`'\",")
    is_form = said.endswith(("ed", "ing")) or (said.endswith("s") and not said.endswith("ss"))
    return said.isalpha() and not _NO_VERB.fullmatch(said) and (not is_form or bool(_VERB.fullmatch(said)))


def faults_of(message: str, root: Path = ROOT) -> list[str]:
    """Return what is wrong with a message; comments of Git do not count."""
    lines = [line.rstrip() for line in message.splitlines() if not line.startswith("#")]
    subject, *rest = lines or [""]
    if OF_GIT.match(subject):
        return []
    found = [] if len(subject) <= MOST else [f"expected at most {MOST} characters, found {len(subject)}"]
    if rest and rest[0]:
        found.append("expected an empty line below the subject")
    if (parts := _SUBJECT.fullmatch(subject)) is None:
        return [*found, f"expected 'place: do something', found {subject!r}"]
    if unknown := [name for name in parts["places"].split(", ") if not is_place(name, root)]:
        found.append(f"expected files or folders before the colon, found {', '.join(unknown)}")
    first = parts["what"].split()[0]
    if not is_imperative(first):
        found.append(f"expected an imperative after the colon, such as 'add', found {first!r}")
    return [*found, "expected no full stop at the end"] if subject.endswith(".") else found


def main(arguments: Sequence[str]) -> int:
    """Print the faults of the message in a file. Return 1 if there are some."""
    if len(arguments) != 1:
        print("usage: python .ci/commit_message.py FILE", file=sys.stderr)
        return 2
    found = faults_of(Path(arguments[0]).read_text(encoding="utf-8"))
    print(*(f"commit message: {fault}" for fault in found), sep="\n", end="\n" if found else "", file=sys.stderr)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
