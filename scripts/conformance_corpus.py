"""Writes the graphs of the conformance kit: sdk/conformance/python/backplane_conformance/corpus/*.gz, from PyTorch's operator
database and from the fuzzer of graphs, as the recorder makes them.

Each graph stands there with what its inputs may be: a range for floats, the elements themselves for
integers and bools. The kit fills them anew, and needs no PyTorch.
"""

from __future__ import annotations

import argparse
import gzip
import multiprocessing
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "sdk/conformance/python/backplane_conformance/corpus"
sys.path.insert(0, str(ROOT / "tests"))

MOST_ELEMENTS = 20_000  # of all inputs of a graph
MOST_INTEGERS = 600  # elements that stand in the file
MOST_TEXT = 12_000
# Which of equal elements, and which of equally good factors, they name is left open.
OPEN = re.compile(
    r"aten\.(sort|topk|kthvalue|mode|median|nanmedian|argsort|linalg_|_linalg|empty|native_dropout"
    r"|bernoulli|rand|normal|multinomial|_fused_dropout|uniform|histc|geqrf|ormqr|svd|_cdist)"
)

# What is computed may be NaN, whose sign is nobody's.
SIGNS = re.compile(r"aten\.(copysign\.Tensor|signbit)\(")


def recipe(tensor: Any, by_range: bool) -> str | None:
    """What an input may be; None where the file cannot say it."""
    import torch

    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.dtype.is_complex:
        plain = torch.view_as_real(plain)
    if plain.dtype.is_floating_point:
        numbers = plain.double()
        finite = numbers[numbers.isfinite()]
        low, high = (finite.min().item(), finite.max().item()) if finite.numel() else (-1.0, 1.0)
        if low == high:
            low, high = min(low, -1.0) if low < 0 else low, high + 1.0
        return f"range {low:.6g} {high:.6g}"
    if by_range:
        low, high = (int(plain.min()), int(plain.max())) if plain.numel() else (0, 1)
        return f"range {low} {high}"
    if plain.numel() > MOST_INTEGERS:
        return None
    return " ".join(["values", *(str(int(v)) for v in plain.reshape(-1).tolist())])


def renamed(text: str) -> str:
    """The same graph with short names, so that equal ones are equal texts."""
    names: dict[str, str] = {}
    return re.sub(
        r"%[A-Za-z_0-9.]+", lambda m: names.setdefault(m[0], f"%{len(names)}"), text
    ).replace("@opinfo_inference", "@g")


def entry_text(name: str, text: str, inputs: list[Any], by_range: bool) -> str | None:
    """One entry of the file; None where the kit cannot use it."""
    if len(text) > MOST_TEXT or OPEN.search(text) or not re.search(r"= aten\.", text):
        return None
    if sum(tensor.numel() for tensor in inputs) > MOST_ELEMENTS:
        return None
    if text.split("->")[0].count("%") != len(inputs):
        return None  # tensors that the program holds are inputs too
    recipes = [recipe(tensor, by_range) for tensor in inputs]
    if None in recipes:
        return None
    text = re.sub(r"graph @\w+", "graph @g", renamed(text))
    return "\n".join([f"case {name}", *map(str, recipes), text.rstrip(), "end", ""])


def short(dtype: Any) -> str:
    names = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c", "bool": "b8"}
    word = str(dtype).removeprefix("torch.")
    letters = re.match(r"[a-z]+", word)
    assert letters is not None
    return names.get(letters[0], letters[0]) + ("" if word == "bool" else word[letters.end() :])


def operator_graphs(gradients: bool) -> Iterator[tuple[str, str, list[Any], bool]]:
    """Of every entry of the operator database, in several dtypes."""
    import torch
    from torch_backplane.opinfo import check, entries
    from torch_backplane.plugin_search import find_plugin

    find_plugin("reference")

    forward = {
        torch.float32: 8,
        torch.float64: 1,
        torch.bfloat16: 2,
        torch.float16: 2,
        torch.int64: 2,
        torch.int32: 1,
        torch.uint8: 1,
        torch.bool: 1,
        torch.complex64: 1,
    }
    backward = {torch.float32: 4, torch.bfloat16: 1, torch.float16: 1, torch.float64: 1}
    for name, entry in sorted(entries.database().items()):
        if entry.name in entries.UNINITIALIZED or entry.name in entries.TIES:
            continue
        if name.startswith((entries.GPU_ONLY_PREFIX, "linalg", "fft", "sparse")):
            continue
        supported = entry.supported_dtypes("cpu")
        differentiable = entry.supported_backward_dtypes("cpu") if entry.supports_autograd else ()
        for dtype, count in (backward if gradients else forward).items():
            if dtype not in (differentiable if gradients else supported):
                continue
            case = entries.Case("backward" if gradients else "float", dtype)
            seen: set[str] = set()
            try:
                for sample in entries.samples(entry, case, 4 * count):
                    problem = check.Problem(sample, case)
                    if problem.random or problem.trivial:
                        continue
                    _, function = problem.record([("reference", 0)])
                    if function.report()["fallback"]:
                        continue
                    text = function.print_graph()
                    shape = re.sub(r"\d+", "0", renamed(text))
                    if shape in seen:
                        continue
                    seen.add(shape)
                    kind = short(dtype) + (".gradient" if gradients else "")
                    yield f"{name}/{kind}/{len(seen) - 1}", text, problem.arguments(), False
                    if len(seen) == count:
                        break
            except Exception as error:
                print(f"{name} {dtype}: {type(error).__name__}: {error!s:.100}", file=sys.stderr)


