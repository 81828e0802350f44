"""Functions behind functools.lru_cache: called as the program calls them, found by guards after."""

import functools

import pytest
import torch
import torch_backplane
from torch_backplane import frontend

FACTOR = 3


class Recipe:
    def __init__(self, order, scale):
        self.order, self.scale = order, scale


def x(*shape):
    return torch.arange(1.0, 1.0 + torch.Size(shape).numel()).reshape(shape)


def compiled(function, **options):
    return torch_backplane.compile(function, backend="plugin:reference", **options)


def make_reader():
    calls = []

    @functools.lru_cache(64)
    def read(n):
        calls.append(n)
        return n * FACTOR

    return read, calls


def test_reads_a_global():
    global FACTOR
    read, calls = make_reader()
    program = compiled(lambda a, n: a * read(n))
    try:
        for n in (2, 2, 5, 2):
            torch.testing.assert_close(program(x(3), n), x(3) * n * 3)
        FACTOR = 7  # the cache has what it has
        torch.testing.assert_close(program(x(3), 2), x(3) * 6)
        torch.testing.assert_close(program(x(3), 4), x(3) * 28)
    finally:
        FACTOR = 3
    assert calls == [2, 5, 4]


def test_cleared_cache_is_filled_once():
    global FACTOR
    read, calls = make_reader()
    program = compiled(lambda a, n: a * read(n))
    try:
        program(x(3), 2), program(x(3), 2)
        read.cache_clear()
        torch.testing.assert_close(program(x(3), 2), x(3) * 6)
        assert calls == [2, 2]
        FACTOR = 5
        torch.testing.assert_close(program(x(3), 2), x(3) * 6)
        read.cache_clear()
        torch.testing.assert_close(program(x(3), 2), x(3) * 10)
        assert calls == [2, 2, 2]
    finally:
        FACTOR = 3


def test_object_is_the_cache_s_own():
    @functools.lru_cache(None)
    def make(name):
        return Recipe((1, 0), len(name))

    def function(a):
        recipe = make("abc")
        return a.permute(recipe.order) * recipe.scale, recipe

    program = compiled(function, strict=True)
    for _ in range(2):
        result, recipe = program(x(2, 3))
        torch.testing.assert_close(result, x(2, 3).T * 3)
        assert recipe is make("abc")
    recipe.scale = 5  # a program may change what the cache holds
    torch.testing.assert_close(program(x(2, 3))[0], x(2, 3).T * 5)


def test_list_of_the_cache_changed_by_the_program():
    @functools.cache
    def sizes(n):
        return list(range(n))

    def function(a):
        kept = sizes(2)
        kept.append(7)
        return a * len(kept)

    expected = [x(3) * n for n in (3, 4, 5)]
    program = compiled(function)
    for want in expected:
        torch.testing.assert_close(program(x(3)), want)
    assert sizes(2) == [0, 1, 7, 7, 7]


def test_recipes_of_shapes():
    @functools.lru_cache(256)
    def parse(pattern):
        return Recipe(pattern.split(), FACTOR)

    @functools.lru_cache(1024)
    def shapes_of(recipe, shape, lengths):
        return [size * recipe.scale for size in shape], dict(lengths)

    def function(a):
        recipe = parse("a b")
        shape, lengths = shapes_of(recipe, tuple(a.shape), (("c", 2),))
        return a.repeat(recipe.scale, recipe.scale)[: shape[0] - 1, : shape[1]] * lengths["c"]

    program = compiled(function, strict=True)
    for shape in ((2, 3), (2, 3), (4, 3), (5, 6), (2, 3), (7, 8)):
        torch.testing.assert_close(program(x(*shape)), function(x(*shape)))


def test_keywords_and_methods():
    class Model(torch.nn.Module):
        def __init__(self, scale):
            super().__init__()
            self.scale = scale

        @functools.lru_cache(8)  # noqa: B019
        def table(self, n, *, shift=0):
            return [n * self.scale + shift]

        def forward(self, a):
            return a * self.table(2, shift=1)[0] + self.table(2)[0]

    models = [Model(2), Model(3)]
    program = compiled(lambda model, a: model(a), strict=True)
    for _ in range(2):
        for model in models:
            torch.testing.assert_close(program(model, x(3)), model(x(3)))
    models[0].table.cache_clear()
    models[0].scale = 7
    for model in models:
        torch.testing.assert_close(program(model, x(3)), model(x(3)))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_tensors(mode):
    made = []

    @functools.lru_cache(8)
    def positions(n, device):
        made.append(n)
        weight = torch.nn.Parameter(torch.arange(float(n), device=device))
        return weight, weight * FACTOR

    def function(a):
        weight, scaled = positions(a.shape[-1], a.device)
        return (a * weight + scaled).sum()

    program = compiled(function)
    with mode():
        for _ in range(2):
            torch.testing.assert_close(program(x(2, 3)), function(x(2, 3)))
        weight = positions(3, torch.device("cpu"))[0]
        with torch.no_grad():
            weight.add_(1)
        torch.testing.assert_close(program(x(2, 3)), function(x(2, 3)))
    assert made == [3]
    if mode is torch.enable_grad:
        program(x(2, 3)).backward()
        torch.testing.assert_close(weight.grad, x(2, 3).sum(0) + 6)


