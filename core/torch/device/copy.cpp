#include "core/torch/device/copy.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_local_scalar_dense.h>

#include <optional>
#include <string>
#include <utility>

#include "core/torch/bridge/dtype.h"
#include "core/torch/device/counters.h"
#include "core/torch/device/memory.h"
#include "core/torch/device/operation.h"
#include "core/torch/record/overlap.h"

namespace backplane::device {

namespace {

using runtime::CopyCause;

bool has_bits(const at::Tensor& tensor) { return tensor.is_conj() || tensor.is_neg(); }

bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         a.strides() == b.strides() && a.is_non_overlapping_and_dense();
}

at::Tensor empty_on_host(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype) {
  return at::detail::empty_strided_cpu(sizes, strides, dtype);
}

std::vector<std::int64_t> dense_strides(at::IntArrayRef sizes) {
  std::vector<std::int64_t> strides(sizes.size());
  std::int64_t next = 1;
  for (std::size_t i = sizes.size(); i-- > 0;) {
    strides[i] = next;
    next *= std::max<std::int64_t>(sizes[i], 1);
  }
  return strides;
}

// ---- On one device

ir::TensorType type_of(ir::DType dtype, at::IntArrayRef sizes, at::IntArrayRef strides) {
  ir::TensorType type;
  type.dtype = dtype;
  type.dims.assign(sizes.begin(), sizes.end());
  type.strides.assign(strides.begin(), strides.end());
  return type;
}

// Adds `tensor` as an input; where the device cannot bind its start, as a view of what comes
// before.
ir::ValueId add_input(ir::Graph& graph, const at::Tensor& tensor, ir::DType dtype) {
  ir::TensorType type = type_of(dtype, tensor.sizes(), tensor.strides());
  const std::int64_t before = bind_distance(tensor);
  if (before == 0) return graph.add_input("source", std::move(type));
  const auto item = static_cast<std::int64_t>(tensor.element_size());
  const std::int64_t count =
      before + static_cast<std::int64_t>(extent_of(tensor).size_bytes) / item;
  const ir::ValueId base = graph.add_input("base", type_of(dtype, {count}, {1}));
  const std::vector<ir::Dim> dims = type.dims, strides = type.strides;
  const ir::NodeId view = graph.add_node(
      ir::find_or_intern_op("aten.as_strided"), {base},
      {{"size", dims}, {"stride", strides}, {"storage_offset", ir::Dim(before)}}, {type}, "source");
  return graph.nodes[view].results[0];
}

// `source` in another dtype or other strides.
Result<std::shared_ptr<const Operation>> compile_copy(const at::Tensor& source,
                                                      at::ScalarType dtype,
                                                      at::IntArrayRef strides) {
  const auto from = bridge::find_dtype(source.scalar_type());
  const auto to = bridge::find_dtype(dtype);
  if (!from || !to) return Status(Code::kUnsupported, "a type that graphs do not carry");
  ir::Graph graph;
  graph.name = "copy";
  const ir::ValueId in = add_input(graph, source, *from);
  const bool casts = *from != *to;
  std::vector<ir::Attribute> attributes;
  if (casts) attributes.push_back({"dtype", *to});
  const ir::NodeId node =
      graph.add_node(ir::find_or_intern_op(casts ? "aten._to_copy" : "aten.clone"), {in},
                     std::move(attributes), {type_of(*to, source.sizes(), strides)}, "copy");
  graph.outputs = {graph.nodes[node].results[0]};
  return Operation::compile(owner_of(source), std::move(graph));
}

OperationResult find_copy(const at::Tensor& source, at::ScalarType dtype, at::IntArrayRef strides) {
  thread_local std::string key;
  KeyWriter writer(key);
  writer.add_text("copy");
  writer.add_tensor(source);
  writer.add(dtype);
  writer.add_list(strides);
  return find_operation(key, [&] { return compile_copy(source, dtype, strides); });
}

// All of `base` with `part` written over the elements that `target`, a view of it, shows.
OperationResult find_scatter(const at::Tensor& base, const at::Tensor& part,
                             const at::Tensor& target) {
  thread_local std::string key;
  KeyWriter writer(key);
  writer.add_text("scatter");
  writer.add_tensor(base);
  writer.add_tensor(part);
  writer.add_list(target.strides());
  writer.add(target.storage_offset());
  return find_operation(key, [&]() -> OperationResult {
    const auto dtype = bridge::find_dtype(base.scalar_type());
    if (!dtype) return Status(Code::kUnsupported, "a type that graphs do not carry");
    ir::Graph graph;
    graph.name = "scatter";
    const ir::TensorType type = type_of(*dtype, base.sizes(), base.strides());
    const ir::ValueId whole = graph.add_input("base", type);
    const ir::ValueId values =
        graph.add_input("part", type_of(*dtype, part.sizes(), part.strides()));
    const ir::TensorType shown = type_of(*dtype, target.sizes(), target.strides());
    const ir::NodeId node =
        graph.add_node(ir::find_or_intern_op("aten.as_strided_scatter"), {whole, values},
                       {{"size", shown.dims},
                        {"stride", shown.strides},
                        {"storage_offset", ir::Dim(target.storage_offset())}},
                       {type}, "scattered");
    graph.outputs = {graph.nodes[node].results[0]};
    return Operation::compile(owner_of(base), std::move(graph));
  });
}

// Between tensors without pending bits of one device, of equal sizes.
bool try_copy_on_device(const at::Tensor& source, const at::Tensor& target) {
  TorchDevice& device = owner_of(source);
  const bool apart = !shares_block(source, target);
  const bool starts_are_bound = is_aligned(source) && is_aligned(target);
  if (apart && same_layout(source, target) && starts_are_bound) {
    check(check_readable(source));
    mark_written(target);
    check(device.device().copy_async(range_of(source), range_of(target), CopyCause::kOther,
                                     device.queue().order()));
    return true;
  }
  const Argument argument{source, {}};
  const bool is_whole = covers_storage(target);
  // Straight to the target, or to new memory that becomes the target's.
  if (is_whole || (apart && is_aligned(target) && target.is_non_overlapping_and_dense())) {
    const OperationResult copy = find_copy(source, target.scalar_type(), target.strides());
    if (!copy.ok()) return false;
    if (apart)
      (*copy)->run_into({&argument, 1}, target);
    else
      take_content(target, (*copy)->run({&argument, 1})[0]);
    return true;
  }
  // A part of a storage: the whole is made anew. Of two values for one element PyTorch's order
  // tells which one stays.
  if (record::shows_element_twice(target)) return false;
  const OperationResult dense =
      find_copy(source, target.scalar_type(), dense_strides(source.sizes()));
  if (!dense.ok()) return false;
  const at::Tensor base = whole_storage(target);
  if (base.nbytes() != base.storage().nbytes()) return false;
  const at::Tensor part = (*dense)->run({&argument, 1})[0];
  const OperationResult scatter = find_scatter(base, part, target);
  if (!scatter.ok()) return false;
  const Argument arguments[] = {{base, {}}, {part, {}}};
  take_content(target, (*scatter)->run(arguments)[0]);
  return true;
}

// ---- Over the host

void upload_dense(const at::Tensor& host, const at::Tensor& target) {
  TorchDevice& device = owner_of(target);
  const bp_range range = range_of(target);
  if (range.size_bytes == 0) return;
  const bp_range from{nullptr, const_cast<void*>(host.const_data_ptr()), 0, range.size_bytes};
  check(device.device().copy_async(from, range, CauseScope::current(CopyCause::kInput),
                                   device.queue().order()));
  if (covers_storage(target)) memory_of(target.storage()).block->written.store(0);
}

void download_dense(const at::Tensor& source, const at::Tensor& host) {
  TorchDevice& device = owner_of(source);
  const bp_range range = range_of(source);
  if (range.size_bytes == 0) return;
  check(check_readable(source));
  const Status status = device.queue().copy_to_host(range, host.mutable_data_ptr(),
                                                    CauseScope::current(CopyCause::kOutput));
  if (!status.ok() && device.device().is_given_up())
    static_cast<void>(new at::Tensor(host));  // for good: the device may still write to it
  check(status);
}

// The memory between the first and the last element, on the host. The device must bind its start.
at::Tensor download_extent(const at::Tensor& source) {
  const auto count = static_cast<std::int64_t>(extent_of(source).size_bytes /
                                               static_cast<std::uint64_t>(source.element_size()));
  const std::int64_t before = bind_distance(source);
  const at::Tensor flat =
      over_memory(source, {before + count}, {1}, source.storage_offset() - before);
  const at::Tensor host = empty_on_host({before + count}, {1}, source.scalar_type());
  download_dense(flat, host);
  return host.as_strided(source.sizes(), source.strides(), before);
}

// Reads back, changes and writes what the device cannot write by itself.
void write_over_host(const at::Tensor& values, const at::Tensor& target) {
  const std::int64_t before = bind_distance(target);
  const at::Tensor shown = download_extent(target);
  shown.copy_(values);
  const auto count = static_cast<std::int64_t>(shown.storage().nbytes() / shown.element_size());
  const at::Tensor flat = over_memory(target, {count}, {1}, target.storage_offset() - before);
  upload_dense(shown.as_strided({count}, {1}, 0), flat);
}

at::Tensor download_plain(const at::Tensor& source) {
  if (source.is_non_overlapping_and_dense() && is_aligned(source)) {
    at::Tensor host = empty_on_host(source.sizes(), source.strides(), source.scalar_type());
    download_dense(source, host);
    return host;
  }
  // Gathered on the device, so that only what is shown crosses.
  const Argument argument{source, {}};
  const OperationResult copy =
      find_copy(source, source.scalar_type(), dense_strides(source.sizes()));
  return copy.ok() ? download_plain((*copy)->run({&argument, 1})[0]) : download_extent(source);
}

void upload(const at::Tensor& source, const at::Tensor& target) {
  const bool can_write = target.is_non_overlapping_and_dense() && is_aligned(target);
  if (can_write) {
    at::Tensor host = source;
    if (has_bits(source) || !same_layout(source, target)) {
      host = empty_on_host(target.sizes(), target.strides(), target.scalar_type());
      host.copy_(source);
    }
    return upload_dense(host, target);
  }
  const at::Tensor laid = make_empty(owner_of(target), target.sizes(),
                                     dense_strides(target.sizes()), target.scalar_type());
  upload(source, laid);
  if (!try_copy_on_device(laid, target)) write_over_host(source, target);
}

void copy_on_device(const at::Tensor& source, const at::Tensor& target) {
  if (!has_bits(source) && !has_bits(target) && try_copy_on_device(source, target)) return;
  const CauseScope cause(CopyCause::kFallback);
  count_fallback("aten::copy_", has_bits(source) || has_bits(target)
                                    ? "a pending conjugation or negation"
                                    : "the plugin does not copy these tensors");
  at::Tensor host = download(source);
  const at::Tensor plain = without_bits(target);
  if (has_bits(target)) {
    at::Tensor stored = at::empty_like(host, host.options().dtype(target.scalar_type()));
    stored._set_conj(target.is_conj());
    stored._set_neg(target.is_neg());
    stored.copy_(host);
    stored._set_conj(false);
    stored._set_neg(false);
    host = stored;
  }
  if (plain.is_non_overlapping_and_dense() && is_aligned(plain)) return upload(host, plain);
  write_over_host(host, plain);
}

// Where device and host share memory there is nothing to move.
at::Tensor as_host_sees(const at::Tensor& tensor) {
  return is_on_device(tensor) && owner_of(tensor).shares_host_memory() ? host_alias(tensor)
                                                                       : tensor;
}

}  // namespace

