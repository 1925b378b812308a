"""Make attacks by the names and parameters that a configuration gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from precad.clients.attacks import ATTACKS
from precad.clients.attacks.attack import Attack
from precad.clients.attacks.records import FeatureNoise, GaussianFeatures, RandomLabels
from precad.clients.config import ClientConfig
from precad.clients.errors import ArgumentError, ExtensionError, UnknownNameError
from precad.clients.own_code import Unspoken, imported, line_of
from precad.clients.records.records import Records
from precad.mpc.errors import raised_as

Parameters = Mapping[str, bool | int | float | str]

_ALIKE: Final = frozenset({RandomLabels.name, FeatureNoise.name, GaussianFeatures.name})
"""Attacks of which a name alone gives all clients the same seed."""


class ParametersError(ArgumentError):
    """An attack's class does not take the parameters that a configuration has for it."""


def made(kind: str, parameters: Parameters, known: Mapping[str, type[Attack]] = ATTACKS) -> Attack:
    """Return the attack of that name, or of the import path `package.module:Class`, with these parameters.

    Raises: UnknownNameError, ExtensionError, ParametersError.
    """
    if ":" not in kind and kind not in known:
        raise UnknownNameError("attack", kind, known=[*sorted(known), "package.module:Class"])
    found = imported("attack", kind) if ":" in kind else known[kind]
    if not (isinstance(found, type) and issubclass(found, Attack)):
        raise ExtensionError("attack", kind, "it is no subclass of precad.clients.attacks.Attack")
    with raising("making it", kind), raised_as(ParametersError, (TypeError, ValueError), "parameters"):
        return found(**parameters)


def raising(what: str, kind: str) -> Unspoken:
    """Name an attack of the user's own, and its line, in place of what its code raises."""

    def spoken(error: BaseException) -> ExtensionError:
        return ExtensionError("attack", kind, f"{what} raises {type(error).__name__}{line_of(error)}")

    return Unspoken(spoken)


def attacks_of(config: ClientConfig) -> dict[str, Attack]:
    """Return the attack of each malicious client that `[client.attacks]` names, in the order of ids.

    Clients of one kind and with the same parameters are numbered (`Attack.of_attacker`). Those of `_ALIKE` are not
    where a name alone says it: the seeds of runs from before there were parameters give the same bytes. Raises
    ArgumentError, which begins with the client.
    """
    attacks: dict[str, Attack] = {}
    counts: dict[tuple[str, object], int] = {}
    for client, attacking in sorted(config.attacks.items()):
        if attacking.kind == "none":
            continue
        is_alike = attacking.kind in _ALIKE and not attacking.parameters
        same = attacking.kind, tuple(sorted(attacking.parameters.items()))
        i = 0 if is_alike else counts.get(same, 0)
        counts[same] = i + 1
        try:
            with raising("of_attacker", attacking.kind):
                attacks[client] = made(attacking.kind, attacking.parameters).of_attacker(i)
        except ArgumentError as error:
            between = "." if isinstance(error, ParametersError) else ": "
            raise ArgumentError(f"client.attacks.{client}{between}{error}") from None
    return attacks


def wanted_of(attacks: Mapping[str, Attack], test: Records) -> Records | None:
    """Return the records by which the attacks' success is measured: those of all attackers that aim at anything.

    None where nobody does. Raises ArgumentError where these test records show no success, and for two aims: one figure
    cannot tell whose it is.
    """
    found: tuple[str, Attack, Records] | None = None
    for client, attack in attacks.items():
        if found is not None and type(attack) in ATTACKS.values() and attack == found[1]:
            continue  # as are most; attackers' own code may be unable to compare
        with raising("success_records", type(attack).__name__):
            wanted = attack.success_records(test)
        if wanted is not None and found is not None and not _are_same(wanted, found[2]):
            raise ArgumentError(
                f"expected one aim, whose success is measured, found those of {found[0]} ({_name_of(found[1])}) "
                f"and {client} ({_name_of(attack)})"
            )
        if wanted is not None and found is None:
            found = client, attack, wanted
    return None if found is None else found[2]


def _name_of(attack: Attack) -> str:
    return attack.name or type(attack).__name__


def _are_same(a: Records, b: Records) -> bool:
    return np.array_equal(a.labels, b.labels) and np.array_equal(a.features, b.features)
