"""Malicious clients for experiments: what they do instead of following the protocol. One class a file."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from clients.attacks.attack import Attack, Knowledge
from clients.attacks.distributed_backdoor import DistributedBackdoor
from clients.attacks.feature_noise import FeatureNoise
from clients.attacks.forger import Forger
from clients.attacks.gaussian_features import GaussianFeatures
from clients.attacks.gradient_noise import GradientNoise
from clients.attacks.inconsistent_shares import InconsistentShares
from clients.attacks.label_flip import LabelFlip
from clients.attacks.late import Late
from clients.attacks.mirrored_labels import MirroredLabels
from clients.attacks.no_attack import NoAttack
from clients.attacks.not_a_number import NotANumber
from clients.attacks.pixel_backdoor import PixelBackdoor
from clients.attacks.poisoned_records import PoisonedRecords
from clients.attacks.random_labels import RandomLabels
from clients.attacks.replay import Replay
from clients.attacks.scaled_model_replacement import ScaledModelReplacement
from clients.attacks.semantic_backdoor import SemanticBackdoor
from clients.attacks.sign_flip import SignFlip
from clients.attacks.triangle_backdoor import TriangleBackdoor
from clients.attacks.wrap_around import WrapAround
from clients.attacks.wrong_length import WrongLength

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
