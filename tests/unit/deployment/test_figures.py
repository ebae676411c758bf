"""What is made of two looks at a server's metrics."""

from __future__ import annotations

import http.server
import json
import math
import subprocess
import threading
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from tests.support.command_line import trtspec
from tests.support.prometheus import tool
from trtspec.base.errors import UnavailableError
from trtspec.cli.top import drawn, rows
from trtspec.client.scrape import Scrape, parse, read
from trtspec.deployment.figures import between, choose, quantile
from trtspec.gateway.refusals import Refusal, Refusals
from trtspec.serving.metrics import KV_FRACTION, MetricSample, counters, gauges, histograms
from trtspec.serving.stats import Stats


def exported(stats: Stats, seconds: float, model: str = "pair", started: float = 1.0) -> str:
    """The text that Triton makes of them."""
    samples: list[MetricSample] = [*counters(stats, seconds), *histograms(stats), *gauges(stats, started)]
    lines = []
    for sample in samples:
        labels = {"model": model, **sample.labels, "version": "1"}
        words = ",".join(f'{key}="{value}"' for key, value in labels.items())
        lines.append(f"# TYPE {sample.name} counter\n{sample.name}{{{words}}} {sample.value}")
    return "\n".join(lines) + "\n"


def busy() -> Stats:
    """Four seconds of work: 2 streams, 400 tokens, 100 rounds with K = 4, of which 60 % are accepted."""
    stats = Stats(
        places=16, queue_size=256, running=2, waiting=3, longest_wait_s=1.5, kv_use={"target": 0.25}
    )
    for _ in range(100):
        stats.rounds[4] += 1
        stats.inter_token_latency.observe(0.03)
    for accepted in (2, 3, 2, 2, 3) * 20:
        stats.by_origin["engine"].record(4, accepted)
    stats.generation_tokens, stats.prompt_tokens = 400, 40
    stats.time_to_first_token.observe(0.2)
    stats.ended["stop"], stats.failures["timed_out"], stats.fallbacks["policy"] = 8, 4, 2
    return stats


def test_they_are_what_happened_in_between() -> None:
    refusals = Refusals("openai", "pair")
    before = parse(exported(Stats(), 10) + refusals.text(), 0)
    for _ in range(10):
        refusals.add(Refusal.TOO_MANY_REQUESTS)
    now = parse(exported(busy(), 14) + refusals.text(), 5)
    found = between(before, now, "pair")
    assert (found.seconds, found.running, found.places, found.waiting) == (4, 2, 16, 3)
    assert (found.tokens_per_second, found.prompt_tokens_per_second) == (100, 10)
    assert (found.requests_per_second, found.rounds_per_second) == (2, 25)
    assert found.acceptance == found.acceptance_by_origin["engine"] == pytest.approx(0.6)
    assert found.tokens_per_draft == pytest.approx(3.4)
    assert (found.mean_k, found.rounds_by_k) == (4, {4: 1.0})
    assert found.inter_token_latency is not None
    assert found.inter_token_latency[0] == pytest.approx(0.03)
    assert found.inter_token_latency[1] == pytest.approx(0.0345)
    assert (found.errors, found.fallbacks) == ({"timed_out": 1}, {"policy": 0.5})
    words = dict(rows(found))
    assert words["streams"].startswith("2 of 16 slots")
    assert words["queue"] == "3 of 256, 1.5 s"
    assert words["acceptance"].startswith("60% ############........  3.40 tokens")
    assert (words["no draft"], words["errors"]) == ("policy 0.5/s", "timed_out 1.0/s")
    assert words["front refused"] == "too_many_requests 2.0/s"
    assert "draft" not in words


def test_a_server_that_does_nothing() -> None:
    idle = parse(exported(Stats(draft_available=False), 3), 0)
    found = between(idle, Scrape(2.0, idle.rows), "pair")
    assert found.seconds == 2
    assert (found.acceptance, found.mean_k, found.time_to_first_token) == (None, None, None)
    words = dict(rows(found))
    assert (words["acceptance"], words["K"], words["first token"]) == ("nothing drafted", "no rounds", "none")
    assert words["draft"] == "not used for now, because it failed"


def test_a_roll_out_is_shown_while_not_all_have_drafts() -> None:
    stats = busy()
    before = parse(exported(stats, 10), 0)
    assert "roll-out" not in dict(rows(between(before, before, "pair")))
    stats.rollout.speculation_share, stats.rollout.shadow_share = 0.0, 0.5
    now = parse(exported(stats, 14), 4)
    words = dict(rows(between(before, now, "pair")))
    assert words["roll-out"] == "drafts of 50 % of the requests are only scored: none yet"
    stats.rollout.shadow.record(4, 3)
    words = dict(rows(between(now, parse(exported(stats, 18), 8), "pair")))
    assert words["roll-out"].endswith("only scored: 75% would be accepted")
    stats.rollout.speculation_share, stats.rollout.shadow_share = 0.05, 0.0
    words = dict(rows(between(now, parse(exported(stats, 18), 8), "pair")))
    assert words["roll-out"] == "drafts for 5 % of the requests"


def test_figures_of_a_restarted_server_count_from_its_new_start() -> None:
    before, again = parse(exported(busy(), 100), 0), busy()
    again.generation_tokens = 200
    found = between(before, parse(exported(again, 4), 9), "pair")
    assert (found.seconds, found.tokens_per_second) == (4, 50)


def test_a_restart_is_noticed_when_the_new_counters_exceed_the_old_ones() -> None:
    front = Refusals("openai", "pair")
    front.add(Refusal.TOO_MANY_REQUESTS)
    before = parse(exported(busy(), 8, started=100.0) + front.text(), 0)
    now = parse(exported(busy(), 10, started=111.0) + front.text(), 20)
    found = between(before, now, "pair")
    assert (found.seconds, found.tokens_per_second, found.rounds_per_second) == (10, 40, 10)
    assert found.time_to_first_token is not None
    assert not found.refusals


