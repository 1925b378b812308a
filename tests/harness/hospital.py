"""A user's folder: a table of patients, a model of two outputs, a configuration, and folders that have our names."""

from __future__ import annotations

import random
from pathlib import Path

OURS = ("clients", "mpc", "dp", "servers", "protos", "deploy", "lab")
MODEL = """
from torch import nn


def net():
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
"""
TASK = """
[task]
name = "patients"
clients = ["a", "b", "c", "d"]
rounds = {rounds}
client_rate = 1.0
record_rate = 0.5
record_clip = 1.0
client_clip = 16.0
noise_multiplier = 2.0
learning_rate = 2.0
model = "{module}:net"
gate = "native"

[task.columns]
age = {{ mean = 50, std = 20, min = 0, max = 130 }}
pressure = {{ mean = 135, std = 20 }}
sex = {{ categories = ["f", "m"] }}

[client]
records = "{records}"
label = "diagnosis"
"""


def patients(n: int, seed: int = 1) -> list[str]:
    """Return rows of made-up patients: age, pressure, sex, diagnosis; the ill are older, with a higher pressure."""
    draw = random.Random(seed)
    rows = []
    for _ in range(n):
        is_ill = draw.random() < 0.5
        age, pressure = draw.gauss(60 if is_ill else 40, 8), draw.gauss(150 if is_ill else 120, 10)
        rows.append(f"{age:.0f},{pressure:.1f},{draw.choice('fm')},{'ill' if is_ill else 'well'}")
    return rows


def write_csv(path: Path, rows: list[str]) -> None:
    """Write a table with its header."""
    path.write_text("\n".join(["age,pressure,sex,diagnosis", *rows]) + "\n")


def hospital(folder: Path, module: str, *, rounds: int = 6, records: str = "csv:patients.csv", n: int = 400) -> Path:
    """Fill the folder. Return the configuration. module: the model's, which no other test has imported."""
    for name in OURS:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("raise SystemExit('hostile')\n")
    (folder / f"{module}.py").write_text(MODEL)
    write_csv(folder / "patients.csv", patients(n))
    config = folder / "task.toml"
    config.write_text(TASK.format(rounds=rounds, module=module, records=records))
    return config
