"""The configuration behind `precad demo`: eight clients, two of them malicious, on the bundled digits."""

from __future__ import annotations

from typing import Any

from precad.deploy.errors import ConfigError

DEFAULT_CLIENTS, DEFAULT_ROUNDS, MIN_CLIENTS = 8, 30, 3


def demo_config(
    *, n_clients: int = DEFAULT_CLIENTS, rounds: int = DEFAULT_ROUNDS, seed: int = 0, mode: str = "masked"
) -> dict[str, Any]:
    """Return what a user would write into a file for `precad run`. Raises ConfigError.

    The last two clients are malicious: one uploads its update a hundred times too long, one forges coordinates that
    wrap around modulo 2^64. The values are the best that a search found for epsilon about 2.5.
    """
    if n_clients < MIN_CLIENTS:
        raise ConfigError(f"--clients: expected at least {MIN_CLIENTS} (two of them are malicious), found {n_clients}")
    ids = [f"client-{i}" for i in range(n_clients)]
    return {
        "task": {
            "name": "digits",
            "clients": ids,
            "rounds": rounds,
            "client_rate": 0.9,
            "record_rate": 0.5,
            "record_clip": 1.0,
            "client_clip": 16.0,
            "frac_bits": "largest",
            "noise_multiplier": 4.6,
            "learning_rate": 3.0,
            "delta": 1e-5,
            "model": "mlp",
            "model_seed": seed,
            **({} if mode == "masked" else {"mode": mode}),
        },
        "client": {
            "dataset": "digits",
            "partition_seed": seed,
            "attacks": {ids[-2]: "scaled", ids[-1]: "wrap"},
        },
    }