def test_lines_that_are_no_values_are_passed_over() -> None:
    assert parse("Not found\nup 1\n", 0).rows == (("up", {}, 1.0),)


def test_in_the_bls_layout_the_models_of_the_engines_tell_their_kv_use() -> None:
    """Lines of NVIDIA's C++ backend, `inflight_batcher_llm/README.md`, the shares apart."""
    theirs = "".join(
        f'{KV_FRACTION}{{kv_cache_block_type="{kind}",model="{model}",version="1"}} {value}\n'
        for model, used in (("tensorrt_llm", 0.25), ("tensorrt_llm_draft", 0.5))
        for kind, value in (("max", 6239), ("fraction", used))
    )
    now = parse(exported(Stats(), 3) + theirs, 1)
    assert between(now, now, "pair").kv_use == {"tensorrt_llm": 0.25, "tensorrt_llm_draft": 0.5}


def test_a_model_is_chosen() -> None:
    one = parse(exported(Stats(), 0), 0)
    two = Scrape(0, one.rows + parse(exported(Stats(), 0, "other"), 0).rows)
    assert choose(one, None, "url") == "pair" == choose(two, "pair", "url")
    for scrape, name, problem in (
        (Scrape(0, ()), None, "has no metrics of trtspec"),
        (two, None, "has several models: other, pair"),
        (one, "x", "has no model x: pair"),
    ):
        with pytest.raises(UnavailableError) as caught:
            choose(scrape, name, "url")
        assert caught.value.problem == problem


BUCKETS = {0.5: 3.0, 1.0: 10.0, 2.5: 10.0, 5.0: 38.0, math.inf: 40.0}


def test_quantiles_are_prometheus_own(tmp_path: Path) -> None:
    shares = (0.05, 0.25, 0.5, 0.9, 0.95, 0.99)
    series = [
        {"series": f'b{{le="{"+Inf" if math.isinf(bound) else bound}"}}', "values": f"{number:g}"}
        for bound, number in BUCKETS.items()
    ]
    asked = [
        {
            "expr": f"histogram_quantile({share}, b)",
            "eval_time": "0m",
            "exp_samples": [{"labels": "{}", "value": quantile(share, list(BUCKETS.items()))}],
        }
        for share in shares
    ]
    test = {"tests": [{"interval": "1m", "input_series": series, "promql_expr_test": asked}]}
    (tmp_path / "test.yaml").write_text(json.dumps(test))
    line = [tool("promtool"), "test", "rules", str(tmp_path / "test.yaml")]
    said = subprocess.run(line, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr


def test_no_values_have_no_quantile() -> None:
    assert math.isnan(quantile(0.5, []))
    assert math.isnan(quantile(0.5, [(1.0, 0.0), (math.inf, 0.0)]))


@pytest.fixture
def server() -> Iterator[str]:
    """Serves the metrics of `busy`, four seconds later each time."""
    looks: list[int] = []

    class Get(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            looks.append(1)
            body = exported(busy() if len(looks) > 1 else Stats(), 4.0 * len(looks)).encode()
            self.send_response(200 if self.path == "/metrics" else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Get) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{httpd.server_port}"
        httpd.shutdown()


def test_top_prints_a_look(server: str) -> None:
    said = trtspec("top", "--url", f"http://{server}/metrics", "--once", "--interval", "0.1")
    assert (said.returncode, said.stderr) == (0, "")
    assert f"pair at http://{server}/metrics" in said.stdout
    assert "100, prompts 10, 2.0 requests/s" in said.stdout


def test_top_prints_json(server: str) -> None:
    said = trtspec("top", "--url", f"http://{server}/metrics", "--once", "--json", "--interval", "0.1")
    assert json.loads(said.stdout)["tokens_per_second"] == 100


def test_top_names_the_address_that_does_not_answer(server: str) -> None:
    with pytest.raises(UnavailableError, match="status 404"):
        read(f"http://{server}/v2")
    with pytest.raises(UnavailableError, match="does not answer"):
        read("http://[::1")
    said = trtspec("top", "--url", "127.0.0.1:1")
    assert (said.returncode, said.stdout) == (1, "")
    assert "127.0.0.1:1: does not answer" in said.stderr


def test_top_sends_no_control_sequences_of_a_server_to_the_terminal() -> None:
    stats = busy()
    stats.failures["\x1b[2J"] = 4
    found = between(parse(exported(Stats(), 10), 0), parse(exported(stats, 14), 5), "pair")
    terminal = StringIO()
    with redirect_stdout(terminal), drawn("evil \x1b]0;title\x07") as draw:
        draw(found)
    said = terminal.getvalue()
    assert "2 of 16 slots" in said
    assert "\\x1b[2J" in said
    assert "\x1b[2J" not in said
    assert "\x1b]0" not in said


@pytest.mark.parametrize(("name", "begin"), [("dashboard", "{"), ("alerts", "#")])
def test_the_files_are_printed(name: str, begin: str) -> None:
    said = trtspec("monitoring", name)
    assert (said.returncode, said.stderr, said.stdout[:1]) == (0, "", begin)


def test_the_dashboard_is_whole() -> None:
    """Panels are in its grid, and none is over another."""
    document = json.loads(trtspec("monitoring", "dashboard").stdout)
    assert {each["name"] for each in document["templating"]["list"]} == {"datasource", "model", "instance"}
    taken: set[tuple[int, int]] = set()
    for panel in document["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["type"] == "row" or panel["targets"]
    assert len({panel["id"] for panel in document["panels"]}) == len(document["panels"])
