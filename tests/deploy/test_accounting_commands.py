"""`precad account` and `precad certify`: the fixed forms, labels, exit codes, and agreement with the package."""

import json

import pytest
from typer.testing import CliRunner

from deploy.cli import app

SETTING = ["--sigma", "1", "-q", ".1", "-p", ".05", "--rounds", "5000", "--delta", "1e-5"]
ATTACKED = ["-q", ".1", "--sigma", "1.8", "--rounds", "3", "--delta", ".0029"]


def precad(*arguments: str, exit_code: int = 0):
    """What the command prints on standard output and standard error."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == exit_code, result.output
    return result


@pytest.fixture
def confidences(tmp_path):
    path = tmp_path / "confidences.json"
    path.write_text(json.dumps({"confidences": [[0.95, 0.05], [0.2, 0.45, 0.35], [0.5, 0.5]], "labels": [0, 2, 1]}))
    return path


def test_account_in_its_fixed_form():
    """The issue's command: both views, bound, approximation and published, the values of the specification."""
    report = json.loads(precad("account", *SETTING, "--json").stdout)
    one_server, clients_only = report["one_server"], report["clients_only"]
    assert one_server["bound"] == pytest.approx(7.5237, rel=2e-3)
    assert one_server["approximation"] == one_server["published"] == pytest.approx(6.85835, abs=1e-5)
    assert clients_only["bound"] == pytest.approx(4.1525, rel=2e-3)
    assert clients_only["published"] == pytest.approx(1.069, abs=1e-3)
    assert report["participation"] == 500
    assert one_server["bound_by_participation"]["random"] == pytest.approx(7.551, rel=2e-3)
    assert one_server["bound_by_participation"]["quantile"] == pytest.approx(8.37, rel=2e-3)


def test_every_epsilon_has_its_label():
    """In JSON a label beside each; for people a bound with <=, all else with ~."""
    accountants = json.loads(precad("account", *SETTING, "--json").stdout)["one_server"]["accountants"]
    assert {name: row["label"] for name, row in accountants.items()} == {
        "pld": "bound",
        "rdp": "bound",
        "gdp_clt": "approximation",
        "precad": "published_reproduction",
        "xie": "published_reproduction",
    }
    shown = precad("account", *SETTING).stderr
    assert "<= 7.524" in shown
    assert "~ 6.858" in shown


def test_realised_participation_decides_both_views():
    """Given T_i, both are statements about that many rounds."""
    report = json.loads(precad("account", *SETTING, "--participation", "604", "--json").stdout)
    assert report["participation"] == 604
    assert report["one_server"]["bound"] > 8
    assert "bound_by_participation" not in report["one_server"]


def test_rounding_and_the_client_level():
    """With d the sensitivity grows by sqrt(d) 2^-f; with both clips a whole client is accounted."""
    coarse = ["--record-clip", "2", "--client-clip", "20", "--dim", "26010", "--frac-bits", "8"]
    report = json.loads(precad("account", *SETTING, *coarse, "--json").stdout)
    effective = json.loads(precad("account", *SETTING[2:], "--sigma", "0.7604606102369132", "--json").stdout)
    assert report["one_server"]["bound"] == pytest.approx(effective["one_server"]["bound"], rel=1e-9)
    assert report["client_level"]["noise_multiplier"] == pytest.approx(0.1414213562)
    assert report["client_level"]["bound"] > 100


def test_calibration_from_the_command_line():
    """The least sigma meets its target; without --sigma it is the one that is accounted."""
    report = json.loads(precad("account", *SETTING[2:], "--calibrate", "3", "--json").stdout)
    assert report["sigma"] == report["calibrated"]["one_server"]["smallest_sigma"]
    assert 2.99 < report["one_server"]["bound"] <= 3
    assert report["calibrated"]["clients_only"]["smallest_sigma"] < report["sigma"]
    assert report["calibrated"]["one_server"]["most_rounds_of_a_client"] >= 500


def test_a_configuration_gives_what_is_not_given(tmp_path):
    """The example's task, with one flag over it."""
    path = tmp_path / "task.toml"
    path.write_text(
        "[task]\nnoise_multiplier = 1.0\nclient_rate = 0.1\nrecord_rate = 0.05\nrounds = 10\ndelta = 1e-5\n"
        "record_clip = 2.0\nclient_clip = 20.0\n"
    )
    report = json.loads(precad("account", path, "--rounds", "5000", "--json").stdout)
    assert (report["rounds"], report["sigma"]) == (5000, 1.0)
    assert report["one_server"]["bound"] == pytest.approx(7.5237, rel=2e-3)


