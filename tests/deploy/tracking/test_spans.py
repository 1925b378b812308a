"""Spans of rounds, at a collector of this machine: their form by OTLP's own messages, and where they never go.

Failure means one of these:
- a span that OTLP's messages do not take, outside its round, or with a name of a client;
- a request to another address than the one that was named, whatever the environment or the collector says;
- a round whose spans are sent twice, or not at all.
"""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from rich.console import Console

from precad.deploy.cli import main as cli
from precad.deploy.configuration.demo import demo_config
from precad.deploy.errors import UNREACHABLE, ConfigError, RunFailedError
from precad.deploy.localhost.deployment import LocalRun
from precad.deploy.tracking.destinations import destination_of
from precad.deploy.tracking.spans import Spans
from tests.deploy.oversight.test_operations_commands import append
from tests.harness.command_line import CliRunner
from tests.harness.tracked import NAMED, a_round, a_status

ORDER = ["select", "collect", "validate"]


class Collector:
    """A collector that keeps what it is sent, and answers as told."""

    def __init__(self):
        self.bodies, self.paths, self.answer = [], [], (200, b"{}", {})
        ours = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                ours.paths.append(self.path)
                ours.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                assert self.headers["Content-Type"] == "application/json"
                status, body, headers = ours.answer
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    @property
    def spans(self):
        return [s for b in self.bodies for r in b["resourceSpans"] for scope in r["scopeSpans"] for s in scope["spans"]]

    def close(self):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def collectors():
    found = [Collector(), Collector()]
    yield found
    for one in found:
        one.close()


def show(url, folder, status, *, are_new=True):
    sink = Spans(folder, "mine", url)
    try:
        sink.show(status, status.rounds, 99.0, are_new=are_new)
    finally:
        sink.close()


def test_a_round_is_a_span_and_its_phases_lie_in_it_one_after_another(collectors, tmp_path):
    show(f"{collectors[0].url}/v1/traces", tmp_path, a_status(a_round(0)))
    parent, *phases = collectors[0].spans
    assert (parent["name"], [phase["name"] for phase in phases]) == ("round", ORDER)
    assert {phase["parentSpanId"] for phase in phases} == {parent["spanId"]}
    assert len({span["spanId"] for span in collectors[0].spans}) == 4
    assert {span["traceId"] for span in phases} == {parent["traceId"]}
    starts, ends = ([int(p[f"{end}TimeUnixNano"]) for p in phases] for end in ("start", "end"))
    assert starts == [int(parent["startTimeUnixNano"]), *ends[:-1]]
    assert ends[-1] == int(parent["endTimeUnixNano"]) == 1_700_000_000_500_000_000
    assert [end - start for start, end in zip(starts, ends, strict=True)] == [125_000_000, 250_000_000, 500_000_000]
    counts = {a["key"]: a["value"]["intValue"] for a in parent["attributes"]}
    assert counts == {
        "precad.round": "0",
        "precad.chosen": "5",
        "precad.accepted": "3",
        "precad.rejected": "1",
        "precad.missing": "1",
    }
    assert NAMED not in json.dumps(collectors[0].bodies)


def test_the_form_is_what_the_messages_of_otlp_take(collectors, tmp_path):
    """Parsed by the published messages, which refuse unknown fields. OTLP's JSON has ids in hexadecimal, not base64."""
    pytest.importorskip("opentelemetry.proto")
    from google.protobuf.json_format import ParseDict
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    show(f"{collectors[0].url}/v1/traces", tmp_path, a_status(a_round(0)))
    (body,) = collectors[0].bodies
    for span in collectors[0].spans:
        for name in {"traceId", "spanId", "parentSpanId"} & span.keys():
            span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
    request = ParseDict(body, ExportTraceServiceRequest())
    (resource,) = request.resource_spans
    spans = resource.scope_spans[0].spans
    assert [(len(s.trace_id), len(s.span_id), s.kind) for s in spans] == [(16, 8, 1)] * 4
    assert {a.key: a.value.string_value for a in resource.resource.attributes} == {
        "service.namespace": "precad",
        "service.name": "aggregator-a",
        "precad.task": "mine",
    }


