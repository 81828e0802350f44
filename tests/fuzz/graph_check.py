"""Runs a graph of operators eagerly and on a plugin, and says what differs.

How far a result may be off is measured: eager runs again with every intermediate result changed by
about as much as rounding does. Found graphs carry this text in themselves: it imports nothing of
the fuzzer.
"""

import inspect

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

RUNS = 4  # with noise
ULPS = 4.0  # of noise in each result
FACTOR = 24.0  # how many times as far off as noise a result may be
EXACT = ("fill_", "zero_", "copy_")
# Results that are marks, zero or one, by operator: which of them.
MARKS = {"multilabel_margin_loss_forward": 1}
# Operators whose results are differences of numbers about one, which may cancel.
SUMS = ("_window", "log_softmax")
# How far PyTorch's approximations of these are off, whatever the dtype.
ROUGH = {
    **dict.fromkeys(("bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1"), 1e-6),
    "airy_ai": 1e-6,
}
# Those whose vector loops and scalar ones give zeros of other signs.
SIGNS = ("softshrink",)
CONVERSIONS = ("_to_copy", "copy_", "copy", "to")
SHORT = (torch.float32, torch.bfloat16, torch.float16)
# What those may be off from float64 beside what PyTorch is off, in units of the result's rounding.
EXCESS = 8.0
# Words of PyTorch's own kernels that refuse what ours take: demands, the gradient of a group norm with
# a bias and no weight, that of a clamp which its bounds make larger, that of a strided scatter, that
# of a safe softmax from halves to floats.
ITS_OWN = (
    "must be contiguous",
    "Expected X.is_contiguous",
    "tensor does not have a device",
    "doesn't match the broadcast shape",
    "as_strided_scatter is currently only supported for contiguous inputs",
    "expected scalar type Float but found Half",
    "expected scalar type Float but found BFloat16",
)


EDGES = (0.0, -0.0, 1.0, -1.0, float("inf"), -float("inf"), float("nan"))


def make(shape, dtype, layout="plain", low=-2.0, high=2.0, edges=False):
    """A tensor of random values; integers from ``low`` up to, not including, ``high``. With
    ``edges`` a third of them are the numbers that kernels treat as special."""
    shape = tuple(shape)
    wanted = shape
    if layout == "transposed" and len(shape) > 1:
        shape = (*shape[:-2], shape[-1], shape[-2])
    elif layout == "sliced" and shape:
        shape = (*shape[:-1], shape[-1] + 3)
    elif layout == "channels_last" and len(shape) > 2:
        shape = (shape[0], *shape[2:], shape[1])
    elif layout == "reversed":
        shape = shape[::-1]
    elif layout == "stepped":
        shape = tuple(2 * size for size in shape)
    elif layout == "expanded" and shape:
        shape = (1, *shape[1:])
    if dtype is torch.bool:
        out = torch.rand(shape) > 0.5
    elif not (dtype.is_floating_point or dtype.is_complex):
        out = torch.randint(int(low), max(int(high), int(low) + 1), shape).to(dtype)
    else:
        out = torch.rand(shape, dtype=torch.float64) * (high - low) + low
        if edges:
            special = torch.tensor(EDGES, dtype=out.dtype)[torch.randint(len(EDGES), shape)]
            out = torch.where(torch.rand(shape) < 0.3, special, out)
        out = out.to(dtype)
        if dtype.is_complex:
            out = torch.complex(out.real, torch.rand(shape))
    if layout == "transposed" and len(shape) > 1:
        out = out.transpose(-1, -2)
    elif layout == "sliced" and shape:
        out = out[..., 2:-1]
    elif layout == "channels_last" and len(shape) > 2:
        out = out.movedim(-1, 1)
    elif layout == "reversed":
        out = out.permute(tuple(range(len(shape)))[::-1])
    elif layout == "stepped":
        out = out[tuple(slice(1, None, 2) for _ in shape)]
    elif layout == "expanded" and shape:
        out = out.expand(wanted)
    return out


def epsilon(dtype):
    return torch.finfo(dtype).eps if dtype.is_floating_point or dtype.is_complex else 0.0


