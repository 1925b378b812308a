"""The page of every name of `import precad`, from its source: signature, docstring, and what a result holds.

The source is read and not imported, so the page needs no PyTorch.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from docs.generate.markdown import code, linked, page, table

ROOT: Final = Path(__file__).resolve().parents[2]
INTRODUCTION: Final = """\
What `import precad` offers. The [library](../tutorial/library.md) shows each name at work, and `help(precad.NAME)` says
the same as this page. Loading `precad` takes milliseconds: a name loads what it needs when it is used."""
_WIDTH: Final = 88


def names_page() -> str:
    """Return the page: functions first, then classes, then errors."""
    import precad

    homes = {name: home for home, names in precad._HOMES.items() for name in names}
    found = [(name, _defined(home, name)) for name, home in homes.items()]
    functions = [made for made in found if isinstance(made[1], ast.FunctionDef)]
    errors = [made for made in found if made[0].endswith("Error")]
    classes = [made for made in found if made not in functions and made not in errors]
    parts = [INTRODUCTION]
    for title, group in (("Functions", functions), ("Classes", classes), ("Errors", errors)):
        parts += [f"## {title}", *(part for name, made in sorted(group) for part in _part(name, made))]
    return page("The names of import precad", *parts)


def _defined(module: str, name: str) -> ast.FunctionDef | ast.ClassDef:
    """Return the definition of a name in the module that is its home. Raises LookupError."""
    source = (ROOT / (module.replace(".", "/") + ".py")).read_text(encoding="utf-8")
    for statement in ast.parse(source).body:
        match statement:
            case ast.ClassDef(name=own) | ast.FunctionDef(name=own) if own == name and not _has(statement, "overload"):
                return statement
    raise LookupError(f"{module}: expected a definition of {name}, found none")


def _has(made: ast.FunctionDef | ast.ClassDef, decorator: str) -> bool:
    return any(isinstance(d, ast.Name) and d.id == decorator for d in made.decorator_list)


def _part(name: str, made: ast.FunctionDef | ast.ClassDef) -> Iterator[str]:
    """Yield the heading of a name, its signature, its docstring, and a table of what an object has."""
    yield f"### precad.{name}"
    if isinstance(made, ast.FunctionDef):
        yield f"```python\n{_signature(made)}\n```"
    yield docstring(ast.get_docstring(made) or "")
    if isinstance(made, ast.ClassDef) and (rows := list(_members(made))):
        yield table(("attribute or method", "type", "meaning"), rows)


def _signature(function: ast.FunctionDef) -> str:
    """Return a function's header as a programmer writes it: one argument a line where one line is too long."""
    returns = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    text = f"def {function.name}({ast.unparse(function.args)}){returns}"
    if len(text) <= _WIDTH:
        return text
    taken = function.args
    plain = [*taken.posonlyargs, *taken.args]
    missing = [None] * (len(plain) - len(taken.defaults))
    lines = []
    for i, (argument, default) in enumerate(zip(plain, [*missing, *taken.defaults], strict=True)):
        lines += [_argument(argument, default), *(["/"] if i + 1 == len(taken.posonlyargs) else [])]
    lines += ["*"] if taken.kwonlyargs else []
    lines += [
        _argument(argument, default) for argument, default in zip(taken.kwonlyargs, taken.kw_defaults, strict=True)
    ]
    return "\n".join([f"def {function.name}(", *(f"    {line}," for line in lines), f"){returns}"])


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(argument) + (f" = {ast.unparse(default)}" if default else "")


def _members(made: ast.ClassDef) -> Iterator[tuple[str, str, str]]:
    """Yield what a class of results has: fields with the docstring below each, properties and public methods.

    Its class methods are for this project alone.
    """
    for statement, below in zip(made.body, [*made.body[1:], ast.Pass()], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield code(statement.target.id), code(ast.unparse(statement.annotation)), linked(_text(below))
        elif isinstance(statement, ast.FunctionDef) and statement.name[0] != "_" and not _has(statement, "classmethod"):
            said = inspect.cleandoc(ast.get_docstring(statement) or "")
            returns = ast.unparse(statement.returns) if statement.returns else ""
            yield code(f"{statement.name}()"), code(returns), linked(said.split("\n\n")[0])


def _text(below: ast.stmt) -> str:
    value = below.value if isinstance(below, ast.Expr) else None
    return inspect.cleandoc(value.value) if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


def docstring(text: str) -> str:
    """Return a docstring as Markdown: its indented blocks are examples or tables of arguments."""
    parts = []
    for block in re.split(r"\n{2,}", text):
        plain = textwrap.dedent(block)
        if plain == block:
            parts.append(linked(block))
        elif plain.startswith(">>>"):
            parts.append(f"```pycon\n{plain}\n```")
        else:
            parts.append(table(("argument", "meaning"), _arguments(plain)))
    return "\n\n".join(parts)


def _arguments(block: str) -> Iterator[tuple[str, str]]:
    """Yield the rows of an indented block: a name, two spaces or more, and its meaning, which may go on below."""
    for entry in re.split(r"\n(?=\S)", block):
        name, _, meaning = entry.partition("  ")
        yield code(name.strip()), linked(meaning)
