"""What PyTorch's wheel brings to be tried: its databases of modules, optimizers, functions with
their own gradients, custom operators, higher-order operators, and the examples of ``torch.export``.

A case is a name and a function of a ``Door``. It runs the program as it is and through the door, on
copies, and raises AssertionError where they differ; ``unittest.SkipTest`` where PyTorch alone fails.
"""

from __future__ import annotations

import copy
import dataclasses
import unittest
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

CALLS = 2
SAMPLES = 4  # of each entry of a database
STEPS = 3

# (atol, rtol): kernels may sum in another order than eager's.
TOLERANCES = {
    torch.float32: (1e-4, 1e-4),
    torch.complex64: (1e-4, 1e-4),
    torch.float64: (1e-8, 1e-8),
    torch.complex128: (1e-8, 1e-8),
}


@dataclasses.dataclass(frozen=True)
class Door:
    """One way to compile: ``torch_backplane.compile`` or ``torch.compile``, with a plugin."""

    name: str  # "own" or "torch"
    plugin: str

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if self.name == "own":
            import torch_backplane

            return torch_backplane.compile(function, backend=self.plugin)
        return torch.compile(function, backend=f"plugin:{self.plugin}")


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    run: Callable[[Door], None]


def tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def assert_same(actual: Any, expected: Any, what: str) -> None:
    have, want = pytree.tree_leaves(actual), pytree.tree_leaves(expected)
    assert len(have) == len(want), f"{what}: {len(have)} results instead of {len(want)}"
    for number, (a, b) in enumerate(zip(have, want, strict=True)):
        if isinstance(b, torch.Tensor):
            assert isinstance(a, torch.Tensor), f"{what} {number}: {type(a)} instead of a tensor"
            assert a.requires_grad == b.requires_grad, (
                f"{what} {number}: requires_grad {a.requires_grad} instead of {b.requires_grad}"
            )
            if a.layout != torch.strided or b.layout != torch.strided:
                a, b = a.to_dense(), b.to_dense()
            atol, rtol = TOLERANCES.get(b.dtype, (1e-3, 1e-2) if b.is_floating_point() else (0, 0))
            torch.testing.assert_close(
                a.detach(),
                b.detach(),
                atol=atol,
                rtol=rtol,
                equal_nan=True,
                msg=lambda text, number=number: f"{what} {number}: {text}",
            )
        elif isinstance(b, float):
            assert a == b or (a != a and b != b) or abs(a - b) <= 1e-5 * abs(b), (
                f"{what} {number}: {a!r} instead of {b!r}"
            )
        elif type(b).__eq__ is not object.__eq__:
            assert a == b, f"{what} {number}: {a!r} instead of {b!r}"


