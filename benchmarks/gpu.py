"""plugin:cuda and plugin:opencl on one NVIDIA GPU, beside PyTorch's own back ends on the same tensors.

A process for each model and for all operators of a back end, each with a limit; what is done stands in
the JSON file and is not done again, so that an interrupted run goes on. Every result is compared with
eager mode before it is timed. Needs no more than this checkout, torch with CUDA and the package. plugin:cuda
takes PyTorch's CUDA tensors, by both doors; plugin:opencl runs on torch_backplane.device("opencl", 0).
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

MODELS = ("bert-large", "gpt2-medium", "llama-1b", "vit-l", "resnet-50")
TRAINED = ("bert-large", "gpt2-medium", "vit-l")
OURS = {"cuda": "torch", "cuda-own": "own", "opencl": "torch"}  # by door
THEIRS = {
    "inductor": {},
    "reduce-overhead": {"mode": "reduce-overhead"},
    "max-autotune": {"mode": "max-autotune-no-cudagraphs"},
}
# Of an H100 (SXM): bytes per second of memory, multiplications and additions per second.
MEMORY_BYTES_PER_S = 3.35e12
PEAK = {"float32": 67e12, "bfloat16": 989e12}


def _kernels(torch: Any) -> dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]]:
    """Operators by name: the function, and the shapes of its inputs."""
    functional = torch.nn.functional
    rows = [(16384, 4096)]
    return {
        "add": (lambda x, y: x + y, rows * 2),
        "gelu": (functional.gelu, rows),
        "softmax": (lambda x: torch.softmax(x, -1), rows),
        "layer norm": (
            lambda x, w, b: functional.layer_norm(x, (x.shape[-1],), w, b),
            [*rows, (4096,), (4096,)],
        ),
        "rms norm": (lambda x, w: functional.rms_norm(x, (x.shape[-1],), w), [*rows, (4096,)]),
        "sum of columns": (lambda x: x.sum(0), rows),
        "transpose": (lambda x: x.t().contiguous(), rows),
        "gated": (lambda x, y: functional.silu(x) * y, rows * 2),
        "matmul": (lambda x, y: x @ y, [(4096, 4096), (4096, 4096)]),
        "linear": (
            functional.linear,
            [(8192, 4096), (4096, 4096), (4096,)],
        ),
        "linear gelu": (
            lambda x, w, b: functional.gelu(functional.linear(x, w, b)),
            [(8192, 4096), (4096, 4096), (4096,)],
        ),
        "two small products": (
            lambda x, w: torch.relu(x @ w) @ w,
            [(16, 64), (64, 64)],
        ),
        "attention": (
            lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
            [(4, 16, 2048, 64)] * 3,
        ),
        "attention 128": (
            lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
            [(4, 16, 2048, 128)] * 3,
        ),
        "attention whole": (functional.scaled_dot_product_attention, [(4, 16, 4096, 64)] * 3),
        "attention masked": (
            functional.scaled_dot_product_attention,
            [*[(4, 16, 2048, 64)] * 3, (2048, 2048)],
        ),
    }


def _models(small: bool) -> dict[str, Callable[[], tuple[Any, dict[str, Any]]]]:
    """Models of transformers and timm from their configurations, with inputs."""
    import torch
    import transformers

    layers = 2 if small else None
    wide = 64 if small else None

    def ids(vocabulary: int, batch: int, length: int) -> Any:
        return torch.randint(0, vocabulary, (1, 8) if small else (batch, length))

    def bert() -> tuple[Any, dict[str, Any]]:
        config = transformers.BertConfig(
            hidden_size=wide or 1024,
            num_hidden_layers=layers or 24,
            num_attention_heads=4 if small else 16,
            intermediate_size=4 * (wide or 1024),
        )
        return transformers.BertModel(config), {"input_ids": ids(config.vocab_size, 8, 512)}

    def gpt2() -> tuple[Any, dict[str, Any]]:
        config = transformers.GPT2Config(
            n_embd=wide or 1024,
            n_layer=layers or 24,
            n_head=4 if small else 16,
            use_cache=False,
        )
        return transformers.GPT2LMHeadModel(config), {"input_ids": ids(config.vocab_size, 4, 1024)}

    def llama() -> tuple[Any, dict[str, Any]]:
        config = transformers.LlamaConfig(
            hidden_size=wide or 2048,
            intermediate_size=4 * (wide or 2048),
            num_hidden_layers=layers or 16,
            num_attention_heads=4 if small else 32,
            num_key_value_heads=4 if small else 32,
            vocab_size=1000 if small else 32000,
            use_cache=False,
        )
        return transformers.LlamaForCausalLM(config), {"input_ids": ids(config.vocab_size, 1, 2048)}

    def vit() -> tuple[Any, dict[str, Any]]:
        config = transformers.ViTConfig(
            hidden_size=wide or 1024,
            num_hidden_layers=layers or 24,
            num_attention_heads=4 if small else 16,
            intermediate_size=4 * (wide or 1024),
            image_size=32 if small else 224,
        )
        side = config.image_size
        return transformers.ViTModel(config), {
            "pixel_values": torch.randn(1 if small else 32, 3, side, side)
        }

    def resnet() -> tuple[Any, dict[str, Any]]:
        config = transformers.ResNetConfig()
        if small:
            config = transformers.ResNetConfig(
                embedding_size=8, hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1]
            )
        side = 32 if small else 224
        return transformers.ResNetModel(config), {
            "pixel_values": torch.randn(1 if small else 32, 3, side, side)
        }

    return dict(zip(MODELS, (bert, gpt2, llama, vit, resnet), strict=True))


# ---- One row, in a process of its own --------------------------------------------------------------


def _first(result: Any) -> Any:
    return result if hasattr(result, "dtype") else result[0]


def _seconds(call: Callable[[], Any], synchronize: Callable[[], None], limit_s: float) -> float:
    """The least time of a call over a few blocks, each long enough for the clock."""
    call()
    synchronize()
    start = time.perf_counter()
    call()
    synchronize()
    once = max(time.perf_counter() - start, 1e-6)
    calls = max(1, min(200, int(limit_s / 8 / once)))
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        synchronize()
        best = min(best, (time.perf_counter() - start) / calls)
    return best


def _host_seconds(call: Callable[[], Any], synchronize: Callable[[], None]) -> float:
    """What a call keeps the host busy with: a few in a row, nothing waited for."""
    best = float("inf")
    for _ in range(5):
        synchronize()
        start = time.perf_counter()
        for _ in range(4):
            call()
        best = min(best, (time.perf_counter() - start) / 4)
    synchronize()
    return best


def _error(actual: Any, expected: Any) -> float:
    scale = expected.abs().max().item() or 1.0
    return ((actual.detach().float().cpu() - expected).abs().max().item()) / scale


def work(row: str, back_end: str, dtype_name: str, small: bool) -> dict[str, Any]:
    """Times one row under one back end: {"ms", "first_s", "error"}."""
    import torch

    torch.manual_seed(0)
    dtype = getattr(torch, dtype_name)
    kind, name = row.split("/")
    plugin = back_end.removesuffix("-own")
    if back_end in OURS:
        if plugin == "opencl":
            os.environ["BACKPLANE_DEVICE"] = "1"  # beside torch's CUDA it is not taken unasked
        import torch_backplane

        device = torch_backplane.device(plugin, 0)
    else:
        device = torch.device("cpu" if small else "cuda")

    def synchronize() -> None:
        if device.type != "cpu":
            torch.accelerator.synchronize(device.index)

    if kind == "kernel":
        function, shapes = _kernels(torch)[name]
        shapes = [tuple(min(d, 64) for d in s) if small else s for s in shapes]
        tensors = [torch.randn(s).to(dtype) for s in shapes]
        scale = tensors[0].shape[-1] ** -0.5
        if name.startswith(("linear", "matmul")):
            tensors[1] = tensors[1] * scale
        module, inputs = None, dict(enumerate(tensors))
    else:
        module, inputs = _models(small)[name]()
        module = module.eval().to(dtype)  # without dropout, whose numbers would differ
        inputs = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}
        function = module

    def step(run: Callable[..., Any], placed: dict[str, Any]) -> Any:
        """Forward and backward; a gradient that all of it has a part in."""
        module.zero_grad()
        out = _first(run(**placed)).float()
        # Not of squares: those of normed rows are all alike, and gradients nothing but rounding.
        weights = torch.linspace(-1, 1, out.shape[-1], device=out.device)
        (out * weights).mean().backward()
        return next(p.grad for p in module.parameters() if p.grad is not None)

    def call_of(function: Callable[..., Any], place: Any) -> Callable[[], Any]:
        placed = {k: v.to(place) for k, v in inputs.items()}
        if kind == "kernel":
            return lambda: function(*placed.values())
        if kind == "train":
            return lambda: step(function, placed)
        return lambda: _first(function(**placed))

    with torch.set_grad_enabled(kind == "train"):
        reference = torch.device("cpu" if small else "cuda")
        if module is not None:
            module.to(reference)
        expected = call_of(function, reference)().detach().float().cpu()
        if module is not None:
            module.to(device)
        settings = None
        if back_end in OURS:
            settings = {"backend": f"plugin:{plugin}", "options": {"report": False}}
        elif back_end in THEIRS:
            settings = THEIRS[back_end]
        compiled = function
        if settings is not None:
            own = OURS.get(back_end) == "own"
            door = torch_backplane.compile if own else torch.compile
            compiled = door(function, dynamic=False, **settings)
        call = call_of(compiled, device)
        graphs: list[dict[str, Any]] = []
        recording = torch_backplane.record() if back_end in OURS else contextlib.nullcontext(graphs)
        with recording as graphs:
            start = time.perf_counter()
            actual = call()
            synchronize()
            first = time.perf_counter() - start
        error = _error(actual, expected)
        out = {"first_s": first, "error": error}
        if back_end in OURS:
            # What a driver calls a device: an OpenCL loader may bring another than the GPU.
            out["device"] = torch_backplane._C.plugin_info(plugin)["devices"][0]["name"]
            out["left"] = sorted({node["op"] for graph in graphs for node in graph["fallback"]})
        if not error < (0.1 if dtype_name == "bfloat16" else 1e-2):
            return {**out, "wrong": True}
        out["ms"] = _seconds(call, synchronize, 0.5 if small else 2.0) * 1e3
        out["host_ms"] = _host_seconds(call, synchronize) * 1e3
        if kind == "kernel":
            size = sum(v.numel() * v.element_size() for v in inputs.values())
            size += actual.numel() * actual.element_size()
            out["bytes_per_s"] = size / (out["ms"] / 1e3)
            out["of_memory"] = out["bytes_per_s"] / MEMORY_BYTES_PER_S
            flops = 0
            if name in ("matmul", "linear", "linear gelu"):
                m, k = inputs[0].shape
                flops = 2 * m * k * actual.shape[-1]
            elif name.startswith("attention"):
                batch, heads, queries, depth = inputs[0].shape
                is_causal = name in ("attention", "attention 128")
                flops = 4 * batch * heads * queries**2 * depth // (2 if is_causal else 1)
            if flops:
                out["of_peak"] = flops / (out["ms"] / 1e3) / PEAK[dtype_name]
    return out


# ---- All rows --------------------------------------------------------------------------------------


def _run(keys: list[str], limit_s: float, small: bool) -> dict[str, Any]:
    """Results by key: of one process."""
    command = [sys.executable, __file__, "--cells", ";".join(keys), *(["--small"] if small else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
        said, code, words = done.stdout, f"exit status {done.returncode}", done.stderr
    except subprocess.TimeoutExpired as late:
        said = late.stdout.decode() if late.stdout else ""
        code, words = f"longer than {limit_s:.0f} s", ""
    results = {}
    for line in said.splitlines():
        if line.startswith("RESULT "):
            key, text = line.removeprefix("RESULT ").split(" ", 1)
            results[key.replace("_", " ")] = json.loads(text)
    last = (words.strip().splitlines() or ["no output"])[-1][:300]
    return {key: results.get(key, {"failed": f"{code}: {last}"}) for key in keys}


# ---- Correctness first -----------------------------------------------------------------------------


def check(plugin: str, limit_s: float, jobs: int) -> dict[str, Any]:
    """The models' tests and the operator samples on the device: what passed and what did not."""
    environment = {**os.environ, "BACKPLANE_TEST_GPU": "1", "OMP_NUM_THREADS": "2"}
    root = pathlib.Path(__file__).resolve().parents[1]
    with tempfile.TemporaryDirectory() as folder:
        table = pathlib.Path(folder) / "opinfo.json"
        zoo = [sys.executable, "-m", "pytest", "tests/models", "-q", "-p", "no:cacheprovider"]
        zoo += ["-k", f"{plugin} and not training"]
        samples = [sys.executable, "-m", "torch_backplane.cli", "opinfo", "--plugin", plugin]
        samples += ["--jobs", str(jobs), "--json", str(table)]
        said = {}
        running = {
            name: subprocess.Popen(
                command,
                env=environment,
                cwd=root,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            for name, command in {"models": zoo, "opinfo": samples}.items()
        }
        end = time.monotonic() + limit_s
        for name, process in running.items():
            try:
                out, _ = process.communicate(timeout=max(end - time.monotonic(), 1))
                said[name] = out.strip().splitlines()[-6:]
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # with its workers
                said[name] = [f"longer than {limit_s:.0f} s"]
        if table.exists():
            results = json.loads(table.read_text())
            said["wrong"] = [
                f"{r['entry']} {r['column']} {r['dtype']}: {r['reason']}"[:200]
                for r in results["results"]
                if r["status"] in ("wrong", "error")
            ]
    return said


def table(results: dict[str, Any]) -> str:
    """The results as a page: a line for each row, milliseconds for each back end."""
    rows: dict[str, dict[str, Any]] = {}
    for key, value in results.items():
        row, dtype, back_end = key.split("|")
        rows.setdefault(f"{row} {dtype}", {})[back_end] = value
    names = ["eager", *THEIRS, *OURS]
    lines = ["| row | " + " | ".join(names) + " | ours to the best of theirs |"]
    lines.append("|---" * (len(names) + 2) + "|")
    for row, cells in rows.items():
        texts = []
        for name in names:
            cell = cells.get(name, {})
            if "ms" in cell:
                share = cell.get("of_peak", cell.get("of_memory"))
                texts.append(f"{cell['ms']:.3f}" + (f" ({share:.0%})" if share else ""))
            else:
                texts.append("wrong" if cell.get("wrong") else "failed" if cell else "")
        theirs = [cells[n]["ms"] for n in ("eager", *THEIRS) if "ms" in cells.get(n, {})]
        ours = min(
            (cells[n]["ms"] for n in ("cuda", "cuda-own") if "ms" in cells.get(n, {})), default=0
        )
        ratio = f"{min(theirs) / ours:.2f}" if theirs and ours else ""
        lines.append(f"| {row} | " + " | ".join(texts) + f" | {ratio} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", default="gpu.json", help="results, read and written")
    parser.add_argument("--markdown", help="page to write")
    parser.add_argument("--rows", default="", help="only rows that contain one of these, by commas")
    parser.add_argument(
        "--back-ends", default="eager,inductor,reduce-overhead,cuda,cuda-own,opencl"
    )
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--limit-s", type=float, default=60, help="for one row and back end")
    parser.add_argument("--total-s", type=float, default=540, help="no row is begun after that")
    parser.add_argument("--check", default="cuda", help="plugins whose results are checked first")
    parser.add_argument("--check-s", type=float, default=120, help="for the checks of one plugin")
    parser.add_argument("--jobs", type=int, default=8, help="processes of the operator samples")
    parser.add_argument("--small", action="store_true", help="small shapes, theirs on the CPU")
    parser.add_argument("--cells", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cells:
        for cell in options.cells.split(";"):
            row, dtype, back_end = cell.split("|")
            try:
                result = work(row, back_end, dtype, options.small)
            except Exception as error:  # the other cells are timed all the same
                result = {"failed": f"{type(error).__name__}: {error}"[:300]}
            print(f"RESULT {cell.replace(' ', '_')} {json.dumps(result)}", flush=True)
        os._exit(0)  # results are out: how runtimes of others end is theirs
    import torch

    kernels = [f"kernel/{name}" for name in _kernels(torch)]
    models = [f"model/{name}" for name in MODELS] + [f"train/{name}" for name in TRAINED]
    if options.check:
        for plugin in options.check.split(","):
            print(plugin, json.dumps(check(plugin, options.check_s, options.jobs)), flush=True)
    path = pathlib.Path(options.json)
    results = json.loads(path.read_text()) if path.exists() else {}
    begin = time.monotonic()
    wanted = [w for w in options.rows.split(",") if w]
    groups = [kernels, *([m] for m in models)]
    for group, dtype, back_end in itertools.product(
        groups, options.dtypes.split(","), options.back_ends.split(",")
    ):
        keys = [f"{row}|{dtype}|{back_end}" for row in group]
        keys = [k for k in keys if not wanted or any(w in k for w in wanted)]
        keys = [k for k in keys if "failed" in results.get(k, {"failed": ""})]
        if not keys or time.monotonic() - begin > options.total_s:
            continue
        results |= _run(keys, options.limit_s, options.small)
        path.write_text(json.dumps(results, indent=1))
        for key in keys:
            print(key, json.dumps(results[key]), flush=True)
    page = table(results)
    print(page)
    if options.markdown:
        pathlib.Path(options.markdown).write_text(page)


if __name__ == "__main__":
    main()
