"""The command `precad`: what it offers, what it makes, and the exit code of every way out."""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TextIO

import pytest
import typer

from precad.clients import errors as client_errors
from precad.deploy import errors as deploy_errors
from precad.deploy.authority import pki
from precad.deploy.authority.enrolment import tokens
from precad.deploy.cli import main as cli
from precad.deploy.cli.common import exit_codes
from precad.deploy.cli.standard_output import checked
from precad.deploy.errors import RunFailedError, exit_code_of
from precad.dp import errors as dp_errors
from precad.mpc import errors as mpc_errors
from precad.protos.task.proved_fields import PROTOCOL_VERSION as PROVED_VERSION
from precad.protos.task.task import PROTOCOL_VERSION
from precad.protos.tls import files as tls_files
from precad.protos.tls import identity, key_exchange
from precad.protos.tls.files import TlsFiles
from precad.protos.tls.identity import Identity, Role
from precad.servers import errors as server_errors
from precad.servers.errors import RefusalReason, SubmissionRefusedError
from tests.harness.command_line import command_of, precad


def commands_of(group: typer.core.TyperGroup, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command that is shown, by its words."""
    for name, command in group.commands.items():
        if isinstance(command, typer.core.TyperGroup):
            yield from commands_of(command, (*path, name))
        elif not command.hidden:
            yield (*path, name)


ROOT = Path(__file__).parents[3]
SUBCOMMANDS = list(commands_of(command_of(cli.app)))


# -- help --------------------------------------------------------------------------------------------------------------


def test_help_lists_every_command() -> None:
    result = precad("--help")
    assert result.exit_code == 0
    for command, *_ in SUBCOMMANDS:
        assert re.search(rf"^\s+{command}\s+[A-Z]", result.stdout, re.MULTILINE), command


def test_the_version_is_the_packages_and_the_protocols() -> None:
    """Show what two operators compare when `protocol_version differs`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    shown = precad("--version")
    versions = f"protocols {PROTOCOL_VERSION} and {PROVED_VERSION}"
    assert (shown.exit_code, shown.stdout) == (0, f"precad {project['version']}, {versions}\n")


@pytest.mark.parametrize("command", SUBCOMMANDS, ids=" ".join)
def test_every_command_and_every_option_is_explained(command: tuple[str, ...]) -> None:
    """A sentence about the command, and words beside each of its parameters (of `--output DIR`, too)."""
    result = precad(*command, "--help")
    assert result.exit_code == 0
    assert re.search(r"Usage: precad .*\n\n\s+[A-Z].*\.\n", result.stdout)
    found: typer.core.TyperGroup | typer.core.TyperCommand = command_of(cli.app)
    for name in command:
        assert isinstance(found, typer.core.TyperGroup)
        found = found.commands[name]
    silent = [parameter.name for parameter in found.params if not getattr(parameter, "help", None)]
    assert not silent


@pytest.mark.parametrize("group", [(), ("serve",), ("pki",), ("audit",)], ids=lambda g: " ".join(("precad", *g)))
def test_a_group_without_a_command_shows_its_help(group: tuple[str, ...]) -> None:
    result = precad(*group)
    assert result.exit_code in {0, 2}
    assert "Usage: precad" in result.output
    assert ("Commands" if group else "Train on this machine") in result.output


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["demo", "--colour"], "--colour"),
        (["demo", "--rounds", "0"], "--rounds"),
        (["demo", "--rounds", "many"], "--rounds"),
        (["demo", "--seed", "-1"], "--seed"),
        (["paint"], "paint"),
        (["run"], "CONFIG"),
        (["client", "deployment.toml"], "--id"),
        (["serve", "aggregator", "deployment.toml"], "--role"),
        (["serve", "aggregator", "deployment.toml", "--role", "c"], "--role"),
        (["pki", "issue", "pki"], "--role"),
        (["pki", "init", "pki", "--days", "0"], "--days"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_flag_is_invalid_input(arguments: list[str], named: str) -> None:
    """Exit code 2, like every other fault of what was given."""
    result = precad(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert named in result.stderr


# -- pki ---------------------------------------------------------------------------------------------------------------


def test_an_authority_and_its_certificates_from_the_command_line(tmp_path: Path) -> None:
    """Create every file that the commands name; every role's process can use them."""
    directory = tmp_path / "pki"
    made = precad("pki", "init", directory)
    assert (made.exit_code, made.stderr) == (0, "")
    shown = identity.fingerprint((directory / "ca.pem").read_bytes())
    assert made.stdout == f"authority: {directory / 'ca.pem'}\nSHA-256: {shown}\n"
    for role in Role:
        name = "alice" if role is Role.CLIENT else role.value
        flags = ["--name", name] if role is Role.CLIENT else []
        issued = precad("pki", "issue", directory, "--role", role.value, *flags)
        assert issued.exit_code == 0, issued.stderr
        certificate, key = directory / name / "cert.pem", directory / name / "key.pem"
        assert issued.stdout == f"certificate: {certificate}\nkey: {key}\n"
        files = TlsFiles(certificate=certificate, key=key, authority=directory / "ca.pem")
        assert files.load().identity == Identity(role, name)
        assert "PRIVATE" not in issued.output


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        (["issue", "{pki}", "--role", "king"], "--role: expected one of aggregator-a, .*operator, found 'king'"),
        (["issue", "{pki}", "--role", "client"], "--name: expected the client's id, found none"),
        (
            ["issue", "{pki}", "--role", "client", "--name", "Eve"],
            "name: expected one for a client that matches .*, found 'Eve'",
        ),
        (
            ["issue", "{pki}", "--role", "client", "--name", "dealer"],
            "name: expected one for a client that is no role's, found 'dealer'",
        ),
        (
            ["issue", "{pki}", "--role", "dealer", "--name", "alice"],
            "name: expected 'dealer' for the dealer, found 'alice'",
        ),
        (["issue", "{pki}", "--role", "client", "--name", "bob"], "{pki}/bob exists already"),
        (["issue", "{pki}", "--role", "dealer", "--days", "36501"], "days: expected 1 to 36500, found 36501"),
        (["issue", "{nowhere}", "--role", "dealer"], "no authority in {nowhere}"),
        (
            ["sign", "{pki}/ca.pem", "{pki}/ca.pem", "--role", "dealer"],
            "no authority in {pki}/ca.pem: .*Not a dir",
        ),
        (["init", "{pki}"], "cannot write {pki}/ca.key: File exists"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_certificate_that_cannot_be_made_is_refused_in_one_line(
    tmp_path: Path, arguments: list[str], pattern: str
) -> None:
    """Exit code 2; what was there before is as it was."""
    names = {"pki": str(tmp_path / "pki"), "nowhere": str(tmp_path / "nowhere")}
    pki.create_authority(tmp_path / "pki")
    pki.issue(tmp_path / "pki", Identity(Role.CLIENT, "bob"))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    result = precad("pki", *(argument.format(**names) for argument in arguments))
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert re.fullmatch(f"precad: .*{pattern.format(**names)}.*", line), line
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


# -- exit codes --------------------------------------------------------------------------------------------------------

EXIT_CODES = {
    0: ["servers.StoppedError", "clients.StoppedError"],
    1: [
        "deploy.DeployError",
        "deploy.AuditFailedError",
        "clients.ClientError",
        "clients.NoVictimError",
        "clients.LayerRowsError",
    ],
    2: [
        "clients.DropoutLayerError",
        "clients.AdapterError",
        "clients.ModelDigestError",
        "clients.UnnamedModelError",
        "clients.OwnRecordsError",
        "clients.TargetError",
        "clients.TrainerError",
        "deploy.ConfigError",
        "servers.SetupError",
        "deploy.PkiError",
        "deploy.TokenRefusedError",
        "protos.IdentityError",
        "protos.RoleRefusedError",
        "protos.PinRefusedError",
        "protos.KeyExchangeRefusedError",
        "protos.TransportError",
        "protos.TlsFileError",
        "mpc.ParameterError",
        "mpc.GateUnavailableError",
        "mpc.EngineUnavailableError",
        "dp.MostRoundsError",
        "clients.ArgumentError",
        "clients.UnknownNameError",
        "clients.DimensionError",
        "clients.NonFiniteUpdateError",
        "clients.ExtensionError",
        "clients.ModelImportError",
        "clients.ModelInputError",
        "clients.DataError",
        "clients.MissingDataError",
        "clients.CorruptDataError",
        "clients.RecordRangeError",
        "clients.NoGradientError",
        "clients.RecordMixingLayerError",
        "clients.UnsteadyModelError",
        "clients.ModelRecordError",
        "clients.StateFileError",
    ],
    3: [
        "mpc.FunctionRefusedError",
        "deploy.ExportRefusedError",
        "deploy.UnfulfilledError",
        "clients.DivergedError",
        "clients.NonFiniteModelError",
        "clients.NonFiniteGradientError",
        "mpc.MpcError",
        "mpc.EncodingError",
        "mpc.NotFiniteError",
        "mpc.OverflowsRingError",
        "mpc.MalformedMessageError",
        "mpc.PeerMismatchError",
        "mpc.VerdictsDifferError",
        "mpc.CommitmentError",
        "mpc.TupleExhaustedError",
        "dp.UnsupportedEventError",
        "mpc.TupleReusedError",
        "mpc.OutsideWindowError",
        "mpc.ProofQueriedTwiceError",
        "mpc.ShareSeedReusedError",
        "mpc.ProofRefusedError",
        "dp.DpError",
        "dp.BudgetExceededError",
        "dp.HolderLimitError",
        "dp.LedgerCorruptedError",
        "dp.LedgerInUseError",
        "dp.LedgerClosedError",
        "servers.ServerError",
        "servers.TaskRefusedError",
        "servers.TooFewClientsError",
        "servers.TaskUnfulfilledError",
        "servers.AuditError",
        "servers.CallRefusedError",
        "servers.WrongStateError",
        "servers.AlreadyConnectedError",
        "servers.NotEnrolledError",
        "servers.RevokedError",
        "servers.ParametersDifferError",
        "servers.NotDealtError",
        "servers.SubmissionRefusedError",
        "servers.NoRoomError",
        "servers.OverloadedError",
        "servers.StoreError",
        "clients.TaskRefusedError",
        "clients.ProtocolError",
        "clients.UploadLimitError",
        "clients.RestoredServersError",
        "clients.HolderLimitReachedError",
        "clients.QueryRefusedError",
    ],
    4: [
        "mpc.ChannelClosedError",
        "servers.PeerUnreachableError",
        "servers.PeerLateError",
        "servers.LeadLostError",
        "servers.PortLostError",
        "clients.ServerUnreachableError",
        "clients.ServerBusyError",
        "clients.TaskEndedError",
    ],
    130: ["deploy.InterruptedRunError"],
}
"""Exit codes by hand from the documentation.

- 0: success or stopped.
- 1: anything else.
- 2: invalid input.
- 3: refused by the protocol, or no model to show.
- 4: a peer is unreachable.
- 130: interrupted.

RunFailedError carries its own.
"""

MODULES = [
    deploy_errors,
    pki,
    tokens,
    dp_errors,
    mpc_errors,
    identity,
    key_exchange,
    tls_files,
    server_errors,
    client_errors,
]


def errors_of(module: ModuleType) -> Iterator[type[Exception]]:
    """The error classes that a module defines."""
    for value in vars(module).values():
        if inspect.isclass(value) and issubclass(value, Exception) and value.__module__ == module.__name__:
            yield value


def test_every_error_ends_a_process_with_its_documented_code() -> None:
    """No class is forgotten: a new one has to be given a code here."""
    found: dict[str, int] = {}
    for kind in (kind for module in MODULES for kind in errors_of(module) if kind is not RunFailedError):
        error = kind.__new__(kind)  # the class decides; what it says does not matter
        found[f"{kind.__module__.split('.')[1]}.{kind.__name__}"] = exit_code_of(error)
    assert found == {name: code for code, names in EXIT_CODES.items() for name in names}


def test_a_failed_run_carries_the_code_of_what_failed() -> None:
    assert [exit_code_of(RunFailedError("x", exit_code=code)) for code in (1, 3, 4)] == [1, 3, 4]


def test_a_defect_of_ours_is_code_1() -> None:
    assert [exit_code_of(error) for error in (RuntimeError("x"), ValueError("x"), OSError("x"))] == [1, 1, 1]


@pytest.mark.parametrize(
    ("error", "code", "lines"),
    [
        (deploy_errors.ConfigError("a: expected 1, found 2\nb: expected 3, found 4"), 2, 2),
        (deploy_errors.ConfigError("[dealer]: expected this section, found ['x', '[/y]']"), 2, 1),
        (SubmissionRefusedError(RefusalReason.LATE, "round 3 is locked"), 3, 1),
        (client_errors.TaskEndedError("aggregator-a ended the task: lost the dealer at [::1]:80"), 4, 1),
        (server_errors.StoppedError("the dealer was stopped by its operator"), 0, 1),
        (deploy_errors.InterruptedRunError("interrupted"), 130, 1),
        (RunFailedError("aggregator-b ended with code -9: (nothing in its log)\nlogs: /runs/x", exit_code=4), 4, 2),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_error_is_shown_as_its_lines_word_for_word(
    error: Exception, code: int, lines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each line once, whatever brackets it holds, and no traceback."""
    with pytest.raises(typer.Exit) as ended, exit_codes():
        raise error
    assert ended.value.exit_code == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [f"precad: {line}" for line in str(error).splitlines()]
    assert len(shown.err.splitlines()) == lines


def test_a_terminal_obeys_nothing_that_an_error_says(capsys: pytest.CaptureFixture[str]) -> None:
    """A server may give any text as the reason for the end of a task."""
    with pytest.raises(typer.Exit), exit_codes():
        raise client_errors.TaskEndedError("aggregator-a ended the task: \x1b[2J\x1b]0;owned\x07")
    assert capsys.readouterr().err == "precad: aggregator-a ended the task: ?[2J?]0;owned?\n"


def test_a_defect_of_ours_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError), exit_codes():
        raise ZeroDivisionError


def test_a_library_that_the_servers_image_lacks_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """A command that needs it says so in a line. Another module that is missing is a defect."""
    with pytest.raises(typer.Exit) as ended, exit_codes():
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    said = "precad: expected PyTorch, found none: this needs all of precad, not the servers' image\n"
    assert (ended.value.exit_code, capsys.readouterr().err) == (2, said)
    with pytest.raises(ModuleNotFoundError), exit_codes():
        raise ModuleNotFoundError("No module named 'precad.lost'", name="precad.lost")


def test_the_command_as_a_process() -> None:
    """The exit code reaches the shell; errors go to standard error alone."""
    command = [sys.executable, "-P", "-m", "precad.deploy.cli.main"]
    shown = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=60, check=False)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.lstrip().startswith("Usage: precad")
    refused = subprocess.run([*command, "run", "/nowhere"], capture_output=True, text=True, timeout=60, check=False)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == "precad: /nowhere: expected a readable file, found: No such file or directory\n"


def test_a_result_is_on_standard_output_as_text_or_as_json() -> None:
    """So that it can be kept in a file, read page by page, or parsed; what the two say is the same."""
    command = [sys.executable, "-P", "-m", "precad.deploy.cli.main", "account", "--sigma", "1", "-q", "1", "-p", "1"]
    command += ["--rounds", "2", "--delta", "1e-5"]
    text, of_json = (
        subprocess.run([*command, *flags], capture_output=True, text=True, timeout=60, check=True)
        for flags in ([], ["--json"])
    )
    bound = json.loads(of_json.stdout)["one_server"]["bound"]
    assert f"{bound:.3g}" in text.stdout
    assert (text.stderr, of_json.stderr) == ("", "")


def test_a_result_that_nobody_reads_any_more_ends_in_silence() -> None:
    """As `| head -1` does it: no code of a user's has ended the process."""
    command = [sys.executable, "-P", "-m", "precad.deploy.cli.main", "account", "--sigma", "1", "-q", "1", "-p", "1"]
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        done = subprocess.run(
            [*command, "--rounds", "2", "--delta", "1e-5"],
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    "say",
    [
        "from precad.deploy.cli.common import say",
        "from precad.arguments import console; say = console(True).print",
        "import sys; sys.stderr = None; from precad.arguments import console; say = console(True).print",
    ],
)
def test_progress_that_nobody_reads_any_more_ends_no_training(say: str) -> None:
    """`2>&1 | head -1` on a run, or a library's caller: rounds that are released and charged go on."""
    code = f"{say}\nfor _ in range(999): say('x' * 99)\nprint('went on')"
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        command = [sys.executable, "-P", "-c", code]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=closed, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "went on\n")


@pytest.mark.parametrize("flags", ["", "--json"])
def test_standard_output_that_is_closed_is_told(flags: str) -> None:
    """Whatever a service manager does: a result that went nowhere is no success."""
    asked = "account --sigma 1 -q 1 -p 1 --rounds 2 --delta 1e-5"
    command = f"exec {shlex.quote(sys.executable)} -P -m precad.deploy.cli.main {asked} {flags} >&-"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == "precad: standard output: expected to write to it, found it closed\n"


def test_letters_that_a_terminal_lacks_are_written_otherwise(tmp_path: Path) -> None:
    """Greek ones, in an encoding of another alphabet."""
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    code = "import precad.deploy.cli.standard_output as out\nwith out.checked():\n    print('\u03b5 <= 1')\n    exit(0)"
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "\\u03b5 <= 1\n", "")


FULL = "precad: standard output: expected to write to it, found: No space left on device\n"


@pytest.fixture(params=["full", "closed"])
def refusing(request: pytest.FixtureRequest) -> Iterator[tuple[TextIO, str]]:
    """A full disk, or a pipe that nobody reads any more; and what is said of it."""
    if request.param == "full":
        with Path("/dev/full").open("w") as full:
            yield full, FULL
        return
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        yield pipe, ""


def test_standard_output_that_takes_nothing_ends_with_one_line_or_in_silence(refusing: tuple[TextIO, str]) -> None:
    """As a process, which writes on its way out, too; exit code 1."""
    stream, said = refusing
    command = [sys.executable, "-P", "-m", "precad.deploy.cli.main", "--version"]
    told = subprocess.run(command, stdout=stream, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (told.returncode, told.stderr) == (1, said)


@pytest.mark.parametrize("length", [10, 100_000], ids=["at the end", "at once"])
def test_what_a_command_wrote_before_it_ended_has_left_or_the_code_says_so(
    refusing: tuple[TextIO, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], length: int
) -> None:
    stream, said = refusing
    monkeypatch.setattr(sys, "stdout", stream)

    def command() -> None:
        sys.stdout.write("x" * length)
        raise SystemExit(0)

    with pytest.raises(SystemExit) as ended, checked():
        command()
    assert ended.value.code == 1
    assert capsys.readouterr().err == said
