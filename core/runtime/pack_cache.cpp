#include "core/runtime/pack_cache.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "core/ir/view.h"
#include "core/runtime/error.h"
#include "core/runtime/graph_arrays.h"
#include "core/runtime/plugin.h"
#include "core/runtime/process_state.h"

namespace backplane::runtime {

namespace {

constexpr std::int64_t kSamples = 8;

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15ULL + (hash << 6) + (hash >> 2);
  return hash * 0xff51afd7ed558ccdULL;
}

// Eight-byte words spread over the tensor's memory; `exact` reads all of it.
std::uint64_t content_hash(const StaticTensor& tensor, bool exact) {
  const std::int64_t bytes = ir::span_bytes(tensor.dtype, tensor.dims, tensor.strides);
  const auto* data = static_cast<const unsigned char*>(tensor.data);
  std::uint64_t hash = static_cast<std::uint64_t>(bytes);
  const std::int64_t words = bytes / 8;
  const std::int64_t step = exact ? 1 : std::max<std::int64_t>(words / kSamples, 1);
  for (std::int64_t i = 0; i < words; i += step) {
    std::uint64_t word = 0;
    std::memcpy(&word, data + i * 8, 8);
    hash = mix(hash, word);
  }
  if (bytes == words * 8) return hash;
  std::uint64_t tail = 0;
  std::memcpy(&tail, data + words * 8, static_cast<std::size_t>(bytes - words * 8));
  return mix(hash, tail);
}

bp_tensor_desc make_desc(const StaticTensor& tensor, bp_layout layout) {
  bp_tensor_desc desc{};
  desc.struct_size = sizeof desc;
  desc.dtype = to_bp_dtype(tensor.dtype);
  desc.rank = static_cast<std::uint32_t>(tensor.dims.size());
  desc.dims = tensor.dims.data();
  desc.strides = layout.kind == BP_LAYOUT_STRIDED ? tensor.strides.data() : nullptr;
  desc.layout = layout;
  return desc;
}

struct Cache {
  std::atomic<std::uint64_t> epoch{0};
  std::mutex mutex;
  std::vector<std::weak_ptr<const Pack>> packs;
};
Cache& cache() {
  static Cache* const instance = new Cache;  // outlives static destruction: packs may be late
  return *instance;
}

}  // namespace

bool exact_weight_checks() {
  static const bool value = [] {
    const char* env = std::getenv("BACKPLANE_DEBUG_WEIGHTS");
    return env != nullptr && std::strcmp(env, "0") != 0;
  }();
  return value;
}

bool Pack::matches(const StaticTensor& tensor, bool exact) const {
  if (tensor.data != data_ || tensor.storage != storage_ || tensor.version != version_ ||
      tensor.dtype != dtype_ || !std::ranges::equal(tensor.dims, dims_) ||
      !std::ranges::equal(tensor.strides, strides_))
    return false;
  return exact ? content_hash(tensor, true) == full_ : content_hash(tensor, false) == sample_;
}

PackCache& PackCache::instance() {
  static PackCache instance;
  return instance;
}

