// Which sizes of a captured call its program is compiled for: those that the user marked, or said
// of all, stay as they are or are known to change from the first call on.
#pragma once

#include <Python.h>
//
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/torch/capture/capture.h"

namespace backplane::call {

// Of all sizes: the second one generalises, all change, or none does.
enum class Dynamic : std::uint8_t { kAutomatic, kAlways, kNever };

struct SizeChoice {
  bool all_static = false;        // no other size shares the program
  std::vector<std::int64_t> key;  // calls with another share none
  // Recordings of the call at other sizes; empty: the first program is static. Needs the GIL.
  // kCancelled, with the Python error set, where a size that is marked as dynamic is not.
  std::function<Result<std::vector<record::Recorded>>()> invent;
  std::vector<at::Tensor> examples;  // of the call, by input of the graph
};

struct SizeRequest {
  Dynamic dynamic = Dynamic::kAutomatic;
  std::function<Result<std::unique_ptr<capture::Captured>>(const capture::Invented&)> capture_again;
  // Whether the capture ends where the program breaks: at other sizes it may break elsewhere.
  bool is_part = false;
  // Takes why a size is not generalised.
  std::function<void(const std::string&)> note;
};

// Reads the marks that torch._dynamo.mark_dynamic() and its like leave at tensors. `captured` and
// `call`, and what `request` refers to, are looked at as long as the choice lives. kCancelled, with
// the Python error set, for a mark that the tensor has no place for.
Result<SizeChoice> choose_sizes(capture::Captured& captured, const guards::CallArguments& call,
                                SizeRequest request);

}  // namespace backplane::call
