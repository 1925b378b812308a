"""`precad experiment adapters`: what is trained from what, and in small, all of it, where `transformers` is there."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pytest
import torch

from precad.clients.models import networks
from precad.clients.models.adapters import lora
from precad.clients.records.folder import find
from precad.clients.records.tweets import FILE, SUBSET, VOCABULARY
from precad.deploy.cli.main import app
from precad.deploy.errors import ConfigError
from precad.lab.bench.peers.adapted_transformer import N_PLACES, Transformer
from precad.lab.papers import adapters
from precad.lab.papers.central_opacus import NORM_EPSILON, _of_seed, peers_name
from tests.harness.command_line import CliRunner

START = adapters.PublicStart(Path("/base.safetensors"), "ab" * 32, Path("/base.npy"), 0.5)


def test_trainings_differ_in_what_is_compared_alone() -> None:
    """Records, rates, bounds and noise are equal, so epsilon is; adapters get the base by its digest."""
    found = {name: adapters.Experiment().case(name, START).config for name in adapters.METHODS}
    own = ("name", "model", "learning_rate", "base_model_sha256")
    shared = [{key: value for key, value in one["task"].items() if key not in own} for one in found.values()]
    assert all(one == shared[0] for one in shared)
    for name, one in found.items():
        is_adapted = name in (adapters.ADAPTERS, adapters.CENTRAL)
        assert (one["task"].get("base_model_sha256") == START.base_sha256) is is_adapted
        assert ("base_model" in one["client"]) is is_adapted
        assert ("initial_model" in one["simulation"]) is (name == adapters.WHOLE)
    with pytest.raises(ConfigError, match=r"--method: expected one of adapters, .*found 'x'"):
        adapters.Experiment(methods=["x"])


def test_without_the_library_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(ConfigError, match=r"^transformers: expected for the models, found none: pip install"):
        adapters.base()


def test_without_the_library_the_command_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not the kind of error that its model's factory raised."""
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    done = CliRunner().invoke(app, ["experiment", "adapters", "--output", str(tmp_path / "run")])
    assert done.exit_code == 2
    assert "transformers: expected for the models, found none" in done.output


def test_the_peers_transformer_with_our_weights_gives_our_logits() -> None:
    """Every tensor has its name there; B is not zero. Texts of all lengths, by both attentions, in float32."""
    pytest.importorskip("transformers")
    ours = networks.build(adapters.adapted)
    theirs = lora(Transformer(VOCABULARY), adapters.RANK, adapters.TARGETS)
    generator = torch.Generator().manual_seed(1)
    for parameter in ours.parameters():
        torch.nn.init.normal_(parameter, std=0.1, generator=generator)
    theirs.load_state_dict({peers_name(name): value for name, value in ours.state_dict().items()})
    for layer in theirs.modules():
        if isinstance(layer, torch.nn.LayerNorm):
            layer.eps = NORM_EPSILON
    tokens = torch.randint(1, VOCABULARY, (40, N_PLACES), generator=generator)
    tokens[torch.arange(N_PLACES)[None] >= torch.arange(40)[:, None] % N_PLACES] = 0
    with torch.no_grad():
        torch.testing.assert_close(theirs.eval()(tokens), ours.eval()(tokens), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("python", "words"), [("/nowhere/python", "No such file"), (sys.executable, "opacus")])
def test_an_interpreter_without_opacus_is_refused(python: str, words: str) -> None:
    """Whatever its own words are, they are said."""
    with pytest.raises(ConfigError, match=f"--peers-python: expected .*{words}"):
        _of_seed({"adapters": []}, 0, Path(python))


@pytest.mark.slow
def test_the_experiment_runs_in_small(tmp_path: Path) -> None:
    """One round of each; the base is written once, and is the one that the tasks name."""
    pytest.importorskip("transformers")
    pytest.importorskip("matplotlib")
    if find(FILE) is None or find(SUBSET) is None:
        pytest.skip("PRECAD_DATA holds no tweets")
    torch.manual_seed(0)
    adapters.public_start(tmp_path / "run", epochs=0)
    before = (tmp_path / "run" / "base.safetensors").read_bytes()
    words = ["experiment", "adapters", "--quick", "--rounds", "1", "--output", str(tmp_path / "run"), "--json"]
    done = CliRunner().invoke(app, words, terminal_width=200, prog_name="precad")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert [case["method"] for case in report["cases"]] == [method.words for method in adapters.METHODS.values()]
    dims = [case["dim"] for case in report["cases"]]
    assert dims[0] == dims[1] == adapters.RANK * (2 * 2 * adapters.WIDTH + adapters.WIDTH + 2)
    assert (tmp_path / "run" / "base.safetensors").read_bytes() == before
    resolved = (tmp_path / "run" / "adapters" / "config.toml").read_text()
    assert hashlib.sha256(before).hexdigest() in resolved
