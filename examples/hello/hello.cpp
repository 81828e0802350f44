// The smallest plugin that is of use: three operators in the host's memory; the rest of a model
// runs with PyTorch. Everything is done when a call returns, so there are neither streams nor
// events.
#include <backplane/sdk.hpp>

#include <cstring>

namespace hello {

namespace bp = backplane::sdk;
using bp::Result;
using bp::Status;
using Made = Result<std::unique_ptr<bp::Kernel>>;

// y = x[m, k] w[n, k]^T + b[n]
class Linear final : public bp::Kernel {
 public:
  explicit Linear(const bp::StepContext& step)
      : n_(step.operand(1).dims[0]), k_(step.operand(1).dims[1]), biased_(step.has_operand(2)) {
    m_ = n_ == 0 ? 0 : step.result().elements() / n_;
  }
  Status run(const bp::KernelCall& call) const override {
    const auto* const x = reinterpret_cast<const float*>(call.operands[0]);
    const auto* const w = reinterpret_cast<const float*>(call.operands[1]);
    const auto* const b = biased_ ? reinterpret_cast<const float*>(call.operands[2]) : nullptr;
    auto* y = reinterpret_cast<float*>(call.results[0]);
    for (std::int64_t i = 0; i < m_; ++i)
      for (std::int64_t j = 0; j < n_; ++j) {
        float sum = b != nullptr ? b[j] : 0;
        for (std::int64_t l = 0; l < k_; ++l) sum += x[i * k_ + l] * w[j * k_ + l];
        *y++ = sum;
      }
    return {};
  }

 private:
  std::int64_t n_, k_, m_;
  bool biased_;
};

// One number of each operand to one of the result; operands of one shape.
class Elementwise final : public bp::Kernel {
 public:
  Elementwise(const bp::StepContext& step, float (*f)(float, float))
      : count_(step.result().elements()), two_(step.has_operand(1)), f_(f) {}
  Status run(const bp::KernelCall& call) const override {
    const auto* const a = reinterpret_cast<const float*>(call.operands[0]);
    const auto* const b = reinterpret_cast<const float*>(call.operands[two_ ? 1 : 0]);
    auto* const y = reinterpret_cast<float*>(call.results[0]);
    for (std::int64_t i = 0; i < count_; ++i) y[i] = f_(a[i], b[i]);
    return {};
  }

 private:
  std::int64_t count_;
  bool two_;
  float (*f_)(float, float);
};

bp::KernelRow::Make elementwise(float (*f)(float, float)) {
  return
      [f](const bp::StepContext& step) -> Made { return std::make_unique<Elementwise>(step, f); };
}
// Operands of equal shapes: no broadcasting.
std::optional<bp::Refusal> refuse_broadcast(const bp::NodeView& node) {
  const auto a = node.operand(0).dims(), b = node.operand(1).dims();
  if (std::equal(a.begin(), a.end(), b.begin(), b.end())) return std::nullopt;
  return bp::Refusal{0, BP_REFUSED_SHAPE, "operands of two shapes"};
}

class Device final : public bp::Device {
 public:
  bp::DeviceInfo info() const override { return {.name = "Hello"}; }
  Result<bp::Buffer> allocate(std::size_t bytes) override { return bp::host_buffer(bytes); }
  Status copy(const bp::Copy& copy, const bp::Order&) override {
    if (copy.bytes() != 0) std::memmove(copy.target.data(), copy.source.data(), copy.bytes());
    return {};
  }
  bp::Claims claims(const bp::GraphView& graph) override { return table_.claims(graph); }
  Result<std::unique_ptr<bp::Executable>> compile(const bp::Subgraph& graph,
                                                  const bp::CompileOptions&) override {
    auto program =
        std::make_unique<bp::ProgramExecutable>(graph, bp::step_per_node(graph), table_.factory());
    program->flags = BP_EXECUTABLE_SYNCHRONOUS | BP_EXECUTABLE_LENDING;
    return program;
  }

 private:
  bp::KernelTable table_{{
      {"aten.linear", [](const bp::StepContext& s) -> Made { return std::make_unique<Linear>(s); }},
      {"aten.relu", elementwise([](float a, float) { return a < 0 ? 0 : a; })},
      {.op = "aten.mul.Tensor",
       .make = elementwise([](float a, float b) { return a * b; }),
       .refuse = refuse_broadcast},
  }};
};

}  // namespace hello

BP_PLUGIN("hello", "Backplane examples", "0.1.0", hello::Device)
