#include "core/runtime/plugin/claims.h"

#include <algorithm>
#include <string_view>
#include <variant>

#include "core/runtime/host/host_services.h"
#include "core/runtime/plugin/plugin.h"
#include "core/runtime/plugin/plugin_call.h"

namespace backplane::runtime {

partition::DeviceModel model_of(const Device& device) {
  const bp_device_info& info = device.info();
  partition::DeviceModel model;
  model.memory_bytes_per_s = info.memory_bytes_per_s;
  if (!device.binds_host_memory()) {
    constexpr double kUnknownBandwidth = 1e10;  // bytes per second, where the plugin says nothing
    model.to_device_bytes_per_s =
        info.to_device_bytes_per_s > 0 ? info.to_device_bytes_per_s : kUnknownBandwidth;
    model.from_device_bytes_per_s =
        info.from_device_bytes_per_s > 0 ? info.from_device_bytes_per_s : kUnknownBandwidth;
    model.copy_latency_ns = info.copy_latency_ns;
  }
  model.launch_latency_ns = info.launch_latency_ns;
  for (std::size_t i = 0; i < info.rate_count; ++i) {
    const auto* rate = static_cast<const bp_device_rate*>(bp_at(info.rates, info.rate_stride, i));
    if (rate->dtype.code == BP_DTYPE_FLOAT && rate->dtype.bits == 32)
      model.flops_per_s = rate->flop_per_s;
  }
  return model;
}

namespace {

// ---- Integers divided by 0, for which PyTorch raises an error and kernels give anything

bool has_zero(const ir::Value& divisor) {
  if (divisor.is_host_scalar) return false;  // of an eager call, which knows it
  if (!divisor.constant) return true;
  const auto& bytes = divisor.constant->bytes;
  const auto width = static_cast<std::size_t>(ir::dtype_bytes(divisor.type.dtype));
  for (std::size_t i = 0; i < bytes.size(); i += width)
    if (std::all_of(bytes.begin() + static_cast<std::ptrdiff_t>(i),
                    bytes.begin() + static_cast<std::ptrdiff_t>(i + width),
                    [](std::uint8_t byte) { return byte == 0; }))
      return true;
  return false;
}

bool has_zero(const ir::AttributeValue& divisor) {
  if (const auto* number = std::get_if<ir::Dim>(&divisor)) return *number == ir::Dim(0);
  const auto* flag = std::get_if<bool>(&divisor);
  return flag && !*flag;
}

bool may_divide_by_zero(const ir::Graph& graph, const ir::Node& node) {
  const std::string_view name = node.op->name;
  const bool divides = name.starts_with("aten.div.") || name.starts_with("aten.floor_divide") ||
                       name.starts_with("aten.remainder.") || name.starts_with("aten.fmod.");
  if (!divides || node.results.empty() || node.results[0] == ir::kNone ||
      !ir::is_integer(graph.values[node.results[0]].type.dtype))
    return false;
  const ir::Attribute* number = node.find_attribute("other");
  return number ? has_zero(number->value) : has_zero(graph.values[node.operands.back()]);
}

// Layer, RMS and group norms of runs without elements: their statistics follow from no formula.
bool normalizes_nothing(const ir::Node& node) {
  if (const ir::Attribute* shape = node.find_attribute("normalized_shape"))
    if (const auto* dims = std::get_if<std::vector<ir::Dim>>(&shape->value))
      return std::ranges::find(*dims, ir::Dim(0)) != dims->end();
  const ir::Attribute* area = node.find_attribute("HxW");
  const auto* number = area ? std::get_if<ir::Dim>(&area->value) : nullptr;
  return number && *number == ir::Dim(0);
}

// Kernels that find nothing to do look at no index; PyTorch refuses one into no elements.
bool indexes_nothing(const ir::Graph& graph, const ir::Node& node) {
  if (node.op->op_class != ir::OpClass::kIndexing || node.operands[0] == ir::kNone) return false;
  const auto& dims = graph.values[node.operands[0]].type.dims;
  return std::ranges::find(dims, ir::Dim(0)) != dims.end();
}

// Images without elements, other than those of an empty batch: PyTorch refuses some, by dtype.
bool has_empty_images(const ir::Graph& graph, const ir::Node& node) {
  const bool has_images = node.op->op_class == ir::OpClass::kConvolution ||
                          node.op->op_class == ir::OpClass::kPooling ||
                          node.op->name.find("upsample") != std::string_view::npos;
  const auto is_empty = [&](ir::ValueId value) {
    if (value == ir::kNone || graph.values[value].type.dims.empty()) return false;
    const auto& dims = graph.values[value].type.dims;
    return std::find(dims.begin() + 1, dims.end(), ir::Dim(0)) != dims.end();
  };
  return has_images && (std::ranges::any_of(node.operands, is_empty) ||
                        std::ranges::any_of(node.results, is_empty));
}

// Dims that no tensor of the node has. PyTorch itself does not look where there are no elements.
bool names_no_dim(const ir::Graph& graph, const ir::Node& node) {
  std::int64_t rank = 1;
  for (const auto* values : {&node.operands, &node.results})
    for (const ir::ValueId v : *values)
      if (v != ir::kNone)
        rank = std::max(rank, static_cast<std::int64_t>(graph.values[v].type.rank()));
  const auto is_beyond = [rank](ir::Dim dim) {
    return !dim.is_class() && (dim.number() < -rank || dim.number() >= rank);
  };
  for (const ir::Attribute& a : node.attributes) {
    if (a.name != "dim" && a.name != "dims") continue;
    if (const auto* one = std::get_if<ir::Dim>(&a.value); one && is_beyond(*one)) return true;
    if (const auto* list = std::get_if<std::vector<ir::Dim>>(&a.value))
      if (std::ranges::any_of(*list, is_beyond)) return true;
  }
  return false;
}

std::string host_reason(const ir::Graph& graph, const ir::Node& node) {
  if (!node.host_reason.empty()) return node.host_reason;
  if (may_divide_by_zero(graph, node)) return "integers may be divided by 0, which PyTorch refuses";
  if (names_no_dim(graph, node)) return "names a dim that its tensors have not";
  if (indexes_nothing(graph, node)) return "indexes a tensor of no elements";
  if (has_empty_images(graph, node)) return "images of no elements";
  return normalizes_nothing(node) ? "a norm of no elements" : std::string();
}

void keep_on_host(const ir::Graph& graph, partition::Target& target) {
  std::vector<std::string> reasons;
  reasons.reserve(graph.nodes.size());
  for (const ir::Node& node : graph.nodes) reasons.push_back(host_reason(graph, node));
  take_back(target, std::move(reasons));
}

}  // namespace

void take_back(partition::Target& target, std::vector<std::string> reasons) {
  const auto is_host = [&](ir::NodeId n) { return !reasons[n].empty(); };
  for (partition::Claim& claim : target.claims) {
    const auto first = std::ranges::find_if(claim.nodes, is_host);
    if (first == claim.nodes.end()) continue;
    if (claim.divisible) {
      std::erase_if(claim.nodes, is_host);
      continue;
    }
    const std::string cause =
        "claimed as a whole with node " + std::to_string(*first) + ": " + reasons[*first];
    for (const ir::NodeId n : claim.nodes)
      if (!is_host(n)) target.refusals.push_back({n, BP_REFUSED_OTHER, cause});
    claim.nodes.clear();
  }
  std::erase_if(target.claims, [](const partition::Claim& claim) { return claim.nodes.empty(); });
  for (ir::NodeId n = 0; n < reasons.size(); ++n) {
    if (!is_host(n)) continue;
    std::erase_if(target.refusals,
                  [&](const partition::Refusal& given) { return given.node == n; });
    target.refusals.push_back({n, BP_REFUSED_OTHER, std::move(reasons[n])});
  }
}

void take_back_faulty(const Device& device, const ir::Graph& graph, partition::Target& target) {
  if (device.compile_faults().is_empty()) return;
  std::vector<std::string> reasons(graph.nodes.size());
  for (const partition::Claim& claim : target.claims)
    for (const ir::NodeId n : claim.nodes) reasons[n] = device.compile_faults().find(graph, n);
  take_back(target, std::move(reasons));
}

Result<partition::Target> query_claims(Device& device, const ir::Graph& graph,
                                       const GraphArrays& arrays) {
  ClaimCollector collector(device.plugin().name());
  {
    const auto serialized = device.lock_call();
    BP_RETURN_IF_ERROR(call_plugin(
        {device.label(), "claims", arrays.summary()},
        [&] {
          return device.api().claims(device.plugin().handle(), &device.info(), &arrays.get(),
                                     collector.sink());
        },
        [&] {
          return "plugin '" + device.plugin().name() + "': claims of a graph of " +
                 std::to_string(arrays.get().node_count) + " nodes";
        }));
  }
  partition::Target target;
  target.name = device.plugin().name();
  target.model = model_of(device);
  const auto node_count = static_cast<std::uint32_t>(arrays.get().node_count);
  for (CollectedClaim& in : collector.claims) {
    for (const std::uint32_t id : in.node_ids)
      if (id >= node_count)
        return Status(Code::kInternal, "plugin '" + device.plugin().name() + "' claimed node " +
                                           std::to_string(id) + " of a graph with " +
                                           std::to_string(node_count) + " nodes");
    partition::Claim claim;
    claim.nodes = std::move(in.node_ids);
    std::sort(claim.nodes.begin(), claim.nodes.end());
    claim.nodes.erase(std::unique(claim.nodes.begin(), claim.nodes.end()), claim.nodes.end());
    claim.divisible = (in.flags & BP_CLAIM_DIVISIBLE) != 0;
    claim.estimated = (in.flags & BP_CLAIM_ESTIMATED) != 0;
    claim.time_ns = in.time_ns;
    claim.launch_ns = in.launch_ns;
    target.claims.push_back(std::move(claim));
  }
  for (CollectedRefusal& in : collector.refusals)
    if (in.node_id < node_count)
      target.refusals.push_back({in.node_id, in.reason, std::move(in.text)});
  keep_on_host(graph, target);
  take_back_faulty(device, graph, target);
  return target;
}

}  // namespace backplane::runtime
