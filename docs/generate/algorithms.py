"""The page of the algorithms that two servers run: a row for each row of `protos/task/algorithms.py`.

Who adds noise, whom it protects and which fields matter come from there. What a client uploads is said here, and so are
the algorithms with one server. A name that is missing here, or is no algorithm, is a KeyError.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from docs.generate.markdown import code, page, table
from precad.dp.conditions import OF_DEALT_STEPS
from precad.lab.simulation.algorithms import ALGORITHMS
from precad.protos.task.algorithms import RULES, AlgorithmRules

INTRODUCTION: Final = """\
Names that `task.algorithm` takes, for deployments and for `simulation.algorithm = "deployed"`. The servers hold shares,
check that each update is within C, and divide the sum by the public W. Each of n clients, with N_i records, is drawn
with rate q, and its records with p; a record's gradient is clipped to R. Theta is the round's model, and theta_i is
that of client i after its local steps. [Privacy](../explanation/privacy.md) proves the guarantees, and
[simulation](../guides/simulation.md) says how to run them."""
_UPDATE: Final = "clip_C(theta_i - theta)"
_UPLOADED: Final = {
    "precad": "clip_C of its sum of clipped gradients",
    "user-dp-fedavg": f"{_UPDATE} after steps of descent; [other ways to clip](../guides/simulation.md#ways-to-clip)",
    "tsgd-ptr": f"{_UPDATE}; the longest are [trimmed](protocol-trimmed-sums.md) where a noisy test allows it",
    "tsgd-gaussian": f"{_UPDATE}; the `trim_count` longest do not count",
    "ins-dp-fedavg": f"{_UPDATE} after `local_steps` of DP-SGD; with one step, InsDP-FedSGD",
    "local-dp": "clip_C of its noisy sum of clipped gradients",
    "distributed-dp": "its sum of clipped gradients, with noise",
    "non-private": "clip_C of its sum of gradients",
    "fedavg": f"{_UPDATE} after steps of descent",
    "krum": f"{_UPDATE}; the one of [least score](protocol-krum.md) counts",
    "multi-krum": f"{_UPDATE}; `krum_keep` of them count, or all but `krum_attackers`",
}
_WITH_ONE_SERVER: Final = {
    "precad": (
        "Algorithms 1 and 2 at two servers; `validation` and `client_clipping` can be off",
        "record",
        "one server and other clients; other clients",
    ),
    "deployed": ("what `task.algorithm` says, at two servers", "as above", "as above"),
    "non-private": ("sums of gradients, nothing else", "-", "-"),
    "fedavg": ("averages of local training, nothing else; norm bounding with that rule", "-", "-"),
    "local-dp": ("each client adds N(0, (sigma R)^2)", "record", "everybody but its client"),
    "distributed-dp": (
        "each client adds N(0, (sigma R)^2 / tau), the sum is hidden",
        "record",
        "the server and other clients, if tau clients of every round are honest",
    ),
    "central-record-dp": ("a trusted server adds N(0, (sigma R)^2) to the sum", "record", "other clients"),
    "user-dp-fedavg": (
        "local training; a trusted server clips to S = C and adds N(0, (z S)^2)",
        "client",
        "other clients",
    ),
    "central-dp": ("the same rounds as `user-dp-fedavg`, bit for bit, until a budget", "client", "other clients"),
    "ins-dp-fedavg": ("V steps of DP-SGD at each client", "record", "everybody but its client"),
}
_COUNTED: Final = {"krum": "1", "multi-krum": "how many count"}


def algorithms_page() -> str:
    """Return the page: how each algorithm runs, what it proves, and its fields."""
    rows = list(RULES.values())
    if unknown := (_UPLOADED.keys() - RULES.keys()) | (_WITH_ONE_SERVER.keys() - ALGORITHMS.keys()):
        raise KeyError(f"expected names of algorithms, found {sorted(unknown)}")
    runs = ([code(it.name), _UPLOADED[it.name], _noise(it), _divisor(it)] for it in rows)
    proves = ([code(it.name), _unit(it), _against_server(it), _against_clients(it)] for it in rows)
    simulated = ([code(name), *_WITH_ONE_SERVER[name]] for name in ALGORITHMS)
    fields = ([code(it.name), _codes(it.aliases), _codes(it.own_fields)] for it in rows)
    return page(
        "Algorithms",
        INTRODUCTION,
        table(["`task.algorithm`", "a client uploads", "noise, as a standard deviation", "W"], runs),
        "## What is proved",
        table(["`task.algorithm`", "for one", "against one server and other clients", "against other clients"], proves),
        "## Names and fields",
        table(["`task.algorithm`", "other names", "fields of its own"], fields),
        "## In a simulation",
        table(["`simulation.algorithm`", "mechanism", "proved for one", "against"], simulated),
    )


def _noise(it: AlgorithmRules) -> str:
    clip = "C" if it.protects_clients else "R"
    if it.servers_add_noise:
        return f"sigma {clip} at each server{', or tau of it' if it.trims else ''}"
    if it.clients_share_noise:
        return f"sigma {clip} / sqrt(tau) at each client, tau = `non_colluding`"
    if it.clients_add_noise:
        return f"sigma {clip} at each client{', in each local step' if it.trains_locally else ''}"
    return "none; `noise_multiplier = 0`"


def _divisor(it: AlgorithmRules) -> str:
    return _COUNTED.get(it.name, "q n" if it.trains_locally else "q p sum N_i")


def _unit(it: AlgorithmRules) -> str:
    return "record" if it.protects_records else "whole client" if it.protects_clients else "-"


def _against_server(it: AlgorithmRules) -> str:
    if not it.is_private:
        why = "a round releases one update, or few" if it.selects else "epsilon is infinite"
        return f"nothing: {why}; runs and logs warn"
    if it.trims:
        return f"propose-test-release, {OF_DEALT_STEPS}"
    if it.clients_share_noise:
        return "Poisson(p), sigma, if tau of every released round's uploads are honest"
    if it.clients_add_noise:
        steps = ", `local_steps` times a round" if it.trains_locally else ""
        return f"Poisson(p), sigma{steps}; so even against both servers"
    return f"{_sampled(it)}, sigma{_if_dealt(it)}"


def _against_clients(it: AlgorithmRules) -> str:
    if it.servers_add_noise and not it.trims:
        return f"{_sampled(it)}, sqrt(2) sigma{_if_dealt(it)}"
    return "the same" if it.is_private else "nothing"


def _if_dealt(it: AlgorithmRules) -> str:
    return f", {OF_DEALT_STEPS}" if it.drops else ""


def _sampled(it: AlgorithmRules) -> str:
    return "Poisson(p)" if it.protects_records else "no sampling"


def _codes(names: Iterable[str]) -> str:
    return ", ".join(code(name) for name in names) or "-"
