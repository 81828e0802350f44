"""Frames that PyTorch's AOTAutograd traces: its graphs are recorded as the frame's own would be."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch
import torch_backplane
from compiling import compile_for
from models import zoo
from torch import nn
from torch._library.effects import EffectType
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

BACKENDS = ["plugin:reference", "plugin:cpu_onednn"]


def compile_traced(target: Any, backend: str, **options: Any) -> Any:
    torch._dynamo.reset()
    torch_backplane.reset()
    return torch.compile(
        target, backend=backend, options={"recorder": False, "report": False}, **options
    )


def check_step(
    case: zoo.ModelCase, models: tuple[nn.Module, nn.Module], run: Any, batch: int
) -> None:
    losses = []
    for call, model in zip((run, models[1]), models, strict=True):
        model.zero_grad()
        torch.manual_seed(0)
        loss = case.loss(call(**case.inputs(batch=batch, labels=True)))
        loss.backward()
        losses.append(loss)
    torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-5)
    for (name, p), q in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        if q.grad is not None:
            torch.testing.assert_close(p.grad, q.grad, rtol=2e-3, atol=2e-5, msg=name)


@pytest.mark.parametrize("name", ["bert", "gpt2", "lstm", "vit"])
def test_training(name: str) -> None:
    case = zoo.case(name)
    models = case.build(), case.build()
    for model in models:  # transformers settles the kind of loss at the first call
        model(**case.inputs(labels=True))
    with case.capture_config(), torch_backplane.record() as graphs:
        compiled = compile_traced(models[0], "plugin:cpu_onednn", dynamic=True)
        for batch in (3, 5, 4):
            check_step(case, models, compiled, batch)
    assert not [g["eager"] for g in graphs if "eager" in g]
    # Other sizes are the same programs, but for one that was compiled before a size was seen to vary.
    roles = Counter(g["role"] for g in graphs)
    assert 1 <= roles["forward"] <= 3 and 1 <= roles["backward"] <= 3, roles
    stats = torch_backplane.stats()
    assert stats["plugin_nodes"] > 5 * stats["fallback_nodes"], stats


@pytest.mark.parametrize("backend", BACKENDS)
def test_checkpointed_blocks(backend: str) -> None:
    """A higher-order operator, which the recorder leaves to AOTAutograd."""
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))

    def program(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, x, use_reentrant=False).sin() + x

    compiled = compile_traced(program, backend)
    for rows in (3, 4):
        x = torch.randn(rows, 8, requires_grad=True)
        parameters = [x, *block.parameters()]
        expected = torch.autograd.grad(program(x).sum(), parameters)
        actual = torch.autograd.grad(compiled(x).sum(), parameters)
        torch.testing.assert_close(actual, expected)
    stats = torch_backplane.stats()
    assert stats["plugin_nodes"] > 0 and stats["eager_graphs"] == stats["eager_calls"] == 0, stats


def gradients_of(program: Any, block: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(3)
    loss = program(x).square().sum()
    return [loss, *torch.autograd.grad(loss, list(block.parameters())), torch.rand(2)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_checkpoints_that_draw_stay_on_the_plugin(backend: str) -> None:
    """What is drawn is saved: no graph can say that a generator is set back."""
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 8))

    def program(x: torch.Tensor) -> torch.Tensor:
        noisy = checkpoint(lambda t: block(t) + torch.rand_like(t), x, use_reentrant=False)
        return checkpoint(block, noisy, use_reentrant=False).sin()

    compiled = compile_traced(program, backend)
    for rows in (3, 4):
        x = torch.randn(rows, 8)
        expected = gradients_of(program, block, x)
        torch.testing.assert_close(gradients_of(compiled, block, x), expected)
    stats = torch_backplane.stats()
    assert stats["plugin_nodes"] > 0 and stats["eager_graphs"] == stats["eager_calls"] == 0, stats


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("selects", [False, True])
def test_checkpoints_that_pytorch_runs_draw_the_same_again(backend: str, selects: bool) -> None:
    """TorchDynamo's operator for them leaves that to a compiler."""
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.5))
    saved = [torch.ops.aten.addmm.default]
    options: dict[str, Any] = {"use_reentrant": False}
    if selects:
        options["context_fn"] = partial(create_selective_checkpoint_contexts, saved)

    def program(x: torch.Tensor) -> torch.Tensor:
        torch.zeros(8).unfold(0, 3, 2)[0].add_(1)  # such a write is PyTorch's own
        return checkpoint(block, x, **options).sin()

    compiled = compile_traced(program, backend)
    x = torch.randn(3, 8)
    expected = gradients_of(program, block, x)
    torch.testing.assert_close(gradients_of(compiled, block, x), expected)
    assert torch_backplane.stats()["eager_graphs"] == 1


