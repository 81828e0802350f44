"""report.html: one page without outside resources."""

from __future__ import annotations

import collections
import html as markup
import pathlib
from typing import Any

from backplane_conformance.outcome import dtype, is_bad, repeat_line, verdict_of

VERDICTS = (
    "pass",
    "unsupported",
    "waived",
    "mistrusted",
    "undelegated",
    "fail",
    "timeout",
    "crash",
)
MOST_FAILURES = 300

STYLE = """
:root { color-scheme: light dark; --text: #16202b; --back: #fbfbf9; --card: #ffffff; --line: #d9dcdf;
  --soft: #5b6875; --good: #1c7a45; --bad: #b3261e; --some: #8a5a00; --bar: #cfe6d8; --link: #0b57a4; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e9ec; --back: #14181c; --card: #1c2228;
  --line: #37404a; --soft: #9aa7b4; --good: #6fcf97; --bad: #ff8a80; --some: #f0b95a; --bar: #24503a;
  --link: #8ab8ff; } }
* { box-sizing: border-box; }
body { margin: 0; font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); }
main { max-width: 1080px; margin: 0 auto; padding: 24px 16px 64px; }
h1 { font-size: 26px; margin: 0 0 4px; overflow-wrap: anywhere; } h2 { font-size: 18px; margin: 36px 0 8px; }
.soft { color: var(--soft); } code, pre { font: 13px/1.45 ui-monospace, monospace; }
a { color: var(--link); } :focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
.verdict { font-size: 20px; margin: 16px 0; padding: 14px 16px; border: 1px solid var(--line);
  border-left: 6px solid var(--bad); background: var(--card); border-radius: 6px; }
.verdict.good { border-left-color: var(--good); }
.badge { display: inline-block; margin: 8px 8px 0 0; padding: 2px 10px; border-radius: 99px;
  border: 1px solid var(--good); color: var(--good); font-size: 13px; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; background: var(--card); }
table { border-collapse: collapse; width: 100%; } th, td { padding: 6px 12px; text-align: right;
  border-bottom: 1px solid var(--line); white-space: nowrap; } tr:last-child td { border-bottom: 0; }
th:first-child, td:first-child { text-align: left; } th { font-weight: 600; color: var(--soft); }
td.zero { color: var(--soft); opacity: .6; } td.bad { color: var(--bad); font-weight: 600; }
details { border: 1px solid var(--line); border-radius: 6px; background: var(--card);
  margin: 8px 0; padding: 8px 12px; } summary { cursor: pointer; overflow-wrap: anywhere; }
summary b { color: var(--bad); } pre { overflow-x: auto; margin: 8px 0; padding: 10px;
  border: 1px solid var(--line); border-radius: 6px; background: var(--back); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 16px; margin: 8px 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
input { width: 100%; max-width: 420px; padding: 6px 10px; font: inherit; color: inherit;
  background: var(--card); border: 1px solid var(--line); border-radius: 6px; margin: 4px 0 8px; }
label { display: block; color: var(--soft); }
"""

SCRIPT = """
const box = document.getElementById('filter');
if (box) box.addEventListener('input', () => {
  const words = box.value.toLowerCase().split(/\\s+/).filter(Boolean);
  let shown = 0;
  document.querySelectorAll('details.failure').forEach(d => {
    const text = d.textContent.toLowerCase();
    d.hidden = !words.every(w => text.includes(w));
    shown += d.hidden ? 0 : 1;
  });
  document.getElementById('shown').textContent = shown + ' shown';
});
"""


def _e(text: Any) -> str:
    return markup.escape(str(text))


def _counts_table(head: str, rows: dict[str, dict[str, int]]) -> str:
    used = [v for v in VERDICTS if any(row.get(v) for row in rows.values())]
    out = [f"<div class='scroll' tabindex='0'><table><thead><tr><th scope='col'>{_e(head)}</th>"]
    out += [f"<th scope='col'>{_e(v)}</th>" for v in used]
    out.append("<th scope='col'>all</th></tr></thead><tbody>")
    for name, row in rows.items():
        out.append(f"<tr><td><code>{_e(name)}</code></td>")
        for verdict in used:
            count = row.get(verdict, 0)
            kind = "bad" if count and verdict in VERDICTS[3:] else "zero" if not count else ""
            out.append(f"<td class='{kind}'>{count}</td>")
        out.append(f"<td>{sum(row.values())}</td></tr>")
    out.append("</tbody></table></div>")
    return "".join(out)


def _by_dtype(result: dict[str, Any]) -> dict[str, dict[str, int]]:
    out: dict[str, collections.Counter[str]] = {}
    for outcome in result["cases"]:
        if name := dtype(outcome["id"]):
            out.setdefault(name, collections.Counter())[verdict_of(outcome)] += 1
    return {k: dict(v) for k, v in sorted(out.items()) if sum(v.values()) >= 10}


