"""The flags of `precad client` that name foreign trainers: what they change, and what contradicts them."""

from __future__ import annotations

from pathlib import Path

import pytest

from precad.deploy.configuration import sections
from precad.deploy.configuration.trainers import with_trainer
from precad.deploy.errors import ConfigError

SAMPLE = Path(__file__).resolve().parents[3] / "deploy" / "hosts" / "samples" / "client.toml"


@pytest.fixture(scope="module")
def deployment():
    return sections.load(SAMPLE)


@pytest.mark.parametrize(("kind", "named"), [("flower", "ward.app:app"), ("nvflare", "jobs/train.py")])
def test_a_flag_is_the_configurations_trainer(deployment, kind, named):
    found = with_trainer(deployment, SAMPLE.parent, kind, named, Path("venv/bin/python")).client
    assert found.trainer == f"{kind}:{named}"
    assert found.trainer_python == Path("venv/bin/python").absolute()
    assert with_trainer(deployment, SAMPLE.parent, kind, None, None) is deployment


@pytest.mark.parametrize(
    ("kind", "named", "python", "said"),
    [
        ("flower", None, "python", "--flower-python: expected --flower beside it, found none"),
        ("nvflare", None, "python", "--nvflare-python: expected --nvflare beside it, found none"),
        ("nvflare", "train", None, r"--nvflare: expected the file of a script, \*\.py, found 'train'"),
        ("flower", "no app", None, "client.trainer: expected module:function, flower:module:app or nvflare:script.py"),
    ],
)
def test_what_names_no_trainer_is_refused(deployment, kind, named, python, said):
    with pytest.raises(ConfigError, match=said):
        with_trainer(deployment, SAMPLE.parent, kind, named, None if python is None else Path(python))


def test_two_trainers_are_refused(deployment):
    first = with_trainer(deployment, SAMPLE.parent, "flower", "ward.app:app", None)
    with pytest.raises(ConfigError, match=r"expected 'nvflare:train.py', of --nvflare, found 'flower:ward.app:app'"):
        with_trainer(first, SAMPLE.parent, "nvflare", "train.py", None)
