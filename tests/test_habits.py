"""Habits that contributors rely on: layers of tests, quarantine, releases, continuous integration, and the files about
it.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from tests.harness.browser import NAMES
from tests.layers import LAYERS, ROWS, files_of, layer_of

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
KINDS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
MAKE = re.findall(r"^([a-z][a-z -]*):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE)
TARGETS = {target for targets in MAKE for target in targets.split()}


def run(command: list[str | Path], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=120
    )


# Layers


def test_every_test_has_one_layer(request: pytest.FixtureRequest) -> None:
    """All that this run collected, not this file alone."""
    for item in request.session.items:
        assert len([mark for mark in item.iter_markers() if mark.name in LAYERS]) == 1, item.nodeid


def test_the_layers_share_out_all_files_of_tests() -> None:
    files = [name for layer in LAYERS for name in files_of(layer)]
    found = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py"))
    assert sorted(files) == found
    assert all(list(files_of(layer)) for layer in LAYERS)


def test_every_row_names_tests_that_are_there() -> None:
    """A file that was moved would fall into another layer without a word."""
    rows = [row for rows in ROWS.values() for row in rows]
    assert len(rows) == len(set(rows))
    for layer, of_layer in ROWS.items():
        for row in of_layer:
            assert any(name.startswith(row) for name in files_of(layer)), row


def test_the_longest_path_decides() -> None:
    assert [layer_of(f"tests/mpc/{name}") for name in ("test_ring.py", "crypten/test_x.py")] == ["unit", "integration"]
    with pytest.raises(ValueError, match=r"expected one below tests/, found 'mpc/ring\.py'"):
        layer_of("mpc/ring.py")


def test_every_layer_has_its_marker_and_its_command() -> None:
    markers = [marker.partition(":")[0] for marker in PROJECT["tool"]["pytest"]["ini_options"]["markers"]]
    assert set(LAYERS) <= set(markers)
    assert set(LAYERS) <= TARGETS


PROBES = """
import pathlib, socket, subprocess
import pytest

FIRST = pathlib.Path(__file__).with_name("first")

@pytest.mark.unit
def test_a_socket():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))

@pytest.mark.unit
def test_a_process():
    subprocess.run(["true"])

@pytest.mark.unit
def test_within():
    socket.socketpair()

def test_of_another_layer():
    subprocess.run(["true"])

@pytest.mark.flaky(reason="a race that is not ours")
def test_lost_once():
    if not FIRST.exists():
        FIRST.touch()
        raise AssertionError("the first outcome")

@pytest.mark.flaky(reason="a race that is not ours")
def test_lost_twice():
    raise AssertionError("always")

@pytest.fixture
def broken():
    raise AssertionError("in a fixture")

@pytest.mark.flaky(reason="a race that is not ours")
def test_of_a_broken_fixture(broken):
    pass
"""


@pytest.fixture(scope="module", params=[0, 1], ids=["one process", "a worker"])
def probed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the lines of a run of the probes, in the process itself or in one of pytest-xdist.

    A run under pytest-xdist whose end hangs, by a race of execnet's between worker and controller, is made anew.
    """
    with suppress(subprocess.TimeoutExpired):
        return run_probes(PROBES, tmp_path_factory.mktemp("probes"), request.param).stdout.splitlines()
    return run_probes(PROBES, tmp_path_factory.mktemp("again"), request.param).stdout.splitlines()


