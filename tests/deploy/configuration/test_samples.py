"""The sample configurations: whole, valid, explained, and the same task in all."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from precad.clients.config import ClientConfig
from precad.deploy.configuration.sections import Deployment, LocalhostConfig, Network, OperatorConfig, load, parse
from precad.protos.task.task import Task
from precad.protos.tls.identity import Role
from precad.servers.config import AggregatorConfig, DealerConfig
from precad.servers.rounds import memory
from tests.harness.organisations import SAMPLES, SERVERS

COMMON: dict[str, type[BaseModel]] = {"task": Task, "network": Network}
SECTIONS: dict[str, dict[str, type[BaseModel]]] = {
    "aggregator-a": COMMON | {"aggregator.a": AggregatorConfig},
    "aggregator-b": COMMON | {"aggregator.b": AggregatorConfig},
    "dealer": COMMON | {"dealer": DealerConfig},
    "client": COMMON | {"client": ClientConfig, "operator": OperatorConfig, "localhost": LocalhostConfig},
}
"""Sections that a role's sample explains."""
NAMES = sorted(SECTIONS)
COMMENTED_OUT = re.compile(r"^# (?:(\w+ = .+)|(\[(?:operator|localhost)\]):.*)$", re.MULTILINE)


def sample(name: str) -> Path:
    return SAMPLES / f"{name}.toml"


def complete(name: str) -> str:
    """The sample with every field that is commented out, and its section, in force."""
    return re.sub(
        r"^# (?:(\w+ = .+)|(\[(?:operator|localhost)\]):.*)$", r"\1\2", sample(name).read_text(), flags=re.MULTILINE
    )


def at(document: dict[str, Any], section: str) -> dict[str, Any]:
    for key in section.split("."):
        document = document[key]
    return document


def explained(name: str) -> Iterator[tuple[str, str, str]]:
    """(section, field, the comment above it); fields that follow one another share one."""
    section = comment = ""
    is_new = True
    for line in complete(name).splitlines():
        if heading := re.fullmatch(r"\[([\w.]+)]", line):
            section = heading[1]
        elif line.startswith("#"):
            comment = line if is_new else f"{comment} {line}"
            is_new = False
        elif field := re.match(r"(\w+) = ", line):
            yield section, field[1], comment
            is_new = True
        else:
            comment, is_new = "", True


def default_text(field: FieldInfo) -> str:
    """As a sample writes it."""
    value = field.get_default(call_default_factory=True)
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case int() | float():
            return f"{value:g}".replace("e-0", "e-")
        case dict():
            return "none"
    return f'"{value}"'


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_is_accepted_by_the_real_parser(name: str) -> None:
    """As it stands, and with everything that it has commented out."""
    as_it_stands = load(sample(name))
    document = tomllib.loads(complete(name))
    document["task"] |= {"algorithm": "user-dp-fedavg", "update_clipping": "private-quantile"}  # of which fields are
    document["task"]["learning_rate_schedule"] = "step"
    document.get("client", {}).pop("dataset", None)  # there are records of its own
    everything = parse(document, base=SAMPLES)

    sections = {section for section in SECTIONS[name] if section not in {"operator", "localhost"}}
    parts = {"aggregator.a": as_it_stands.aggregator.a, "aggregator.b": as_it_stands.aggregator.b}
    parts |= {"dealer": as_it_stands.dealer, "client": as_it_stands.client}
    assert {part for part, value in parts.items() if value is not None} == sections - COMMON.keys()
    assert everything.network == as_it_stands.network


@pytest.mark.parametrize("name", NAMES)
def test_every_field_of_every_section_is_in_its_sample(name: str) -> None:
    """A field that is new and undocumented fails here, and so does one that is gone."""
    document = tomllib.loads(complete(name))
    for section, model in SECTIONS[name].items():
        assert set(at(document, section)) == set(model.model_fields), section


def test_the_samples_leave_out_no_section() -> None:
    """All samples together name every section of the file."""
    sections = {section.partition(".")[0] for sections in SECTIONS.values() for section in sections}
    assert sections == set(Deployment.model_fields)


@pytest.mark.parametrize("name", NAMES)
def test_every_field_is_explained_with_its_default(name: str) -> None:
    """The comment above it names the default that the parser has, or says that there is none."""
    seen = set()
    for section, field, comment in explained(name):
        if section == "task.clients" or section == "network":
            continue
        info = SECTIONS[name][section].model_fields[field]
        expected = "o default" if info.is_required() else "efault"
        assert expected in comment, f"{section}.{field}: {comment}"
        if not info.is_required():
            assert default_text(info) in comment, f"{section}.{field}: {comment}"
        seen.add((section, field))
    assert len(seen) > len(Task.model_fields)


def test_all_samples_are_of_one_task() -> None:
    """The digest that servers and clients compare, and the addresses."""
    loaded = [load(sample(name)) for name in NAMES]
    assert len({deployment.task.digest() for deployment in loaded}) == 1
    assert len({deployment.network.model_dump_json() for deployment in loaded}) == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_weaker_task_has_another_digest(name: str) -> None:
    """So that the test above can fail: one value of one sample is changed."""
    document = tomllib.loads(sample(name).read_text())
    document["task"]["noise_multiplier"] = 4.5
    assert parse(document, base=SAMPLES).task.digest() != load(sample(name)).task.digest()


def test_memory_and_ports_of_the_samples_are_usable() -> None:
    """The budget has room for the model, and who is dialled listens there."""
    for role in SERVERS:
        deployment = load(sample(role))
        own = {
            Role.AGGREGATOR_A: deployment.aggregator.a,
            Role.AGGREGATOR_B: deployment.aggregator.b,
            Role.DEALER: deployment.dealer,
        }[role]
        assert own is not None
        dialled = getattr(deployment.network, role.replace("-", "_"))
        assert own.listen.rpartition(":")[2] == dialled.rpartition(":")[2]
        if isinstance(own, AggregatorConfig):
            assert memory.for_uploads(own.memory_budget_mb, deployment.task.dim) > 0
