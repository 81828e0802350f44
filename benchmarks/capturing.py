"""Our front end beside TorchDynamo, in one run: what a call costs above the executable, how long it
takes from a call to a graph, and what an entry takes.

Above the executable: both have the same one, which gives what it gave at its first call; of
TorchDynamo's call, the call of that Python function is taken off. A plugin reads memory; ATen makes
tensors of what it reads, which a call counts for it, so both are measured. To a graph: from a call of a fresh
function until the graph is there, the fastest of some; ours holds ATen operators, and gradients where
there are some, TorchDynamo's holds calls of PyTorch's Python functions and is not yet traced by
AOTAutograd. Bytes: what the allocator gives for a copy of an entry's guards, graph and recipe; code
objects by ``sys.getsizeof`` with what is theirs alone.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import measure
import subjects
import torch
from torch import nn
from torch_backplane import _C, frontend


class Chain(nn.Module):
    """One module with a hundred parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(50))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer.weight[0] + layer.bias
        return x


def three(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return a + b * c


class Positional(nn.Module):
    """A model of the zoo whose inputs are positional."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.model(**dict(zip(self.names, inputs, strict=True)))


def bert() -> tuple[Any, tuple[Any, ...]]:
    case = subjects.zoo.case("bert", size="base")
    inputs = case.inputs()
    return Positional(case.build(), list(inputs)).eval(), tuple(inputs.values())


SUBJECTS: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
    "three tensors": lambda: (three, tuple(torch.rand(3) for _ in range(3))),
    "100 parameters": lambda: (Chain().eval(), (torch.rand(2),)),
    "bert": bert,
}


class Stub:
    """A back end of TorchDynamo whose graphs give what they gave at their first call."""

    def __init__(self) -> None:
        self.called = self.inputs = None

    def __call__(self, graph: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        held: list[Any] = []

        def run(*inputs: Any) -> Any:
            if not held:
                held.append(graph.forward(*inputs))
                self.called, self.inputs = run, inputs
            return held[0]

        return run


def call_row(name: str, backend: str, rounds: int) -> dict[str, Any]:
    torch._dynamo.reset()
    target, args = SUBJECTS[name]()
    stub, expected = Stub(), target(*args)
    ours = frontend.compile(target, backend=backend)
    theirs = torch.compile(target, backend=stub, dynamic=False)
    for compiled in (theirs, ours):
        torch.testing.assert_close(compiled(*args), expected)
    assert frontend.counters(ours)["plain_calls"] == 0 and not frontend.counters(ours)["breaks"]
    handle = getattr(ours, "_backplane_compiled", ours)
    guards = min(_C.frontend.time_guards(handle, args, 2000) for _ in range(20))
    _C.frontend.stub_program(handle, args)
    torch.testing.assert_close(ours(*args), expected)
    candidates = {
        "ours": lambda: ours(*args),
        "theirs": lambda: theirs(*args),
        "executable": lambda: stub.called(*stub.inputs),
        "empty": lambda: None,
    }
    series = measure.alternate(candidates, rounds=rounds, block_s=0.05, micro=True)
    blocks = zip(*(series.seconds[key] for key in candidates), strict=True)
    pairs = [(o - e, t - x) for o, t, x, e in blocks]
    return {
        "name": name,
        "backend": backend,
        "guards": len(frontend.entries(ours)[0]["guards"]),
        "guards_us": guards * 1e6,
        "ours_us": sorted(o for o, _ in pairs)[len(pairs) // 2] * 1e6,
        "theirs_us": sorted(t for _, t in pairs)[len(pairs) // 2] * 1e6,
        "ratio": vars(measure.bootstrap([t / o for o, t in pairs])),
        "bytes": entry_bytes(handle),
    }


def entry_bytes(handle: Any) -> dict[str, int]:
    entry = frontend.entries(handle)[0]
    code = entry.get("modified")
    own = (code, code.co_code, code.co_consts, code.co_linetable) if code else ()
    return {**_C.frontend.entry_bytes(handle), "bytecode": sum(sys.getsizeof(one) for one in own)}


def graph_row(name: str, repeats: int) -> dict[str, Any]:
    """From a call to the graph, of a model that is new to both."""
    case = subjects.zoo.case(name)
    model, inputs = case.build(), case.inputs()
    ours, theirs, first = [], [], {"ours": [], "theirs": []}
    with torch._dynamo.config.patch(case.dynamo_config):
        for _ in range(repeats):
            compiled = frontend.compile(model, backend="aot_eager")
            start = time.perf_counter()
            compiled(**inputs)
            first["ours"].append(time.perf_counter() - start)
            (entry,) = frontend.entries(compiled)
            ours.append(entry["capture_ns"] / 1e9)
            torch._dynamo.reset()
            reached: list[float] = []

            def backend(graph: Any, _: Any, reached: list[float] = reached) -> Any:
                reached.append(time.perf_counter())
                return graph.forward

            start = time.perf_counter()
            torch.compile(model, backend=backend, dynamic=False)(**inputs)
            first["theirs"].append(time.perf_counter() - start)
            theirs.append(reached[0] - start)
    return {
        "name": name,
        "ours_ms": min(ours) * 1e3,
        "theirs_ms": min(theirs) * 1e3,
        "ratio": min(theirs) / min(ours),
        "first_call_ms": {key: min(times) * 1e3 for key, times in first.items()},
        "operators": entry["nodes"],
    }


def show_capturing(models: list[str], plugin: str, rounds: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    with torch.no_grad():
        backends = (plugin, "aot_eager")
        calls = [call_row(name, backend, rounds) for name in SUBJECTS for backend in backends]
        print(f"{'a call above its executable':28}{'ours':>10}{'TorchDynamo':>13}{'ratio':>18}")
        for row in calls:
            ratio = row["ratio"]
            print(
                f"{row['name'] + ', ' + row['backend']:28}{row['ours_us']:8.2f}us"
                f"{row['theirs_us']:11.1f}us"
                f"{ratio['value']:8.1f} [{ratio['low']:.1f}, {ratio['high']:.1f}]"
                f"   {row['guards']} guards in {row['guards_us']:.2f} us"
            )
        print(
            f"\n{'bytes of an entry':28}{'guards':>10}{'graph':>10}{'recipe':>10}{'bytecode':>10}"
        )
        for row in calls[:: len(backends)]:
            sizes = row["bytes"]
            print(f"{row['name']:28}" + "".join(f"{sizes[k]:10}" for k in sizes))
        print(
            f"\n{'from a call to a graph':28}{'ours':>10}{'TorchDynamo':>13}{'ratio':>8}{'first call':>22}"
        )
        graphs = []
        for name in models:
            row = graph_row(name, repeats=3)
            graphs.append(row)
            first = row["first_call_ms"]
            print(
                f"{name:28}{row['ours_ms']:8.1f}ms{row['theirs_ms']:11.1f}ms{row['ratio']:8.1f}"
                f"{first['ours']:10.1f}ms{first['theirs']:8.0f}ms",
                flush=True,
            )
    return {"calls": calls, "graphs": graphs}