def size_line(graph: str, inputs: list[Any]) -> str | None:
    """What the dim classes are at these inputs; None where inputs do not tell all of them."""
    head = graph.split("->")[0]
    types = re.findall(r"%[\w.]+: \w+\[([^\]]*)\](?: strides\(([^)]*)\))?", head)
    values: dict[str, int] = {}
    # Sizes come last: the stride of a dim of size 1 may be any number.
    for place in (1, 0):
        for texts, tensor in zip(types, inputs, strict=True):
            names = list(filter(None, texts[place].split(", ")))
            numbers = tensor.stride() if place else tensor.shape
            if names:
                values |= {n: int(v) for n, v in zip(names, numbers, strict=True)}
    values = {name: value for name, value in values.items() if not name.isdigit()}
    listed = re.search(r"classes\((.*)\) \{", graph)
    assert listed is not None
    for item in re.split(r", (?=\w+(?::| = ))", listed[1]):
        name = re.split(r"\W", item)[0]
        if " = " in item:
            values.pop(name, None)  # computed
        elif name not in values:
            return None
    return "sizes " + " ".join(f"{name}={size}" for name, size in sorted(values.items()))


def random_graph(seed: int, number: int) -> str | None:
    """The entry of one graph of the fuzzer, at sizes that are classes where it calls it with two."""
    import torch
    from fuzz import graph_check, graph_fuzzer

    text = graph_fuzzer.make("reference", (), f"{seed}:{number}")
    space: dict[str, Any] = {"make": graph_check.make, "torch": torch}
    exec(compile(text, "<graph>", "exec", dont_inherit=True), space)
    if space.get("DOOR") != "graph" or SIGNS.search(text.replace(".default(", "(")):
        return None
    function, make_inputs, calls = space["f"], space["inputs"], space["CALLS"]
    torch.manual_seed(0)
    inputs = list(make_inputs(**calls[0]).values())
    compiled = graph_check.compile_graph(function, "reference", inputs)
    if not hasattr(compiled, "stages"):
        return None
    others = [{name: size + more for name, size in calls[0].items()} for more in (4, 9)]
    for sizes in [*calls, *(others if len(calls) > 1 else [])]:
        compiled(*make_inputs(**sizes).values())
    if compiled.function.counts()["structures"] != 1:
        return None  # several graphs: none of them says what the others do
    stage = compiled.stages[-1]
    if stage.report()["fallback"]:
        return None
    graph = stage.print_graph()
    if "classes(" not in graph:
        return entry_text(f"{seed}.{number}", graph, inputs, False)
    # Sizes at which the recorder found this very graph.
    lines = [size_line(graph, list(make_inputs(**sizes).values())) for sizes in others]
    if None in lines:
        return None
    entry = entry_text(f"{seed}.{number}", graph, inputs, True)
    return entry and entry.replace("\ngraph ", "\n" + "\n".join(map(str, lines)) + "\ngraph ", 1)


def random_entries(seed: int, count: int) -> Iterator[str]:
    """What is not a graph for PyTorch may end the process: a child makes them."""
    context = multiprocessing.get_context("fork")
    number = made = 0
    while made < count:
        receiver, sender = context.Pipe(duplex=False)

        def work(first: int = number, sender: Any = sender) -> None:
            from torch_backplane.plugin_search import find_plugin

            find_plugin("reference")  # a plugin serves the process that loaded it
            for one in range(first, first + 200):
                try:
                    sender.send((one, random_graph(seed, one)))
                except Exception:
                    sender.send((one, None))

        child = context.Process(target=work)
        child.start()
        sender.close()
        last = number
        while True:
            try:
                if not receiver.poll(20):
                    print(f"number {last + 1} takes too long", file=sys.stderr)
                    break
                last, entry = receiver.recv()
            except EOFError:
                break
            if entry is not None and made < count:
                made += 1
                yield entry
        print(f"{made} graphs after number {last}", file=sys.stderr)
        child.kill()
        child.join()
        number = last + (1 if last % 200 == 199 else 2)


def operator_entries(gradients: bool) -> Iterator[str]:
    for graph in operator_graphs(gradients):
        entry = entry_text(*graph)
        if entry is not None:
            yield entry


def write(name: str, entries: Iterator[str], dropped: set[str]) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    seen: set[str] = set()
    texts = []
    for entry in entries:
        head, body = entry.split("\n", 1)
        if body not in seen and head.removeprefix("case ") not in dropped:
            seen.add(body)
            texts.append(entry)
    data = gzip.compress("".join(texts).encode(), compresslevel=9, mtime=0)
    (FOLDER / f"{name}.gz").write_bytes(data)
    print(f"{name}: {len(texts)} graphs, {len(data)} bytes")


def kept(name: str) -> Iterator[str]:
    """What stands in the file."""
    text = gzip.decompress((FOLDER / f"{name}.gz").read_bytes()).decode()
    yield from (part + "end\n" for part in text.split("end\n") if part)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("section", choices=["operators", "gradients", "random"])
    parser.add_argument("--count", type=int, default=1000, help="of random graphs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--drop", type=pathlib.Path, help="names to take out of what is there")
    options = parser.parse_args()
    dropped = set(options.drop.read_text().split()) if options.drop else set()
    if options.drop:
        entries = kept(options.section)
    elif options.section == "random":
        entries = random_entries(options.seed, options.count)
    else:
        entries = operator_entries(options.section == "gradients")
    write(options.section, entries, dropped)
    return 0


if __name__ == "__main__":
    sys.exit(main())
