"""Malicious clients for experiments: what they do instead of following the protocol. One file a family.

Modules:

    attack     the base of all attacks: a conduct that deviates somewhere on the way from records to upload
    backdoors  attackers that teach the model a backdoor
    proofs     attackers of mode `proved`, with another proof than their upload's, or with what is no element
    canaries   audit clients, which hold records whose gradients the auditor knows
    colluders  attackers that make their upload of other clients' updates
    deployed   an attack in a client process
    model_space  updates as the model sees them, where the bound of updates is learnt
    shared_folder  how colluding clients of a deployment see one another's updates
    named      attacks by the names and parameters that a configuration gives them
    records    attackers that change the records that they train on
    updates    attackers that change their update
    uploads    attackers whose update is honest and whose upload is not
"""

from collections.abc import Mapping
from typing import Final

from precad.clients.attacks.attack import Attack, Knowledge
from precad.clients.attacks.backdoors import (
    DistributedBackdoor,
    OptimisedBackdoor,
    PixelBackdoor,
    PoisonedRecords,
    SemanticBackdoor,
    TriangleBackdoor,
)
from precad.clients.attacks.colluders import (
    ALittleIsEnough,
    FangTrim,
    InnerProductManipulation,
    MaximalDirection,
    MinMax,
    StatOpt,
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
    "ALittleIsEnough",
    "Attack",
    "DistributedBackdoor",
    "FalseProof",
    "FangTrim",
    "FeatureNoise",
    "Forger",
    "GaussianFeatures",
    "GradientNoise",
    "InconsistentProof",
    "InconsistentShares",
    "InnerProductManipulation",
    "Knowledge",
    "LabelFlip",
    "Late",
    "MaximalDirection",
    "MinMax",
    "MirroredLabels",
    "NoAttack",
    "NotANumber",
    "OptimisedBackdoor",
    "OutOfRange",
    "PixelBackdoor",
    "PoisonedRecords",
    "RandomLabels",
    "Replay",
    "ReplayedProof",
    "ScaledModelReplacement",
    "SemanticBackdoor",
    "SignFlip",
    "StatOpt",
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
    OptimisedBackdoor,
    TriangleBackdoor,
    DistributedBackdoor,
    SemanticBackdoor,
    PoisonedRecords,
    ALittleIsEnough,
    InnerProductManipulation,
    MinMax,
    StatOpt,
    FangTrim,
    MaximalDirection,
)
ATTACKS: Final[Mapping[str, type[Attack]]] = {kind.name: kind for kind in _KINDS}
"""The attacks by the name that a configuration gives them; each value makes one, with its defaults unless told more."""
