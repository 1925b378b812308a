"""Find modules and files of the user's own: beside the configuration, then in the current folder.

An installed command looks in neither by itself. Both folders come last in the search for modules, so that nothing of a
user's hides a library. Where a library hides a module of the user's, the module is refused by name.
"""

from __future__ import annotations

import importlib
import importlib.util
import site
import sys
import sysconfig
import traceback
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

from precad.clients.app import App
from precad.clients.errors import ArgumentError, ClientError, ExtensionError

_BESIDE: Final[list[Path]] = []
"""Folders of configurations, in the order in which they were read. Like `sys.path`, which they join, of a process."""
_LEFT_OUT: Final[list[Path]] = []
"""Folders in which nothing is looked for, unless a configuration is there."""
_THE_SAME_EVERYWHERE: Final = frozenset(("torch", "precad"))
"""Packages whose code no organisation brings."""
USUAL_ADAPTER: Final = "adapter.safetensors"
"""Name of the file with the constants of adapters, which is looked for where no other is named."""
_OFFERED: Final[list[str]] = [USUAL_ADAPTER]
"""Files of an adapted model's constants that this process may use: those with the task's digests are."""


_IMPORTED: Final[ContextVar[str]] = ContextVar("_IMPORTED", default="")
"""Module of the user's own that this thread imports."""


class Unspoken:
    """Turns an error of a user's code, or of a library that reads records, into one of ours without its text.

    The text, and the chain of errors in a traceback, may hold values of a record. Errors that `passes` has keep theirs.
    Code that ends the process or a task is in error like any other: so are errors of kinds of its own. Ctrl-C is none,
    nor is the end of a generator that we close.
    """

    def __init__(self, spoken: Callable[[Any], ClientError], passes: tuple[type[Exception], ...] = ()) -> None:
        self._spoken = spoken
        self._passes: tuple[type[Exception], ...] = (ClientError, *passes)

    def __enter__(self) -> None:
        """Nothing is done before there is an error."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raise ours in its place."""
        if error is not None and not isinstance(error, (*self._passes, KeyboardInterrupt, GeneratorExit)):
            raise self._spoken(error) from None


def first_line(error: BaseException) -> str:
    """Return the first line of an error about made-up records, and its kind, if it is none of PyTorch's usual ones."""
    text = str(error).partition("\n")[0]
    is_usual = isinstance(error, (RuntimeError, ValueError, TypeError, IndexError)) and text != ""
    return text if is_usual else f"{type(error).__name__}: {text}".removesuffix(": ")


def look_in(folder: Path) -> None:
    """Look in this folder, a configuration's, for modules of the user's own."""
    if (absolute := folder.absolute()) not in _BESIDE:
        _BESIDE.append(absolute)


def leave_out_current_folder() -> None:
    """Look in this folder no more, unless a configuration is there. Somebody else's kit may have been unpacked here."""
    if (here := Path.cwd()) not in _LEFT_OUT:
        _LEFT_OUT.append(here)


def folders(beside: Path | None = None) -> tuple[Path, ...]:
    """Return where files and modules of the user's own are looked for: `beside` the configuration first."""
    known = _BESIDE if beside is None else [beside.absolute()]
    here = [] if Path.cwd() in _LEFT_OUT else [Path.cwd()]
    return tuple(dict.fromkeys([*known, *here]))


def offer(*names: str | None) -> None:
    """Say which files of constants this process has, by paths from the folders in which it looks."""
    _OFFERED.extend(name for name in names if name is not None and name not in _OFFERED)


def offered() -> tuple[Path, ...]:
    """Return the paths where such files may be."""
    return tuple(dict.fromkeys(folder / name for name in _OFFERED for folder in folders()))


def looked(places: Sequence[Path]) -> str:
    """Say where was looked."""
    return "looked in " + ", then in ".join(map(str, places))