@pytest.fixture(scope="module")
def told() -> list[tuple[str, float]]:
    """What operators with effects have told, in order."""
    told: list[tuple[str, float]] = []

    @torch.library.custom_op("backplane_traced::tell", mutates_args=())
    def tell(x: torch.Tensor, what: str) -> None:
        told.append((what, round(float(x.sum()), 2)))

    @torch.library.custom_op("backplane_traced::halves", mutates_args=())
    def halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        told.append(("halves", round(float(x.sum()), 2)))
        return x * 0.5, x * 0.25

    @torch.library.custom_op("backplane_traced::same", mutates_args=())
    def same(x: torch.Tensor) -> torch.Tensor:
        told.append(("same", round(float(x.sum()), 2)))
        return x.clone()

    def backward_of_same(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        torch.ops.backplane_traced.tell(gradient, "backward")
        return gradient

    tell.register_fake(lambda x, what: None)
    halves.register_fake(lambda x: (torch.empty_like(x), torch.empty_like(x)))
    same.register_fake(torch.empty_like)
    halves.register_autograd(lambda _, one, other: one * 0.5 + other * 0.25)
    same.register_autograd(backward_of_same)
    for operator in (tell, halves, same):
        operator.register_effect(EffectType.ORDERED)
    return told


@pytest.mark.parametrize("backend", BACKENDS)
def test_effects_stay_in_order_and_on_the_plugin(
    backend: str, told: list[tuple[str, float]]
) -> None:
    """AOTAutograd wraps their operators, to hand a token from each to the next."""
    operators = torch.ops.backplane_traced
    block = nn.Linear(4, 4)

    def program(x: torch.Tensor) -> torch.Tensor:
        hidden = block(x)
        operators.tell(hidden, "hidden")
        one, other = operators.halves(hidden.tanh())
        result = operators.same(one * other.sin())
        operators.tell(result, "result")
        return result.cos()

    compiled = compile_traced(program, backend)
    for rows in (3, 3, 4):
        x = torch.randn(rows, 4)
        told.clear()
        expected = gradients_of(program, block, x)
        eager = list(told)
        told.clear()
        torch.testing.assert_close(gradients_of(compiled, block, x), expected)
        assert told == eager
    stats = torch_backplane.stats()
    assert stats["plugin_nodes"] > 0 and stats["eager_graphs"] == stats["eager_calls"] == 0, stats


@pytest.mark.parametrize("backend", BACKENDS)
def test_sizes_that_are_results(backend: str) -> None:
    """Saved for the backward as integers."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return x.reshape(-1).repeat(2).view(2, *x.shape).sum(-1) / x.shape[0], x.shape[0] * 3

    compiled = compile_traced(program, backend, dynamic=True)
    for rows in (3, 5, 4):
        x = torch.randn(rows, 4, requires_grad=True)
        actual, expected = compiled(x), program(x)
        torch.testing.assert_close(actual, expected)
        torch.testing.assert_close(
            *(torch.autograd.grad(made[0].square().sum(), x) for made in (actual, expected))
        )


def test_strict_refuses_in_the_call() -> None:
    compiled = torch.compile(
        lambda x: torch.bernoulli(x) * 2,
        backend="plugin:reference",
        options={"recorder": False, "strict": True, "report": False},
    )
    for _ in range(2):
        with pytest.raises(Exception, match="BP-0107"):
            compiled(torch.eye(3))


def test_bad_data_is_told_by_pytorch() -> None:
    compiled = compile_traced(lambda x, i: torch.index_select(x, 0, i) * 2, "plugin:reference")
    x = torch.randn(4, 2)
    torch.testing.assert_close(compiled(x, torch.tensor([1, 3])), x[[1, 3]] * 2)
    with pytest.raises(IndexError):
        compiled(x, torch.tensor([1, 4]))
    assert torch_backplane.stats()["eager_calls"] == 1


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_results_that_show_an_element_twice(backend: str, dynamic: bool) -> None:
    """AOTAutograd would lay each gradient over itself."""

    def windows(x: torch.Tensor) -> torch.Tensor:
        return (1.5 - x).unfold(-1, 2, 1)

    x = torch.rand(5, 7, requires_grad=True)
    tangent = torch.rand(5, 6, 2)
    compiled = compile_traced(windows, backend, dynamic=dynamic)
    (actual,) = torch.autograd.grad(compiled(x), x, tangent)
    (expected,) = torch.autograd.grad(windows(x), x, tangent)
    torch.testing.assert_close(actual, expected)


def test_a_nested_tensor_made_inside() -> None:
    """Its size is a symbol of TorchDynamo's that a recording would leave without a source."""

    def program(values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        nested = torch.nested.nested_tensor_from_jagged(values, offsets)
        return (nested * 2).sin().values()

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="plugin:cpu_onednn", options={"report": False})
    for ends in ([0, 2, 6], [0, 1, 3, 6]):
        values = torch.randn(6, 3, requires_grad=True)
        offsets = torch.tensor(ends)
        results = []
        for f in (compiled, program):
            y = f(values, offsets)
            results.append([y, *torch.autograd.grad(y.sum(), values)])
        torch.testing.assert_close(*results)


SHARING = {
    "apart": lambda: (torch.arange(4.0), torch.arange(4.0, 8.0)),
    "views, apart": lambda: (torch.arange(6.0)[:4], torch.arange(6.0)[2:]),
    "overlap": lambda: _parts(torch.arange(6.0), 0, 2),
    "overlap the other way": lambda: _parts(torch.arange(6.0), 2, 0),
    "overlap elsewhere": lambda: _parts(torch.arange(9.0), 1, 4),
    "beside each other": lambda: _parts(torch.arange(8.0), 0, 4),
    "one memory": lambda: _parts(torch.arange(4.0), 0, 0),
}


def _parts(whole: torch.Tensor, *starts: int) -> tuple[torch.Tensor, ...]:
    return tuple(whole[start : start + 4] for start in starts)


@pytest.mark.parametrize("recorder", [False, True])
@pytest.mark.parametrize("first", SHARING)
def test_arguments_that_share_memory_in_another_way_later(first: str, recorder: bool) -> None:
    """What the first call's write showed in other arguments is no fact about later calls."""

    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x.mul_(2)
        return x + y, y

    torch._dynamo.reset()
    compiled = torch.compile(
        program, backend="plugin:reference", options={"recorder": recorder, "report": False}
    )
    for name in (first, *SHARING, first):
        given, expected = SHARING[name](), SHARING[name]()
        torch.testing.assert_close(compiled(*given), program(*expected), msg=name)
        torch.testing.assert_close(given, expected, msg=name)


def test_frames_that_only_read_stay_compiled_whatever_their_arguments_share() -> None:
    compiled = compile_traced(lambda x, y: x * 2 + y, "plugin:reference")
    for name in SHARING:
        x, y = SHARING[name]()
        torch.testing.assert_close(compiled(x, y), x * 2 + y)
    assert torch_backplane.stats()["eager_calls"] == 0


class CheckpointedNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        part = checkpoint(lambda t: torch.tanh(self.norm(self.linear(t))), x, use_reentrant=False)
        return part * 2


@pytest.mark.parametrize("recorder", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_checkpoint_reads_statistics_as_they_were(backend: str, recorder: bool) -> None:
    """They are written behind the forward, and the backward computes the norm again."""
    models = []
    for compiler, options in (("aot_eager", None), (backend, {"recorder": recorder})):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = CheckpointedNorm().train()
        compiled = torch.compile(model, backend=compiler, options=options)
        for step in range(3):
            compiled(torch.linspace(-1, 1, 128).view(16, 8) * (step + 1)).square().sum().backward()
        models.append(model)
    for (name, actual), expected in zip(
        models[1].named_parameters(), models[0].parameters(), strict=True
    ):
        torch.testing.assert_close(actual.grad, expected.grad, rtol=1e-4, atol=1e-4, msg=name)
    for actual, expected in zip(models[1].buffers(), models[0].buffers(), strict=True):
        torch.testing.assert_close(actual, expected)


def test_a_graph_that_ends_within_vmap_leaves_it() -> None:
    """The recorder refuses it in the middle; TorchDynamo guards the thread's transforms."""
    from torch._higher_order_ops.associative_scan import associative_scan

    def combine(a: Any, b: Any) -> Any:
        return a[0] * b[0], b[0] * a[1] + b[1]

    def program(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return associative_scan(combine, (a, x), dim=1, combine_mode="generic")[1]

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="plugin:reference")
    with torch.no_grad():
        for batch, length in ((2, 7), (3, 11), (2, 7)):
            given = torch.rand(batch, length, 4), torch.randn(batch, length, 4)
            torch.testing.assert_close(compiled(*given), program(*given))
    assert torch._C._functorch.get_dynamic_layer_stack_depth() == 0


def test_forward_mode_that_is_not_recorded_leaves_no_level() -> None:
    def program(x: torch.Tensor, i: torch.Tensor) -> Any:
        one_hot = torch.nn.functional.one_hot  # asks for values
        return torch.func.jacfwd(lambda x: x.square() * one_hot(i, 3))(x)

    x, i = torch.ones(2, 3), torch.tensor([0, 1])
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="plugin:reference", dynamic=False)
    torch.testing.assert_close(compiled(x, i), program(x, i))


def with_a_dual_level(x: torch.Tensor) -> Any:
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x * 2)
        return torch.autograd.forward_ad.unpack_dual(dual.sin() * dual)[1]


