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
#include "core/torch/compiler/program_store.h"

namespace backplane::call {

// Of all sizes: the second one generalises, all change, or none does.
enum class Dynamic : std::uint8_t { kAutomatic, kAlways, kNever };

struct SizeRequest {
  Dynamic dynamic = Dynamic::kAutomatic;
  std::function<Result<std::unique_ptr<capture::Captured>>(const capture::Invented&)> capture_again;
  // Whether the capture ends where the program breaks: at other sizes it may break elsewhere.
  bool is_part = false;
  // Takes why a size is not generalised.
  std::function<void(const std::string&)> note;
};

struct ChosenSizes {
  compiler::SizeChoice choice;
  std::vector<at::Tensor> examples;  // of the call, by input of the graph
};

// Reads the marks that torch._dynamo.mark_dynamic() and its like leave at tensors. `call`, and what
// `request` refers to, are looked at as long as the choice lives, which takes the GIL itself.
// kCancelled, with the Python error set, for a mark that the tensor has no place for, and of a size
// that is marked as dynamic and is not.
Result<ChosenSizes> choose_sizes(const capture::Captured& captured,
                                 const guards::CallArguments& call, SizeRequest request);

}  // namespace backplane::call