def accidents(name, args, out):
    """Where a result is nobody's promise: a number as an integer that cannot hold it, what the loops
    of polynomials leave unset where they begin with NaN, what PyTorch's vector loops and its scalar
    ones make of NaN, each in another way, and means of infinities, which are updated by element."""
    if not args or not isinstance(args[0], torch.Tensor):
        return None
    if name in ("native_layer_norm", "native_group_norm") and out.shape != args[0].shape:
        return ~out.isfinite()
    if name in ("var_mean", "std_mean"):
        return ~out.isfinite()
    if name in ("hardtanh_backward", "hardswish_backward", "elu_backward"):
        inside = next(a for a in args[1:] if isinstance(a, torch.Tensor))
        return inside.isnan() if inside.shape == out.shape else None
    source = args[1] if name == "copy_" and isinstance(args[1], torch.Tensor) else args[0]
    if source.shape != out.shape or not source.is_floating_point():
        return None
    if "_polynomial_" in name:
        return source.isnan()
    if name in CONVERSIONS and not (out.is_floating_point() or out.is_complex()):
        if out.dtype is torch.bool:
            return None
        limits = torch.iinfo(out.dtype)
        wide = source.double()
        return ~((wide > limits.min - 1.0) & (wide < limits.max + 1.0))
    return None


class Noise(TorchDispatchMode):
    """Changes what each operator gives by a few units in the last place."""

    def __init__(self, seed):
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def disturb(self, tensor, summed=False, rough=0.0):
        """``summed``: its elements are sums of numbers about one, which may cancel; ``rough``: how
        far they may be off besides."""
        eps = epsilon(tensor.dtype)
        if eps == 0.0 or tensor.numel() == 0:
            return
        noise = torch.rand(tensor.shape, generator=self.generator, dtype=torch.float64) * 2 - 1
        wide = torch.complex128 if tensor.dtype.is_complex else torch.float64
        changed = tensor.to(wide) * (1 + noise * (ULPS * eps))
        off = rough + eps * summed
        changed = (changed + noise * off if off else changed).to(tensor.dtype)
        if not tensor.dtype.is_complex:  # the sign of NaN is nobody's
            changed = torch.where(changed.isnan() & (noise < 0), -changed, changed)
        if torch._debug_has_internal_overlap(tensor) == 0:
            tensor.copy_(changed)

    def scatter(self, tensor, undefined):
        """Anything at all where PyTorch's own result is an accident."""
        if bool(undefined.any()):
            noise = torch.rand(tensor.shape, generator=self.generator, dtype=torch.float64)
            tensor.copy_(torch.where(undefined, (noise * 100).to(tensor.dtype), tensor))

    def turn_zeros(self, tensor):
        signs = torch.rand(tensor.shape, generator=self.generator) - 0.5
        tensor.copy_(torch.where(tensor == 0, 0.0 * signs, tensor))

    @staticmethod
    def with_memory(values):
        return [
            t
            for t in pytree.tree_leaves(values)
            if isinstance(t, torch.Tensor) and t.layout == torch.strided and not t._is_zerotensor()
        ]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given = {t.untyped_storage().data_ptr() for t in self.with_memory((args, kwargs))}
        name = func._schema.name.rpartition("::")[2]
        written = func._schema.is_mutable and name not in EXACT
        for number, tensor in enumerate(self.with_memory(out)):
            if number == MARKS.get(name):
                continue
            if written or tensor.untyped_storage().data_ptr() not in given:
                rough = ROUGH.get(name.removeprefix("special_"), 0.0)
                self.disturb(tensor, summed=name.endswith(SUMS), rough=rough)
                undefined = accidents(name, args, tensor)
                if undefined is not None:
                    self.scatter(tensor, undefined)
                if name in SIGNS:
                    self.turn_zeros(tensor)
        return out


