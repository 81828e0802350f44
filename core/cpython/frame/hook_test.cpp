#include "core/cpython/frame/hook.h"

#include <gtest/gtest.h>

#include <thread>

#include "core/cpython/bytecode/testing/embedded_python.h"
#include "core/cpython/frame/running_frame.h"

extern "C" {
PyObject* _PyEval_EvalFrameDefault(PyThreadState*, _PyInterpreterFrame*, int);  // NOLINT
}

namespace backplane::cpython {
namespace {

using HookTest = WithPython;

// Counts frames and runs them as CPython does.
class Counter final : public Evaluator {
 public:
  int count = 0;
  PyObject* evaluate(PyThreadState* thread, _PyInterpreterFrame* frame, int throwing) override {
    ++count;
    return evaluate_by_default(thread, frame, throwing);
  }
};

int g_foreign_count = 0;
_PyFrameEvalFunction g_before_foreign = nullptr;  // that it hands its frames to

PyObject* run_foreign(PyThreadState* thread, _PyInterpreterFrame* frame, int throwing) {
  ++g_foreign_count;
  if (g_before_foreign) return g_before_foreign(thread, frame, throwing);
  return _PyEval_EvalFrameDefault(thread, frame, throwing);
}

constexpr const char* kFibonacci = "def f(n):\n  return n if n < 2 else f(n - 1) + f(n - 2)\n";

long call(PyObject* function, int argument) {
  const Ref result = Ref::steal(PyObject_CallFunction(function, "i", argument));
  return result ? PyLong_AsLong(result.get()) : -1;
}

TEST_F(HookTest, FramesGoToTheEvaluatorWhileARegionLives) {
  const Ref names = run(kFibonacci);
  Counter counter;
  EXPECT_EQ(installed_frame_hook(), FrameHook::kNone);
  {
    const Region region(counter);
    EXPECT_EQ(installed_frame_hook(), FrameHook::kOurs);
    EXPECT_EQ(call(get(names, "f"), 10), 55);
    EXPECT_EQ(counter.count, 177);
  }
  EXPECT_EQ(installed_frame_hook(), FrameHook::kNone);
  EXPECT_EQ(call(get(names, "f"), 10), 55);
  EXPECT_EQ(counter.count, 177);
}

TEST_F(HookTest, RegionsNestAndPauses) {
  const Ref names = run(kFibonacci);
  Counter outer, inner;
  const Region region(outer);
  {
    const Region nested(inner);
    EXPECT_EQ(call(get(names, "f"), 3), 2);
  }
  EXPECT_EQ(inner.count, 5);
  {
    const HookPause pause;
    EXPECT_EQ(call(get(names, "f"), 3), 2);
  }
  EXPECT_EQ(outer.count, 0);
  EXPECT_EQ(call(get(names, "f"), 3), 2);
  EXPECT_EQ(outer.count, 5);
}

TEST_F(HookTest, OtherThreadsRunAsAlways) {
  const Ref names = run(kFibonacci);
  Counter counter;
  const Region region(counter);
  PyThreadState* saved = PyEval_SaveThread();
  std::thread([&] {
    const PyGILState_STATE gil = PyGILState_Ensure();
    EXPECT_EQ(call(get(names, "f"), 10), 55);
    PyGILState_Release(gil);
  }).join();
  PyEval_RestoreThread(saved);
  EXPECT_EQ(counter.count, 0);
}

// A hook that is not ours is put back, and has the frames of other threads meanwhile.
TEST_F(HookTest, AForeignHookIsPutBack) {
  const Ref names = run(kFibonacci);
  PyInterpreterState* interpreter = PyInterpreterState_Get();
  Counter counter;
  _PyInterpreterState_SetEvalFrameFunc(interpreter, run_foreign);
  {
    const Region region(counter);
    EXPECT_EQ(call(get(names, "f"), 5), 5);
    EXPECT_EQ(counter.count, 15);
    g_foreign_count = 0;
    PyThreadState* saved = PyEval_SaveThread();
    std::thread([&] {
      const PyGILState_STATE gil = PyGILState_Ensure();
      EXPECT_EQ(call(get(names, "f"), 5), 5);
      PyGILState_Release(gil);
    }).join();
    PyEval_RestoreThread(saved);
    EXPECT_EQ(g_foreign_count, 15);
    EXPECT_EQ(counter.count, 15);
  }
  EXPECT_EQ(installed_frame_hook(), FrameHook::kForeign);
  _PyInterpreterState_SetEvalFrameFunc(interpreter, _PyEval_EvalFrameDefault);
}

// A hook that was set over ours stays, also where it hands frames back to ours.
TEST_F(HookTest, AHookSetOverOursStays) {
  const Ref names = run(kFibonacci);
  PyInterpreterState* interpreter = PyInterpreterState_Get();
  Counter counter;
  {
    const Region region(counter);
    g_before_foreign = _PyInterpreterState_GetEvalFrameFunc(interpreter);
    _PyInterpreterState_SetEvalFrameFunc(interpreter, run_foreign);
    EXPECT_EQ(call(get(names, "f"), 5), 5);
    EXPECT_EQ(counter.count, 15);
  }
  EXPECT_EQ(installed_frame_hook(), FrameHook::kForeign);
  EXPECT_EQ(call(get(names, "f"), 5), 5);
  {
    const Region region(counter);  // over it in turn: each would call the other
    const HookPause pause;
    EXPECT_EQ(call(get(names, "f"), 5), 5);
  }
  EXPECT_EQ(counter.count, 15);
  g_before_foreign = nullptr;
  _PyInterpreterState_SetEvalFrameFunc(interpreter, _PyEval_EvalFrameDefault);
}

TEST_F(HookTest, ErrorsPass) {
  const Ref names = run("def f(n):\n  raise ValueError('x')\n");
  Counter counter;
  const Region region(counter);
  EXPECT_FALSE(Ref::steal(PyObject_CallFunction(get(names, "f"), "i", 1)));
  EXPECT_TRUE(PyErr_ExceptionMatches(PyExc_ValueError));
  PyErr_Clear();
}

}  // namespace
}  // namespace backplane::cpython