def imported(kind: str, path: str, places: Sequence[Path] | None = None) -> object:
    """Import what `package.module:Name` names; the configuration wants it as a `kind`. Raises ExtensionError."""
    searched = folders() if places is None else places
    module, _, name = path.partition(":")
    for folder in map(str, searched):
        if folder not in sys.path:
            sys.path.append(folder)
    importlib.invalidate_caches()
    try:

        def spoken(error: Exception) -> ExtensionError:
            return ExtensionError(kind, path, f"importing it raises {type(error).__name__}{line_of(error, searched)}")

        with Unspoken(spoken, (ImportError,)):
            _refuse_hidden(kind, path, searched)
            mark = _IMPORTED.set(module)
            try:
                loaded = importlib.import_module(module)
            finally:
                _IMPORTED.reset(mark)
        found: object = getattr(loaded, name)
    except ModuleNotFoundError as error:
        where = f" ({looked(searched)})" if error.name == module.partition(".")[0] else ""
        raise ExtensionError(kind, path, f"{error}{where}") from None
    except (ImportError, AttributeError) as error:
        raise ExtensionError(kind, path, str(error)) from None
    if not callable(found) and not isinstance(found, App):
        raise ExtensionError(kind, path, f"{name} cannot be called")
    return found


def refuse_within_import(name: str) -> None:
    """Refuse to train while a module of the user's own is imported, for a training. Raises ArgumentError.

    Each client imports it, and would start the training again, with clients that do.
    """
    if module := _IMPORTED.get():
        raise ArgumentError(
            f"precad.{name}: module {module!r} calls it while clients import it: put the call below "
            'if __name__ == "__main__":'
        )


def is_brought(path: str) -> bool:
    """Tell whether each organisation brings code of its own for `package.module:Name`: PyTorch and precad are none."""
    module, colon, _ = path.partition(":")
    return bool(colon) and module.partition(".")[0] not in _THE_SAME_EVERYWHERE


def is_installed(module: str) -> bool:
    """Tell whether a module that is loaded is Python's own or of an installed package, and none of the user's."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None or module.partition(".")[0] in _THE_SAME_EVERYWHERE:
        return True
    places = (*map(sysconfig.get_path, ("stdlib", "platstdlib")), *site.getsitepackages(), site.getusersitepackages())
    return any(Path(file).resolve().is_relative_to(Path(place).resolve()) for place in places)


def line_of(error: BaseException, places: Sequence[Path] | None = None) -> str:
    """Return the file and the line of the user's own code that raised, and no more of them; empty if none did."""
    places = folders() if places is None else places
    at = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename is not None:
        at.append((error.filename, error.lineno or 1))
    own = [(Path(file), line) for file, line in at if any(Path(file).is_relative_to(place) for place in places)]
    return f" in {own[-1][0].name}, line {own[-1][1]}" if own else ""


def _refuse_hidden(kind: str, path: str, places: Sequence[Path]) -> None:
    """Refuse a module of the user's own in whose place another one would be imported. Raises ExtensionError."""
    module = path.partition(":")[0]
    own = next((file for folder in places if (file := _file_of(module, folder)) is not None), None)
    if own is None:
        return
    top = module.partition(".")[0]
    folder = own.parents[len(module.split(".")) - (own.name != "__init__.py")]
    spec = importlib.util.find_spec(top)
    found = [] if spec is None else list(spec.submodule_search_locations or ())
    if spec is not None and spec.has_location and spec.origin is not None:
        found.append(spec.origin)
    if not any(Path(place).resolve().is_relative_to(folder.resolve()) for place in found):
        hiding = found[0] if found else "Python's own"
        raise ExtensionError(kind, path, f"another module {top!r} ({hiding}) hides yours, {own}: rename yours")


def _file_of(module: str, folder: Path) -> Path | None:
    """Return the file that a module would be in this folder; None where there is none."""
    place = folder.joinpath(*module.split("."))
    return next((file for file in (place.parent / f"{place.name}.py", place / "__init__.py") if file.is_file()), None)
