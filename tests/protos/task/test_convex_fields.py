"""Fields of a task with a smaller set than the ball: what is refused, what parties agree on, and which file counts."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from pydantic import ValidationError

from precad.dp.task_privacy import task_privacy
from precad.mpc.convex_set import ConvexSet
from precad.mpc.errors import ParameterError
from precad.mpc.norm_bound import NormBound
from precad.protos.task.task import Task
from tests.harness.harness import small_task

LAYERS: dict[str, Any] = {"layer_sizes": [20, 4], "layer_clips": [1.0, 0.5]}
DIRECTIONS = np.array([[3] * 20 + [0] * 4, [0] * 20 + [1, 2, 3, 4]], dtype=np.int16)


def file_of(folder: Path, directions: Any = DIRECTIONS) -> dict[str, Any]:
    """Return the fields of a task whose half-spaces have these directions, once they are in a file."""
    path = folder / "directions.npy"
    np.save(path, directions)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return {"half_spaces": [-0.5, -0.25], "directions_sha256": digest, "directions": path}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layer_clips": [1.0]}, "layer_clips: expected a bound for each of 2 layer_sizes, found 1"),
        ({"layer_clips": []}, "layer_clips: expected a bound for each of 2 layer_sizes, found 0"),
        ({"layer_sizes": []}, "layer_clips: expected a bound for each of 0 layer_sizes, found 2"),
        ({"layer_sizes": [20, 5]}, "layer_sizes: expected 24 parameters in all, found 25"),
        ({"layer_clips": [1.0, 1.5]}, "layer_clips.1: expected at most client_clip, 1, .* found 1.5"),
        ({"layer_clips": [2.0**-17, 0.5]}, "layer_clips.0: .*at least a step of the grid"),
        ({"mode": "proved", "gate": "crypten"}, "mode: expected one with a dealer with layer_clips, found 'proved'"),
        ({"validation": "none"}, "validation: expected 'norm' with layer_clips"),
        ({"algorithm": "distributed-dp", "client_clip": 90.0}, "layer_clips: expected none with algorithm 'distr"),
        (
            {"algorithm": "user-dp-fedavg", "update_clipping": "per-layer"},
            "update_clipping: expected 'flat' with layer_clips, found 'per-layer'",
        ),
        ({"audit_clients": ["mallory"]}, "audit_clients: expected none with layer_clips, beyond which canaries"),
        (
            {"query": {"kind": "mean", "column": "age", "low": 0.0, "high": 1.0}},
            "layer_clips: expected none in a task with a query",
        ),
        ({"half_spaces": [-1.0]}, "directions_sha256: expected the digest of a file with half_spaces"),
        ({"directions_sha256": "0" * 64}, "directions_sha256: .*none without"),
        ({"directions": Path("directions.npy")}, "directions: expected none without half_spaces"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        small_task(**LAYERS | changes)


def test_tasks_without_such_a_set_keep_their_text_and_others_say_theirs(tmp_path: Path) -> None:
    plain, layered = small_task(), small_task(**LAYERS)
    names = {"layer_clips", "layer_sizes", "half_spaces", "directions_sha256", "directions"}
    assert not names & json.loads(plain.canonical()).keys()
    accepted = json.loads(plain.canonical()) | {"accept_weak_wire_form": True}
    assert json.loads(layered.canonical()) == accepted | LAYERS
    cut = file_of(tmp_path)
    found = json.loads(small_task(**cut).canonical())
    assert found == accepted | {name: cut[name] for name in cut if name != "directions"}
    assert len({task.digest() for task in (plain, layered, small_task(**cut), small_task(**LAYERS, **cut))}) == 4


@pytest.mark.parametrize("field", ["layer_clips", "half_spaces"])
def test_a_set_needs_the_word_that_a_deviating_server_reads_what_it_bounds(field: str, tmp_path: Path) -> None:
    """Its words are fixed (tests/mpc/local/test_fixed_words.py)."""
    fields = LAYERS if field == "layer_clips" else file_of(tmp_path)
    with pytest.raises(ValidationError, match=f"accept_weak_wire_form: expected true with {field}, .* found false"):
        small_task(**fields, accept_weak_wire_form=False)


def test_where_a_party_has_the_file_is_its_own(tmp_path: Path) -> None:
    """Two folders give one digest. A party without the file has the task, and no set to check."""
    fields = file_of(tmp_path)
    elsewhere = shutil.copy(fields["directions"], tmp_path / "copy.npy")
    one, other, nobody = (
        small_task(**fields | {"directions": path}) for path in (fields["directions"], elsewhere, None)
    )
    assert one.digest() == other.digest() == nobody.digest()
    assert dataclasses.astuple(one.norm_bound) == dataclasses.astuple(nobody.norm_bound)
    with pytest.raises(ParameterError, match=f"directions: expected the file of SHA-256 {fields['directions_sha256']}"):
        _ = nobody.update_set


def test_a_party_checks_the_set_that_the_task_says(tmp_path: Path) -> None:
    assert type(small_task().update_set) is NormBound
    task = small_task(**LAYERS, **file_of(tmp_path))
    found = task.update_set
    assert isinstance(found, ConvexSet)
    assert [(layer.size, layer.clip) for layer in found.layers] == [(20, 1.0), (4, 0.5)]
    assert [half.threshold for half in found.half_spaces] == [-0.5, -0.25]
    assert_array_equal([half.direction for half in found.half_spaces], DIRECTIONS)
    assert type(task.norm_bound) is NormBound  # of sizes and figures: C


OTHER_FILES: dict[str, tuple[Any, str]] = {
    "another shape": (DIRECTIONS[:1], r"directions: expected shape \(2, 24\), found \(1, 24\)"),
    "one number too few": (DIRECTIONS[:, :-1], r"directions: expected shape \(2, 24\), found \(2, 23\)"),
    "reals": (DIRECTIONS.astype(float), "directions: expected signed integers"),
    "unsigned": (DIRECTIONS.astype(np.uint64), "directions: expected signed integers"),
    "zeros": (DIRECTIONS * 0, "direction: expected a coordinate that is not zero"),
    "too large": (DIRECTIONS.astype(np.int64) << 31, "at most 2\\^31"),
    "over both layers": (np.ones_like(DIRECTIONS), "expected a direction that is zero outside one layer"),
    "obtuse": (DIRECTIONS * [[1], [0]] - DIRECTIONS[:1] * [[0], [1]], "no obtuse angle"),
    "long beside t": (DIRECTIONS * 1000, "expected a threshold of at most -0.91"),
}


@pytest.mark.parametrize("name", OTHER_FILES)
def test_files_that_cannot_be_are_refused_with_the_task(name: str, tmp_path: Path) -> None:
    directions, said = OTHER_FILES[name]
    with pytest.raises(ValidationError, match=said):
        small_task(**LAYERS, **file_of(tmp_path, directions))


def test_another_file_than_that_of_the_digest_is_refused(tmp_path: Path) -> None:
    fields = file_of(tmp_path)
    fields["directions"].write_bytes(fields["directions"].read_bytes()[:-1] + b"\x05")
    with pytest.raises(ValidationError, match="directions: expected the file of SHA-256"):
        small_task(**fields)
    fields["directions"].write_bytes(b"nothing")
    fields["directions_sha256"] = hashlib.sha256(b"nothing").hexdigest()
    with pytest.raises(ValidationError, match=r"directions: expected a \.npy file"):
        small_task(**fields)


@pytest.mark.parametrize("gone", ["file", "folder", "what is not a folder"])
def test_a_task_names_its_file_where_nobody_has_it(gone: str, tmp_path: Path) -> None:
    """The dealer may read the line that the others share, and needs no set. Who needs one is told what is missing."""
    fields = file_of(tmp_path)
    expected = small_task(**fields).digest()
    place = {"file": "gone.npy", "folder": "gone/d.npy", "what is not a folder": "directions.npy/d.npy"}[gone]
    task = small_task(**fields | {"directions": tmp_path / place})
    assert task.digest() == expected
    with pytest.raises(ParameterError, match=r"directions: expected a \.npy file, found .*: No(t| such)"):
        _ = task.update_set
    with pytest.raises(ValidationError, match="client_clip"):
        small_task(**fields | {"directions": tmp_path / place, "client_clip": 1e300})  # the norm's faults are told


def test_no_figure_depends_on_the_set() -> None:
    """The projection is non-expansive, and the set lies in the ball: R bounds a record, and C a client, as before."""
    for algorithm in ("precad", "user-dp-fedavg", "local-dp"):
        plain = small_task(algorithm=algorithm)
        assert task_privacy(small_task(algorithm=algorithm, **LAYERS)) == task_privacy(plain)


def test_an_evaluation_by_clients_has_a_bound_of_its_own() -> None:
    """Its vectors are three numbers, which have no layers."""
    task: Task = small_task(**LAYERS, evaluation="clients", evaluation_every=1, evaluation_noise=5.0)
    one = task.evaluation_round
    assert one is not None
    assert (one.layer_sizes, type(one.update_set)) == ([], NormBound)
