"""Joint graphs cut into forward and backward: both halves together do what the whole does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from record import helpers
from torch import nn


def run_halves(recording: Any, cut: Any, arguments: list[torch.Tensor]) -> list[str]:
    """Replays the whole and the halves; what differs."""
    inputs = {
        info["graph_input"]: helpers.copy_tensor(argument)
        for info, argument in zip(recording.arguments, arguments, strict=True)
    }
    primals = [inputs[i] for i in range(len(inputs))]
    torch.manual_seed(helpers.SEED)
    forward, _, _ = cut.replay_forward(primals)
    wanted = [info for info in recording.outputs if info["tangent"] is not None]
    written = [info for info in recording.arguments if info["tangent"] is not None]
    positions = [(i["tangent"], i["graph_output"]) for i in wanted]
    positions += [(i["tangent"], i["new_value"]) for i in written]
    tangents = [torch.randn_like(forward[output]) for _, output in sorted(positions)]
    saved = [
        (primals if value["is_argument"] else forward)[value["forward_position"]]
        for value in cut.saved
    ]
    torch.manual_seed(helpers.SEED + 1)  # the backward draws nothing
    backward, _, _ = cut.replay_backward([*saved, *tangents])
    torch.manual_seed(helpers.SEED)
    whole, _, _ = recording.replay([*primals, *tangents])
    parts = forward[: len(whole) - len(backward)] + backward
    return [
        f"output {i}"
        for i, (part, expected) in enumerate(zip(parts, whole, strict=True))
        if not helpers.same_bits(part, expected)
    ]


@pytest.mark.parametrize("devices", [[], [("reference", 0)], [("cpu_onednn", 0)]])
def test_halves_run_on_plugins(devices: list[tuple[str, int]]) -> None:
    """What the recorder makes goes through passes, partitioner and runtime unchanged."""
    from torch_backplane import account

    account.STATE.search_plugins()
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Flatten(), nn.Linear(8 * 4 * 4, 10), nn.GELU(), nn.LayerNorm(10)]
    program = helpers.ModelProgram(nn.Sequential(*layers), {"input": torch.randn(2, 3, 8, 8)})
    recording = helpers.check(program, *program.arguments)
    cut = recording.cut()
    forward, backward = cut.compile(devices)
    if devices:
        assert forward.report()["plugin_nodes"] > 4
    inputs = [helpers.copy_tensor(a) for a in program.arguments]
    tangent = torch.randn(2, 10)
    values = forward(list(inputs))
    saved = [
        (inputs if value["is_argument"] else values)[value["forward_position"]]
        for value in cut.saved
    ]
    actual = values[: -sum(not v["is_argument"] for v in cut.saved)] + backward([*saved, tangent])
    expected, _, _ = recording.replay([*inputs, tangent])
    for got, want in zip(actual, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def two_cosines(x: torch.Tensor) -> torch.Tensor:
    return x.cos().cos()


def test_two_cosines() -> None:
    """The published example: one tensor is saved, the inner cosine computed twice."""
    x = torch.randn(1000, requires_grad=True)
    recording = helpers.check(two_cosines, x)
    cut = recording.cut()
    assert [value["name"] for value in cut.saved] == ["primals_1"]
    assert cut.recomputed == ["aten.cos"]
    assert not run_halves(recording, cut, [x])


def block() -> tuple[Any, list[torch.Tensor]]:
    layers = [
        nn.Linear(16, 32),
        nn.GELU(),
        nn.Dropout(0.5),
        nn.LayerNorm(32),
        nn.Linear(32, 16),
        nn.BatchNorm1d(16),
        nn.SiLU(),
    ]
    program = helpers.ModelProgram(nn.Sequential(*layers), {"input": torch.randn(64, 16)})
    return program, program.arguments


@pytest.mark.parametrize("budget", [1.0, 0.6, 0.3, 0.0])
def test_halves_do_what_the_whole_does(budget: float) -> None:
    program, arguments = block()
    recording = helpers.check(program, *arguments)
    assert not run_halves(recording, recording.cut(budget), arguments)


def test_budget() -> None:
    program, arguments = block()
    recording = helpers.record(program, arguments)
    cuts = [recording.cut(budget) for budget in (1.0, 0.6, 0.3, 0.0)]
    saved = [cut.saved_bytes for cut in cuts]
    assert saved == sorted(saved, reverse=True)
    assert saved[1] <= 0.6 * saved[0]
    assert not {op for op in cuts[0].recomputed if "mm" in op or "norm" in op}
    for cut in cuts:
        assert not [op for op in cut.recomputed if "bernoulli" in op]
        assert "bernoulli" not in cut.backward_text.partition("{")[2]


def test_explanation() -> None:
    x = torch.randn(10, requires_grad=True)
    text = helpers.record(lambda a: F.gelu(a).sin(), [x]).cut().explanation
    assert text.startswith("saves 1 values, 40 bytes without weights\n  %primals_1: 40 bytes")
    assert "computes 1 nodes twice" in text


def saved_by_pytorch(module: Any, inputs: list[Any]) -> int:
    """Bytes that PyTorch's own minimum cut saves, without parameters."""
    from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_func
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    found: list[int] = []

    def partition(*arguments: Any, **options: Any) -> Any:
        forward, backward = min_cut_rematerialization_partition(*arguments, **options)
        nodes = list(forward.graph.nodes)
        placeholders = [node for node in nodes if node.op == "placeholder"]
        parameters = {
            node
            for node, value in zip(placeholders, inputs, strict=False)
            if isinstance(value, nn.Parameter)
        }
        saved = nodes[-1].args[0][options["num_fwd_outputs"] :]
        values = [node.meta["val"] for node in saved if node not in parameters]
        found.append(sum(v.nbytes for v in values if isinstance(v, torch.Tensor)))
        return forward, backward

    def compiler(graph: Any, _: Any) -> Any:
        return make_boxed_func(graph.forward)

    aot_module_simplified(
        module, inputs, fw_compiler=compiler, bw_compiler=compiler, partition_fn=partition
    )
    return found[0]