def run(function, inputs, seed, noise=None):
    """Results, inputs after the call and gradients, or the class of the exception."""
    inputs = [pytree.tree_map(copy, i) for i in inputs]
    if noise is not None:
        with torch.no_grad():
            for one in inputs:  # their memory, as elements may lie in one place
                noise.disturb(torch.empty(0, dtype=one.dtype).set_(one.untyped_storage()))
    # What is written must not be a leaf.
    given = [i.view_as(i) if i.requires_grad else i for i in inputs]
    leaves = [i for i in inputs if i.requires_grad]
    versions = [g._version for g in given]
    torch.manual_seed(seed)
    try:
        results = [r for r in pytree.tree_leaves(function(*given)) if isinstance(r, torch.Tensor)]
        made = {f"result {i}": r for i, r in enumerate(results)}
        untouched = [g for g, v in zip(given, versions, strict=True) if g._version == v]
        made |= {f"layout {i}": layout_of(r, untouched) for i, r in enumerate(results)}
        made |= {f"requires_grad {i}": torch.tensor(r.requires_grad) for i, r in enumerate(results)}
        made |= {f"input {i}": g for i, g in enumerate(given)}
        written = [g for g, v in zip(given, versions, strict=True) if g._version != v]
        ends = [r for r in [*results, *written] if r.requires_grad]
        if ends and leaves:
            generator = torch.Generator().manual_seed(seed)
            tangents = [torch.rand(r.shape, generator=generator, dtype=torch.float32).to(r.dtype)
                        for r in ends]  # fmt: skip
            found = torch.autograd.grad(ends, leaves, tangents, allow_unused=True)
            made |= {f"gradient {i}": g for i, g in enumerate(found)}
        made |= {f"memory {i}": sharers(r, [*given, *results]) for i, r in enumerate(results)}
        return {name: None if t is None else t.detach().clone() for name, t in made.items()}
    except Exception as error:
        return error


def layout_of(tensor, untouched=()):
    """The strides that say something. A graph has done what is pending in PyTorch, and a graph of
    values forgets the gaps in a result's memory with a write."""
    if tensor.is_conj() or tensor.is_neg():
        return None
    place = tensor.untyped_storage().data_ptr()
    written = tensor._version and all(place != u.untyped_storage().data_ptr() for u in untouched)
    if written and torch.empty_like(tensor).stride() != tensor.stride():  # it has gaps
        return None
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    return torch.tensor([s if n > 1 and tensor.numel() else 0 for s, n in pairs])


def sharers(tensor, others):
    """Whose memory a tensor shows: 2 where a write is a write to both, 1 where PyTorch says that
    nobody writes, as to the parts that unsafe_split gives."""

    def shares(other):
        place = tensor.untyped_storage().data_ptr()
        if not tensor.numel() or other.untyped_storage().data_ptr() != place:
            return 0
        before = other._version
        torch.autograd.graph.increment_version(tensor)
        return 1 + (other._version != before)

    return torch.tensor([shares(other) for other in others])


def settle(actual, expected):
    """Leaves out of the facts what is nobody's promise."""
    for name, was in expected.items():
        if was is None and name.startswith(("layout", "memory")):
            actual[name] = None
        elif name.startswith("memory") and was.shape == actual[name].shape:
            actual[name] = torch.where(was == 1, was, 2 * (actual[name] > 0))


def copy(tensor):
    """In memory of its own, with the same sizes, strides and offset."""
    made = torch.empty(0, dtype=tensor.dtype)
    storage = tensor.detach().untyped_storage().clone()
    made.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
    return made.requires_grad_(tensor.requires_grad)


def plain(tensor):
    tensor = tensor.resolve_conj().resolve_neg()
    if tensor.dtype.is_complex:
        tensor = torch.view_as_real(tensor)
    return tensor.to(torch.float64) if tensor.is_floating_point() else tensor


