#include "core/torch/device/operation.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

#include "core/ir/text.h"
#include "core/ir/verifier.h"
#include "core/ir/view.h"
#include "core/runtime/plugin/claims.h"
#include "core/runtime/plugin/graph_arrays.h"
#include "core/torch/bridge/dtype.h"
#include "core/torch/device/memory.h"

namespace backplane::device {

namespace {

// The cache key on disk holds the content of constants, which the text form may shorten.
std::string content_text(const ir::Graph& graph) {
  std::string text = ir::print(graph);
  for (const ir::Value& value : graph.values) {
    if (!value.constant) continue;
    text += value.name + ":" + std::to_string(value.constant->bytes.size()) + ":";
    text.append(value.constant->bytes.begin(), value.constant->bytes.end());
  }
  return text;
}

Status check_claims(const ir::Graph& graph, const partition::Target& target) {
  std::vector<bool> taken(graph.nodes.size(), false);
  for (const partition::Claim& claim : target.claims)
    for (const ir::NodeId node : claim.nodes) taken[node] = true;
  for (ir::NodeId node = 0; node < graph.nodes.size(); ++node) {
    if (taken[node]) continue;
    std::string reason = std::string(graph.nodes[node].op->name) + " was not claimed";
    for (const partition::Refusal& refusal : target.refusals)
      if (refusal.node == node) reason = refusal.text;
    return Status(Code::kUnsupported, reason);
  }
  return {};
}

// An output must be the memory of a node's result: not of an input, a constant or another output.
Status check_outputs(const ir::Graph& graph) {
  std::vector<ir::ValueId> roots;
  for (const ir::ValueId output : graph.outputs) {
    const ir::ValueId root = ir::view_root(graph, output);
    if (graph.values[output].kind != ir::ValueKind::kResult || root != output ||
        std::ranges::find(roots, root) != roots.end())
      return Status(Code::kUnsupported, "a result that is another value's memory");
    roots.push_back(root);
  }
  return {};
}

template <class T>
bool store(const c10::Scalar& number, std::uint64_t (&out)[2]) {
  const T value = number.to<T>();
  static_assert(sizeof value <= sizeof out);
  std::memcpy(out, &value, sizeof value);
  return true;
}

// Whether a number of that type can be bound by value; if so, its element is in `out`.
bool store_number(const c10::Scalar& number, at::ScalarType dtype, std::uint64_t (&out)[2]) {
  switch (dtype) {
    case at::kBool:
      return store<bool>(number, out);
    case at::kByte:
      return store<std::uint8_t>(number, out);
    case at::kChar:
      return store<std::int8_t>(number, out);
    case at::kShort:
      return store<std::int16_t>(number, out);
    case at::kInt:
      return store<std::int32_t>(number, out);
    case at::kLong:
      return store<std::int64_t>(number, out);
    case at::kHalf:
      return store<c10::Half>(number, out);
    case at::kBFloat16:
      return store<c10::BFloat16>(number, out);
    case at::kFloat:
      return store<float>(number, out);
    case at::kDouble:
      return store<double>(number, out);
    case at::kComplexFloat:
      return store<c10::complex<float>>(number, out);
    case at::kComplexDouble:
      return store<c10::complex<double>>(number, out);
    default:
      return false;
  }
}

}  // namespace

Result<std::shared_ptr<const Operation>> Operation::compile(TorchDevice& device, ir::Graph graph,
                                                            std::vector<std::size_t> absent) {
  BP_RETURN_IF_ERROR(ir::verify(graph));
  BP_RETURN_IF_ERROR(check_outputs(graph));
  for (const ir::ValueId input : graph.inputs) {
    std::uint64_t element[2];
    if (graph.values[input].is_host_scalar &&
        !store_number(0, bridge::to_scalar_type(graph.values[input].type.dtype), element))
      return Status(Code::kUnsupported, "a number of a type that is not bound by value");
  }
  std::shared_ptr<Operation> made(new Operation(device, std::move(graph)));
  made->absent_ = std::move(absent);
  const ir::Graph& g = made->graph_;
  made->may_be_refused_ = std::ranges::any_of(
      g.nodes, [](const ir::Node& n) { return n.op->op_class == ir::OpClass::kIndexing; });
  const runtime::GraphArrays arrays(g);
  {
    BP_ASSIGN_OR_RETURN(const partition::Target target,
                        runtime::query_claims(device.device(), g, arrays));
    BP_RETURN_IF_ERROR(check_claims(g, target));
  }
  bp_io_request wish{};
  wish.layout.kind = BP_LAYOUT_STRIDED;
  const std::vector<bp_io_request> output_wishes(g.outputs.size(), wish);
  const std::vector<bp_io_request> input_wishes(g.inputs.size(), wish);
  runtime::ExecutableRequest request;
  request.inputs = input_wishes;
  request.outputs = output_wishes;
  request.graph_text = content_text(g);
  BP_ASSIGN_OR_RETURN(made->executable_,
                      runtime::Executable::compile(device.device(), arrays, request));
  BP_ASSIGN_OR_RETURN(made->workspace_bytes_, made->executable_->workspace_bytes({}));
  for (const ir::ValueId output : g.outputs) {
    const ir::TensorType& type = g.values[output].type;
    made->outputs_.push_back({ir::resolve(type.dims, {}), ir::resolve(type.strides, {}),
                              bridge::to_scalar_type(type.dtype)});
  }
  return std::shared_ptr<const Operation>(std::move(made));
}

Result<std::vector<at::Tensor>> Operation::try_run(std::span<const Argument> arguments) const {
  std::vector<at::Tensor> outputs;
  outputs.reserve(outputs_.size());
  for (const Output& output : outputs_)
    outputs.push_back(make_empty(device_, output.sizes, output.strides, output.dtype));
  BP_RETURN_IF_ERROR(execute(arguments, outputs));
  for (const std::size_t at : absent_)
    outputs.insert(outputs.begin() + static_cast<std::ptrdiff_t>(at), at::Tensor());
  return outputs;
}

Status Operation::try_run_into(std::span<const Argument> arguments,
                               const at::Tensor& output) const {
  return execute(arguments, {&output, 1});
}

bool Operation::fits(std::span<const Argument> arguments, const at::Tensor& target) const {
  if (outputs_.size() != 1 || !absent_.empty()) return false;
  const Output& output = outputs_[0];
  return target.scalar_type() == output.dtype && target.sizes() == output.sizes &&
         target.strides() == output.strides && target.is_non_overlapping_and_dense() &&
         !target.is_conj() && !target.is_neg() && is_aligned(target) &&
         std::ranges::none_of(arguments, [&](const Argument& argument) {
           return argument.tensor.defined() && shares_block(argument.tensor, target);
         });
}

Status Operation::execute(std::span<const Argument> arguments,
                          std::span<const at::Tensor> outputs) const {
  std::vector<bp_binding> bindings(arguments.size() + outputs.size());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const Argument& argument = arguments[i];
    if (!argument.tensor.defined()) {
      const ir::TensorType& type = graph_.values[graph_.inputs[i]].type;
      static_cast<void>(
          store_number(argument.number, bridge::to_scalar_type(type.dtype), bindings[i].scalar));
      continue;
    }
    const Extent extent = extent_of(argument.tensor);
    if (extent.size_bytes == 0) continue;
    BP_RETURN_IF_ERROR(check_readable(argument.tensor));
    const std::uint64_t before = static_cast<std::uint64_t>(bind_distance(argument.tensor)) *
                                 static_cast<std::uint64_t>(argument.tensor.element_size());
    bindings[i].range = memory_of(argument.tensor.storage())
                            .range(extent.offset_bytes - before, extent.size_bytes + before);
  }
  if (may_be_refused_) device_.queue().note_refusable();
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    bindings[arguments.size() + i].range = range_of(outputs[i]);
    mark_written(outputs[i]);
  }
  // Given back at the end of this function, and used again by later work only.
  const c10::DataPtr workspace = workspace_bytes_ != 0
                                     ? allocate(device_, workspace_bytes_)
                                     : c10::DataPtr(nullptr, device_.torch_device());
  bp_execute_args args{};
  args.struct_size = sizeof args;
  args.inputs = bindings.data();
  args.outputs = bindings.data() + arguments.size();
  args.binding_stride = sizeof(bp_binding);
  args.order = device_.queue().order();
  if (workspace_bytes_ != 0)
    args.workspace = static_cast<const Block*>(workspace.get_context())->range(0, workspace_bytes_);
  BP_RETURN_IF_ERROR(executable_->execute(args));
  device_.queue().note_work({}, executable_->nodes());
  return {};
}

