"""`--plot` of `precad account` and `precad certify`: what is drawn, what each line is called, what is refused."""

import json
import sys

import pytest

from precad.deploy.cli.main import app
from precad.deploy.guarantees import accounting, plots
from precad.dp.certificates.planner import LEAST_MULTIPLIER
from tests.deploy.guarantees.test_run_evidence import make_run
from tests.harness.command_line import CliRunner
from tests.harness.legends import require_clear_of_curves

ACCOUNT = ["account", "--sigma", "1", "-q", ".1", "-p", ".05", "--rounds", "500", "--delta", "1e-5"]
WISH = ["certify", "--plan", "--attackers", "3", "--epsilon", "2", "--lead", ".9", ".1", "-q", ".1", "-p", ".05"]
WISH += ["--rounds", "8", "--clients", "50", "--records", "3000", "--record-clip", "1", "--client-clip", "2"]
ATTACKED = ["-q", ".1", "--sigma", "1.8", "--rounds", "3", "--delta", ".0029"]


def precad(*arguments, exit_code=0):
    """Run the command. Return what it prints on standard output and standard error."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == exit_code, result.output
    return result


@pytest.fixture(scope="module")
def confidences(tmp_path_factory):
    path = tmp_path_factory.mktemp("samples") / "confidences.json"
    path.write_text(json.dumps({"confidences": [[0.95, 0.05], [0.2, 0.45, 0.35], [0.5, 0.5]], "labels": [0, 2, 1]}))
    return path


@pytest.fixture
def figures(monkeypatch):
    """The figures as they are saved, to be looked at; saved they are too."""
    return kept_figures(monkeypatch)


@pytest.fixture(scope="module")
def certified(confidences):
    """The default of `certify`: what it reports, the figure that it draws, and its file."""
    path = confidences.with_name("c.png")
    with pytest.MonkeyPatch.context() as patch:
        kept = kept_figures(patch)
        shown = precad("certify", "--confidences", confidences, *ATTACKED, "--json", "--plot", path).stdout
    (figure,) = kept
    return json.loads(shown), figure, path


def kept_figures(monkeypatch):
    pytest.importorskip("matplotlib")
    kept, save = [], plots._save

    def look_and_save(pyplot, figure, path):
        kept.append(figure)
        save(pyplot, figure, path)
        require_clear_of_curves(figure)

    monkeypatch.setattr(plots, "_save", look_and_save)
    monkeypatch.setattr(accounting, "_POINTS", 6)  # a curve of 48 points costs eight times as much
    return kept


def width_of_png(path):
    """From the header, which also says that it is one."""
    header = path.read_bytes()[:24]
    assert header.startswith(b"\x89PNG")
    return int.from_bytes(header[16:20], "big")


def test_epsilon_by_round_in_both_views(figures, tmp_path):
    """Two panels of three lines, each with its kind in the legend; they end at what the table prints."""
    report = json.loads(precad(*ACCOUNT, "--json", "--plot", tmp_path / "a.png").stdout)

    assert width_of_png(tmp_path / "a.png") == 1200
    (figure,) = figures
    for axis, view in zip(figure.axes, ("one_server", "clients_only"), strict=True):
        lines = {line.get_label(): line for line in axis.lines}
        assert [label.partition(":")[0].partition(" (")[0] for label in lines] == [
            "proved bound",
            "approximation",
            "published",
        ]
        for line, name in zip(lines.values(), ("bound", "approximation", "published"), strict=True):
            assert line.get_xdata()[-1] == 500
            assert line.get_ydata()[-1] == report[view][name] == report["by_round"][view][name][-1]
            assert list(line.get_ydata()) == sorted(line.get_ydata())
    shown = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(shown) == 3
    assert all("not a guarantee" in text for text in shown if not text.startswith("proved bound"))


def test_a_rare_client_costs_in_steps(figures, tmp_path):
    """Taking part every hundredth round: the curve rises between rounds 100 and 101, and is level up to 200."""
    arguments = ["account", "--sigma", "1", "-q", ".01", "-p", ".5", "--rounds", "200", "--delta", "1e-5"]
    found = json.loads(precad(*arguments, "--json", "--plot", tmp_path / "a.png").stdout)["by_round"]
    at = dict(zip(found["rounds"], found["one_server"]["bound"], strict=True))

    assert at[1] == at[100] < at[101] == at[200]


def test_realised_rounds_and_the_target_are_drawn(figures, tmp_path):
    """The axis then counts the client's rounds, and the sigma of the target, for discarded draws too, keeps to it."""
    arguments = ["account", "-q", "1", "-p", ".5", "--rounds", "20", "--delta", "1e-5"]
    precad(*arguments, "--participation", "12", "--calibrate", "2", "--plot", tmp_path / "a.png")

    axis = figures[0].axes[0]
    assert axis.get_xlabel() == "rounds that the client took part in"
    assert axis.lines[0].get_xdata()[-1] == 12
    assert 0 < axis.lines[0].get_ydata()[-1] <= 2
    assert axis.lines[-1].get_label() == "target"