@pytest.mark.parametrize(
    "name",
    ["bert", "resnet", "gpt2", "llama", "vit", "convnext", "mobilenet", "unet", "t5"],
)
def test_saves_no_more_than_pytorch(name: str) -> None:
    from models import zoo

    case = zoo.case(name)
    if not case.available():
        pytest.skip(f"{name} needs {', '.join(case.requires)}")
    bytes_saved: list[tuple[int, int]] = []

    def backend(module: Any, inputs: list[Any]) -> Any:
        from torch_backplane import _C

        static = [i for i, value in enumerate(inputs) if isinstance(value, nn.Parameter)]
        recording = _C.record_fx(module, inputs, static_arguments=static)
        cut = recording.cut()
        captured = [module.get_buffer(attribute) for attribute in recording.captured]
        assert not run_halves(recording, cut, [*inputs, *captured])
        bytes_saved.append((cut.saved_bytes, saved_by_pytorch(module, inputs)))
        return module.forward

    model = case.build().train()
    with case.capture_config():
        torch.compile(model, backend=backend)(**case.inputs(labels=True))
    assert bytes_saved
    for ours, theirs in bytes_saved:
        assert ours <= theirs


@pytest.mark.parametrize(
    "program",
    [
        lambda x, w: F.gelu(x @ w).softmax(-1),
        lambda x, w: F.layer_norm(x.cos().cos() @ w, (4,)) * x.sigmoid(),
        lambda x, w: (x.tanh()[:, None] * w).logsumexp(-1),
    ],
)
def test_finite_differences(program: Any) -> None:
    arguments = [torch.randn(4, 4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    recording = helpers.record(program, arguments)
    cut = recording.cut()

    class Replay(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: torch.Tensor) -> torch.Tensor:
            values, _, _ = cut.replay_forward(list(inputs))
            ctx.saved = [
                (inputs if value["is_argument"] else values)[value["forward_position"]]
                for value in cut.saved
            ]
            return values[0]

        @staticmethod
        def backward(ctx: Any, tangent: torch.Tensor) -> tuple[torch.Tensor, ...]:
            gradients, _, _ = cut.replay_backward([*ctx.saved, tangent])
            return tuple(gradients)

    assert torch.autograd.gradcheck(Replay.apply, arguments)
