// The plugin @NAME@: one device, in-order queues, and a table of kernels.
//
// It runs as it is, in the host's memory, on the SDK's plain kernels. Make it yours from the
// inside: allocate and copy, then kernels, one row after the other, then what info() says about
// speed.
#include <backplane/sdk.hpp>
#include <backplane/sdk/host_kernels.hpp>
#include <cstring>

namespace plugin {

namespace bp = backplane::sdk;
using bp::Result;
using bp::Status;

// A kernel of your own: made once for each set of sizes, run in every call, by several threads at
// once. Its tensors are row-major and without gaps; the SDK copies those that lie otherwise.
class Relu final : public bp::Kernel {
 public:
  explicit Relu(const bp::StepContext& step) : count_(step.result().elements()) {}
  Status run(const bp::KernelCall& call) const override {
    const auto* const x = reinterpret_cast<const float*>(call.operands[0]);
    auto* const y = reinterpret_cast<float*>(call.results[0]);
    for (std::int64_t i = 0; i < count_; ++i) y[i] = x[i] < 0 ? 0 : x[i];
    return {};
  }

 private:
  std::int64_t count_;
};

// What the device computes: whatever has no row here runs on the CPU. Of two rows with one name the
// later counts, so that your kernels replace the plain ones.
std::vector<bp::KernelRow> rows() {
  std::vector<bp::KernelRow> rows = bp::host_kernels::rows();
  rows.push_back(
      {"aten.relu", [](const bp::StepContext& step) -> Result<std::unique_ptr<bp::Kernel>> {
         return std::make_unique<Relu>(step);
       }});
  return rows;
}

class Device final : public bp::Device {
 public:
  // Called before the device is opened, so it must not touch the hardware. Speeds decide what is
  // worth a transfer; what is left out is guessed.
  bp::DeviceInfo info() const override {
    bp::DeviceInfo info;
    info.name = "@NAME@ device";
    info.architecture = "@NAME@-1";
    return info;
  }

  Result<bp::Buffer> allocate(std::size_t bytes) override { return bp::host_buffer(bytes); }
  // To, from, or on the device; at most one end lies in the host's memory.
  Status copy(const bp::Copy& copy, const bp::Order& order) override {
    return queues_.submit(order, true, [copy]() -> Status {
      if (copy.bytes() != 0) std::memmove(copy.target.data(), copy.source.data(), copy.bytes());
      return {};
    });
  }

  bp::Claims claims(const bp::GraphView& graph) override { return table_.claims(graph); }
  Result<std::unique_ptr<bp::Executable>> compile(const bp::Subgraph& graph,
                                                  const bp::CompileOptions&) override {
    return std::make_unique<bp::QueuedProgram>(queues_, table_.compile(graph));
  }

  Result<std::unique_ptr<bp::Stream>> create_stream() override { return queues_.create_stream(); }
  Result<std::unique_ptr<bp::Event>> create_event() override { return queues_.create_event(); }

 private:
  bp::KernelTable table_{rows()};
  bp::Queues queues_;
};

}  // namespace plugin

BP_PLUGIN("@NAME@", "@NAME@ Inc.", "0.1.0", plugin::Device)
