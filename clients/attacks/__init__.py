"""Malicious clients for experiments: what they do instead of following the protocol. One file a family.

Modules:

    attack     the base of all attacks: a conduct that deviates somewhere on the way from records to upload
    backdoors  attackers that teach the model a backdoor
    proofs     attackers of mode `proved`, with another proof than their upload's, or with what is no element
    canaries   audit clients, which hold records whose gradients the auditor knows
    records    attackers that change the records that they train on
    updates    attackers that change their update
    uploads    attackers whose update is honest and whose upload is not
"""

from collections.abc import Mapping
from typing import Final

from precad.clients.attacks.attack import Attack, Knowledge
from precad.clients.attacks.backdoors import (
    DistributedBackdoor,
    PixelBackdoor,
    PoisonedRecords,
    SemanticBackdoor,
    TriangleBackdoor,
)
from precad.clients.attacks.proofs import FalseProof, InconsistentProof, OutOfRange, ReplayedProof
from precad.clients.attacks.records import FeatureNoise, GaussianFeatures, LabelFlip, MirroredLabels, RandomLabels
from precad.clients.attacks.updates import (
    GradientNoise,
    NoAttack,
    NotANumber,
    ScaledModelReplacement,
    SignFlip,
    WrapAround,
)
from precad.clients.attacks.uploads import Forger, InconsistentShares, Late, Replay, WrongLength

__all__ = [
    "ATTACKS",
    "Attack",
    "DistributedBackdoor",
    "FalseProof",
    "FeatureNoise",
    "Forger",
    "GaussianFeatures",
    "GradientNoise",
    "InconsistentProof",
    "InconsistentShares",
    "Knowledge",
    "LabelFlip",
    "Late",
    "MirroredLabels",
    "NoAttack",
    "NotANumber",
    "OutOfRange",
    "PixelBackdoor",
    "PoisonedRecords",
    "RandomLabels",
    "Replay",
    "ReplayedProof",
    "ScaledModelReplacement",
    "SemanticBackdoor",
    "SignFlip",
    "TriangleBackdoor",
    "WrapAround",
    "WrongLength",
]

_KINDS: Final[tuple[type[Attack], ...]] = (
    NoAttack,
    ScaledModelReplacement,
    WrapAround,
    NotANumber,
    InconsistentShares,
    Replay,
    WrongLength,
    Late,
    FalseProof,
    InconsistentProof,
    ReplayedProof,
    OutOfRange,
    LabelFlip,
    RandomLabels,
    MirroredLabels,
    SignFlip,
    GradientNoise,
    FeatureNoise,
    GaussianFeatures,
    PixelBackdoor,
    TriangleBackdoor,
    DistributedBackdoor,
    SemanticBackdoor,
    PoisonedRecords,
)
ATTACKS: Final[Mapping[str, type[Attack]]] = {kind.name: kind for kind in _KINDS}
"""The attacks by the name that a configuration gives them; each value makes one, with its defaults unless told more."""