void KeyWriter::add_tensor(const at::Tensor& tensor) {
  add(tensor.device().index());
  add(tensor.scalar_type());
  add_list(tensor.sizes());
  add_list(tensor.strides());
  add(bind_distance(tensor));
}

namespace {

// How many are kept: those of a model in training at some ten sizes.
constexpr std::size_t kMostKept = 16384;
std::size_t read_limit() {
  const char* const text = std::getenv("BACKPLANE_DEVICE_OPERATIONS");
  std::size_t limit = 0;
  if (text == nullptr) return kMostKept;
  const char* const end = text + std::strlen(text);
  const bool is_number = std::from_chars(text, end, limit).ptr == end;
  return is_number && limit > 0 ? limit : kMostKept;
}

struct Entry {
  explicit Entry(OperationResult made) : result(std::move(made)) {}
  const OperationResult result;
  std::atomic<bool> used{true};  // since what nobody used was let go the last time
};

// The map lives for ever: work that uses an executable may be under way when the process ends.
struct Known {
  std::shared_mutex mutex;
  std::unordered_map<std::string, std::shared_ptr<Entry>> by_key;
  const std::size_t limit = read_limit();
  std::atomic<std::uint64_t> sweeps{0};  // threads forget what they have seen after each
};
Known& known() {
  static Known& known = *new Known;
  return known;
}

// Lets go what was not used since the last time, and of what was used any half where that is not
// enough. Calls that run an operation hold it; queued work may outlive its executable (abi).
std::vector<std::shared_ptr<Entry>> sweep(Known& all) {
  std::vector<std::shared_ptr<Entry>> gone;
  const auto drop = [&](auto&& is_dropped) {
    for (auto at = all.by_key.begin(); at != all.by_key.end();) {
      if (!is_dropped(*at->second)) {
        ++at;
        continue;
      }
      gone.push_back(std::move(at->second));
      at = all.by_key.erase(at);
    }
  };
  drop([](Entry& entry) { return !entry.used.exchange(false, std::memory_order_relaxed); });
  bool second = false;
  if (all.by_key.size() > all.limit / 2)
    drop([&](const Entry&) { return std::exchange(second, !second); });
  all.sweeps.fetch_add(1, std::memory_order_release);
  return gone;
}

}  // namespace