def test_what_is_infinite_is_said_and_not_drawn(figures, tmp_path):
    """No noise to speak of."""
    arguments = ["account", "--sigma", "1e-9", "-q", "1", "-p", "1", "--rounds", "30", "--delta", "1e-5"]
    precad(*arguments, "--plot", tmp_path / "a.png")

    assert "ε = ∞, no guarantee: proved, limit, published" in [text.get_text() for text in figures[0].axes[0].texts]


def test_names_of_lines_do_not_overlap():
    """In order, a gap apart, none below the axis; what is apart already stays."""
    assert plots._apart([1.0, 3.9, 4.0], 0.5) == [1.0, 3.5, 4.0]
    assert plots._apart([0.01, 0.02, 0.03], 0.5) == [0.0, 0.5, 1.0]
    assert plots._apart([], 0.5) == []


def test_certified_accuracy_by_attackers(certified):
    """One line per method, as in the report, each called a bound or not a guarantee."""
    report, figure, path = certified

    assert width_of_png(path) == 1200
    axis, _ = figure.axes
    drawn = {line.get_label().partition(":")[0]: line for line in axis.lines}
    assert {name: list(line.get_ydata()) for name, line in drawn.items()} == report["certified_accuracy"]
    for name, line in drawn.items():
        expected = "proved bound" if report["labels"][name] == "bound" else "not a guarantee"
        assert expected in line.get_label()


def test_where_the_search_stops_is_no_fall_of_the_curve(figures, tmp_path, confidences):
    """With at most 9 attackers looked for, the curve ends at 9, above 0, at a line that says so."""
    precad("certify", "--confidences", confidences, *ATTACKED, "--at-most", "9", "--plot", tmp_path / "c.png")

    exact, *_, end = figures[0].axes[0].lines
    assert (exact.get_xdata()[-1], exact.get_ydata()[-1]) == (9, pytest.approx(1 / 3))
    assert "not looked for" in end.get_label()


def test_the_planners_frontier(figures, tmp_path, confidences):
    """Least sigma by attackers beside the curves; a sigma that the search starts with is marked as that."""
    arguments = ["certify", "--confidences", confidences, *ATTACKED, "--method", "pld", "--plan"]
    report = json.loads(precad(*arguments, "--json", "--plot", tmp_path / "p.png").stdout)

    rows = report["plan"]["frontier"]
    _, axis, _ = figures[0].axes
    assert list(axis.lines[0].get_ydata()) == [row["least_sigma"] for row in rows]
    assert list(axis.lines[1].get_xdata()) == [r["attackers"] for r in rows if r["least_sigma"] == LEAST_MULTIPLIER]
    assert len(axis.texts) == len(rows)
    assert axis.lines[0].get_label().endswith(",\nif nobody learns who was drawn")


def test_a_frontier_that_nothing_reaches(figures, tmp_path):
    """Says so in its place."""
    plan = {
        "lead": [0.5, 0.5],
        "label": "bound",
        "frontier": [{"attackers": 1, "least_sigma": None, "epsilon_of_one_unit": None}],
    }
    report = {"threat": "add", "delta": 1e-5, "confidence": None, "at_most": 8, "correct": [True], "plan": plan}
    report |= {"tolerated": {"pld": [0]}, "certified_accuracy": {"pld": [1.0, 0.0]}}
    plots.plot_certificates(report, tmp_path / "p.png")

    (axis,) = figures[0].axes
    assert "no noise reaches one attacker" in [text.get_text() for text in axis.texts]
    assert "VACUOUS: no prediction survives" in figures[0].get_suptitle()


