// What eager mode saves for a backward, as a recorded graph tells it.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "core/torch/record/recorder.h"

namespace backplane::compiler {

// What nodes read that are there for gradients alone. Of a graph as it was recorded, this is what
// eager mode saves.
struct ReadForGradients {
  // Of the graph: the tangents that each is read for.
  std::vector<std::vector<std::uint32_t>> by_output, by_argument;
};
ReadForGradients read_for_gradients(const record::Recorded& recorded);

// Of the graph as it was recorded: the saving nodes that have saved each.
struct SavedByNodes {
  std::vector<std::vector<std::uint32_t>> outputs, arguments;
};
SavedByNodes saved_by_nodes(const record::Recorded& recorded);

// By input of the forward: whether a gradient depends on it.
std::vector<bool> inputs_of_gradients(const record::Recorded& recorded);

// Eager mode keeps nothing of these, so whoever writes them before the backward changes no
// gradient. A weight that is only cast (autocast) is not copied: the backward casts it again.
std::vector<bool> copied_arguments(const record::Recorded& recorded, const ReadForGradients& kept);

// Of a graph as it was recorded: eager mode raises where it would save an inference tensor. In a
// graph that tensor may be copied, or not be read at all.
Status refuse_saved_inference_tensors(const record::Recorded& recorded);

}  // namespace backplane::compiler