OperationResult find_operation(const std::string& key,
                               const std::function<OperationResult()>& make) {
  // Each thread knows what it has seen, so that a known operation costs no lock. It does not keep
  // it: a thread may end when plugins take no calls any more.
  struct Seen {
    std::unordered_map<std::string, std::weak_ptr<Entry>> by_key;
    std::uint64_t sweeps = 0;
  };
  thread_local Seen seen;
  Known& all = known();
  if (const std::uint64_t now = all.sweeps.load(std::memory_order_acquire); now != seen.sweeps) {
    seen.by_key.clear();
    seen.sweeps = now;
  }
  if (const auto found = seen.by_key.find(key); found != seen.by_key.end()) {
    if (const std::shared_ptr<Entry> entry = found->second.lock()) {
      if (!entry->used.load(std::memory_order_relaxed))
        entry->used.store(true, std::memory_order_relaxed);
      return entry->result;
    }
  }
  {
    const std::shared_lock<std::shared_mutex> lock(all.mutex);
    if (const auto found = all.by_key.find(key); found != all.by_key.end()) {
      found->second->used.store(true, std::memory_order_relaxed);
      seen.by_key.insert_or_assign(key, found->second);
      return found->second->result;
    }
  }
  OperationResult made = make();
  // With the interrupt's own error, which nothing that ran in the operation's place would raise.
  if (!made.ok() && made.status().code() == Code::kCancelled) check(made.status());
  // What the plugin does not take it will never take; other failures may pass.
  if (!made.ok() && !is_unsupported(made.status().code())) return made;
  std::vector<std::shared_ptr<Entry>> gone;  // ends without the lock: plugins are called
  const std::unique_lock<std::shared_mutex> lock(all.mutex);
  if (all.by_key.size() >= all.limit) gone = sweep(all);
  std::shared_ptr<Entry>& entry = all.by_key[key];
  if (entry == nullptr) entry = std::make_shared<Entry>(std::move(made));
  return entry->result;
}

std::size_t operation_count() {
  const std::shared_lock<std::shared_mutex> lock(known().mutex);
  return known().by_key.size();
}

}  // namespace backplane::device
