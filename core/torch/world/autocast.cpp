#include "core/torch/world/autocast.h"

namespace backplane::capture {

namespace {

int nesting() {
  at::autocast::increment_nesting();
  return at::autocast::decrement_nesting();
}

}  // namespace

AutocastState AutocastState::current() {
  AutocastState now;
  for (const at::DeviceType device : at::autocast::_AUTOCAST_SUPPORTED_DEVICES)
    now.devices_.push_back({device, at::autocast::is_autocast_enabled(device),
                            at::autocast::get_autocast_dtype(device)});
  now.nesting_ = nesting();
  now.caches_ = at::autocast::is_autocast_cache_enabled();
  return now;
}

void AutocastState::set() const {
  for (const Device& device : devices_) {
    at::autocast::set_autocast_enabled(device.type, device.enabled);
    at::autocast::set_autocast_dtype(device.type, device.dtype);
  }
  at::autocast::set_autocast_cache_enabled(caches_);
  const int was = nesting();
  for (int i = was; i < nesting_; ++i) at::autocast::increment_nesting();
  for (int i = was; i > nesting_; --i) at::autocast::decrement_nesting();
  // A block that ends gives its casts up; those of a recording are nobody's.
  if (was > nesting_) at::autocast::clear_cache();
}

}  // namespace backplane::capture