def run_probes(tests: str, folder: Path, n_workers: int = 0) -> subprocess.CompletedProcess[str]:
    """Run tests of another project under our two plugins."""
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  unit\n")
    (folder / "test_probes.py").write_text(tests)
    plugins = ["-p", "tests.layers", "-p", "tests.flaky", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-rA", *plugins, f"--numprocesses={n_workers}", "test_probes.py"]
    return run(command, folder, PYTHONPATH=str(ROOT))


@pytest.mark.parametrize(
    ("test", "outcome"),
    [
        ("test_a_socket", "FAILED"),
        ("test_a_process", "FAILED"),
        ("test_within", "PASSED"),
        ("test_of_another_layer", "PASSED"),
        ("test_lost_once", "PASSED"),
        ("test_lost_twice", "FAILED"),
        ("test_of_a_broken_fixture", "ERROR"),
    ],
)
def test_outcomes_of_probes(test: str, outcome: str, probed: list[str]) -> None:
    ended = [line.split()[0] for line in probed if re.match(rf"(PASSED|FAILED|ERROR) test_probes\.py::{test}\b", line)]
    assert ended == [outcome]


def test_both_outcomes_of_a_quarantined_test_are_printed(probed: list[str]) -> None:
    text = "\n".join(probed)
    for test, outcome in (("test_lost_once", "the first outcome"), ("test_lost_twice", "always")):
        said = text.split(f"tried again: test_probes.py::{test}")[1].split(" tried again: ")[0]
        assert "reason: a race that is not ours" in said
        assert outcome in said
    assert "tried again: test_probes.py::test_of_a_broken_fixture" not in text
    assert "2 rerun" in probed[-1]


def test_a_quarantine_without_a_reason_is_refused(tmp_path: Path) -> None:
    done = run_probes("import pytest\n\n@pytest.mark.flaky\ndef test_it():\n    pass\n", tmp_path)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "test_probes.py::test_it: expected flaky(reason=TEXT)" in done.stderr


# Releases


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Make a small repository whose version 1.2.3 is ready."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/release", tmp_path / ".ci/release")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "1.2.3"\n')
    (tmp_path / "CITATION.cff").write_text("cff-version: 1.2.0\nversion: 1.2.3\n")
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2026-01-02\n\n### Added\n\n- A thing.\n\n"
        "## [1.2.2] - 2026-01-01\n\n- An older thing.\n"
    )
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def git(folder: Path, *arguments: str) -> str:
    """Run git as somebody."""
    done = run(["git", "-c", "user.name=x", "-c", "user.email=x@example.org", *arguments], folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def commit(folder: Path) -> None:
    """Commit everything."""
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "A state")


def release(folder: Path, version: str) -> subprocess.CompletedProcess[str]:
    """Ask for the tag of a version."""
    somebody = {f"GIT_COMMITTER_{key}": f"{value}" for key, value in (("NAME", "x"), ("EMAIL", "x@example.org"))}
    return run(["bash", ".ci/release", version], folder, **somebody)


def test_a_release_is_an_annotated_tag_with_its_changes(repository: Path) -> None:
    done = release(repository, "1.2.3")
    assert done.returncode == 0, done.stderr
    assert git(repository, "cat-file", "-t", "v1.2.3").strip() == "tag"
    said = git(repository, "tag", "--list", "--format=%(contents)", "v1.2.3")
    assert said.startswith("precad 1.2.3\n")
    assert "### Added\n- A thing." in said
    assert "older" not in said
    again = release(repository, "1.2.3")
    assert (again.returncode, again.stderr) == (2, "release: expected a new version, found the tag v1.2.3\n")


@pytest.mark.parametrize(
    ("version", "file", "text", "message"),
    [
        ("", "", "", "expected VERSION=x.y.z, found ''"),
        ("1.2", "", "", "expected VERSION=x.y.z, found '1.2'"),
        (
            "1.2.3",
            "pyproject.toml",
            'version = "1.2.2"\n',
            "pyproject.toml: expected version = \"1.2.3\", found '1.2.2'",
        ),
        ("1.2.3", "CITATION.cff", "version: 1.2.2\n", "CITATION.cff: expected version: 1.2.3, found '1.2.2'"),
        ("1.2.3", "CHANGELOG.md", "## [1.2.3] - 2026-01-02\n\n## [1.2.2] - x\n- y\n", "found none"),
        ("1.2.3", "CHANGELOG.md", "## [Unreleased]\n- y\n", "expected a section '## [1.2.3] - YYYY-MM-DD'"),
    ],
)
def test_a_release_that_is_not_ready_is_refused(
    version: str, file: str, text: str, message: str, repository: Path
) -> None:
    if file:
        (repository / file).write_text(text)
        commit(repository)
    done = release(repository, version)
    assert done.returncode == 2
    assert message in done.stderr
    assert git(repository, "tag") == ""


def test_a_release_needs_a_clean_tree(repository: Path) -> None:
    (repository / "new").touch()
    assert "expected a clean tree" in release(repository, "1.2.3").stderr
    assert git(repository, "tag") == ""


# Continuous integration


