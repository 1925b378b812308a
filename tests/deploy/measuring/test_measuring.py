"""Quality of committed models on public records: the figures, and what a measuring program that misbehaves costs.

What counts as failure:
- a round waits or is lost for it;
- a figure is not the model's;
- the program sees a key, or a log line has a record.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from precad.clients import own_code
from precad.deploy.configuration.public_records import PublicRecords, load
from precad.deploy.errors import ConfigError
from precad.deploy.measuring.program import program_of
from precad.deploy.oversight.state_dirs import read_state_dir
from precad.protos.task.task import Task
from precad.protos.tls.identity import Role
from precad.servers.errors import MeasuringFault, SetupError
from precad.servers.operations.metrics import StatusCollector, expose
from precad.servers.store.rounds import CommittedRound
from precad.servers.telemetry import quality as quality_module
from precad.servers.telemetry.events import Telemetry
from precad.servers.telemetry.model_figures import FILE, restored
from precad.servers.telemetry.quality import MOST_FAULTS, Program, Quality
from tests.harness.harness import LeashedClient, Pki, asynchronous, running, small_task, until

D = 24
OWN_CODE = """
import os
import sys
import time
import numpy as np
import torch

SECRET = "4711.125"

def net():
    return torch.nn.Linear(7, 3)

def largest(outputs, labels):
    print(SECRET, file=sys.stderr)
    print(SECRET)
    return float(np.abs(outputs).max())

def leaving(outputs, labels):
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        time.sleep(600)
    os.waitpid(child, 0)
    if outputs.max() > 100:
        os.kill(os.getpid(), 9)
    return 1.0

def raising(outputs, labels):
    if outputs.any():
        raise ValueError(SECRET)
    return 0.0
"""


@pytest.fixture(autouse=True)
def _own_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where this test's modules and records are looked for is forgotten after it."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(own_code, "_BESIDE", [*own_code._BESIDE])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A public test set of 60 records, and the operator's code."""
    where = tmp_path_factory.mktemp("public")
    rng = np.random.default_rng(7)
    np.savez(where / "public.npz", x=rng.normal(size=(60, 7)).astype(np.float32), labels=rng.integers(0, 3, 60))
    (where / "measured_code.py").write_text(OWN_CODE)
    return where


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki.create(tmp_path_factory.mktemp("pki"), small_task().clients)


def task_of(**changes: Any) -> Task:
    return small_task(**{"model": "measured_code:net", "evaluation": "public", "client_rate": 1e-6, **changes})


def program(pki: Pki, folder: Path, task: Task, **changes: Any) -> Program:
    """The real one."""
    fields = {"evaluation_records": "npz:public.npz", "evaluation_folder": folder, **changes}
    found = program_of(task, pki.aggregator(0, listen="127.0.0.1:0", folder=folder, **fields))
    assert found is not None
    return found


def script(folder: Path, body: str, timeout_s: float = 20.0) -> Program:
    """One that a test writes: `body` answers each model's `round`."""
    text = (
        "import json, os, sys, time\nout = sys.stdout\nsys.stdin.buffer.readline()\n"
        'print(json.dumps({"ready": 1}), flush=True)\n'
        "while line := sys.stdin.buffer.readline():\n"
        "    header = json.loads(line); content = sys.stdin.buffer.read(header['bytes']); round = header['round']\n"
        f"    {body}\n"
    )
    path = folder / f"script-{abs(hash(body))}.py"
    path.write_text(text)
    return Program(command=(sys.executable, "-P", str(path)), environment={}, opening=b"{}\n", timeout_s=timeout_s)


def record(number: int) -> CommittedRound:
    return CommittedRound(number, (), (), (), bytes([number]) * 32, 0.0, 0.0)


def accuracy_of(vector: np.ndarray, folder: Path) -> float:
    """Independently of our code: logits of the linear layer, by NumPy."""
    data = np.load(folder / "public.npz")
    weights, bias = vector[:21].reshape(3, 7), vector[21:]
    return float(np.mean((data["x"] @ weights.T + bias).argmax(axis=1) == data["labels"]))


async def measured(program: Program, state_dir: Path, models: list[np.ndarray]) -> tuple[Telemetry, list[Any]]:
    """Hand models over one after the other, each once the one before has its figure or is given up."""
    telemetry = Telemetry(Role.AGGREGATOR_A)
    quality = Quality(program, state_dir, telemetry)
    with capture_logs() as logs:
        try:
            await quality.open()
            quality.begin()
            for number, model in enumerate(models):
                quality.offer(record(number), model)
                await quality.settled(30.0)
        finally:
            await quality.close()
    return telemetry, logs