def test_a_vacuous_run_is_one_line_without_axes(figures, tmp_path):
    """One training bounds no confidence. The picture is as wide as any other, lower, and its line fits into it."""
    run = make_run(tmp_path / "run", 1)
    precad("certify", "--run", run, "--at-most", "2", "--plot", tmp_path / "v.png")

    (figure,) = figures
    assert figure.axes == []
    (text,) = figure.texts
    assert text.get_text() == "The certificate is VACUOUS: nothing can follow from fewer than 27 trainings, found 1"
    assert width_of_png(tmp_path / "v.png") == 1200
    line = text.get_window_extent()
    assert figure.bbox.x0 < line.x0 < line.x1 < figure.bbox.x1
    assert figure.bbox.y0 < line.y0 < line.y1 < figure.bbox.y1


def test_what_few_runs_prove_of_a_loss_stays(certified, figures, tmp_path):
    """No prediction is certified, and J is bounded: one panel below the line."""
    report, *_ = certified
    tolerated = {name: [0] * len(found) for name, found in report["tolerated"].items()}
    plots.plot_certificates(report | {"tolerated": tolerated}, tmp_path / "p.png")

    (axis,) = figures[0].axes
    assert axis.get_title().startswith("What attackers can do to J")
    assert "VACUOUS" in figures[0].get_suptitle()


def test_what_attackers_can_do(certified):
    """Two lines and an area for each method, as in the report, from J outwards; the exact interval is innermost."""
    report, figure, _ = certified
    cost = report["attack_cost"]

    _, axis = figure.axes
    lows = {
        line.get_label().partition(":")[0]: list(line.get_ydata()) for line in axis.lines if len(line.get_xdata()) > 2
    }
    for name, bounds in cost["bounds"].items():
        assert lows[name] == [low for low, _ in bounds]
    assert axis.lines[-1].get_label() == f"without attackers: J = {cost['J']:.3f}"
    assert all(exact >= published for exact, published in zip(lows["exact"], lows["published"], strict=True))


def test_a_wish_that_is_reached(figures, tmp_path):
    """The frontier with the wish on it; a line of least sigmas for every number of rounds."""
    report = json.loads(precad(*WISH, "--json", "--plot", tmp_path / "w.png").stdout)

    assert width_of_png(tmp_path / "w.png") == 1200
    frontier, choices = figures[0].axes
    assert list(frontier.lines[0].get_ydata()) == [row["plan"]["noise_to_signal"] for row in report["frontier"]]
    named = {line.get_label(): line for line in frontier.lines}
    assert named["the wish"].get_xdata()[0] == 3
    assert named["out of reach above 1"].get_ydata()[0] == 1
    shown = [text.get_text() for text in choices.get_legend().get_texts()]
    assert shown[:4] == ["T = 8", "T = 4", "T = 2", "T = 1"]
    assert ("out of reach" in shown) == any(not plan["reaches"] for plan in report["plans"])


def test_a_wish_out_of_reach_is_drawn_hollow(figures, tmp_path):
    """And a lead that no noise helps leaves words in both panels."""
    precad(*WISH, "--most-noise", "1e-9", "--plot", tmp_path / "w.png")
    assert "out of reach" in [text.get_text() for text in figures[0].axes[1].get_legend().get_texts()]

    precad(*WISH, "--lead", ".5", ".5", "--plot", tmp_path / "w.png")
    frontier, choices = figures[1].axes
    assert "no noise reaches one attacker" in [text.get_text() for text in frontier.texts]
    assert "none does" in [text.get_text() for text in choices.texts]


def test_without_matplotlib_nothing_is_computed(monkeypatch, tmp_path):
    """Exit code 2, and the extra that has it."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    done = precad(*ACCOUNT, "--plot", tmp_path / "a.png", exit_code=2)

    assert "install 'precad[bench]' from where precad came from" in done.stderr
    assert "epsilon" not in done.stderr


def test_a_file_that_cannot_be_written_is_refused(tmp_path):
    """Exit code 2: no such folder, or a folder of that name."""
    pytest.importorskip("matplotlib")

    assert "existing folder" in precad(*ACCOUNT, "--plot", tmp_path / "none" / "a.png", exit_code=2).stderr
    assert "can be written" in precad(*ACCOUNT, "--rounds", "2", "--plot", tmp_path, exit_code=2).stderr