def test_it_runs_without_root_programs_or_network_and_says_what_is_missing(tmp_path: Path) -> None:
    """Only a shell and `make` are there, and pip installs nothing."""
    programs, python = tmp_path / "bin", tmp_path / ".venv/bin/python"
    for folder in (programs, python.parent, tmp_path / ".ci"):
        folder.mkdir(parents=True)
    for name in ("run", "optional.txt"):
        shutil.copy(ROOT / ".ci" / name, tmp_path / ".ci" / name)
    for name in ("bash", "dirname", "grep", "mktemp", "rm", "timeout"):
        (programs / name).symlink_to(shutil.which(name) or name)
    for path, body in {
        programs / "make": f'echo "$@" >> {tmp_path}/made',
        programs / "id": "echo 1000",
        python: "[ $3 = freeze ] && echo numpy==1.0",
    }.items():
        path.write_text(f"#!{programs}/bash\n{body}\n")
        path.chmod(0o755)
    done = run([programs / "bash", ".ci/run"], tmp_path, PATH=str(programs), PRECAD_CHROMIUM="")
    assert done.returncode == 0, done.stderr
    made = (tmp_path / "made").read_text().splitlines()
    made.remove("peers PYTHON=.venv/bin/python")  # beside the others
    assert made == ["setup", "lint", "test"]
    for line in (
        "optional programs: none installed, which needs root and apt-get",
        "optional packages: the package index did not give those of .ci/optional.txt within their time",
        "optional packages: the package index did not give flwr==1.42.0 within its time",
        "optional: no chromium here, so its tests are skipped",
        "optional: no Python module ray here, so its tests are skipped",
    ):
        assert line in done.stdout.splitlines()


def test_it_looks_for_the_browsers_that_tests_of_pages_take() -> None:
    """All of them and no other, and no package that brings one."""
    names = re.search(r"command -v (chromium.*?)\n {6};;", (ROOT / ".ci/run").read_text(), re.DOTALL)
    assert names is not None
    assert tuple(names[1].replace("\\\n", " ").split()) == NAMES
    assert "playwright" not in (ROOT / ".ci/optional.txt").read_text()


def test_nobody_is_told_to_take_precad_from_an_index() -> None:
    """It came from somewhere, and a package of that name elsewhere may be anybody's."""
    folders = ("clients", "deploy", "docs", "dp", "lab", "mpc", "protos", "servers")
    files = [path for name in folders for path in (ROOT / name).rglob("*") if path.suffix in (".py", ".md", ".sh")]
    assert len(files) > 500
    said = re.compile(r"pip3? install [^\n]*\bprecad\b(?!/)")
    found = [str(path) for path in [*files, ROOT / "README.md"] if said.search(path.read_text(encoding="utf-8"))]
    assert found == []


def test_pre_commit_runs_what_continuous_integration_runs() -> None:
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    assert "://" not in text
    (repository,) = yaml.safe_load(text)["repos"]
    assert repository["repo"] == "local"
    entries = [hook["entry"] for hook in repository["hooks"] if hook.get("stages") != ["commit-msg"]]
    lint = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert lint is not None
    assert "make lint" in entries
    assert "\nmake lint\n" in (ROOT / ".ci/run").read_text()
    for entry in entries:
        program, _, rest = entry.partition(" ")
        command = rest.removesuffix(" --force-exclude")
        assert (
            rest in TARGETS
            if program == "make"
            else any(f"{Path(program).name} {part}" in lint[1] for part in (command, f"{command.split()[0]} --check"))
        )


# Messages of errors


def test_errors_say_found_and_never_got() -> None:
    """One form for all of them: what is at fault, a colon, what is expected, and what was found."""
    folders = ("clients", "deploy", "dp", "lab", "mpc", "protos", "servers")
    files = [*(ROOT / "precad").glob("*.py"), *(path for name in folders for path in (ROOT / name).rglob("*.py"))]
    assert len(files) > 500
    said = [(path.relative_to(ROOT).as_posix(), *text) for path in files for text in texts_of(path.read_text())]
    assert len(said) > 10_000
    assert [row for row in said if re.search(r"\bgot\b", row[2])] == []


def texts_of(source: str) -> list[tuple[int, str]]:
    """Return the texts of a program with their lines, those between an f-string's values too, without docstrings."""
    nodes = list(ast.walk(ast.parse(source)))
    docstrings = {node.value for node in nodes if isinstance(node, ast.Expr)}
    strings = [node for node in nodes if isinstance(node, ast.Constant) and node not in docstrings]
    return [(node.lineno, node.value) for node in strings if isinstance(node.value, str)]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('raise ValueError(f"n must be > 0, got {n}")', [(1, "n must be > 0, got ")]),
        ('"""Whoever got it."""\nx = f(\n    "so many; got"\n)', [(3, "so many; got")]),
        ("# got\ngot = 1", []),
    ],
)
def test_texts_are_told_from_docstrings_and_names(source: str, found: list[tuple[int, str]]) -> None:
    assert texts_of(source) == found


# Messages of commits


