"""The arithmetic of the benchmarks; nothing here measures time."""

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import measure
import report


def row(model: str, ratio: float, **more) -> dict:
    interval = {"value": ratio, "low": ratio - 0.01, "high": ratio + 0.01}
    return {
        "model": model,
        "mode": "inference",
        "threads": 1,
        "seconds": {"eager": 0.01, "us": 0.01 / ratio},
        "ratios": {"us to eager": interval},
        "same": {"value": 1.0, "low": 0.99, "high": 1.01},
        "absent": {},
        "quiet": True,
        "nodes": 10,
        "fallback_nodes": 1,
        "partitions": 2,
        "whole_eager_graphs": 0,
        "host_to_device_count": 0,
        "device_to_host_count": 0,
        **more,
    }


def test_bootstrap():
    interval = measure.bootstrap([1.0, 1.02, 0.98, 1.01, 0.99] * 4)
    assert interval.value == pytest.approx(1.0) and interval.contains(1.0)
    assert measure.bootstrap([2.0] * 15) == measure.Interval(2.0, 2.0, 2.0)


def test_ratio_above_one_means_that_the_second_is_faster():
    series = measure.Series({"slow": [2.0, 4.0, 3.0], "fast": [1.0, 2.0, 1.5]}, 3, 0, True)
    assert series.ratio("slow", "fast").value == 2.0
    assert series.median("slow") == 3.0


def test_alternate_runs_forth_and_back():
    order = []
    series = measure.alternate(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")},
        rounds=1,
        limit=1,
        block_s=0.0,
    )
    assert series.rounds == 1 and set(series.seconds) == {"a", "b"}
    # After the warm-up, blocks of one name follow each other.
    blocks = [name for i, name in enumerate(order) if i == 0 or order[i - 1] != name]
    assert blocks[-3:] == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("value", "low", "high", "sign"),
    [(1.2, 1.1, 1.3, "+"), (1.2, 0.9, 1.3, "="), (1.02, 1.01, 1.03, "="), (0.8, 0.7, 0.9, "-")],
)
def test_a_claim_needs_an_interval_and_an_effect(value, low, high, sign):
    assert report.verdict({"value": value, "low": low, "high": high}) == sign


def test_summary():
    (entry,) = report.summary([row("x", 2.0), row("y", 0.5)], "us", ["eager", "inductor"])
    assert entry["geomean"] == pytest.approx(1.0) and entry["models"] == 2
    assert (entry["worst_model"], entry["losses"], entry["to"]) == ("y", 1, "eager")


def test_table_says_what_is_missing():
    failed = {"model": "z", "mode": "inference", "threads": 1, "error": "exit status 139"}
    rows = [row("x", 2.0), row("y", 1.0, quiet=False), failed]
    text = report.steady_table(rows, "us", ["eager", "inductor"])
    assert "absent" in text and "disturbed" in text and "exit status 139" in text
    assert "9/10" in text and "2.00+" in text


def test_plot_is_well_formed():
    tree = ElementTree.fromstring(report.plot([row("a<b", 2.0), row("y", 0.5)], "us", ["eager"]))
    assert tree.tag.endswith("svg")


def test_memory_table():
    sizes = {way: {"peak": 4e6, "saved": 2e6} for way in ("eager", "pytorch")}
    ours = {"peak": 3e6, "with_scratch": 5e6, "saved": 1e6}
    rows = [
        {"model": "x", **sizes, "ours": ours, "packs": 0, "whole_eager_graphs": 0},
        {"model": "y", "error": "exit status 1"},
    ]
    lines = report.memory_table(rows, "us").splitlines()
    assert lines[2].split() == [
        "x",
        "4.00",
        "4.00",
        "3.00",
        "0.75",
        "0.75",
        "2.00",
        "2.00",
        "1.00",
        "5.00",
        "0.00",
    ]
    assert lines[3].endswith("exit status 1")


def test_budget_plot_shows_shares():
    points = [
        {
            "budget": budget,
            "saved_bytes": saved,
            "peak": 2 * saved,
            "recompute_seconds": 1 - budget,
            "seconds": 2 - budget,
            "ratio": {"value": 2 - budget},
        }
        for budget, saved in ((1.0, 100), (0.5, 50))
    ]
    tree = ElementTree.fromstring(report.budget_plot("x", points))
    curves = {e.get("data-name"): e.get("points") for e in tree.iter() if "polyline" in e.tag}
    assert set(curves) == {"bytes saved", "peak of a step", "time, predicted", "time, measured"}
    # Half of the bytes; one and a half times the time, which is the highest.
    assert curves["bytes saved"] == curves["peak of a step"] == "720.0,160.0 80.0,260.0"
    assert curves["time, predicted"] == curves["time, measured"] == "720.0,160.0 80.0,60.0"
    assert "0.5" in report.budget_table(points).splitlines()[3]
