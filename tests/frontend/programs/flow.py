"""Control flow: branches, loops, `with`, generators, comprehensions, match."""

from __future__ import annotations

import contextlib

import torch
from frontend.programs.catalog import attempt, program, scenario, x


@program((x(3), 0), (x(3), 1), (x(3), 2), (x(3), 7))
def elif_chain(a, mode):
    if mode == 0:
        return a + 1
    elif mode == 1:
        a = a * 2
    elif mode == 2:
        a = a - 3
    else:
        a = -a
    return a.relu()


@program((x(3), "train"), (x(3), "eval"))
def string_branch(a, mode):
    return a * 2 if mode == "train" else a


@program((x(3), 3, None), (x(3), 0, "x"), (x(3), [], {}))
def short_circuit(a, first, second):
    both = first and second
    either = first or second
    return a + 1, both, either, not first, not (first or second)


@program((x(3), None, None), (x(3), x(3), None), (x(3), None, x(3)), (x(3), x(3), x(3)))
def optional_tensors(a, bias, scale):
    if scale is not None:
        a = a * scale
    if bias is not None:
        a = a + bias
    return a


@program((x(3), 4), (x(3), 0), (x(3), 1))
def unrolled_loop(a, count):
    state = torch.zeros(3)
    for i in range(count):
        state = state * 0.5 + a * i
    return state


@program((x(4, 3),))
def loop_over_tensor(a):
    total = torch.zeros(3)
    for row in a:
        total = total + row * 2
    return total


@program((x(4, 3),))
def loop_over_enumerate_of_tensor(a):
    return [row + i for i, row in enumerate(a)]


@program((x(3),))
def nested_loops_with_break(a):
    found = []
    for i in range(4):
        for j in range(4):
            if j == i:
                break
            if (i + j) % 2:
                continue
            a = a + j
            found.append((i, j))
        else:
            found.append(i)
    return a, found


@program((x(3), 5), (x(3), 100))
def loop_else(a, wanted):
    for i in range(10):
        if i == wanted:
            a = a + i
            break
    else:
        a = a - 1
    return a


@program((x(3),))
def while_with_walrus(a):
    stack = [1, 2, 3]
    while (top := stack.pop()) != 1:
        a = a * top
    return a, stack


class Manager:
    def __init__(self, log, swallow=()):
        self.log = log
        self.swallow = swallow

    def __enter__(self):
        self.log.append("enter")
        return len(self.log)

    def __exit__(self, kind, error, trace):
        self.log.append(kind.__name__ if kind else None)
        return kind is not None and issubclass(kind, self.swallow)


@program((x(3), True), (x(3), False))
def with_swallows(a, fails):
    log = []
    with Manager(log, (KeyError,)) as n:
        a = a + n
        if fails:
            raise KeyError("gone")
        a = a * 2
    return a, log


@program((x(3),))
def with_two(a):
    log = []
    with Manager(log) as one, Manager(log) as two:
        a = a * one + two
    return a, log


@program((x(3),))
def with_lets_through(a):
    log = []
    try:
        with Manager(log, (KeyError,)):
            raise ValueError("through")
    except ValueError:
        log.append("outside")
    return a, log


@program((x(3),))
def with_return_inside(a):
    log = []

    def inner():
        with Manager(log):
            return a + 1

    return inner(), log


@program((x(3),))
def with_loop_control(a):
    log = []
    for i in range(3):
        with Manager(log):
            if i == 0:
                continue
            if i == 2:
                break
            a = a + i
    return a, log


@contextlib.contextmanager
def doubling(log):
    log.append("in")
    try:
        yield 2
    except ValueError:
        log.append("value error")
    finally:
        log.append("out")


@program((x(3), False), (x(3), True))
def generator_manager(a, fails):
    log = []
    with doubling(log) as factor:
        a = a * factor
        if fails:
            raise ValueError("inside")
    return a, log


@program((x(3),))
def exit_stack(a):
    log = []
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            a = a + stack.enter_context(Manager(log))
        stack.callback(log.append, "callback")
    return a, log


@program((x(3),))
def suppress_and_nullcontext(a):
    with contextlib.suppress(KeyError):
        raise KeyError("quiet")
    with contextlib.nullcontext(3) as n:
        a = a + n
    return a


@program((x(3),))
def no_grad_nested(a):
    flags = [torch.is_grad_enabled()]
    with torch.no_grad():
        flags.append(torch.is_grad_enabled())
        with torch.enable_grad():
            flags.append(torch.is_grad_enabled())
        flags.append(torch.is_grad_enabled())
    return a + 1, flags


@program((x(3), True), (x(3), False))
def set_grad_enabled(a, on):
    with torch.set_grad_enabled(on):
        b = a * 2
        inside = torch.is_grad_enabled()
    return b, inside


@torch.no_grad()
def without_gradient(a):
    return a * 3, torch.is_grad_enabled()


@program((x(3),))
def no_grad_decorator(a):
    return without_gradient(a), torch.is_grad_enabled()


@program((x(4, 4),))
def autocast_block(a):
    with torch.autocast("cpu", torch.bfloat16):
        b = a @ a
    return b.dtype, b.float()


@program((x(3),))
def exception_leaves_no_grad(a):
    try:
        with torch.no_grad():
            raise KeyError("k")
    except KeyError:
        return a, torch.is_grad_enabled()


def countdown(n):
    while n:
        yield n
        n -= 1
    return "done"


def delegating(n):
    result = yield from countdown(n)
    yield result


