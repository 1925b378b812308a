"""Say why a trainer does not start, or a training failed, in words of ours: foreign code's may hold records."""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from precad.clients.config import FLOWER, NVFLARE
from precad.clients.errors import TrainerError
from precad.clients.external import frames
from precad.clients.external.program import Program

_LIBRARIES: Final = {FLOWER: "flwr", NVFLARE: "nvflare"}
_IMPORT: Final = re.compile(r"^\s*(?:import|from)\s.*", re.MULTILINE)
_UNFIT: Final = {
    frames.NO_NAME: "its module has no such name",
    frames.NOT_CALLABLE: "it cannot be called",
    frames.OTHER_ARGUMENTS: "it does not take (arrays, settings)",
}
_OF_THE_PROCESS: Final = {
    "ended": "its process ended",
    "deadline": "it took longer than client.trainer_timeout_s",
    "frame": "it sent something that is no frame",
    "length": "it sent more or fewer numbers than were asked for",
    "isolation": "the kernel grants no namespaces to shut it off; client.trainer_isolation says which are required",
    "python": "its interpreter does not start",
    "output": "the file of client.trainer_output cannot be written to",
}


def refusal(program: Program, reason: str) -> TrainerError:
    """Return the error of a trainer that does not start, by a frame's reason."""
    if reason == "python":
        expected, why = "an interpreter of Python 3.10 or newer", "it does not start, or ends at once"
        return TrainerError(str(program.python), why, field="client.trainer_python", expected=expected)
    return TrainerError(program.name, in_words(reason))


def in_words(reason: str) -> str:
    """Say what went wrong with the process."""
    return _OF_THE_PROCESS.get(reason, reason)


def spoken(program: Program, reason: bytes) -> str:
    """Say what the trainer's process says of itself, by a name that is known; it may have written any other text."""
    name, _, module = reason.decode("ascii", "replace").partition(" ")
    if name in _UNFIT:
        return _UNFIT[name]
    if name == "ModuleNotFoundError" and _is_named(program, module):
        return f"no module {module!r}, {_hint(program, module)}"
    if name == "FileNotFoundError" and program.kind == NVFLARE and not (program.folder / program.path).is_file():
        return f"no such file in {program.folder}"
    kind = getattr(builtins, name, None)
    is_known = isinstance(kind, type) and issubclass(kind, BaseException)
    return f"it raised {name}" if is_known else "it raised an exception"


def _hint(program: Program, module: str) -> str:
    """Say where a module was looked for, or how to bring it."""
    top = module.partition(".")[0]
    if top == _package(program):
        return f"looked in {program.folder}"
    flag = f" or --{program.kind}-python" if program.kind in _LIBRARIES else ""
    return f"which {program.python} lacks: install it there, or name another in client.trainer_python{flag}"


def _is_named(program: Program, module: str) -> bool:
    """Tell whether the configuration or an import of the source names a module. Any other name may be a record's."""
    known = {*re.findall(r"\w+", program.path), *_LIBRARIES.values()}
    for text in _sources(program):
        for line in _IMPORT.findall(text):
            known.update(re.findall(r"\w+", line))
    return set(module.split(".")) <= known


def _package(program: Program) -> str:
    """Return the top module of a trainer's own code; nothing for a script."""
    return "" if program.kind == NVFLARE else re.split("[.:]", program.path, maxsplit=1)[0]


def _sources(program: Program) -> Iterator[str]:
    """Yield the text of each file of a trainer's own code that can be read."""
    if program.kind == NVFLARE:
        found = [program.folder / program.path]
    else:
        top = program.folder / _package(program)
        found = [top.with_suffix(".py"), *top.rglob("*.py")]
    for file in found:
        with suppress(OSError):
            yield file.read_text(encoding="utf-8", errors="replace")
