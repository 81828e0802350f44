// Failures of calls as Python sees them: the same class and code wherever a call was made.
#pragma once

#include <Python.h>

#include <string_view>

#include "core/base/status.h"

namespace backplane::bridge {

// Whether a plugin refused what it was given to compute with, such as an index out of range, while
// all was well with the call. PyTorch has a say of its own about such data.
inline bool refuses_data(const Status& status) { return status.code() == Code::kInvalidArgument; }
inline bool lost_device(const Status& status) { return status.code() == Code::kDeviceLost; }

// Sets the Python error torch_backplane.BackplaneError, or where the data was refused its
// BackplaneDataError, which is an IndexError as well. Without memory it is
// BackplaneOutOfMemoryError BP-0115, whatever `code` says. With the GIL.
void set_error(std::string_view code, const Status& status);
// An interrupt whose own Python error is set, which is raised as it is. With the GIL.
bool is_raised(const Status& status);
// Throws the same as set_error sets, with or without the GIL.
[[noreturn]] void raise_error(std::string_view code, const Status& status);

// Errors of Python that plugins leave set are cleared and told from here on.
void watch_errors_of_plugins();

// For what stands between HANDLE_TH_ERRORS and its end, with the GIL: throws the Python error that
// is set where `result` is null. Only then do warnings that wait go out beside the error; raised on
// top of it they are a SystemError.
PyObject* checked(PyObject* result);
// Whether the Python error that is set is a BackplaneError.
bool is_backplane_error();

}  // namespace backplane::bridge