def tensor_difference(actual, expected, noisy, exact=()):
    """Empty where every element is within what noise explains, or as near to what float64 gives as
    PyTorch's own is."""
    if actual is None or expected is None:
        missing = expected if actual is None else actual
        zero = missing is None or not bool(missing.any())
        return "" if zero else f"got {actual}, expected {expected}"
    if any(n is not None and n.shape != expected.shape for n in noisy):
        return ""  # a size that depends on how values are rounded, and so what lies where
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return f"is {actual.dtype}{list(actual.shape)}, expected {expected.dtype}{list(expected.shape)}"
    if expected.numel() == 0:
        return ""
    is_now, was = plain(actual), plain(expected)
    others, truths = (
        [plain(n) for n in runs if n is not None and n.shape == expected.shape]
        for runs in (noisy, exact)
    )
    if not was.is_floating_point():
        stable = torch.ones_like(was, dtype=torch.bool)
        for other in others:
            stable &= other == was
        wrong = stable & (is_now != was)
        for true in truths:  # comparisons of what cancels
            if true.dtype == was.dtype:
                wrong &= is_now != true
    else:
        eps = epsilon(expected.dtype)
        finite = was.isfinite()
        off = torch.zeros_like(was)
        stable = torch.ones_like(finite)
        for other in others:
            stable &= other.isfinite() == finite
            stable &= finite | (other == was) | (other.isnan() & was.isnan())
            off = torch.maximum(off, (other - was).abs().nan_to_num(0.0, 0.0, 0.0))
        sizes = was.abs()[finite]
        usual = sizes.median() if sizes.numel() else was.new_zeros(())
        # Inputs are about one: what cancels leaves their rounding.
        largest = sizes.max().clamp(min=1.0) if sizes.numel() else was.new_ones(())
        usual_off = off[finite].median() if sizes.numel() else was.new_zeros(())
        allowed = FACTOR * (torch.maximum(off, usual_off) + eps * (was.abs() + largest))
        same = (is_now == was) | (is_now.isnan() & was.isnan())
        near = finite & ((is_now - was).abs() <= allowed)
        # Where noise moves a result by much, it stands on an edge.
        stable &= ~(off > 0.05 * (was.abs() + usual))
        for true in truths:
            eagers = (was - true).abs().nan_to_num(0.0, 0.0, 0.0)
            allowed = 2 * eagers + EXCESS * eps * true.abs()
            near |= (is_now == true) | (is_now.isnan() & true.isnan())
            near |= (is_now - true).abs() <= allowed
            # A short type that overflows on the way to a number.
            overflowed = was.isinf() & true.isfinite()
            allowed = FACTOR * eps * (true.abs() + largest)
            near |= overflowed & ((is_now - true).abs() <= allowed)
            # Or past it, to what is none: infinity less infinity.
            in_type = true.to(expected.dtype.to_real()).to(true.dtype)
            near |= was.isnan() & true.isfinite() & (is_now == in_type)
        wrong = stable & ~same & ~near
    if not bool(wrong.any()):
        return ""
    place = [int(i) for i in wrong.nonzero()[0]]
    return (
        f"({expected.dtype}{list(expected.shape)}) differs in {int(wrong.sum())} elements: at {place} "
        f"got {is_now[tuple(place)].item()!r}, expected {was[tuple(place)].item()!r}"
    )


