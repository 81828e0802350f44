"""What reaches outside of a program: effects, values of tensors, threads, other tools."""

from __future__ import annotations

import copy
import logging
import random
import threading
import warnings

import numpy
import torch
from frontend.programs.catalog import attempt, program, scenario, x
from torch import nn

LOG: list[int] = []
COUNT = 0


@program((x(3), []), (x(3), [1]))
def list_argument_appended(a, items):
    items.append(len(items))
    return a * len(items)


@program((x(3), {}), (x(3), {"n": 1}))
def dict_argument_changed(a, d):
    d["n"] = d.get("n", 0) + 1
    return a * d["n"]


@program((x(3), {1}))
def set_argument_changed(a, s):
    s.add(7)
    return a * len(s)


@program((x(3), [3, 1, 2]))
def list_argument_sorted(a, items):
    items.sort()
    return a * items[0]


@program((x(3), []))
def tensor_stored_in_list(a, items):
    items.append(a * 2)
    return a + 1


class Box:
    def __init__(self, n=0):
        self.n = n


@program((x(3), Box()), (x(3), Box(4)))
def attribute_of_argument_stored(a, box):
    box.n += 1
    box.last = a * 2
    return a * box.n


@scenario
def attribute_of_module_stored_program(compile):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0
            self.last = None

        def forward(self, a):
            self.calls += 1
            self.last = a.detach()
            return a * self.calls

    module = Counting()
    compiled = compile(module)
    for _ in range(3):
        yield compiled(x(3)), module.calls, module.last


@scenario
def global_written_program(compile):
    def function(a):
        global COUNT
        COUNT += 1
        return a * COUNT

    compiled = compile(function)
    for _ in range(3):
        yield compiled(x(3)), COUNT
    globals()["COUNT"] = 0


@scenario
def closure_written_program(compile):
    count = 0

    def function(a):
        nonlocal count
        count += 1
        return a * count

    compiled = compile(function)
    for _ in range(3):
        yield compiled(x(3)), count


@scenario
def effect_before_exception_program(compile):
    items: list[int] = []

    def function(a, fails):
        items.append(1)
        if fails:
            raise ValueError("after the effect")
        return a + len(items)

    compiled = compile(function)
    yield attempt(compiled, x(3), False), list(items)
    yield attempt(compiled, x(3), True), list(items)


@program((x(3),), (x(4),))
def printing(a):
    print("shape", tuple(a.shape))
    b = a * 2
    print("done")
    return b


@program((x(3),))
def warning(a):
    warnings.warn("be careful", stacklevel=1)
    return a + 1


@scenario
def logging_program(compile):
    logger = logging.getLogger("frontend.programs")
    seen: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: seen.append(record.getMessage())
    logger.addHandler(handler)

    def function(a):
        logger.warning("value %d", 3)
        return a + 1

    compiled = compile(function)
    yield compiled(x(3)), seen
    yield compiled(x(3)), seen
    logger.removeHandler(handler)


@scenario
def disabled_logging_program(compile):
    logger = logging.getLogger("frontend.programs.quiet")
    logger.setLevel(logging.ERROR)

    def function(a):
        logger.debug("never seen")
        return a * 2

    compiled = compile(function)
    yield compiled(x(3))
    yield compiled(x(3))


@program((x(3),), (-x(3) - 5,))
def branch_on_values(a):
    if a.sum() > 0.5:
        return a + 1
    return a - 1


@program((x(10), x(10)), (x(10), -x(10) - 3))
def toy_example(a, b):
    c = a / (torch.abs(a) + 1)
    if b.sum() < 0:
        b = b * -1
    return c * b


def chooses(a):
    return a * 2 if a.mean() > 0.5 else a * 3


@program((x(8),), (x(8) + 2,))
def branch_in_callee(a):
    return chooses(a + 0.1) + 1


@scenario
def gradient_with_branch_program(compile):
    compiled = compile(lambda a: (a * 2 if a.mean() > 0.5 else a * 3).sum())
    for shift in (0.0, 2.0):
        a = (x(3) + shift).requires_grad_()
        compiled(a).backward()
        yield a


@program((x(3),), (x(3) * 2,))
def item_of_tensor(a):
    return a * a.max().item(), float(a.sum()), int(a.numel())


@program((torch.tensor([1, 2]),))
def list_of_tensor(a):
    return a + 1, a.tolist()


@program((torch.tensor([3, 5]),))
def sizes_from_values(a):
    return torch.zeros(int(a[0]), int(a[1]))


@program((x(5),), (x(5).abs(),))
def data_dependent_sizes(a):
    return a[a > 0], a.nonzero(), torch.unique(a)


@program((x(3),), (x(3) * 0,))
def while_on_values(a):
    while a.sum() < 5:
        a = a + 1
    return a