def test_nothing_in_the_environment_sends_them_elsewhere(collectors, tmp_path, monkeypatch):
    ours, trap = collectors
    names = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "HTTP_PROXY", "ALL_PROXY")
    for name in (*names, *(name.lower() for name in names)):
        monkeypatch.setenv(name, trap.url)
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", f"client={NAMED}")
    sink = destination_of(f"otlp:{ours.url}", tmp_path, is_offline=False).opened("mine")
    status = a_status(a_round(0))
    sink.show(status, status.rounds, 0.0, are_new=True)
    sink.close()
    assert (ours.paths, trap.paths) == (["/v1/traces"], [])
    assert NAMED not in json.dumps(ours.bodies)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((307, b"", {"Location": "TRAP"}), "HTTP 307"),
        ((503, b"", {}), "HTTP 503"),
        ((200, b'{"partialSuccess": {"rejectedSpans": "2"}}', {}), "2 spans refused"),
    ],
)
def test_what_a_collector_does_not_take_is_sent_again_by_the_next_start_and_nowhere_else(
    collectors, tmp_path, answer, said
):
    ours, trap = collectors
    status, body, headers = answer
    ours.answer = (status, body, dict.fromkeys(headers, trap.url))
    with pytest.raises(RunFailedError, match=said) as refused:
        show(ours.url, tmp_path, a_status(a_round(0)))
    assert refused.value.exit_code == UNREACHABLE
    assert "/v1/traces" not in str(refused.value), "a path may hold a token"
    ours.answer = (200, b"[" * 10_000, {})
    show(ours.url, tmp_path, a_status(a_round(0)))
    assert (len(ours.bodies), trap.bodies) == (2, [])
    assert ours.bodies[0] == ours.bodies[1]


def test_each_round_is_sent_once_whoever_sends(collectors, tmp_path):
    """A line that a crash broke off counts for nothing."""
    url = collectors[0].url
    show(url, tmp_path, a_status(a_round(0), a_round(1)))
    (journal,) = tmp_path.glob("otlp-*.jsonl")
    with journal.open("a") as file:
        file.write('[["round", 2')
    show(url, tmp_path, a_status(a_round(0), a_round(1), a_round(2)))
    show(url, tmp_path, a_status(a_round(0), a_round(1), a_round(2), a_round(3)))
    sent = [s["attributes"][-1]["value"]["intValue"] for s in collectors[0].spans if s["name"] == "round"]
    assert sent == ["0", "1", "2", "3"]


def test_a_round_without_a_time_ends_when_it_is_seen_or_is_left_out(collectors, tmp_path):
    """One that was over before anybody followed has no time that would be true."""
    untimed = a_status(a_round(0, committed_at=None))
    show(collectors[0].url, tmp_path, untimed, are_new=False)
    assert collectors[0].spans == []
    show(collectors[0].url, tmp_path, untimed)
    assert collectors[0].spans[0]["endTimeUnixNano"] == "99000000000"


def test_rounds_that_a_collector_does_not_get_are_counted(collectors, tmp_path):
    """A run folder does not say when its rounds ended: their spans would lie, and saying nothing would, too."""
    run = LocalRun(demo_config(), tmp_path / "run", Console(quiet=True)).folder.root
    append(run)
    (run / "summary.json").write_text("{}")
    command = ["track", str(run), "--to", f"otlp:{collectors[0].url}", "--folder", str(tmp_path)]
    done = CliRunner().invoke(cli.app, command, terminal_width=200)
    assert done.exit_code == 0, done.stderr
    assert "otlp: rounds left out: 1, which ended before anybody followed" in done.stderr
    assert collectors[0].spans == []


def test_nobody_listens(tmp_path):
    with pytest.raises(RunFailedError, match=r"otlp: 127\.0\.0\.1:1: "):
        show("http://127.0.0.1:1/v1/traces", tmp_path, a_status(a_round(0)))


def test_two_processes_do_not_send_the_same(tmp_path):
    first = Spans(tmp_path, "mine", "http://127.0.0.1:1/")
    with pytest.raises(ConfigError, match="no other `precad track` uses"):
        Spans(tmp_path, "mine", "http://127.0.0.1:1/")
    first.close()
