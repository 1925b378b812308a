"""The page of every configuration field: name, type, default and meaning, from the models that validate them."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from docs.generate.markdown import code, linked, page, table

INTRODUCTION: Final = """\
A configuration is one TOML file. Unknown fields are refused. Relative paths are taken from the file's folder. The
commented samples in `deploy/hosts/samples/` show every field of a deployment at work. `precad check FILE` validates a
file without starting anything."""
FIELDS: Final = ("field", "type", "default", "meaning")
_BOUNDS: Final = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "pattern": "matching `{}`",
}
_WORDS: Final = {"number": "number", "integer": "integer", "boolean": "true or false", "null": "none"}
_FORMATS: Final = {"path": "path", "password": "secret text"}


def sections() -> list[tuple[str, type[BaseModel]]]:
    """Return the sections of a configuration in the order of the page, each with the model that validates it."""
    from precad.clients.config import Attacking, ClientConfig
    from precad.deploy.configuration.sections import LocalhostConfig, Network, OperatorConfig
    from precad.lab.simulation.config import AttackSettings, SimulationSettings
    from precad.protos.task.record_fields import Column
    from precad.protos.task.task import Task
    from precad.servers.config import AggregatorConfig, DealerConfig

    return [
        ("task", Task),
        ("task.columns.NAME", Column),
        ("client", ClientConfig),
        ("client.attacks.ID", Attacking),
        ("network", Network),
        ("aggregator.a", AggregatorConfig),
        ("dealer", DealerConfig),
        ("operator", OperatorConfig),
        ("localhost", LocalhostConfig),
        ("simulation", SimulationSettings),
        ("simulation.attack", AttackSettings),
    ]


NOTES: Final = {
    "task": "Public parameters, alike for all parties, which compare their digest.",
    "task.columns.NAME": "One column of a table of own records. `name` is the section's own name.",
    "client": "The clients of one process, or of one machine.",
    "client.attacks.ID": "What a malicious client does, where a name alone does not say it.",
    "network": "Where the servers are reached, as HOST:PORT.",
    "aggregator.a": "One aggregation server. `[aggregator.b]` has the same fields.",
    "dealer": "The dealer.",
    "operator": "The operator, who may watch the servers.",
    "localhost": "`precad run`: how the roles become processes of one machine.",
    "simulation": "`precad simulate`: how a task is simulated.",
    "simulation.attack": "Malicious clients of a simulation, all of one kind.",
}


def configuration_page() -> str:
    """Return the page."""
    parts = [INTRODUCTION]
    for name, model in sections():
        parts += [f"## [{name}]", NOTES[name], table(FIELDS, field_rows(model))]
    return page("Configuration", *parts)


def field_rows(model: type[BaseModel]) -> Iterator[tuple[str, str, str, str]]:
    """Yield the cells of each field, a model's own, or those of its first part, before the others."""
    schema, meanings = model.model_json_schema(), field_docstrings(model)
    own = next(filter(None, map(inspect.get_annotations, model.__mro__)))
    for name, field in sorted(model.model_fields.items(), key=lambda item: item[0] not in own):
        kind = described(schema["properties"][name], schema.get("$defs", {}))
        yield code(name), kind, _default(field), linked(meanings.get(name, ""))


def field_docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstring below each field, those of base classes included, by the field's name."""
    found: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if not issubclass(kind, BaseModel) or kind is BaseModel:
            continue
        body = ast.parse(inspect.cleandoc("\n" + inspect.getsource(kind))).body[0]
        assert isinstance(body, ast.ClassDef)
        for statement, below in zip(body.body, body.body[1:], strict=False):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and _is_text(below):
                found[statement.target.id] = inspect.cleandoc(ast.literal_eval(below.value))  # type: ignore[attr-defined]
    return found


def _is_text(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _default(field: FieldInfo) -> str:
    """Return a default as TOML has it; a required field has none."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or isinstance(value, BaseModel):
        return "none"
    if isinstance(value, bool | int | float | list | dict):
        return code("{}" if value == {} else json.dumps(value))
    return code(json.dumps(str(value)))


def described(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """Say in words which values a JSON schema allows."""
    if "$ref" in schema:
        return described(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in schema:
        kinds = [described(kind, definitions) for kind in schema["anyOf"] if kind.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in schema:
        return "one of " + ", ".join(code(json.dumps(value)) for value in schema["enum"])
    if "const" in schema:
        return code(json.dumps(schema["const"]))
    bounds = [words.format(_number(schema[bound])) for bound, words in _BOUNDS.items() if bound in schema]
    return " ".join(filter(None, (_kind(schema, definitions), " and ".join(bounds))))


def _kind(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    match schema.get("type"):
        case "string":
            return _FORMATS.get(schema.get("format", ""), "text")
        case "array":
            return f"list, each value {described(schema['items'], definitions)}"
        case "object" if isinstance(values := schema.get("additionalProperties"), Mapping):
            return f"table, each value {described(values, definitions)}"
        case "object":
            return "section"
    return _WORDS[schema["type"]]


def _number(bound: object) -> str:
    """Return a whole number without its zeros after the point."""
    return f"{bound:,.0f}".replace(",", " ") if isinstance(bound, int | float) and bound == int(bound) else str(bound)
