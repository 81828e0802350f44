"""Exceptions: raised, caught, chained, on their way through `finally`."""

from __future__ import annotations

import traceback

from frontend.programs.catalog import program, scenario, x


@program((x(2, 3), (2, 3)), (x(2, 3), (3, 2)))
def assertion_with_message(a, shape):
    assert a.shape == shape, f"expected {shape}, got {tuple(a.shape)}"
    return a + 1


@program((x(3), 1), (x(3), 0))
def raises_or_not(a, divisor):
    if divisor == 0:
        raise ZeroDivisionError("no zero, please")
    return a / divisor


@scenario
def raise_keeps_lines_program(compile):
    def check(a):
        if a.dim() != 2:
            raise ValueError(f"{a.dim()} dimensions")
        return a

    def function(a):
        b = a + 1
        return check(b)

    compiled = compile(function)
    yield compiled(x(2, 2))
    try:
        compiled(x(2))
    except ValueError as error:
        entries = traceback.extract_tb(error.__traceback__)
        yield [(e.name, e.line) for e in entries if e.filename == __file__][1:]


@program((x(3), "1"), (x(3), "one"), (x(3), None))
def several_handlers(a, text):
    try:
        n = int(text)
    except ValueError as error:
        return a - 1, str(error)
    except TypeError:
        return a - 2, "type"
    else:
        a = a + n
    finally:
        a = a * 2
    return a, n


@program((x(3),))
def nested_handlers(a):
    log = []
    try:
        try:
            raise KeyError("inner")
        except ValueError:
            log.append("wrong")
        finally:
            log.append("finally")
    except KeyError as error:
        log.append(error.args[0])
    return a + len(log), log


@program((x(3),))
def chained_exceptions(a):
    try:
        try:
            {}["key"]
        except KeyError as error:
            raise RuntimeError("outer") from error
    except RuntimeError as error:
        return a + 1, type(error.__cause__).__name__, str(error)


@program((x(3),))
def exception_context(a):
    try:
        try:
            [][1]
        except IndexError:
            raise ValueError("second")
    except ValueError as error:
        return a, type(error.__context__).__name__, error.__cause__ is None


@program((x(3),))
def bare_raise(a):
    try:
        try:
            raise ValueError("again")
        except ValueError:
            a = a + 1
            raise
    except ValueError as error:
        return a, str(error)


@program((x(3),))
def return_in_finally(a):
    def inner():
        try:
            return a + 1
        finally:
            seen.append(1)

    seen = []
    return inner(), seen


@program((x(3),))
def finally_overrides(a):
    def inner():
        for i in range(3):
            try:
                if i == 1:
                    return "lost"
            finally:
                if i == 1:
                    break
        return i

    return a + inner()


class Refused(Exception):
    def __init__(self, code, *, hint=None):
        super().__init__(f"refused: {code}")
        self.code = code
        self.hint = hint


@program((x(3), 5), (x(3), 1))
def own_exception_class(a, code):
    try:
        if code > 3:
            raise Refused(code, hint="less")
        a = a + code
    except Refused as error:
        return a * error.code, error.hint, str(error)
    return a, None, ""


@program((x(3), 5))
def own_exception_escapes(a, code):
    b = a * 2
    if code:
        raise Refused(code)
    return b


@program((x(3),))
def exception_notes(a):
    try:
        error = ValueError("v")
        error.add_note("a note")
        raise error
    except ValueError as caught:
        return a, caught.__notes__


@program((x(3), x(4)))
def operator_error_escapes(a, b):
    return a + b


@program((x(3), x(4)))
def operator_error_caught(a, b):
    try:
        return a + b
    except RuntimeError:
        return a - 1


@program((x(3),))
def index_error_ends_search(a):
    parts = [1, 2]
    i = 0
    try:
        while True:
            a = a + parts[i]
            i += 1
    except IndexError:
        pass
    return a, i


@program((x(3),))
def stop_iteration_by_hand(a):
    it = iter([1, 2])
    total = 0
    while True:
        try:
            total += next(it)
        except StopIteration:
            break
    return a + total, next(it, "end")