def test_in_no_grad_of_the_program():
    @functools.cache
    def mean_of(n):
        return torch.full((n,), 2.0, requires_grad=True) * FACTOR

    def function(a):
        with torch.no_grad():
            table = mean_of(3)
        return a * table

    program = compiled(function)
    result = program(x(3).requires_grad_())
    assert not mean_of(3).requires_grad and result.requires_grad
    torch.testing.assert_close(result, x(3) * 6)


def test_too_small_a_cache():
    calls = []

    @functools.lru_cache(1)
    def read(n):
        calls.append(n)
        return [n * FACTOR]

    def function(a):
        return a * read(2)[0] + read(5)[0]

    program = compiled(function)
    for _ in range(4):
        torch.testing.assert_close(program(x(3)), x(3) * 6 + 15)
    count = len(calls)
    program(x(3))
    assert len(calls) == count + 2


def test_no_cache_at_all():
    @functools.lru_cache(0)
    def read(n):
        return [n * FACTOR]

    program = compiled(lambda a: a * read(2)[0])
    for _ in range(3):
        torch.testing.assert_close(program(x(3)), x(3) * 6)


def test_errors_are_the_program_s():
    calls = []

    @functools.cache
    def read(n):
        calls.append(n)
        if FACTOR != 5:
            raise KeyError(n)
        return [n]

    def function(a):
        try:
            return a * read(2)[0]
        except KeyError:
            return a - 1

    program = compiled(function)
    for _ in range(2):
        torch.testing.assert_close(program(x(3)), x(3) - 1)
    with pytest.raises(TypeError, match="unhashable"):
        compiled(lambda a: a * read([2])[0])(x(3))
    with pytest.raises(KeyError):
        compiled(lambda a: a * read(3)[0])(x(3))


def test_effects_before_the_call():
    state = {"scale": 1}

    @functools.cache
    def read(n):
        return [n * state["scale"]]

    def function(a):
        state["scale"] = 4
        return a * read(2)[0]

    program = compiled(function)
    for _ in range(2):
        torch.testing.assert_close(program(x(3)), x(3) * 8)


def test_calls_a_compiled_function():
    inner = compiled(lambda a: a * FACTOR, strict=True)

    @functools.cache
    def table(n):
        return inner(torch.ones(n))

    program = compiled(lambda a: a + table(3))
    for _ in range(2):
        torch.testing.assert_close(program(x(3)), x(3) + 3)
    table.cache_clear()
    torch.testing.assert_close(program(x(3)), x(3) + 3)


def test_resets_its_caller():
    @functools.cache
    def table(n):
        frontend.forget(program)
        return [n * FACTOR]

    program = compiled(lambda a: a + table(3)[0])
    for _ in range(3):
        table.cache_clear()
        torch.testing.assert_close(program(x(3)), x(3) + 9)


def test_sizes_are_learned_before_the_second_call():
    @functools.cache
    def half(n):
        return [n * FACTOR // 6]

    def function(a):
        return a[: half(a.shape[0])[0]] * 2

    program = compiled(function, strict=True, dynamic=True)
    for n in (8, 10, 12, 40):
        torch.testing.assert_close(program(x(n, 2)), function(x(n, 2)))


def test_effects_come_where_they_stand():
    """What the program reads before the call is what was there before."""
    state = {"calls": 0}

    @functools.cache
    def read(n):
        state["calls"] += 1
        return [state["calls"]]

    def function(a):
        before = state["calls"]
        return a * read(2)[0], before, state["calls"]

    program = compiled(function)
    for before in (0, 1, 1):
        torch.testing.assert_close(program(x(3)), (x(3), before, 1))
    read.cache_clear()
    for before in (1, 2, 2):
        torch.testing.assert_close(program(x(3)), (x(3) * 2, before, 2))


def test_filled_caches_are_whole_by_then():
    table = {}

    @functools.cache
    def read(n):
        table[n] = n * FACTOR
        return [table[n]]

    program = compiled(lambda a: (a + 1) * read(2)[0])
    for _ in range(8):
        torch.testing.assert_close(program(x(3)), (x(3) + 1) * 6)
    assert sum(frontend.counters(program)["breaks"].values()) <= 2
    strict = compiled(lambda a: (a + 1) * read(2)[0], strict=True)
    torch.testing.assert_close(strict(x(3)), (x(3) + 1) * 6)


def test_torch_size_is_a_key():
    @functools.cache
    def strides_of(shape):
        return [len(shape) * FACTOR]

    program = compiled(lambda a: a * strides_of(a.shape)[0], strict=True)
    for shape in ((2, 3), (4,), (2, 3)):
        torch.testing.assert_close(program(x(*shape)), x(*shape) * 3 * len(shape))


def test_what_a_library_makes_ready_breaks_once():
    """The first call of a library finds what it needs in a way that is not captured."""
    ready = {}

    def kernel_of(kind):
        if kind not in ready:
            ready[kind] = len(type.__subclasses__(Recipe)) + 2
        return ready[kind]

    def function(a):
        return (a + 1) * kernel_of("torch")

    program = compiled(function)
    for _ in range(6):
        torch.testing.assert_close(program(x(3)), (x(3) + 1) * 2)
    breaks = frontend.counters(program)["breaks"]
    assert sum(breaks.values()) <= 2, breaks


def test_what_differs_in_every_call_is_asked_about_seldom():
    made = []

    def helper():
        made.append(len(made))
        return len(type.__subclasses__(Recipe))

    program = compiled(lambda a: (a + 1) * helper())
    for _ in range(40):
        torch.testing.assert_close(program(x(3)), x(3) * 0)
    assert made == list(range(40))
    assert frontend.counters(program)["programs"] <= 4