def written_within(x: torch.Tensor) -> Any:
    def squares(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        y.mul_(x)[0] = 3
        return y

    return torch.func.jvp(squares, (x,), (x * 2,))


FORWARD_MODE = {
    "jvp": lambda x: torch.func.jvp(lambda x: x.sin() * x, (x,), (x * 2,)),
    "jacfwd": torch.func.jacfwd(lambda x: x.sin() * x),
    "hessian": torch.func.hessian(lambda x: (x.sin() * x).sum()),
    "of a gradient": lambda x: torch.func.jvp(
        torch.func.grad(lambda x: x.exp().prod()), (x,), (x,)
    ),
    "a dual level": with_a_dual_level,
    "written within": written_within,
}


@pytest.mark.parametrize("needs_gradients", [False, True])
@pytest.mark.parametrize("name", FORWARD_MODE)
def test_forward_mode_stays_on_the_plugin(name: str, needs_gradients: bool) -> None:
    torch._dynamo.reset()
    compiled = compile_for("reference", FORWARD_MODE[name])
    before = torch_backplane.stats()
    seen = []
    for run in (FORWARD_MODE[name], compiled):
        x = torch.linspace(0.1, 0.9, 4, requires_grad=needs_gradients)
        results = torch.utils._pytree.tree_leaves(run(x * 1))
        if needs_gradients:
            results += torch.autograd.grad(sum(r.square().sum() for r in results), x)
        seen.append([r.detach() for r in results])
    torch.testing.assert_close(seen[1], seen[0])
    found = torch_backplane.stats()
    for key in ("eager_graphs", "eager_calls"):
        assert found[key] == before[key], key


def test_forward_mode_that_is_switched_off_stays_off() -> None:
    def program(x: torch.Tensor) -> Any:
        with torch.autograd.forward_ad._set_fwd_grad_enabled(False):
            return torch.func.jvp(torch.sin, (x,), (x,)), torch._C._is_fwd_grad_enabled()

    torch._dynamo.reset()
    x = torch.ones(3)
    torch.testing.assert_close(compile_for("reference", program)(x), program(x))
    assert torch._C._is_fwd_grad_enabled()


def test_sizes_that_nothing_is_known_of() -> None:
    with torch.compiler.config.patch(unbacked_sources="L['x']"):
        torch._dynamo.reset()
        compiled = torch.compile(lambda x: x * x, backend="plugin:reference")
        assert [compiled(torch.randn(n)).shape[0] for n in (0, 1, 2)] == [0, 1, 2]


def drops_a_draw(x: torch.Tensor) -> torch.Tensor:
    torch.rand(2)
    return x.sin()


def drops_a_dropout(x: torch.Tensor) -> torch.Tensor:
    nn.functional.dropout(x)
    return x.sin()


def keeps_nothing(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.dropout(x, 1.0)  # draws nothing


def asserts(x: torch.Tensor) -> torch.Tensor:
    torch._assert_async(x.sum() > 0)
    return x.sin()


@pytest.mark.parametrize("needs_gradients", [False, True])
@pytest.mark.parametrize("program", [drops_a_draw, drops_a_dropout, keeps_nothing, asserts])
def test_effects_that_tracing_would_lose(program: Any, needs_gradients: bool) -> None:
    compiled, drawn = compile_traced(program, "plugin:cpu_onednn"), []
    for function in (compiled, program):
        torch.manual_seed(0)
        x = torch.ones(3, requires_grad=needs_gradients)
        function(x)
        drawn.append(torch.rand(2))
        if program is asserts:
            with pytest.raises(RuntimeError, match="Expected Tensor with single nonzero value"):
                function(-x)
    assert torch.equal(*drawn)
    assert torch_backplane.stats()["eager_graphs"] == 1


@pytest.mark.parametrize("needs_gradients", [False, True])
def test_draws_that_tracing_keeps_stay_compiled(needs_gradients: bool) -> None:
    layers = nn.Sequential(nn.Dropout(0.3), nn.RReLU(), nn.AlphaDropout(), nn.Linear(4, 4))

    def program(x: torch.Tensor) -> torch.Tensor:
        noise = torch.empty(4).normal_() + torch.randn(4) + torch.rand_like(x)
        return layers(x + noise)[torch.randperm(3)]

    compiled, drawn = compile_traced(program, "plugin:cpu_onednn"), []
    for function in (compiled, program):
        torch.manual_seed(0)
        drawn.append((function(torch.ones(3, 4, requires_grad=needs_gradients)), torch.rand(2)))
    torch.testing.assert_close(*drawn)
    assert torch_backplane.stats()["eager_graphs"] == 0


def test_an_error_of_the_program_is_its_own_where_tracing_has_another() -> None:
    def program(q: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=1.5)

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="plugin:cpu_onednn", options={"report": False})
    with pytest.raises(RuntimeError, match="dropout probability has to be between 0 and 1"):
        compiled(torch.ones(1, 2, 2))


def shows_a_part(kv: torch.Tensor, k: torch.Tensor, x: torch.Tensor) -> Any:
    k[0] = x
    return kv.sum(), k[:1]


def shows_another_part(kv: torch.Tensor, k: torch.Tensor, x: torch.Tensor) -> Any:
    kv[0, 0] = x
    return kv.sum(), k[1:]


def shows_what_is_written(kv: torch.Tensor, k: torch.Tensor, x: torch.Tensor) -> Any:
    kv.add_(x)
    return k.mT, kv[1, 2]


def shows_its_own_argument(kv: torch.Tensor, k: torch.Tensor, x: torch.Tensor) -> Any:
    k.add_(x)
    return kv.sum(), x[:1]


@pytest.mark.parametrize("recorder", [True, False])
@pytest.mark.parametrize(
    ("program", "is_traced"),
    [
        (shows_a_part, False),
        (shows_another_part, False),
        (shows_what_is_written, False),
        (shows_its_own_argument, True),
    ],
)
def test_views_of_a_cache_beside_those_of_its_layers(
    program: Any, is_traced: bool, recorder: bool
) -> None:
    """AOTAutograd raised an error of its own, or gave another view, behind the write."""
    torch._dynamo.reset()
    torch_backplane.reset()
    options = {"recorder": recorder, "report": False}
    compiled = torch.compile(program, backend="plugin:cpu_onednn", options=options)
    for _ in range(2):
        seen = []
        for function in (compiled, program):
            kv, x = torch.zeros(2, 3, 4), torch.ones(4)
            results = function(kv, kv[0], x)
            offsets = [(r.stride(), r.storage_offset(), r._base is not None) for r in results]
            for result in results[1:]:
                result.mul_(2)  # shows in the argument
            seen.append((results, offsets, kv, x))
        torch.testing.assert_close(*seen)
    assert torch_backplane.stats()["eager_graphs"] == (not is_traced)


class Pair(torch.Tensor):
    """Two tensors that go the same ways."""

    @staticmethod
    def __new__(cls, one: torch.Tensor, other: torch.Tensor) -> Pair:
        return torch.Tensor._make_wrapper_subclass(
            cls, one.shape, strides=one.stride(), dtype=one.dtype
        )

    def __init__(self, one: torch.Tensor, other: torch.Tensor) -> None:
        self.one, self.other = one, other

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["one", "other"], None

    @staticmethod
    def __tensor_unflatten__(parts: Any, _context: None, _size: Any, _stride: Any) -> Pair:
        return Pair(parts["one"], parts["other"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any, kwargs: Any = None) -> Any:
        def part(name: str) -> Any:
            return func(*tree_map_only(Pair, lambda t: getattr(t, name), args), **(kwargs or {}))

        made = Pair(part("one"), part("other"))
        return return_and_correct_aliasing(func, args, kwargs or {}, made)


def test_tensors_of_a_class_with_parts_are_written_once() -> None:
    compiled = compile_traced(lambda x: x.mul_(2), "plugin:reference")
    x = Pair(torch.ones(1), torch.full((1,), 3.0))
    for times in (2, 4):
        compiled(x)
        assert (x.one.item(), x.other.item()) == (times, 3 * times)


def sets_the_default_dtype(x: torch.Tensor) -> Any:
    torch.set_default_dtype(torch.float64)
    return x + 1


def asks_for_determinism(x: torch.Tensor) -> Any:
    x = x + 1
    torch.use_deterministic_algorithms(True)
    return x


def switches_gradients_of_a_written_argument_on(x: torch.Tensor) -> Any:
    x -= 1
    x.requires_grad_()
    return x.detach().cos()


# AOTAutograd loses the flag of the last.
@pytest.mark.parametrize(
    ("program", "recorder"),
    [
        (sets_the_default_dtype, True),
        (sets_the_default_dtype, False),
        (asks_for_determinism, True),
        (asks_for_determinism, False),
        (switches_gradients_of_a_written_argument_on, True),
    ],
)
def test_what_a_frame_sets_stays_set(program: Any, recorder: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(
        program, backend="plugin:reference", options={"recorder": recorder, "report": False}
    )
    seen = []
    for run in (program, compiled, compiled):
        x = torch.ones(2)
        try:
            run(x)
            seen.append(
                (
                    torch.get_default_dtype(),
                    torch.are_deterministic_algorithms_enabled(),
                    x.requires_grad,
                )
            )
        finally:
            torch.set_default_dtype(torch.float32)
            torch.use_deterministic_algorithms(False)
    assert seen[0] == seen[1] == seen[2]