@program((x(3), x(3)))
def containment_of_tensors(a, b):
    items = [a]
    return a in items, [b].count(b) if False else len(items)


@program((x(3),))
def assertion_on_values(a):
    assert a.abs().max() <= 1
    return a + 1


@program((x(3),))
def printed_tensor(a):
    return f"{a * 2}", a


@program((x(3),))
def numpy_of_tensor(a):
    return torch.from_numpy(numpy.sin(a.numpy())), a.numpy().sum()


@program((x(3),))
def numpy_of_numbers(a):
    return a * float(numpy.sqrt(4.0)), int(numpy.prod([2, 3]))


@program((x(3),))
def random_of_python(a):
    random.seed(3)
    return a * random.random(), random.randint(0, 5)


@program((x(3),))
def deep_copies(a):
    config = {"sizes": [1, 2], "t": (3,)}
    other = copy.deepcopy(config)
    other["sizes"].append(4)
    return a, config, other


@scenario
def deep_copied_module_program(compile):
    module = nn.Linear(3, 3)
    with torch.no_grad():
        module.weight.copy_(x(3, 3))
        module.bias.zero_()

    def function(a):
        return copy.deepcopy(module)(a)

    yield compile(function)(x(2, 3))


@scenario
def gradient_read_program(compile):
    weight = x(3).requires_grad_()
    (weight * 2).sum().backward()
    compiled = compile(lambda a: a if weight.grad is None else a + weight.grad)
    yield compiled(x(3))
    weight.grad = None
    yield compiled(x(3))
    weight.grad = x(3)
    yield compiled(x(3))


@scenario
def backward_inside_program(compile):
    weight = x(3).requires_grad_()

    def function(a):
        (a * weight).sum().backward()
        return weight.grad * 2

    compiled = compile(function)
    yield attempt(compiled, x(3)), weight.grad


@scenario
def threads_with_other_modes_program(compile):
    compiled = compile(lambda a: (a * 2, torch.is_grad_enabled()))
    out = {}

    def work(name, grad):
        torch.set_grad_enabled(grad)
        out[name] = compiled(x(3).requires_grad_())

    for name, grad in (("one", True), ("two", False), ("three", True)):
        thread = threading.Thread(target=work, args=(name, grad))
        thread.start()
        thread.join()
    yield out["one"], out["two"], out["three"]


@scenario
def tensor_attribute_program(compile):
    a = x(3)
    a.scale = 2
    compiled = compile(lambda t: t * t.scale)
    yield compiled(a)
    a.scale = 5
    yield compiled(a)


@scenario
def tensor_subclass_program(compile):
    class Tagged(torch.Tensor):
        pass

    compiled = compile(lambda a: a * 2 + 1)
    yield compiled(x(3).as_subclass(Tagged))
    yield compiled(x(3))


@scenario
def torch_function_mode_program(compile):
    class Counting(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    compiled = compile(lambda a: a * 2)
    yield compiled(x(3))
    with Counting():
        yield compiled(x(3))


@scenario
def iterator_argument_program(compile):
    compiled = compile(lambda a, items: [a * i for i in items])
    items = iter([1, 2, 3])
    yield compiled(x(3), items), list(items)
    values = (i for i in range(3))
    next(values)
    yield compiled(x(3), values), list(values)


@scenario
def generator_returned_program(compile):
    def function(a):
        return (a * i for i in range(3))

    yield list(compile(function)(x(3)))


@scenario
def generator_function_program(compile):
    def function(a):
        for i in range(3):
            yield a * i

    compiled = compile(function)
    yield list(compiled(x(3)))
    yield list(compiled(x(3)))


@scenario
def closure_returned_from_program_program(compile):
    def function(a):
        b = a * 2
        return lambda c: c + b

    yield compile(function)(x(3))(x(3))


@scenario
def object_returned_program(compile):
    def function(a):
        box = Box(3)
        box.t = a + 1
        return box

    compiled = compile(function)
    one, two = compiled(x(3)), compiled(x(3))
    yield one, two, one is two


@scenario
def argument_returned_program(compile):
    compiled = compile(lambda a, box: (box, a + box.n, box.__dict__))
    box = Box(3)
    out = compiled(x(3), box)
    yield out[0] is box, out[1], out[2] is box.__dict__


@scenario
def cycle_in_argument_program(compile):
    box = Box(2)
    box.me = box
    compiled = compile(lambda a, b: a * b.me.me.n)
    yield compiled(x(3), box)
    box.me = Box(5)
    box.me.me = box
    yield compiled(x(3), box)


@scenario
def settings_context_program(compile):
    def function(a):
        torch.set_grad_enabled(False)
        return a * 2

    compiled = compile(function)
    a = x(3).requires_grad_()
    yield compiled(a), torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    yield compiled(a), torch.is_grad_enabled()
    torch.set_grad_enabled(True)