def clone(value: Any) -> Any:
    """A deep copy in which tensors that were leaves are leaves again."""

    def fresh(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return leaf.detach().clone().requires_grad_(leaf.requires_grad)

    return pytree.tree_map(fresh, value)


def cotangents(results: list[torch.Tensor]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [
        torch.randn(r.shape, generator=generator, dtype=torch.float64).to(r.dtype) for r in results
    ]


def gradients(result: Any, leaves: list[torch.Tensor], second: bool) -> tuple[list[Any], list[Any]]:
    """First gradients of random weights of the results, and second ones of random weights of those."""
    results = [r for r in tensors(result) if r.requires_grad]
    if not results or not leaves:
        return [], []
    first = torch.autograd.grad(
        results, leaves, cotangents(results), allow_unused=True, create_graph=second
    )
    again = [g for g in first if g is not None and g.requires_grad] if second else []
    if not again:
        return list(first), []
    return list(first), list(
        torch.autograd.grad(again, leaves, cotangents(again), allow_unused=True)
    )


def run_eager(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception as error:
        raise unittest.SkipTest(f"eager: {type(error).__name__}: {error}") from error


def compare(
    door: Door,
    make: Callable[[], tuple[Callable[..., Any], list[torch.Tensor]]],
    arguments: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]],
    second: bool = False,
) -> None:
    """``make`` gives the function and the tensors that it holds; both are called ``CALLS`` times.
    With ``second``, gradients of gradients too, where PyTorch has them."""

    def observe(function: Callable[..., Any], held: list[torch.Tensor], second: bool) -> Any:
        seen = []
        for _ in range(CALLS):
            torch.manual_seed(3)
            args, kwargs = arguments()
            leaves = [t for t in [*tensors((args, kwargs)), *held] if t.requires_grad]
            result = function(*args, **kwargs)
            first, next_ = gradients(result, leaves, second)
            seen.append((result, first, next_, tensors((args, kwargs)), held))
        return seen

    try:
        expected = observe(*make(), second)
    except Exception:
        second = False
        expected = run_eager(lambda: observe(*make(), second))
    function, held = make()
    actual = observe(door.compile(function), held, second)
    names = ("result", "gradient", "second gradient", "argument", "state")
    for call, (have, want) in enumerate(zip(actual, expected, strict=True)):
        for name, a, b in zip(names, have, want, strict=True):
            assert_same(a, b, f"call {call}, {name}")


def modules() -> Iterator[Case]:
    from torch.testing._internal.common_modules import module_db

    for info in module_db:
        # The random samples that the database gives to these are of this type.
        is_double = "FractionalMaxPool" in info.formatted_name
        dtype = torch.float64 if is_double else torch.float32
        for training in (True, False):

            def inputs(
                info: Any = info, training: bool = training, dtype: torch.dtype = dtype
            ) -> list[Any]:
                torch.manual_seed(0)
                return info.module_inputs_func(
                    info, device="cpu", dtype=dtype, requires_grad=True, training=training
                )

            try:
                count = len(inputs())
            except Exception:  # what the database cannot make here
                continue
            for number in range(count):

                def run(
                    door: Door,
                    info: Any = info,
                    number: int = number,
                    training: bool = training,
                    inputs: Any = inputs,
                ) -> None:
                    def make() -> Any:
                        made = inputs()[number].constructor_input
                        torch.manual_seed(1)
                        module = info.module_cls(*made.args, **made.kwargs)
                        module.train(training)
                        return module, [*module.parameters(), *module.buffers()]

                    def arguments() -> Any:
                        given = inputs()[number].forward_input
                        return clone(given.args), clone(given.kwargs)

                    compare(door, make, arguments, second=info.supports_gradgrad)

                state = "train" if training else "eval"
                yield Case(f"{info.formatted_name}.{state}.{number}", run)


def optimizers() -> Iterator[Case]:
    from torch.testing._internal.common_optimizers import optim_db

    for info in optim_db:
        if info.only_supports_sparse_grads:
            continue
        for number, given in enumerate(info.optim_inputs_func(device="cpu")):
            for implementation in ("forloop", *info.supported_impls):

                def run(
                    door: Door,
                    info: Any = info,
                    given: Any = given,
                    implementation: str = implementation,
                ) -> None:
                    options = dict(copy.deepcopy(given.kwargs))
                    options.pop("foreach", None)
                    if implementation == "differentiable":
                        raise unittest.SkipTest("differentiable steps write to leaves")
                    options["foreach"] = implementation == "foreach"
                    if implementation == "fused":
                        del options["foreach"]
                        options["fused"] = True

                    def observe(compile_step: Callable[[Any], Any]) -> Any:
                        torch.manual_seed(0)
                        weights = [
                            torch.nn.Parameter(torch.randn(3, 5)),
                            torch.nn.Parameter(torch.randn(7)),
                        ]
                        optimizer = info.optim_cls(weights, **options)

                        def closure() -> torch.Tensor:
                            optimizer.zero_grad()
                            loss = sum((w * w).sum() for w in weights)
                            loss.backward()
                            return loss

                        step = compile_step(optimizer.step)
                        seen = []
                        for _ in range(STEPS):
                            for w in weights:
                                w.grad = torch.randn_like(w)
                            if info.step_requires_closure:
                                step(closure)
                            else:
                                step()
                            seen.append(clone([w.detach() for w in weights]))
                        return seen, list(optimizer.state_dict()["state"].values())

                    expected = run_eager(lambda: observe(lambda step: step))
                    assert_same(observe(door.compile), expected, "after steps")

                yield Case(f"{info.optim_cls.__name__}.{number}.{implementation}", run)


def _functions(database: list[Any]) -> Iterator[Case]:
    for info in database:

        def samples(info: Any = info) -> list[Any]:
            torch.manual_seed(0)
            found = info.sample_inputs("cpu", torch.float32, requires_grad=info.supports_autograd)
            return [sample for sample, _ in zip(found, range(SAMPLES), strict=False)]

        try:
            count = len(samples())
        except Exception:  # what the database cannot make here
            continue
        for number in range(count):

            def run(
                door: Door, info: Any = info, number: int = number, samples: Any = samples
            ) -> None:
                def arguments() -> Any:
                    sample = samples()[number]
                    return clone((sample.input, *sample.args)), clone(dict(sample.kwargs))

                compare(door, lambda: (info.op, []), arguments)

            variant = f".{info.variant_test_name}" if info.variant_test_name else ""
            yield Case(f"{info.name}{variant}.{number}", run)


def autograd_functions() -> Iterator[Case]:
    from torch.testing._internal.autograd_function_db import autograd_function_db

    return _functions(autograd_function_db)


def custom_operators() -> Iterator[Case]:
    from torch.testing._internal.custom_op_db import custom_op_db

    return _functions(custom_op_db)


def higher_order_operators() -> Iterator[Case]:
    from torch.testing._internal.hop_db import hop_db

    return _functions(hop_db)


def export_examples() -> Iterator[Case]:
    from torch._export.db.examples import all_examples

    for name, example in all_examples().items():

        def run(door: Door, example: Any = example) -> None:
            def make() -> Any:
                model = copy.deepcopy(example.model)
                return model, [*model.parameters(), *model.buffers()]

            def arguments() -> Any:
                return clone(example.example_args), clone(example.example_kwargs)

            compare(door, make, arguments)

        yield Case(name, run)


SUITES: dict[str, Callable[[], Iterator[Case]]] = {
    "modules": modules,
    "optimizers": optimizers,
    "autograd_functions": autograd_functions,
    "custom_operators": custom_operators,
    "higher_order_operators": higher_order_operators,
    "export_examples": export_examples,
}
