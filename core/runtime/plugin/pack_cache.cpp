#include "core/runtime/plugin/pack_cache.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "core/base/content_hash.h"
#include "core/base/fork.h"
#include "core/ir/view.h"
#include "core/runtime/plugin/figures.h"
#include "core/runtime/plugin/graph_arrays.h"
#include "core/runtime/plugin/plugin.h"
#include "core/runtime/plugin/plugin_call.h"

namespace backplane::runtime {

namespace {

constexpr std::int64_t kSamples = 8;
constexpr std::int64_t kSmallestPiece = 512;

// Eight-byte words spread over memory of more bytes than that.
std::uint64_t sample_hash(const void* data, std::int64_t bytes) {
  std::uint64_t words[kSamples];
  for (std::int64_t i = 0; i < kSamples; ++i)
    std::memcpy(&words[i],
                static_cast<const unsigned char*>(data) + i * (bytes - 8) / (kSamples - 1), 8);
  return content_hash(words, sizeof words);
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
  std::mutex& mutex = fork_mutex();
  std::vector<std::weak_ptr<const Pack>> packs;
};
Cache& cache() {
  static Cache* const instance = new Cache;  // outlives static destruction: packs may be late
  return *instance;
}

template <class Is>
void forget_where(Is&& is) {
  std::vector<std::shared_ptr<const Pack>> looked_at;  // should one die here, then unlocked
  const std::lock_guard lock(cache().mutex);
  for (const auto& weak : cache().packs) {
    auto pack = weak.lock();
    if (pack == nullptr) continue;
    if (is(*pack)) pack->forget();
    looked_at.push_back(std::move(pack));
  }
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
      !std::ranges::equal(tensor.strides, strides_) || forgotten_.load(std::memory_order_relaxed))
    return false;
  if (content_matches(tensor, exact || !tensor.counts_writes)) [[likely]]
    return true;
  forget();  // for all who share it
  return false;
}

bool Pack::content_matches(const StaticTensor& tensor, bool exact) const {
  const auto* const data = static_cast<const unsigned char*>(tensor.data);
  const auto same = [&](std::size_t piece) {
    const std::int64_t at = static_cast<std::int64_t>(piece) * piece_bytes_;
    const auto bytes = static_cast<std::size_t>(std::min(piece_bytes_, bytes_ - at));
    return content_hash(data + at, bytes) == pieces_[piece];
  };
  if (exact || pieces_.size() <= 1) {
    for (std::size_t piece = 0; piece < pieces_.size(); ++piece)
      if (!same(piece)) return false;
    return true;
  }
  const std::uint32_t next = next_piece_.fetch_add(1, std::memory_order_relaxed);
  return sample_hash(data, bytes_) == sample_ && same(next % pieces_.size());
}

void Pack::remember_content() {
  const auto* const data = static_cast<const unsigned char*>(data_);
  bytes_ = ir::span_bytes(dtype_, dims_, strides_);
  piece_bytes_ = std::max<std::int64_t>(bytes_, 1);
  if (bytes_ > kWholeBytes) {
    piece_bytes_ = std::max(kSmallestPiece, (bytes_ + kRounds - 1) / kRounds);
    sample_ = sample_hash(data, bytes_);
  }
  for (std::int64_t at = 0; at < bytes_; at += piece_bytes_)
    pieces_.push_back(
        content_hash(data + at, static_cast<std::size_t>(std::min(piece_bytes_, bytes_ - at))));
}

PackCache& PackCache::instance() {
  static PackCache instance;
  return instance;
}

Result<std::shared_ptr<const Pack>> PackCache::get(Device& device, const StaticTensor& tensor,
                                                   bp_layout layout) {
  std::vector<std::shared_ptr<const Pack>> looked_at;  // should one die here, then unlocked
  {
    Cache& c = cache();
    const std::lock_guard lock(c.mutex);
    std::erase_if(c.packs, [](const auto& weak) { return weak.expired(); });
    for (const auto& weak : c.packs) {
      auto pack = weak.lock();
      if (pack == nullptr) continue;
      if (pack->device_ == &device && pack->layout_.kind == layout.kind &&
          pack->layout_.layout_id == layout.layout_id && pack->matches(tensor, /*exact=*/true))
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
  made->remember_content();
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
    {
      const auto serialized = device.lock_call();
      BP_RETURN_IF_ERROR(call_plugin(
          {device.label(), "layout_bytes", {}},
          [&] {
            return device.api().layout_bytes(device.plugin().handle(), &device.info(), &target_desc,
                                             &bytes);
          },
          [&] { return call + ": layout_bytes"; }));
    }
    BP_RETURN_IF_ERROR(check_bytes(
        call + ": layout_bytes of layout " + std::to_string(layout.layout_id), "out_bytes", bytes));
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
    Status status;
    {
      const auto serialized = device.lock_call();
      status = call_plugin(
          {device.label(), "layout_convert", {}},
          [&] {
            return device.api().layout_convert(device.handle(), &source_desc, &source, &target_desc,
                                               &target, &order);
          },
          [&] { return call + ": layout_convert"; });
    }
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

void PackCache::forget(std::span<const void* const> storages) {
  forget_where([&](const Pack& pack) {
    return std::ranges::find(storages, pack.storage()) != storages.end();
  });
}

void PackCache::forget(const Device& device) {
  forget_where([&](const Pack& pack) { return pack.device() == &device; });
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
