"""Results as a table, a summary and a picture."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping
from typing import Any

LOSS = 0.97
EFFECT = 0.03  # on a CPU; smaller differences are no claim

Row = Mapping[str, Any]


def verdict(ratio: Mapping[str, float]) -> str:
    """ "+" faster, "-" slower, "=" when the interval holds 1 or the effect is small."""
    if ratio["low"] > 1 and ratio["value"] > 1 + EFFECT:
        return "+"
    if ratio["high"] < 1 and ratio["value"] < 1 - EFFECT:
        return "-"
    return "="


def interval(ratio: Mapping[str, float] | None) -> str:
    if ratio is None:
        return "absent"
    return f"{ratio['value']:.2f}{verdict(ratio)} {ratio['low']:.2f}-{ratio['high']:.2f}"


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    out = []
    for number, line in enumerate(lines):
        cells = (
            t.ljust(w) if i == 0 else t.rjust(w)
            for i, (t, w) in enumerate(zip(line, widths, strict=True))
        )
        out.append("  ".join(cells).rstrip())
        if number == 0:
            out.append("  ".join("-" * width for width in widths))
    return "\n".join(out)


def steady_table(rows: list[Row], plugin: str, others: list[str]) -> str:
    """Times per call, and how many times faster the plugin is than each other back end."""
    head = ["model", "mode", "thr", "eager ms", f"{plugin} ms", *(f"to {o}" for o in others)]
    head += ["A/A", "roof", "nodes", "part", "copies", "notes"]
    lines = []
    for row in rows:
        if "error" in row:
            line = [row["model"], row["mode"], str(row["threads"])]
            lines.append(line + [""] * (len(head) - 4) + [row["error"]])
            continue
        ours = row["seconds"].get(plugin)
        taken = row["nodes"] - row["fallback_nodes"]
        copies = row["host_to_device_count"] + row["device_to_host_count"]
        notes = [f"{name} {why}" for name, why in row["absent"].items() if name == plugin]
        notes += ["disturbed"] if not row["quiet"] else []
        notes += [] if row["same"]["low"] <= 1 <= row["same"]["high"] else ["A/A off"]
        notes += ["whole graphs on the CPU"] if row["whole_eager_graphs"] else []
        lines.append(
            [
                row["model"],
                row["mode"],
                str(row["threads"]),
                f"{row['seconds']['eager'] * 1e3:.2f}",
                f"{ours * 1e3:.2f}" if ours else "absent",
                *(interval(row["ratios"].get(f"{plugin} to {other}")) for other in others),
                f"{row['same']['value']:.2f}",
                f"{row['roof']:.0%}" if "roof" in row else "",
                f"{taken}/{row['nodes']}",
                str(row["partitions"]),
                str(copies),
                ", ".join(notes),
            ]
        )
    return _table(head, lines)


def first_table(rows: list[Row]) -> str:
    head = ["model", "mode", "back end", "cold s", "warm s", "compile MB", "call MB", "pays after"]
    lines = []
    for row in rows:
        line = [row["model"], row["mode"], row["backend"]]
        if "error" in row:
            lines.append([*line, "absent", "", "", "", row["error"]])
            continue
        calls = row.get("break_even_calls")
        lines.append(
            [
                *line,
                f"{row['cold']:.2f}",
                f"{row['warm']:.2f}",
                f"{row['compile_peak'] / 1e6:.0f}",
                f"{row['peak'] / 1e6:.0f}",
                ""
                if row["backend"] == "eager"
                else "never"
                if calls is None
                else f"{calls:.0f} calls",
            ]
        )
    return _table(head, lines)


def memory_table(rows: list[Row], plugin: str) -> str:
    """Peak and saved bytes of a training step in MB, and the plugin's peak beside the others'."""
    head = ["model", "eager peak", "PyTorch peak", f"{plugin} peak", "to eager", "to PyTorch"]
    head += ["eager saved", "PyTorch saved", f"{plugin} saved", "with scratch", "packs", "notes"]
    lines = []
    for row in rows:
        if "error" in row:
            lines.append([row["model"], *[""] * (len(head) - 2), row["error"]])
            continue
        peaks = [row[way]["peak"] for way in ("eager", "pytorch", "ours")]
        saved = [row[way]["saved"] for way in ("eager", "pytorch", "ours")]
        lines.append(
            [
                row["model"],
                *(f"{value / 1e6:.2f}" for value in peaks),
                *(f"{peaks[2] / peaks[i]:.2f}" for i in (0, 1)),
                *(f"{value / 1e6:.2f}" for value in saved),
                f"{row['ours']['with_scratch'] / 1e6:.2f}",
                f"{row['packs'] / 1e6:.2f}",
                "whole graphs on the CPU" if row["whole_eager_graphs"] else "",
            ]
        )
    return _table(head, lines)


def budget_table(points: list[Row]) -> str:
    head = ["budget", "saved MB", "peak MB", "predicted ms", "measured ms", "to 1.0"]
    base = points[0]["seconds"]
    return _table(
        head,
        (
            [
                f"{point['budget']:.1f}",
                f"{point['saved_bytes'] / 1e6:.2f}",
                f"{point['peak'] / 1e6:.2f}",
                f"{(base + point['recompute_seconds']) * 1e3:.2f}",
                f"{point['seconds'] * 1e3:.2f}",
                f"{point['ratio']['value']:.2f}",
            ]
            for point in points
        ),
    )


def budget_plot(name: str, points: list[Row]) -> str:
    """An SVG picture: bytes and times over the budget, each as a share of that at 1."""
    from torch_backplane import picture

    def share(values: list[float]) -> list[tuple[float, float]]:
        return [(p["budget"], 100 * v / values[0]) for p, v in zip(points, values, strict=True)]

    base = points[0]["seconds"]
    recompute = [p["recompute_seconds"] - points[0]["recompute_seconds"] for p in points]
    lines = [
        picture.Line("bytes saved", share([p["saved_bytes"] for p in points])),
        picture.Line("peak of a step", share([p["peak"] for p in points])),
        picture.Line("time, predicted", share([base + more for more in recompute])),
        picture.Line("time, measured", share([p["seconds"] for p in points])),
    ]
    first = points[0]
    title = (
        f"{name}: memory budget; 100 % is {first['saved_bytes'] / 1e6:.1f} MB saved, "
        f"{first['peak'] / 1e6:.1f} MB peak, {base * 1e3:.1f} ms"
    )
    marks = [(p["budget"], f"{p['budget']:g}") for p in points]
    return picture.draw(title, lines, unit="%", x_marks=marks)


def summary(rows: list[Row], plugin: str, others: list[str]) -> list[dict[str, Any]]:
    """Per mode and thread count: geometric mean, worst model, losses, and on how many models."""
    out = []
    groups = sorted({(row["mode"], row["threads"]) for row in rows})
    for mode, threads in groups:
        for other in others:
            ratios = {
                row["model"]: row["ratios"][f"{plugin} to {other}"]["value"]
                for row in rows
                if (row["mode"], row["threads"]) == (mode, threads)
                and f"{plugin} to {other}" in row.get("ratios", {})
            }
            if not ratios:
                continue
            worst = min(ratios, key=ratios.__getitem__)
            out.append(
                {
                    "mode": mode,
                    "threads": threads,
                    "to": other,
                    "models": len(ratios),
                    "geomean": math.exp(sum(map(math.log, ratios.values())) / len(ratios)),
                    "worst": ratios[worst],
                    "worst_model": worst,
                    "losses": sum(value < LOSS for value in ratios.values()),
                }
            )
    return out


def summary_table(entries: list[dict[str, Any]]) -> str:
    head = ["mode", "thr", "against", "models", "geomean", "worst", "", "losses"]
    return _table(
        head,
        (
            [
                entry["mode"],
                str(entry["threads"]),
                entry["to"],
                str(entry["models"]),
                f"{entry['geomean']:.3f}",
                f"{entry['worst']:.3f}",
                entry["worst_model"],
                str(entry["losses"]),
            ]
            for entry in entries
        ),
    )


def plot(rows: list[Row], plugin: str, others: list[str]) -> str:
    """An SVG picture: the ratios with their intervals, on a logarithmic axis."""
    colours = ["#4477aa", "#ee6677", "#228833", "#ccbb44"]
    drawn = [row for row in rows if row.get("ratios")]
    values = [r[key] for row in drawn for r in row["ratios"].values() for key in ("low", "high")]
    low, high = min([0.5, *values]), max([2.0, *values])
    left, width, bar = 190, 560, 14

    def x(value: float) -> float:
        return left + width * math.log(value / low) / math.log(high / low)

    parts, y = [], 50.0
    for row in drawn:
        label = f"{row['model']} {row['mode']} {row['threads']} thr"
        parts.append(
            f'<text x="{left - 8}" y="{y + bar}" text-anchor="end">{html.escape(label)}</text>'
        )
        for other, colour in zip(others, colours, strict=False):
            ratio = row["ratios"].get(f"{plugin} to {other}")
            if ratio is None:
                continue
            start, end = sorted((x(1), x(ratio["value"])))
            parts.append(
                f'<rect x="{start:.1f}" y="{y}" width="{end - start:.1f}" height="{bar - 4}" fill="{colour}"/>'
                f'<path d="M{x(ratio["low"]):.1f} {y + 5}H{x(ratio["high"]):.1f}" stroke="#000"/>'
            )
            y += bar
        y += 10
    marks = [m for m in (0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8) if low <= m <= high]
    axis = "".join(
        f'<path d="M{x(m):.1f} 40V{y:.0f}" stroke="{"#000" if m == 1 else "#ddd"}"/>'
        f'<text x="{x(m):.1f}" y="35" text-anchor="middle">{m:g}</text>'
        for m in marks
    )
    legend = "".join(
        f'<rect x="{left + 130 * i}" y="8" width="10" height="10" fill="{c}"/>'
        f'<text x="{left + 130 * i + 14}" y="17">{html.escape(other)}</text>'
        for i, (other, c) in enumerate(zip(others, colours, strict=False))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 20}" height="{y + 10:.0f}" '
        f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="8" y="17">{html.escape(plugin)} is faster than</text>{legend}{axis}{"".join(parts)}</svg>\n'
    )
