"""The sample configurations, with a dealer and without one: whole, valid, explained, and the same task in all."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from precad.clients.config import ClientConfig
from precad.deploy.configuration.init import deployment_files
from precad.deploy.configuration.sections import Deployment, LocalhostConfig, Network, OperatorConfig, load, parse
from precad.protos.task.convex_fields import CONVEX_FIELDS
from precad.protos.task.evaluation import EVALUATION_FIELDS
from precad.protos.task.function_fields import FUNCTION_FIELDS
from precad.protos.task.proved_fields import OF_A_DEALER
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
ALL = [(name, True) for name in sorted(SECTIONS)] + [(name, False) for name in sorted(SECTIONS) if name != "dealer"]
"""Every sample, and whether its deployment has a dealer."""
OF_A_DEALERS_TASK = {"task": set(OF_A_DEALER), "network": {"dealer"}, "aggregator.a": {"dealer_certificate"}}
OF_A_DEALERS_TASK["aggregator.b"] = OF_A_DEALERS_TASK["aggregator.a"]
"""Fields that say nothing without one."""
OF_A_QUERY = {"query"}
"""Fields of a task that trains nothing: samples are trainings."""
COMMENTED_OUT = re.compile(r"^# (?:(\w+ = .+)|(\[(?:operator|localhost)\]):.*)$", re.MULTILINE)


def as_it_stands(name: str, has_dealer: bool) -> str:
    return deployment_files(has_dealer=has_dealer)[f"{name}/{name}.toml"]


def complete(name: str, has_dealer: bool) -> str:
    """The sample with every field that is commented out, and its section, in force."""
    return COMMENTED_OUT.sub(r"\1\2", as_it_stands(name, has_dealer))


def fields(section: str, model: type[BaseModel], has_dealer: bool) -> set[str]:
    return set(model.model_fields) - OF_A_QUERY - (set() if has_dealer else OF_A_DEALERS_TASK.get(section, set()))


def at(document: dict[str, Any], section: str) -> dict[str, Any]:
    for key in section.split("."):
        document = document[key]
    return document


def explained(name: str, has_dealer: bool) -> Iterator[tuple[str, str, str]]:
    """(section, field, the comment above it); fields that follow one another share one."""
    section = comment = ""
    is_new = True
    for line in complete(name, has_dealer).splitlines():
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


def parsed(text: str) -> Deployment:
    return parse(tomllib.loads(text), base=SAMPLES)


@pytest.mark.parametrize(("name", "has_dealer"), ALL)
def test_a_sample_is_accepted_by_the_real_parser(name: str, has_dealer: bool) -> None:
    """As it stands, and with everything that it has commented out."""
    found = parsed(as_it_stands(name, has_dealer))
    document = tomllib.loads(complete(name, has_dealer))
    document["task"] |= {"algorithm": "user-dp-fedavg", "update_clipping": "private-quantile"}  # of which fields are
    for field in ("trim_count", "trim_step", "krum_keep", "record_bins", *CONVEX_FIELDS):
        del document["task"][field]  # of tsgd-ptr, multi-krum and precad alone, and of fixed bounds
    for field in FUNCTION_FIELDS:
        del document["task"][field]  # of 16 fractional bits alone
    document["task"]["learning_rate_schedule"] = "step"
    document.get("client", {}).pop("dataset", None)  # there are records of its own
    if has_dealer:
        del document["task"]["round_period_s"]  # of mode `proved` alone
    if name.startswith("aggregator"):  # it measures models on public records, so the clients do not
        for field in EVALUATION_FIELDS:
            del document["task"][field]
        document["task"]["evaluation"] = "public"
    everything = parse(document, base=SAMPLES)

    sections = {section for section in SECTIONS[name] if section not in {"operator", "localhost"}}
    parts = {"aggregator.a": found.aggregator.a, "aggregator.b": found.aggregator.b}
    parts |= {"dealer": found.dealer, "client": found.client}
    assert {part for part, value in parts.items() if value is not None} == sections - COMMON.keys()
    assert everything.network == found.network
    assert found.task.is_proved is not has_dealer


@pytest.mark.parametrize(("name", "has_dealer"), ALL)
def test_every_field_of_every_section_is_in_its_sample(name: str, has_dealer: bool) -> None:
    """A field that is new and undocumented fails here, and so does one that is gone."""
    document = tomllib.loads(complete(name, has_dealer))
    for section, model in SECTIONS[name].items():
        assert set(at(document, section)) == fields(section, model, has_dealer), section


def test_the_samples_leave_out_no_section() -> None:
    """All samples together name every section of the file."""
    sections = {section.partition(".")[0] for sections in SECTIONS.values() for section in sections}
    assert sections == set(Deployment.model_fields)


@pytest.mark.parametrize(("name", "has_dealer"), ALL)
def test_every_field_is_explained_with_its_default(name: str, has_dealer: bool) -> None:
    """The comment above it names the default that the parser has, or says that there is none."""
    seen = set()
    for section, field, comment in explained(name, has_dealer):
        if section == "task.clients" or section == "network":
            continue
        info = SECTIONS[name][section].model_fields[field]
        expected = "o default" if info.is_required() else "efault"
        assert expected in comment, f"{section}.{field}: {comment}"
        if not info.is_required():
            assert default_text(info) in comment, f"{section}.{field}: {comment}"
        seen.add((section, field))
    assert len(seen) > len(fields("task", Task, has_dealer))


@pytest.mark.parametrize("name", sorted(SECTIONS))
def test_a_model_of_ones_own_is_said_to_be_needed_at_servers_too(name: str) -> None:
    """No running server imports it, but `precad export` builds the model where a server's configuration is."""
    (said,) = re.findall(r"^# Architecture: [^=]*", (SAMPLES / f"{name}.toml").read_text(), re.MULTILINE)
    assert "whose file clients need, and\n# servers for `precad export`" in said


@pytest.mark.parametrize("has_dealer", [True, False])
def test_all_samples_are_of_one_task(has_dealer: bool) -> None:
    """The digest that servers and clients compare, and the addresses."""
    loaded = [parsed(as_it_stands(name, dealt)) for name, dealt in ALL if dealt is has_dealer]
    assert len({deployment.task.digest() for deployment in loaded}) == 1
    assert len({deployment.network.model_dump_json() for deployment in loaded}) == 1


def test_the_samples_train_on_records_of_their_users() -> None:
    """In both modes one task but for the mode; and no data set of ours."""
    with_one, without = (parsed(as_it_stands("client", has_dealer)) for has_dealer in (True, False))
    others = {"mode", "gate", "frac_bits"}  # the most that each has
    assert with_one.task.model_dump(exclude=others) == without.task.model_dump(exclude=others)
    assert with_one.client == without.client
    assert with_one.client is not None
    assert with_one.client.records == "csv:/srv/records/{client}.csv"


@pytest.mark.parametrize(("name", "has_dealer"), ALL)
def test_a_weaker_task_has_another_digest(name: str, has_dealer: bool) -> None:
    """So that the test above can fail: one value of one sample is changed."""
    text = as_it_stands(name, has_dealer)
    weaker = text.replace("noise_multiplier = 4.6", "noise_multiplier = 4.5")
    assert parsed(weaker).task.digest() != parsed(text).task.digest()


def test_memory_and_ports_of_the_samples_are_usable() -> None:
    """The budget has room for the model, and who is dialled listens there."""
    for role in SERVERS:
        deployment = load(SAMPLES / f"{role}.toml")
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