MODELS = [np.random.default_rng(i).normal(size=D).astype(np.float32) for i in range(2)]


@asynchronous
async def test_figures_are_those_of_the_model(pki: Pki, folder: Path, tmp_path: Path) -> None:
    """Accuracy and a metric of the operator's own, against NumPy; of what this metric prints nothing is logged."""
    real = program(pki, folder, task_of(), evaluation_metrics=["measured_code:largest"])
    telemetry, logs = await measured(real, tmp_path, MODELS)

    x = np.load(folder / "public.npz")["x"]
    for number, model in enumerate(MODELS):
        logits = x @ model[:21].reshape(3, 7).T + model[21:]
        found = telemetry.quality[number]
        assert found["accuracy"] == pytest.approx(accuracy_of(model, folder))
        assert found["largest"] == pytest.approx(float(np.abs(logits).max()), rel=1e-5)
    assert "4711" not in str(logs)
    digests = {number: record(number).model_digest.hex() for number in (0, 1)}
    assert restored(tmp_path / FILE, digests) == telemetry.quality
    assert restored(tmp_path / FILE, {1: digests[1]}).keys() == {1}  # a figure of a model that is no longer the task's


@asynchronous
async def test_a_program_that_dies_is_started_again_for_the_next_model(folder: Path, tmp_path: Path) -> None:
    """The killed one costs the model that it was at, and nothing else."""
    mark = tmp_path / "died"
    body = (
        f"died = os.path.exists({str(mark)!r}); open({str(mark)!r}, 'w').close()\n"
        "    os.kill(os.getpid(), 9) if not died else "
        "print(json.dumps({'round': round, 'figures': {'accuracy': 0.5}}), flush=True)"
    )
    telemetry, logs = await measured(script(tmp_path, body), tmp_path, [*MODELS, MODELS[0]])

    assert telemetry.quality == {1: {"accuracy": 0.5}, 2: {"accuracy": 0.5}}
    assert [(line["round"], line["reason"]) for line in logs if line["event"] == "quality.no_figure"] == [
        (0, "crashed")
    ]
    assert telemetry.measuring_fault is None


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("time.sleep(60)", MeasuringFault.TIMED_OUT),
        ("print('4711.125', flush=True)", MeasuringFault.WRONG_OUTPUT),
        ("print('x' * 200000, flush=True)", MeasuringFault.WRONG_OUTPUT),
        ("out.buffer.write(bytes([255, 254, 10])); out.flush()", MeasuringFault.WRONG_OUTPUT),
        ("print(json.dumps({'round': round + 1, 'figures': {'a': 1}}), flush=True)", MeasuringFault.WRONG_OUTPUT),
        ("print(json.dumps({'round': round, 'figures': {}}), flush=True)", MeasuringFault.WRONG_OUTPUT),
        ("print(json.dumps({'round': round, 'figures': {'a': '4711'}}), flush=True)", MeasuringFault.WRONG_OUTPUT),
        ("print(json.dumps({'round': round, 'figures': {'a b': 1}}), flush=True)", MeasuringFault.WRONG_OUTPUT),
        ("print(json.dumps({'round': round, 'figures': {'accuracy': 2}}), flush=True)", MeasuringFault.WRONG_OUTPUT),
        ("print(json.dumps({'round': round, 'figures': {'a': float('nan')}}), flush=True)", MeasuringFault.NOT_FINITE),
        ("print(json.dumps({'round': round, 'figures': {'a': 10 ** 400}}), flush=True)", MeasuringFault.NOT_FINITE),
        ("print(json.dumps({'round': round, 'fault': '4711.125'}), flush=True)", MeasuringFault.RAISED),
        ("sys.exit(0)", MeasuringFault.CRASHED),
    ],
)
@asynchronous
async def test_a_program_that_misbehaves_costs_figures(
    body: str, fault: MeasuringFault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No figure, the fault's kind in log and metrics, nothing of what it said; and after so many it is let be."""
    monkeypatch.setattr(quality_module, "_HANG_UP_S", 0.5)
    models = [*MODELS, *MODELS]
    telemetry, logs = await measured(
        script(tmp_path, body, timeout_s=0.4 if "sleep" in body else 20.0), tmp_path, models
    )

    faults = [line for line in logs if line["event"] == "quality.no_figure"]
    assert telemetry.quality == {}
    assert telemetry.measuring_fault is fault
    assert [line["reason"] for line in faults] == [fault.value] * MOST_FAULTS
    assert [line["gives_up"] for line in faults] == [False, False, True]
    assert f'precad_quality_faults_total{{reason="{fault}"}} {MOST_FAULTS}.0' in expose(telemetry.registry).decode()
    assert "4711" not in str(logs)
    assert not (tmp_path / FILE).exists()


@asynchronous
async def test_the_program_gets_no_key_and_no_environment(
    pki: Pki, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told of a task and of records, and sees of the server's environment where programs are."""
    monkeypatch.setenv("PRECAD_KEY_PASSPHRASE", "a secret of the server")
    monkeypatch.setenv("PRECAD_OPERATIONS_TOKEN", "another")
    real = program(pki, folder, task_of())

    assert not any(name.startswith("PRECAD") for name in real.environment)
    told = json.loads(real.opening)
    assert told.keys() == {"task", "public"}
    assert told["public"].keys() == {"records", "label", "metrics", "folder"}
    assert str(pki.directory) not in real.opening.decode()

    seen = tmp_path / "seen"
    body = f"open({str(seen)!r}, 'w').write(json.dumps([dict(os.environ), os.listdir('/proc/self/fd')])); break"
    with open(tmp_path / "open-in-the-server", "w") as file:
        os.set_inheritable(file.fileno(), True)
        looking = script(tmp_path, body)
        await measured(replace(looking, environment=real.environment), tmp_path, MODELS[:1])
    environment, descriptors = json.loads(seen.read_text())
    assert not any(name.startswith("PRECAD") for name in environment)
    assert "a secret" not in str(environment)
    assert len(descriptors) <= 5  # three pipes, and the listing and the file that it writes


def below(ancestor: int) -> set[int]:
    """Return the processes that descend from one, whatever their session."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = {ancestor}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {ancestor}


@pytest.mark.parametrize("dies", [False, True])
@asynchronous
async def test_what_the_operators_code_leaves_behind_ends_with_it(
    dies: bool, pki: Pki, folder: Path, tmp_path: Path
) -> None:
    """A grandchild in a session of its own holds the pipe of the answers. It ends with a worker that is killed, and
    with a server that hangs up. A dead worker is a crash at once, and not when the time for a model is over."""
    real = program(pki, folder, task_of(), evaluation_metrics=["measured_code:leaving"], evaluation_timeout_s=60.0)
    model = np.full(D, 1e6 if dies else 1e-3, dtype=np.float32)
    before = below(os.getpid())
    quality = Quality(real, tmp_path, telemetry := Telemetry(Role.AGGREGATOR_A))
    await quality.open()
    quality.begin()
    began = time.monotonic()
    quality.offer(record(0), model)
    await quality.settled(30.0)
    assert time.monotonic() - began < 20.0
    assert telemetry.measuring_fault is (MeasuringFault.CRASHED if dies else None)
    n_left = 0 if dies else 4  # keeper, worker, what was left when the metric was tried, and now
    await until(lambda: len(below(os.getpid()) - before) == n_left)
    started = below(os.getpid()) - before
    await quality.close()
    await until(lambda: not {pid for pid in started if Path(f"/proc/{pid}").exists()})


def test_a_program_ends_with_its_server(pki: Pki, folder: Path) -> None:
    """The real one, at work or not: its pipe ends when the server is gone, however it went."""
    real = program(pki, folder, task_of())
    child = subprocess.Popen(real.command, env=dict(real.environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(real.opening)
    child.stdin.flush()
    assert json.loads(child.stdout.readline()) == {"ready": 60}
    assert os.getpriority(os.PRIO_PROCESS, child.pid) > os.getpriority(os.PRIO_PROCESS, 0)
    assert Path(f"/proc/{child.pid}/oom_score_adj").read_text() == "1000\n"  # before its server, if memory runs out
    child.stdin.close()
    assert child.wait(timeout=20) == 0
    child.stdout.close()


def test_an_app_s_test_table_has_the_app_s_label(pki: Pki, tmp_path: Path) -> None:
    """An operator names the app alone. A metric of the app's own is measured, beside one by name."""
    (tmp_path / "app_of_a_table.py").write_text(
        "import precad, torch\nnet = lambda: torch.nn.Linear(2, 1)\n"
        "def worst(outputs, labels):\n    return float(abs(outputs.reshape(labels.shape) - labels).max())\n"
        "app = precad.App(model=net, label='dose', loss='mse', metrics=['mae', worst], test='csv:public.csv')\n"
    )
    (tmp_path / "public.csv").write_text("age,dose,weight\n1,4,2\n3,-1,4\n")
    task = small_task(model="app_of_a_table:app", loss="mse", dim=3, evaluation="public", record_shape=[2])
    fields = {"evaluation_records": "app_of_a_table:app", "evaluation_folder": tmp_path}
    public = PublicRecords.of(pki.aggregator(0, listen="127.0.0.1:0", folder=tmp_path, **fields))
    assert public is not None
    found = load(task, public)
    assert found.of(np.array([1, 0, 0], dtype=np.float32)) == {"mae": pytest.approx(3.5), "worst": pytest.approx(4.0)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"evaluation_records": "npz:nowhere.npz"}, "evaluation_records: expected a file or folder nowhere.npz"),
        ({"evaluation_records": "nowhere_code:records"}, "nowhere_code"),
        ({"evaluation_records": "measured_code:net"}, "measured_code:net"),
        ({"evaluation_label": "diagnosis"}, "evaluation_label"),
        ({"evaluation_metrics": ["nonsense"]}, "nonsense"),
        ({"evaluation_metrics": ["measured_code:raising"]}, "metric 'raising': expected a number, found ValueError"),
    ],
)
def test_what_cannot_be_measured_is_refused_by_name(
    changes: dict[str, Any], message: str, pki: Pki, folder: Path
) -> None:
    """As `precad check` does it."""
    config = pki.aggregator(
        0, listen="127.0.0.1:0", folder=folder,
        **{"evaluation_records": "npz:public.npz", "evaluation_folder": folder, **changes},
    )  # fmt: skip
    public = PublicRecords.of(config)
    assert public is not None
    with pytest.raises(ConfigError, match=message) as raised:
        load(task_of(), public)
    assert "client." not in str(raised.value)
    assert "4711" not in str(raised.value)


