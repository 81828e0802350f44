"""Forks for each program that tests/prepared.py asks for; the program runs in the fork, as the main
module of this process."""

import gc
import importlib
import json
import os
import runpy
import sys
import types
import warnings

# What torch.compile imports.
for module in (
    "torch",
    "torch._dynamo.convert_frame",
    "torch._functorch.aot_autograd",
    "torch._inductor.compiler_bisector",
):
    importlib.import_module(module)


def next_program():
    """Comes back in the fork alone."""
    requests, replies = (
        os.fdopen(int(fd), how) for fd, how in zip(sys.argv[1:], "rw", strict=True)
    )
    assert "torch_backplane" not in sys.modules, "it reads the environment when it is imported"
    gc.collect()
    gc.freeze()  # no fork has to look through what is here
    print(os.getpid(), file=replies, flush=True)
    for request in requests:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12 counts the threads of NumPy's library
            pid = os.fork()
        if pid == 0:
            requests.close()
            replies.close()
            return json.loads(request)
        print(pid, file=replies, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), file=replies, flush=True)
    sys.exit()


program = next_program()
os.setsid()
for name, fd in (("out", 1), ("err", 2)):
    with open(program[name], "wb") as file:
        os.dup2(file.fileno(), fd)
os.chdir(program["folder"])
for name in set(os.environ) - set(program["environment"]):
    del os.environ[name]
os.environ.update(program["environment"])
main = sys.modules["__main__"] = types.ModuleType("__main__")
how, *sys.argv[:] = program["arguments"]
if how == "-m":
    sys.path[0] = os.getcwd()
    runpy._run_module_as_main(sys.argv[0])  # what the interpreter calls for -m
elif how == "-c":
    sys.path[0] = ""
    text, sys.argv[0] = sys.argv[0], "-c"
    exec(compile(text, "<string>", "exec"), main.__dict__)
else:
    sys.path[0] = os.path.dirname(os.path.abspath(how))
    sys.argv.insert(0, how)
    main.__file__ = how
    with open(how, encoding="utf-8") as file:
        exec(compile(file.read(), how, "exec"), main.__dict__)