def _failure(result: dict[str, Any], outcome: dict[str, Any]) -> str:
    text = " ".join(outcome.get("text", "").split())
    parts = [
        "<details class='failure'><summary><b>",
        _e(outcome["verdict"]), "</b> <code>", _e(outcome["id"]), "</code> ", _e(text[:160]),
        "</summary>",
    ]  # fmt: skip
    parts.append(f"<p>{_e(outcome.get('text', ''))}</p>")
    share = outcome.get("share", 0)
    if 0 < share < 1e9:
        parts.append(f"<p class='soft'>worst element: {share:.3g} of what is allowed</p>")
    parts.append(f"<p>Again:</p><pre>{_e(repeat_line(result, outcome['id']))}</pre>")
    if outcome.get("replay"):
        parts.append(f"<p>The graph, as a file:</p><pre>{_e(outcome['replay'])}</pre>")
    if outcome.get("graph"):
        parts.append(f"<pre>{_e(outcome['graph'])}</pre>")
    if outcome.get("said"):
        parts.append(f"<p>The process said:</p><pre>{_e(outcome['said'])}</pre>")
    parts.append("</details>")
    return "".join(parts)


def _nearest(result: dict[str, Any]) -> str:
    """The right results that were nearest to being wrong."""
    right = [c for c in result["cases"] if c["verdict"] == "pass" and c.get("share", 0) > 0]
    right.sort(key=lambda c: -c["share"])
    rows = "".join(
        f"<tr><td><code>{_e(c['id'])}</code></td><td>{c['share']:.2f}</td></tr>" for c in right[:10]
    )
    return (
        "<div class='scroll' tabindex='0'><table><thead><tr><th scope='col'>case</th>"
        f"<th scope='col'>share of the bound</th></tr></thead><tbody>{rows}</tbody></table></div>"
    )


def html(result: dict[str, Any]) -> str:
    """The page of one run."""
    name = pathlib.Path(result["plugin"]).name
    level = result["reached"]
    bad = [c for c in result["cases"] if is_bad(c)]
    if not result["complete"]:
        headline, good = f"Chosen cases: {len(result['cases']) - len(bad)} without a fault", not bad
    elif level >= 0:
        headline, good = f"Level {level} reached", level == result["level"]
    else:
        headline, good = "No level reached", False
    counts = collections.Counter(map(verdict_of, result["cases"]))
    said = ", ".join(f"{counts[v]} {v}" for v in VERDICTS if counts[v])
    facts = {
        "library": result["plugin"], "sha256": result["sha256"], "device": result["device"],
        "kit": result["kit"], "run": f"{result['date']}, {result['seconds']} s",
        **result["host"],
    }  # fmt: skip
    body = [
        f"<h1>{_e(name)}</h1><p class='soft'>Backplane conformance, level {result['level']}</p>",
        f"<div class='verdict {'good' if good else ''}'>{_e(headline)}",
        f"<div class='soft' style='font-size:15px'>{len(result['cases'])} cases: {_e(said)}</div>",
        "".join(f"<span class='badge'>{_e(b)}</span>" for b in result["badges"]),
        "</div>",
    ]
    body.append(f"<h2 id='failures'>What did not pass: {len(bad)}</h2>")
    if bad:
        body.append(
            "<label for='filter'>Filter</label><input id='filter' type='search' "
            "autocomplete='off'> <span id='shown' class='soft' role='status'></span>"
        )
        body += [_failure(result, outcome) for outcome in bad[:MOST_FAILURES]]
        if len(bad) > MOST_FAILURES:
            body.append(f"<p>and {len(bad) - MOST_FAILURES} more in report.json</p>")
    else:
        body.append("<p class='soft'>Nothing.</p>")
    body += ["<h2>By family</h2>", _counts_table("family", result["families"])]
    if rows := _by_dtype(result):
        body += ["<h2>By element type</h2>", _counts_table("element type", rows)]
    body += ["<h2>Nearest to the bound</h2>", _nearest(result)]
    body += [
        f"<h2>Operators that it ran: {len(result['operators'])}</h2>",
        "<details><summary>by operator</summary>",
        _counts_table("operator", result["operators"]), "</details>",
    ]  # fmt: skip
    body += ["<h2>Facts</h2><dl>"]
    body += [f"<dt>{_e(k)}</dt><dd>{_e(v)}</dd>" for k, v in facts.items()]
    body.append("</dl>")
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{_e(name)}: conformance</title><style>{STYLE}</style></head>"
        f"<body><main>{''.join(body)}</main><script>{SCRIPT}</script></body></html>\n"
    )
