#include "core/cpython/frame/watched.h"

#include <algorithm>
#include <iterator>

#include "core/cpython/bytecode/py_ref.h"

namespace backplane::cpython {

namespace {

#if PY_VERSION_HEX >= 0x030C0000
constexpr int kToolCount = 6;

// A tool that has asked for events of all code.
bool has_monitoring_tool() {
  PyObject* monitoring = PySys_GetObject("monitoring");
  for (int tool = 0; monitoring && tool < kToolCount; ++tool) {
    const Ref name = Ref::steal(PyObject_CallMethod(monitoring, "get_tool", "i", tool));
    if (!name || name.get() == Py_None) continue;
    const Ref events = Ref::steal(PyObject_CallMethod(monitoring, "get_events", "i", tool));
    if (events && PyObject_IsTrue(events.get()) == 1) return true;
  }
  PyErr_Clear();
  return false;
}
#endif

bool is_gc_callback(PyObject* function) {
  static PyObject* const callbacks = [] {  // the collector's own list
    const Ref collector = Ref::steal(PyImport_ImportModule("gc"));
    PyObject* list = collector ? PyObject_GetAttrString(collector.get(), "callbacks") : nullptr;
    PyErr_Clear();
    return list;
  }();
  for (Py_ssize_t i = 0; callbacks && i < PyList_GET_SIZE(callbacks); ++i) {
    PyObject* callback = PyList_GET_ITEM(callbacks, i);
    if (PyMethod_Check(callback)) callback = PyMethod_GET_FUNCTION(callback);
    if (callback == function) return true;
  }
  return false;
}

}  // namespace

bool is_interruption(PyThreadState* thread, PyObject* function) {
  return thread->tracing > 0 || is_gc_callback(function);
}

bool is_thread_watched(PyThreadState* thread) {
  if (thread->c_tracefunc || thread->c_profilefunc) return true;
#if PY_VERSION_HEX >= 0x030C0000
  return has_monitoring_tool();
#else
  return false;
#endif
}

#if PY_VERSION_HEX >= 0x030C0000
bool is_code_watched(PyCodeObject* code) {
  const _PyCoMonitoringData* data = code->_co_monitoring;
  return data &&
         std::any_of(std::begin(data->local_monitors.tools), std::end(data->local_monitors.tools),
                     [](auto tools) { return tools != 0; });
}
#else
bool is_code_watched(PyCodeObject*) { return false; }
#endif

}  // namespace backplane::cpython
