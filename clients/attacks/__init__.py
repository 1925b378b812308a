"""Malicious clients for experiments: what they do instead of following the protocol. One class a file.

Modules:

    attack      the base of all attacks: a conduct that deviates somewhere on the way from records to upload
    backdoors/  attackers that teach the model a backdoor
    records/    attackers that change the records that they train on
    updates/    attackers that change their update
    uploads/    attackers whose update is honest and whose upload is not
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from precad.clients.attacks.attack import Attack, Knowledge
from precad.clients.attacks.backdoors.distributed import DistributedBackdoor
from precad.clients.attacks.backdoors.pixel import PixelBackdoor
from precad.clients.attacks.backdoors.poisoned_records import PoisonedRecords
from precad.clients.attacks.backdoors.semantic import SemanticBackdoor
from precad.clients.attacks.backdoors.triangle import TriangleBackdoor
from precad.clients.attacks.records.feature_noise import FeatureNoise
from precad.clients.attacks.records.gaussian_features import GaussianFeatures
from precad.clients.attacks.records.label_flip import LabelFlip
from precad.clients.attacks.records.mirrored_labels import MirroredLabels
from precad.clients.attacks.records.random_labels import RandomLabels
from precad.clients.attacks.updates.gradient_noise import GradientNoise
from precad.clients.attacks.updates.no_attack import NoAttack
from precad.clients.attacks.updates.not_a_number import NotANumber
from precad.clients.attacks.updates.scaled_model_replacement import ScaledModelReplacement
from precad.clients.attacks.updates.sign_flip import SignFlip
from precad.clients.attacks.updates.wrap_around import WrapAround
from precad.clients.attacks.uploads.forger import Forger
from precad.clients.attacks.uploads.inconsistent_shares import InconsistentShares
from precad.clients.attacks.uploads.late import Late
from precad.clients.attacks.uploads.replay import Replay
from precad.clients.attacks.uploads.wrong_length import WrongLength

__all__ = [
    "ATTACKS",
    "Attack",
    "DistributedBackdoor",
    "FeatureNoise",
    "Forger",
    "GaussianFeatures",
    "GradientNoise",
    "InconsistentShares",
    "Knowledge",
    "LabelFlip",
    "Late",
    "MirroredLabels",
    "NoAttack",
    "NotANumber",
    "PixelBackdoor",
    "PoisonedRecords",
    "RandomLabels",
    "Replay",
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
ATTACKS: Final[Mapping[str, type[Attack]]] = MappingProxyType({kind.name: kind for kind in _KINDS})
"""The attacks by the name that a configuration gives them; each value makes one, with its defaults unless told more."""
