#include "kernels/primitives/dnnl_support.h"

#include <algorithm>

#include "kernels/simd/instruction_set.h"

namespace backplane::onednn {
namespace {

void check(dnnl_status_t status, const char* what) {
  if (status != dnnl_success) throw dnnl::error(status, what);
}

dnnl_stream_t stream() {
  // One per thread: streams are not for use by several at once.
  thread_local const dnnl::stream own(engine());
  return own.get();
}

}  // namespace

const dnnl::engine& engine() {
  static const dnnl::engine& one = *[] {
    static_cast<void>(instruction_set());                 // holds oneDNN to it
    return new dnnl::engine(dnnl::engine::kind::cpu, 0);  // never closed
  }();
  return one;
}

dnnl::memory::data_type dnnl_type(Type type) {
  using D = dnnl::memory::data_type;
  switch (type) {
    case Type::kF32:
      return D::f32;
    case Type::kBF16:
      return D::bf16;
    case Type::kF16:
      return D::f16;
    case Type::kI32:
      return D::s32;
    case Type::kI8:
      return D::s8;
    case Type::kU8:
      return D::u8;
    default:
      return D::undef;
  }
}

dnnl::memory::desc dnnl_desc(Type type, const Shape& dims, const Shape& strides) {
  if (dims.empty()) return dnnl::memory::desc({1}, dnnl_type(type), dnnl::memory::dims{1});
  return dnnl::memory::desc(dims, dnnl_type(type), strides);
}

bool is_describable(const Shape& dims, const Shape& strides) {
  std::vector<std::size_t> order;
  for (std::size_t d = 0; d < dims.size(); ++d)
    if (dims[d] > 1) order.push_back(d);
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return strides[a] < strides[b]; });
  std::int64_t end = 1;
  for (const std::size_t d : order) {
    if (strides[d] < end) return false;
    end = strides[d] * dims[d];
  }
  return true;
}

Runnable::Runnable(dnnl::primitive primitive, std::vector<Argument> arguments)
    : state_(std::make_shared<State>()) {
  state_->primitive = std::move(primitive);
  state_->arguments = std::move(arguments);
  state_->kept = make_set(state_->arguments);
}

Runnable::Set Runnable::make_set(const std::vector<Argument>& arguments) {
  Set set;
  for (const Argument& a : arguments) {
    set.memories.emplace_back(a.desc, engine(), nullptr);
    set.arguments.push_back({a.id, set.memories.back().get()});
  }
  return set;
}

void Runnable::run_with(Set& set, std::span<void* const> pointers) const {
  for (std::size_t i = 0; i < pointers.size(); ++i)
    check(dnnl_memory_set_data_handle(set.arguments[i].memory, pointers[i]),
          "memory of a primitive");
  check(dnnl_primitive_execute(state_->primitive.get(), stream(),
                               static_cast<int>(set.arguments.size()), set.arguments.data()),
        "running a primitive");
}

void Runnable::run(std::span<void* const> pointers) const {
  if (!state_->taken.test_and_set(std::memory_order_acquire)) {
    struct Release {
      std::atomic_flag& flag;
      ~Release() { flag.clear(std::memory_order_release); }
    } release{state_->taken};
    run_with(state_->kept, pointers);
    return;
  }
  Set own = make_set(state_->arguments);
  run_with(own, pointers);
}

Runnable make_reorder(const dnnl::memory::desc& from, const dnnl::memory::desc& to,
                      std::size_t* scratch_bytes) {
  const dnnl::reorder::primitive_desc pd(engine(), from, engine(), to, user_scratchpad());
  *scratch_bytes = pd.scratchpad_desc().get_size();
  return Runnable(
      dnnl::reorder(pd),
      {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}, {DNNL_ARG_SCRATCHPAD, pd.scratchpad_desc()}});
}

}  // namespace backplane::onednn
