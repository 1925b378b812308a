"""The public model that a training starts from, in place of the one that `task.model_seed` draws."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from precad.deploy.configuration.sections import Deployment
from precad.deploy.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from precad.protos.task.task import Task

FILE: Final = "initial_model"
"""A field of `[localhost]` and of `[simulation]`; with `_sha256` behind it, the digest of the values as they travel."""
DIGEST: Final = f"{FILE}_sha256"


class Given(NamedTuple):
    """A model that a section names."""

    parameters: NDArray[np.float32]
    """Flat, (d,)."""
    fields: Mapping[str, str]
    """Where it lies in full, and its digest: as a run folder's configuration has them."""


def read_given(section: str, file: str, digest: str | None, task: Task) -> Given:
    """Return the model that a section names. Raises ConfigError for another than the digest's, SetupError for none."""
    from precad.protos.messages import convert
    from precad.servers.store.folder import load_initial_model

    path = Path(file).absolute()
    parameters = load_initial_model(path, task)
    found = convert.sha256(convert.model_to_bytes(parameters)).hex()
    if digest not in (None, found):
        raise ConfigError(f"{section}.{FILE}: expected SHA-256 {digest}, found {found} in {path}")
    return Given(parameters, {FILE: str(path), DIGEST: found})


def given_to_run(deployment: Deployment) -> Given | None:
    """Return the model that a local run is given; None where it draws one. Raises as `read_given`."""
    own = deployment.localhost
    if own.initial_model is None:
        return None
    return read_given("localhost", own.initial_model, own.initial_model_sha256, deployment.task)


def supply_digest(resolved: dict[str, Any], deployment: Deployment) -> Deployment:
    """Write the digest of the model that a local run is given, and its path from anywhere. Raises as `read_given`."""
    if (given := given_to_run(deployment)) is None:
        return deployment
    resolved["localhost"] = {**resolved["localhost"], **given.fields}
    return deployment.model_copy(update={"localhost": deployment.localhost.model_copy(update=dict(given.fields))})