def test_infinity_is_valid_json():
    """A vacuous epsilon is the string "inf"."""
    report = json.loads(
        precad("account", "--sigma", "1e-9", "-q", "1", "-p", "1", "--rounds", "5", "--delta", "1e-5", "--json").stdout,
        parse_constant=pytest.fail,
    )
    assert report["one_server"]["bound"] == "inf"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sigma", "-1"], "noise_multiplier must be > 0 and finite, got -1.0"),
        (["-q", "1.5"], "must be in [0, 1], got 1.5"),
        (["--delta", "0"], "delta must be in (0, 1), got 0.0"),
        (["--dim", "5"], "record_clip must be given"),
        (["--rounds", "-3"], "must be an integer >= 0, got -3"),
        (["--calibrate", "-3"], "target_epsilon must be > 0"),
    ],
)
def test_wrong_parameters_are_named(arguments, message):
    """Exit code 2, one line, argument, condition and value."""
    assert message in precad("account", *SETTING, *arguments, exit_code=2).stderr.replace("\n", " ")


def test_missing_parameters_are_named():
    shown = precad("account", "-q", ".1", exit_code=2).stderr
    assert all(f"{flag}: expected a value" in shown for flag in ("--sigma", "-p", "--rounds", "--delta"))


def test_certify_in_its_fixed_form(confidences):
    """The issue's command: 2, 11 and 16 for the first sample; a tie tolerates nobody."""
    report = json.loads(
        precad(
            "certify", "--confidences", confidences, *ATTACKED, "--threat", "add", "--method", "all", "--json"
        ).stdout
    )
    assert {method: found[0] for method, found in report["tolerated"].items()} == {
        "published": 2,
        "pld": 11,
        "exact": 16,
    }
    assert all(found[2] == 0 for found in report["tolerated"].values())
    assert report["labels"] == {"published": "published_reproduction", "pld": "bound", "exact": "bound"}
    assert report["correct"] == [True, False, False]
    assert report["certified_accuracy"]["exact"][16:] == [1 / 3, 0.0]


def test_replacing_and_estimating_tolerate_less(confidences):
    """replace <= add; bounds from 1000 trainings <= exact confidences. One method at a time can be asked for."""

    def tolerated(*more):
        shown = precad("certify", "--confidences", confidences, *ATTACKED, "--method", "exact", *more, "--json").stdout
        found = json.loads(shown)["tolerated"]
        assert set(found) == {"exact"}
        return found["exact"]

    exact = tolerated()
    assert all(a <= b for a, b in zip(tolerated("--threat", "replace"), exact, strict=True))
    assert all(a <= b for a, b in zip(tolerated("--trainings", "1000"), exact, strict=True))


def test_the_planner_agrees_with_the_certificates(confidences):
    """Sixteen attackers at sigma = 1.8 are tolerated, so the least sigma for them is no larger; and it rises with k."""
    report = json.loads(
        precad("certify", "--confidences", confidences, *ATTACKED, "--method", "exact", "--plan", "--json").stdout
    )
    frontier = {row["attackers"]: row["least_sigma"] for row in report["plan"]["frontier"]}
    assert report["plan"]["lead"] == [0.95, 0.05]
    assert list(frontier.values()) == sorted(frontier.values())
    assert frontier[16] <= 1.8 * 1.01 < frontier[32]
    assert "least sigma" in precad("certify", "--confidences", confidences, *ATTACKED, "--plan").stderr


def test_a_vacuous_certificate_is_called_one(tmp_path):
    path = tmp_path / "even.json"
    path.write_text(json.dumps({"confidences": [[0.5, 0.5]], "labels": [0]}))
    shown = precad("certify", "--confidences", path, *ATTACKED).stderr
    assert "exact: VACUOUS" in shown


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("not json", "expected an object with confidences and labels"),
        ('{"confidences": []}', "expected an object with confidences and labels"),
        ('{"confidences": [], "labels": []}', "at least one"),
        ('{"confidences": [[1.0]], "labels": [0]}', "at least two numbers"),
        ('{"confidences": [[0.5, NaN]], "labels": [0]}', "at least two numbers"),
        ('{"confidences": [[0.9, 0.9]], "labels": [0]}', "a sum of at most 1 in row 0"),
        ('{"confidences": [[0.9, 0.1]], "labels": [2]}', "expected label 0 in 0 .. 1"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, content, message):
    path = tmp_path / "wrong.json"
    path.write_text(content)
    assert message in precad("certify", "--confidences", path, *ATTACKED, exit_code=2).stderr.replace("\n", " ")


def test_a_missing_file_is_named(tmp_path):
    shown = precad("certify", "--confidences", tmp_path / "none.json", *ATTACKED, exit_code=2).stderr
    assert "expected a readable file" in shown