@pytest.mark.slow
@asynchronous
async def test_a_set_of_another_shape_is_refused_at_the_start(pki: Pki, folder: Path, tmp_path: Path) -> None:
    """By the program, whose reason the server gives: exit code 2."""
    np.savez(tmp_path / "wide.npz", x=np.zeros((4, 9), dtype=np.float32), labels=np.zeros(4, dtype=np.int64))
    real = program(pki, folder, task_of(), evaluation_records=f"npz:{tmp_path / 'wide.npz'}")
    quality = Quality(real, tmp_path, Telemetry(Role.AGGREGATOR_A))
    with pytest.raises(SetupError, match=r"evaluation_records: .*9"):
        await quality.open()
    await quality.close()


def noisy(std: float, dim: int) -> np.ndarray:
    return np.random.default_rng().normal(0, 2.0**16, dim).astype(np.int64)


@asynchronous
async def test_servers_measure_and_none_waits_for_it(
    pki: Pki, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A measures its models; at B the program hangs, which costs B its figures and nobody a round."""
    monkeypatch.setattr(quality_module, "_HANG_UP_S", 0.5)
    task = task_of(rounds=4)
    programs = (program(pki, folder, task), script(tmp_path, "time.sleep(600)", timeout_s=60.0))
    async with running(task, pki, tmp_path, noises=(noisy, noisy), measuring=programs.__getitem__) as deployment:
        clients = [LeashedClient(name, deployment) for name in task.clients]
        await asyncio.gather(*(client.join() for client in clients))
        a, b = deployment.aggregators
        b._quality.last_figure_s = 3.0
        began = time.monotonic()
        await asyncio.gather(*(client.goodbye() for client in clients))
        assert time.monotonic() - began < 30.0  # half of what the program at B may take over one model
        status = a._snapshots.take()
        await deployment.finish()
        final = np.load(tmp_path / "aggregator-a" / "model.npy")
        told = expose(_with_gauges(a)).decode()

    assert status.rounds_done == task.rounds
    assert a._telemetry.quality[3]["accuracy"] == pytest.approx(accuracy_of(final, folder))
    assert b._telemetry.quality == {}
    gauges = {s.labels.get("metric"): s.value for f in text_string_to_metric_families(told) for s in f.samples
              if s.name == "precad_quality"}  # fmt: skip
    assert gauges == {"accuracy": pytest.approx(accuracy_of(final, folder))}
    last = read_state_dir(tmp_path / "aggregator-a").rounds[-1]
    assert last.quality["accuracy"] == pytest.approx(accuracy_of(final, folder))


def _with_gauges(aggregator: Any) -> Any:
    aggregator._telemetry.registry.register(StatusCollector(aggregator._snapshots.take))
    return aggregator._telemetry.registry