at::Tensor download(const at::Tensor& tensor) {
  const TorchDevice& owner = owner_of(tensor);
  if (owner.shares_host_memory()) return host_alias(tensor).clone();
  if (owner.is_adopted()) {
    owner.device().count_download(tensor.nbytes(), CauseScope::current(CopyCause::kOutput));
    return tensor.cpu();
  }
  at::Tensor host = download_plain(without_bits(tensor));
  host._set_conj(tensor.is_conj());
  host._set_neg(tensor.is_neg());
  return host;
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool /*non_blocking*/) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (target.numel() == 0) return target;
  if (!is_on_device(source) && !is_on_device(target)) {  // PyTorch's own
    if (is_resident(target) && source.device().is_cpu())
      owner_of(target).device().count_upload(target.nbytes(),
                                             CauseScope::current(CopyCause::kInput));
    return target.copy_(source);
  }
  const at::Tensor from =
      as_host_sees(source.sizes() == target.sizes() ? source : source.expand(target.sizes()));
  const at::Tensor to = as_host_sees(target);
  const bool from_device = is_on_device(from), to_device = is_on_device(to);
  if (!from_device && !to_device) {  // both share the host's memory
    to.copy_(from);
  } else if (from_device && to_device && from.device() == to.device()) {
    copy_on_device(from, to);
  } else if (from_device && to_device) {
    copy_from(download(from), to, false);
  } else if (to_device && has_bits(to)) {
    copy_on_device(from.to(to.device()), to);
  } else if (to_device) {
    upload(from.cpu(), to);
  } else if (same_layout(from, to) && !has_bits(from) && !has_bits(to) && is_aligned(from) &&
             to.device().is_cpu()) {
    download_dense(from, to);
  } else {
    to.copy_(download(from));
  }
  return target;
}

void resize_to_lie(const at::Tensor& target, at::IntArrayRef sizes, at::IntArrayRef strides) {
  const std::size_t span = at::detail::computeStorageNbytes(sizes, strides, /*itemsize=*/1);
  target.resize_({static_cast<std::int64_t>(span)});
  target.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  // As the CPU's kernel has laid it.
  if (target.sizes() != source.sizes()) resize_to_lie(target, source.sizes(), source.strides());
  return copy_from(source, target, false);
}

at::Scalar read_scalar(const at::Tensor& tensor) {
  const at::Tensor host = as_host_sees(tensor);
  return at::_local_scalar_dense(is_on_device(host) ? download(host) : host);
}

}  // namespace backplane::device