class Factories(TorchFunctionMode):
    """Operators without operands are nodes too, not what they gave while the graph was traced."""

    def __init__(self, tracer):
        super().__init__()
        self.tracer = tracer

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if isinstance(func, torch._ops.OpOverload):
            return self.tracer.create_proxy("call_function", func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def graph_of(function):
    tracer = torch.fx.Tracer()
    with Factories(tracer):
        graph = tracer.trace(function)
    return torch.fx.GraphModule(tracer.root, graph)


def compile_graph(function, plugin, inputs):
    """What the plugin makes of the graph: compiled anew for each call where the recorder, which
    looks at the sizes, does not take it."""
    from torch_backplane import backend, frames

    graph = graph_of(function)
    made = backend.compile_frame(plugin, graph, inputs)
    if isinstance(made, frames.RecordedFrame):
        return made
    return lambda *again: backend.compile_frame(plugin, graph, [copy(i) for i in again])(*again)


def fallback_reasons(compiled):
    stages = getattr(compiled, "stages", [])
    return [node["reason"] or "" for stage in stages for node in stage.report()["fallback"]]


def without_dead(function):
    graph = graph_of(function)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def pytorch_compiles(function, inputs):
    """Whether PyTorch's own compiler takes the graph."""
    from functorch.compile import make_boxed_func
    from torch._functorch.aot_autograd import aot_module_simplified

    def as_it_is(graph, examples):
        return make_boxed_func(graph.forward)

    try:
        aot_module_simplified(graph_of(function), inputs, as_it_is)(*inputs)
    except Exception:
        return False
    return True


def compile_function(function, plugin, inputs):
    """What the plugin makes of the frames of the function, under guards."""
    import torch_backplane

    return torch_backplane.compile(function, backend=plugin)


DOORS = {"graph": compile_graph, "frame": compile_function}


def wants_gradient(grad, name, number):
    """``grad``: of all, of none, or for each call, again from the first, the names of which."""
    if isinstance(grad, bool):
        return grad
    return name in grad[number % len(grad)].split()


def check_graph(function, make_inputs, calls, plugin, grad=True, compile=compile_graph):
    """What differs first, as ``(kind, text)``; None where nothing does. One compiled graph serves
    all calls."""
    compiled = None
    for number, sizes in enumerate(calls):
        torch.manual_seed(number)
        made = make_inputs(**sizes)
        names = list(inspect.signature(function).parameters)
        inputs = [made[name] for name in names]
        for name, one in zip(names, inputs, strict=True):
            if wants_gradient(grad, name, number) and epsilon(one.dtype):
                one.requires_grad_()
        expected = run(function, inputs, number)
        if isinstance(expected, Exception) and compiled is None:
            continue
        if compiled is None:
            try:
                graph_of(function)
            except Exception:
                return None  # a list of sizes without a tensor, which FX does not trace
            try:
                compiled = compile(function, plugin, [copy(i) for i in inputs])
            except Exception as error:
                if not pytorch_compiles(function, [copy(i) for i in inputs]):
                    return None
                return "does not compile", f"call {number}: {type(error).__name__}: {error}"
        actual = run(compiled, inputs, number)
        if given_back := [r for r in fallback_reasons(compiled) if r.startswith("compile failed")]:
            return "claimed, then given back", f"call {number}: {given_back[0]:.300}"
        if isinstance(actual, Exception) or isinstance(expected, Exception):
            if (
                isinstance(expected, Exception)
                and not hasattr(compiled, "stages")
                and not isinstance(run(without_dead(function), inputs, number), Exception)
            ):
                continue  # PyTorch's own compiler leaves out what raises
            if isinstance(expected, Exception) and (
                "While executing %" in str(actual)
                or (isinstance(actual, Exception) and not hasattr(compiled, "stages"))
            ):
                continue  # a shape function or decomposition of PyTorch's raises another class
            if not isinstance(actual, Exception) and any(w in str(expected) for w in ITS_OWN):
                continue
            if type(actual) is not type(expected):
                kinds = [type(o).__name__ if isinstance(o, Exception) else "nothing"
                         for o in (actual, expected)]  # fmt: skip
                return (
                    f"raises {kinds[0]}, expected {kinds[1]}",
                    f"call {number}: got {actual!r:.300}, expected {expected!r:.300}",
                )
            continue
        if not hasattr(compiled, "stages"):  # layouts and who shares memory are AOTAutograd's
            expected |= {n: None for n in expected if n.startswith(("layout", "memory"))}
        if list(actual) == list(expected):
            settle(actual, expected)
        found = difference(function, inputs, number, actual, expected, RUNS)
        if found:  # once more with much noise, which costs time
            found = difference(function, inputs, number, actual, expected, 5 * RUNS)
        if found:
            exact = exact_runs(function, inputs, number)
            found = difference(function, inputs, number, actual, expected, 5 * RUNS, exact)
        if found:
            return found[0], f"call {number}: {found[1]}"
    return None


def stepped(tensor):
    """The same numbers far apart: PyTorch's loops take them one by one, not in vectors, which make
    other things of infinities in some operators."""
    wider = [2 * size for size in tensor.shape]
    every_second = tuple(slice(None, None, 2) for _ in tensor.shape)
    with torch.no_grad():
        apart = torch.zeros(wider, dtype=tensor.dtype)[every_second].copy_(tensor)
    return apart.requires_grad_(tensor.requires_grad)


def packed(tensor):
    """The same numbers side by side, which it takes in vectors."""
    return tensor.detach().contiguous().requires_grad_(tensor.requires_grad)


def exact_runs(function, inputs, number):
    """What float64 gives."""
    wide = [i.detach().double().requires_grad_(i.requires_grad) if i.dtype in SHORT else i
            for i in inputs]  # fmt: skip
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # what integers become
    try:
        others = ([stepped(i) for i in wide], [packed(i) for i in wide])
        runs = [run(function, one, number) for one in (wide, *others)]
    finally:
        torch.set_default_dtype(before)
    return [one for one in runs if not isinstance(one, Exception)]


def difference(function, inputs, number, actual, expected, runs, exact=()):
    if list(actual) != list(expected):
        return "other results", f"got {list(actual)}, expected {list(expected)}"
    noisy = []
    for seed in range(runs):
        with Noise(seed) as noise:
            one = run(function, inputs, number, noise)
        if not isinstance(one, Exception):
            noisy.append(one)
    for name, was in expected.items():
        others, truths = ([one.get(name) for one in runs] for runs in (noisy, exact))
        computed = name.startswith(("result", "gradient"))
        text = tensor_difference(actual[name], was, others, truths if computed else ())
        if text:
            return f"wrong {name.split()[0]}", f"{name} {text}"
    return None