@pytest.mark.parametrize(
    "message",
    [
        "tests: mirror every folder of the source",
        "deploy, docs: say what a budget is of\n\nWhy, and what was measured.",
        "servers/store: keep a round whole\n# a comment of Git\n",
        "ci: pass the linter's exit code on",
        "changelog: name what changed",
        "dp: seed the sampler",
        "mpc: address a lane by name",
        "Merge branch 'main' into other",
        'Revert "tests: mirror every folder"',
        "fixup! tests: mirror every folder",
        f"mpc: {'x' * 67}",
    ],
)
def test_a_message_by_the_rules_passes(message: str, tmp_path: Path) -> None:
    assert hook(message, tmp_path) == (0, "")


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ("tests: mirrors every folder", "expected an imperative after the colon, such as 'add', found 'mirrors'"),
        ("tests: mirrored every folder", "found 'mirrored'"),
        ("tests: mirroring every folder", "found 'mirroring'"),
        ("tests: a folder for every folder", "found 'a'"),
        ("tests: Figure's command", 'found "Figure\'s"'),
        ("mirror every folder", "expected 'place: do something', found 'mirror every folder'"),
        ("tests:mirror every folder", "expected 'place: do something'"),
        ("nowhere: mirror every folder", "expected files or folders before the colon, found nowhere"),
        ("tests, ../x: mirror every folder", "before the colon, found ../x"),
        (f"mpc: {'x' * 68}", "expected at most 72 characters, found 73"),
        ("tests: mirror every folder.", "expected no full stop"),
        ("tests: mirror every folder\nand more", "expected an empty line below the subject"),
        ("", "expected 'place: do something', found ''"),
        ("# a comment alone", "expected 'place: do something', found ''"),
    ],
)
def test_a_message_against_the_rules_is_refused(message: str, fault: str, tmp_path: Path) -> None:
    code, said = hook(message, tmp_path)
    assert code == 1
    assert fault in said


def hook(message: str, folder: Path) -> tuple[int, str]:
    """Run the hook's entry on a message's file, as pre-commit does. Return its exit code and what it says."""
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    (entry,) = [hook["entry"] for hook in repository["hooks"] if hook.get("stages") == ["commit-msg"]]
    program, script = entry.split()
    assert program == ".venv/bin/python"
    (folder / "message").write_text(message)
    done = run([sys.executable, script, folder / "message"], ROOT)
    return done.returncode, done.stderr


def test_installing_the_hooks_installs_the_one_of_messages() -> None:
    """One command installs all, and only the messages' hook runs at a message's stage."""
    settings = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert settings["default_install_hook_types"] == ["pre-commit", "commit-msg", "pre-push"]
    assert settings["default_stages"] == ["pre-commit"]
    assert "`commit-msg`" in (ROOT / "CONTRIBUTING.md").read_text()


# Files


def test_the_citation_is_valid_and_of_this_version() -> None:
    """Fields of the Citation File Format 1.2.0, and no other."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    required = {"cff-version", "message", "title", "authors"}
    assert required <= cited.keys() <= required | {"type", "version", "license", "keywords", "references"}
    assert cited["cff-version"] == "1.2.0"
    assert cited["type"] == "software"
    assert str(cited["version"]) == PROJECT["project"]["version"]
    assert cited["license"] == PROJECT["project"]["license"]
    assert len(set(cited["keywords"])) == len(cited["keywords"])
    for work in (cited, *cited["references"]):
        assert {"type", "title", "authors"} <= work.keys()
        assert work["authors"]
        for author in work["authors"]:
            assert author.keys() in ({"name"}, {"family-names", "given-names"})
            assert all(author.values())


def test_the_changelog_keeps_its_form() -> None:
    """Keep a Changelog: the unreleased part first and short, then versions, newest first, in known kinds."""
    text = (ROOT / "CHANGELOG.md").read_text()
    assert text.startswith("# Changelog\n")
    titles = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert titles[0] == "[Unreleased]"
    versions = []
    for title in titles[1:]:
        match = re.fullmatch(r"\[(\d+)\.(\d+)\.(\d+)\] - \d{4}-\d{2}-\d{2}", title)
        assert match, title
        versions.append(tuple(map(int, match.groups())))
    assert all(newer > older for newer, older in pairwise(versions))
    assert set(re.findall(r"^### (.*)$", text, re.MULTILINE)) <= set(KINDS)
    unreleased = text.split("## [Unreleased]")[1].split("\n## ")[0].strip().splitlines()
    assert len(unreleased) < 60
    assert max(map(len, text.splitlines())) <= 120
    for part in "\n".join(unreleased).split("### ")[1:]:
        assert part.splitlines()[1].startswith("- "), part


def test_contributing_names_commands_and_files_that_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    commands = re.findall(r"`make ([a-z-]+)", text)
    assert {"setup", "unit", "lint"} <= set(commands) <= TARGETS
    paths = re.findall(r"`((?:[\w.-]+/)+[\w.-]*|[A-Z][\w.]+\.md)`", text)
    assert len(paths) >= 5
    for path in paths:
        assert (ROOT / path).exists(), path
