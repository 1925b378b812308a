"""The vectors of `docs/reference/protocol.md`, against this project's packages and against the independent
implementation.

Failure means an implementation that disagrees with a vector, or a vector that nobody can make again. It also means an
independent implementation that is not, or a document that leaves out a message of the protocol.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path

import pytest

from precad.mpc.errors import GateUnavailableError
from precad.mpc.gate_names import require_gate
from precad.mpc.prg import Purpose
from precad.protos.precad.v1 import aggregator_pb2, common_pb2, control_pb2, dealer_pb2, peer_pb2
from tests.vectors import make_vectors, ours
from tests.vectors.independent import steps as independent
from tests.vectors.independent.ring import RefusedError

HERE = Path(__file__).parent
DOCUMENT = (HERE.parent.parent / "docs" / "reference" / "protocol.md").read_text()


def stored(name):
    return json.loads((HERE / f"{name}.json").read_text())


CASES = [
    pytest.param(entry, id=f"{name}: {entry['step']}: {entry['name']}")
    for name in make_vectors.FILES
    for kind in ("positive", "tampered")
    for entry in stored(name)[kind]
]


def answered(steps, refusal, entry):
    """Return what an implementation makes of a case: its output, or the kind of its refusal."""
    try:
        return {"output": steps[entry["step"]](entry["input"])}
    except Exception as error:
        kind = refusal(error)
        if kind is None:
            raise
        return {"refused": kind}


def expected(entry):
    return {key: entry[key] for key in ("output", "refused") if key in entry}


def has_gate(entry):
    try:
        require_gate(entry["input"].get("gate", "native"))
    except GateUnavailableError:
        return False
    return True


@pytest.mark.parametrize("entry", CASES)
def test_our_packages_agree(entry):
    """Output for output, refusal for refusal."""
    if not has_gate(entry):
        pytest.skip("CrypTen is not installed")

    assert answered(ours.STEPS, ours.refusal, entry) == expected(entry)


@pytest.mark.parametrize("entry", CASES)
def test_the_independent_implementation_agrees(entry):
    """Output for output, refusal for refusal."""

    def refusal(error):
        return error.kind if isinstance(error, RefusedError) else None

    assert answered(independent.STEPS, refusal, entry) == expected(entry)


@pytest.mark.parametrize("name", make_vectors.FILES)
def test_every_file_has_both_kinds_of_cases(name):
    """Positive and tampered; a tampered case says what was done, and what comes of it."""
    content = stored(name)

    assert content["positive"]
    assert content["tampered"]
    assert all(entry["why"] and ("refused" in entry) != ("output" in entry) for entry in content["tampered"])


@pytest.mark.parametrize("name", make_vectors.FILES)
def test_the_script_makes_the_inputs_again(name):
    """The stored cases are those that the script asks for, in its order. (Outputs are the business of the others.)"""
    asked = [[case.step, case.name, case.why, case.given] for case in make_vectors.FILES[name]()]
    content = stored(name)
    found = [[e["step"], e["name"], e.get("why", ""), e["input"]] for e in content["positive"] + content["tampered"]]

    assert found == sorted(json.loads(json.dumps(asked)), key=lambda case: case[2] != "")


def test_the_independent_implementation_is_independent():
    """It imports the standard library, the block cipher, itself and the wire that both adapters share."""
    allowed = ("cryptography.hazmat.primitives.ciphers.", "tests.vectors.independent", "tests.vectors.wire")
    for path in (HERE / "independent").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Import(names=names):
                    modules = [alias.name for alias in names]
                case ast.ImportFrom(module=str(module), names=names):
                    modules = [f"{module}.{alias.name}" for alias in names]
                case _:
                    continue
            for module in modules:
                assert module.split(".")[0] in sys.stdlib_module_names or module.startswith(allowed), path.name


def test_the_document_names_every_message_and_field():
    """Name the fields of all services: a field that the documents leave out could not be filled by somebody else."""
    both = DOCUMENT + (HERE.parent.parent / "docs" / "reference" / "protocol-v2.md").read_text()
    for module in (common_pb2, aggregator_pb2, peer_pb2, dealer_pb2, control_pb2):
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                assert f"`{service.name}.{method.name}`" in both
        for message in module.DESCRIPTOR.message_types_by_name.values():
            assert f"`{message.name}`" in both or f"`{message.name}(" in both, message.name
            for field in message.fields:
                assert re.search(rf"\b{field.name}\b", both), f"{message.name}.{field.name}"


def test_the_document_lists_every_purpose():
    """By number and name."""
    for purpose in Purpose:
        assert f"| {purpose.value} | {purpose.name} |" in DOCUMENT


def test_the_document_lists_every_step_of_the_vectors():
    """Each label that a server sends in a validation."""
    labels = {
        message["label"]
        for entry in stored("validation")["positive"]
        for sent in entry["output"]["messages"]
        for message in sent
    }

    assert labels
    for label in labels:
        assert f"`{re.sub('gate/[1-7]', 'gate/1', label)}`" in DOCUMENT, label