def echo():
    got = None
    while got != "stop":
        got = yield got


@program((x(3),))
def generator_values(a):
    return [a * n for n in countdown(3)], list(delegating(2))


@program((x(3),))
def generator_send(a):
    g = echo()
    first = next(g)
    out = [first, g.send(1), g.send("b")]
    try:
        g.send("stop")
    except StopIteration as error:
        out.append(error.value)
    return a, out


def guarded_generator(log):
    try:
        while True:
            try:
                yield 1
            except ValueError:
                log.append("value")
                yield 2
    finally:
        log.append("finally")


@program((x(3),))
def generator_throw_and_close(a):
    log = []
    g = guarded_generator(log)
    out = [next(g), g.throw(ValueError("v")), next(g)]
    g.close()
    return a + out[1], out, log


@program((x(3),))
def generator_half_consumed(a):
    g = countdown(4)
    b = a * next(g) + next(g)
    return b, sum(g)


@program((x(3),))
def generator_over_tensors(a):
    def powers():
        current = a
        for _ in range(3):
            yield current
            current = current * a

    first, *others = powers()
    return first, others


@program((x(3),))
def yield_from_list_and_generator(a):
    def flat(items):
        for item in items:
            if isinstance(item, list):
                yield from flat(item)
            else:
                yield item

    return [a + n for n in flat([1, [2, [3, 4]], 5])]


@program((x(3),))
def generator_raises(a):
    def broken():
        yield 1
        raise LookupError("broken")

    seen = []
    try:
        for n in broken():
            seen.append(n)
    except LookupError as error:
        seen.append(str(error))
    return a + 1, seen


@program((x(3),))
def stop_iteration_in_generator(a):
    def wrong():
        yield next(iter([]))

    try:
        list(wrong())
    except RuntimeError as error:
        return a, str(error)


@program((x(3), [1, 2, 3]), (x(3), [4]))
def comprehension_with_condition(a, items):
    return [a * i for i in items if i != 2], [i for i in items for _ in range(i) if i < 3]


@program((x(3),))
def nested_comprehension(a):
    return [[a * (i + j) for j in range(2)] for i in range(2)]


@program((x(3),))
def dict_and_set_comprehension(a):
    d = {f"k{i}": a + i for i in range(3)}
    return {k: v * 2 for k, v in d.items() if k != "k1"}, {len(k) for k in d}


@program((x(3),))
def comprehension_scope(a):
    i = 10
    squares = [i * i for i in range(3)]
    return a + i, squares, [(lambda: i)() for i in range(2)], i


@program((x(3),))
def comprehension_closures(a):
    functions = [lambda b, i=i: b * i for i in range(3)]
    late = [lambda b: b + i for i in range(3)]
    return [f(a) for f in functions], [f(a) for f in late]


@program((x(3),))
def generator_expression_lazy(a):
    log = []
    g = (log.append(i) or a * i for i in range(5))
    first = next(g)
    log.append("between")
    second = next(g)
    return first, second, log


@program((x(3), 1), (x(3), "s"), (x(3), None), (x(3), 2.5), (x(3), True))
def match_values(a, v):
    match v:
        case 1:
            return a + 1
        case "s" | "t":
            return a + 2
        case None:
            return a + 3
        case float() as f:
            return a + f
        case _:
            return a


@program((x(3), [1, 2]), (x(3), [1, 2, 3, 4]), (x(3), ()), (x(3), [x(3), 5]))
def match_sequences(a, v):
    match v:
        case []:
            return a
        case [first, second]:
            return a * first + second
        case [first, *rest]:
            return a + first, rest


@program((x(3), {"op": "add", "n": 2}), (x(3), {"op": "mul", "k": 1}), (x(3), {}))
def match_mappings(a, v):
    match v:
        case {"op": "add", "n": n}:
            return a + n
        case {"op": op, **rest}:
            return a, op, rest
        case _:
            return None


class Point:
    __match_args__ = ("h", "v")

    def __init__(self, h, v):
        self.h = h
        self.v = v


@program((x(3), Point(0, 2)), (x(3), Point(3, 4)), (x(3), Point(1, 1)), (x(3), 7))
def match_classes(a, p):
    match p:
        case Point(0, v):
            return a + v
        case Point(h=h, v=v) if h != v:
            return a * h - v
        case Point():
            return a
        case int(n):
            return a + n


@scenario
def recursion_program(compile):
    def depth(a, n):
        return a if n == 0 else depth(a + n, n - 1)

    compiled = compile(depth)
    for n in (0, 1, 5, 40):
        yield compiled(x(3), n)


@scenario
def recursion_error_program(compile):
    def forever(a):
        return forever(a + 1)

    kind, chain = attempt(compile(forever), x(3))
    yield kind, chain[0][0]


@program((x(3),))
def exception_group(a):
    try:
        raise ExceptionGroup("both", [ValueError(1), KeyError(2)])
    except* ValueError as group:
        n = len(group.exceptions)
    except* KeyError:
        n = 5
    return a + n


@program((x(3),))
def unbound_local(a):
    if a.dim() == 2:
        b = a
    return b


@program((x(3),))
def deleted_local(a):
    b = a + 1
    del b
    try:
        return b
    except UnboundLocalError:
        return a


@program((x(3), 2))
def chained_comparison(a, n):
    return a, 1 < n < 3, 1 < n > 5, n == 2 != 3


@program((x(3),))
def large_jumps(a):
    total = 0
    for i in range(300):
        if i % 3 == 0:
            continue
        total += i
    return a + total