Result<std::shared_ptr<const Pack>> PackCache::get(Device& device, const StaticTensor& tensor,
                                                   bp_layout layout) {
  const bool exact = exact_weight_checks();
  std::vector<std::shared_ptr<const Pack>> looked_at;  // should one die here, then unlocked
  {
    Cache& c = cache();
    const std::lock_guard lock(c.mutex);
    std::erase_if(c.packs, [](const auto& weak) { return weak.expired(); });
    for (const auto& weak : c.packs) {
      auto pack = weak.lock();
      if (pack == nullptr) continue;
      if (pack->device_ == &device && pack->layout_.kind == layout.kind &&
          pack->layout_.layout_id == layout.layout_id && pack->matches(tensor, exact))
        return pack;
      looked_at.push_back(std::move(pack));
    }
  }
  auto made = std::make_shared<Pack>();
  made->device_ = &device;
  made->data_ = tensor.data;
  made->storage_ = tensor.storage;
  made->version_ = tensor.version;
  made->dtype_ = tensor.dtype;
  made->dims_.assign(tensor.dims.begin(), tensor.dims.end());
  made->strides_.assign(tensor.strides.begin(), tensor.strides.end());
  made->layout_ = layout;
  made->sample_ = content_hash(tensor, false);
  if (exact) made->full_ = content_hash(tensor, true);
  if (tensor.guard) made->guard_ = tensor.guard(tensor.guard_context);

  const auto source_bytes =
      static_cast<std::uint64_t>(ir::span_bytes(tensor.dtype, tensor.dims, tensor.strides));
  const std::string call = "plugin '" + device.plugin().name() + "': pack a weight";
  if (layout.kind == BP_LAYOUT_STRIDED) {
    BP_ASSIGN_OR_RETURN(made->buffer_, device.allocate(std::max<std::uint64_t>(source_bytes, 1)));
    bp_range target = made->range();
    target.size_bytes = source_bytes;
    BP_RETURN_IF_ERROR(device.copy_to_device(tensor.data, target, CopyCause::kWeight));
  } else {
    if (device.api().layout_bytes == nullptr)
      return Status(Code::kInternal,
                    call + ": it answered an opaque layout without layout entries");
    const bp_tensor_desc source_desc = make_desc(tensor, {BP_LAYOUT_STRIDED, 0, 0});
    const bp_tensor_desc target_desc = make_desc(tensor, layout);
    std::uint64_t bytes = 0;
    bp_error* error = nullptr;
    {
      const auto serialized = device.lock_call();
      const FpGuard fp("layout_bytes");
      error =
          device.api().layout_bytes(device.plugin().handle(), &device.info(), &target_desc, &bytes);
    }
    BP_RETURN_IF_ERROR(take_error(error, call));
    BP_ASSIGN_OR_RETURN(made->buffer_, device.allocate(std::max<std::uint64_t>(bytes, 1)));
    bp_range source{nullptr, const_cast<void*>(tensor.data), 0, source_bytes};  // only read
    DeviceBuffer staged;
    if (!device.binds_host_memory()) {
      BP_ASSIGN_OR_RETURN(staged, device.allocate(std::max<std::uint64_t>(source_bytes, 1)));
      source = {staged.get(), nullptr, 0, source_bytes};
      BP_RETURN_IF_ERROR(device.copy_to_device(tensor.data, source, CopyCause::kWeight));
    }
    const bp_range target = made->range();
    bp_order order{};
    bp_event* done = nullptr;
    if (device.has_streams()) {
      BP_ASSIGN_OR_RETURN(done, device.create_event());
      order.signal = done;
    }
    {
      const auto serialized = device.lock_call();
      const FpGuard fp("layout_convert");
      error = device.api().layout_convert(device.handle(), &source_desc, &source, &target_desc,
                                          &target, &order);
    }
    Status status = take_error(error, call);
    if (status.ok() && done) status = device.wait(done);
    if (done) device.release_event(done);
    BP_RETURN_IF_ERROR(std::move(status));
  }
  Cache& c = cache();
  const std::lock_guard lock(c.mutex);
  c.packs.push_back(made);
  return std::shared_ptr<const Pack>(std::move(made));
}

std::uint64_t PackCache::epoch() const { return cache().epoch.load(std::memory_order_acquire); }

void PackCache::clear() {
  cache().epoch.fetch_add(1, std::memory_order_acq_rel);
  const std::lock_guard lock(cache().mutex);
  cache().packs.clear();
}

std::uint64_t PackCache::resident_bytes() {
  std::vector<std::shared_ptr<const Pack>> packs;
  {
    const std::lock_guard lock(cache().mutex);
    for (const auto& weak : cache().packs)
      if (auto pack = weak.lock()) packs.push_back(std::move(pack));
  }
  std::uint64_t bytes = 0;
  for (const auto& pack : packs) bytes += pack->bytes();
  return bytes;
}

}  // namespace backplane::runtime
