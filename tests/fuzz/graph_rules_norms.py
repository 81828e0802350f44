"""Rules of norms and of what is made of means."""

from __future__ import annotations

from fuzz.graph_rules import Rule, _image, _optional, generic, rule
from fuzz.graphs import Graph, Refused


def _batch_norm(tail: str, stats: bool, training: bool | None) -> Rule:
    def make(graph: Graph) -> str:
        image = _image(graph, graph.rng.choice((0, 1, 2, 3)), graph.rng.choice((1, 3, 4)))
        count = (image.tensor.shape[1],)
        texts = [image.name, _optional(graph, count), _optional(graph, count)]
        has = graph.rng.random() < 0.6 or training is False
        if stats:
            # They are written, and elements in one place would race.
            lies = graph.rng.choice(("plain", "sliced"))
            mean = graph.input(count, layout=lies)
            variance = graph.input(count, None, 0.5, 2.0, layout=lies)
            texts += [mean.name, variance.name] if has else ["None", "None"]
        if training is None:
            texts.append(str(not has or graph.rng.random() < 0.5))
        return ", ".join(texts) + tail

    return make


rule("native_batch_norm")(_batch_norm(", 0.1, 1e-3", True, None))
rule("batch_norm")(_batch_norm(", 0.1, 1e-3, False", True, None))
rule("instance_norm")(_batch_norm(", 0.1, 1e-3, False", True, None))
rule("_native_batch_norm_legit_no_training")(_batch_norm(", 0.1, 1e-3", True, False))
rule("_native_batch_norm_legit.no_stats")(_batch_norm(", True, 0.1, 1e-3", False, True))


def _legit(training: float) -> Rule:
    def make(graph: Graph) -> str:
        image = _image(graph, 2, 3)
        operands = [image, *(graph.input((3,), None, 0.5, 2.0) for _ in range(4))]
        flag = graph.rng.random() < training
        return ", ".join(v.name for v in operands) + f", {flag}, 0.1, 1e-3"

    return make


rule("_native_batch_norm_legit")(_legit(0.7))
# Only training calls this one; else AOTAutograd's statistics have another dtype than the kernel's.
rule("_native_batch_norm_legit_functional")(_legit(1.0))


def _side_by_side(graph: Graph) -> str:
    """PyTorch's own kernel reads weights of short types as if there were nothing between them."""
    name = _optional(graph, (4,))
    return name if name == "None" else f"{name}.contiguous()"


@rule("native_group_norm")
def _group_norm(graph: Graph) -> str:
    image = _image(graph, graph.rng.choice((1, 2)), 4)
    sizes = list(image.tensor.shape)
    pixels = " * ".join(map(graph.text, sizes[2:])) or "1"
    weight, bias = _side_by_side(graph), _side_by_side(graph)
    return f"{image.name}, {weight}, {bias}, {sizes[0]}, 4, {pixels}, {graph.rng.choice((1, 2, 4))}, 1e-3"


@rule("group_norm")
def _groups(graph: Graph) -> str:
    image = _image(graph, graph.rng.choice((0, 1, 2)), 4)
    # One element alone is its own mean: what is left of it is rounding, 300 times as large.
    groups = graph.rng.choice((1, 2) if image.tensor.dim() == 2 else (1, 2, 4))
    return f"{image.name}, {groups}, {_optional(graph, (4,))}, {_optional(graph, (4,))}"


def _row_norm(bias: bool) -> Rule:
    def make(graph: Graph) -> str:
        value = graph.pick(least=1, dtype="same")
        if value.name in graph.edges:  # whether the mean of an infinity is one goes by its place
            value = graph.input(graph.shape(2))
        rank = graph.rng.randint(1, min(2, value.tensor.dim()))
        shape = tuple(value.tensor.shape[-rank:])
        texts = [value.name, "[" + ", ".join(map(graph.text, shape)) + "]", _optional(graph, shape)]
        if bias:
            texts.append(_optional(graph, shape))
        return ", ".join([*texts, "1e-3"])

    return make


rule("native_layer_norm", "layer_norm")(_row_norm(True))
rule("rms_norm", "_fused_rms_norm")(_row_norm(False))


def _spread(op: str) -> Rule:
    def make(graph: Graph) -> str:
        text = generic(graph, f"aten.{op}")
        # Whether the mean of an infinity is one goes by its place.
        if text.split(",")[0] in graph.edges:
            raise Refused
        return text

    return make


for _op in ("var_mean", "std_mean"):
    for _overload in ("", ".dim", ".correction"):
        rule(f"{_op}{_overload}")(_spread(f"{_op}{_overload}"))


def _weight_norm(rows: str) -> Rule:
    def make(graph: Graph) -> str:
        # Of one dim PyTorch's shape function says another size than its kernel gives.
        value = graph.pick(least=2, dtype="same")
        others = list(range(1, value.tensor.dim()))
        return f"{value.name}{rows}, {value.name}.sum({others}, keepdim=True), 0"

    return make


rule("_weight_norm")(_weight_norm(""))
# Reads rows as if they lay close, unchecked.
rule("_weight_norm_interface")(_weight_norm(".contiguous()"))
