#include "core/runtime/isolate/wire.h"

#include <algorithm>

namespace backplane::runtime {

namespace {

// Elements of a foreign stride, one after the other as this build knows them.
template <class T>
std::vector<T> elements(const T* first, std::size_t count, std::size_t stride) {
  std::vector<T> out(first != nullptr ? count : 0);
  for (std::size_t i = 0; i < out.size(); ++i)
    std::memcpy(&out[i], bp_at(first, stride, i), std::min(stride, sizeof(T)));
  return out;
}

template <class T>
void put_elements(WireWriter& out, const T* first, std::size_t count, std::size_t stride) {
  const std::vector<T> all = elements(first, count, stride);
  out.put_array(all.data(), all.size());
}

template <class Info>
auto texts_of(Info& info) {
  return std::array{&info.name, &info.architecture, &info.driver, &info.unique_id,
                    &info.torch_device};
}

}  // namespace

void put_graph(WireWriter& out, const bp_graph& graph) {
  out.put_text(graph.name);
  put_elements(out, graph.nodes, graph.node_count, graph.node_stride);
  put_elements(out, graph.values, graph.value_count, graph.value_stride);
  put_elements(out, graph.attributes, graph.attribute_count, graph.attribute_stride);
  put_elements(out, graph.ops, graph.op_count, graph.op_stride);
  put_elements(out, graph.dim_classes, graph.dim_class_count, graph.dim_class_stride);
  out.put_array(graph.indices, graph.index_count);
  out.put_array(graph.dims, graph.dim_count);
  out.put_array(graph.strides, graph.dim_count);
  out.put_array(graph.inputs, graph.input_count);
  out.put_array(graph.outputs, graph.output_count);
  for (std::size_t i = 0; i < graph.node_count; ++i)
    out.put_text(bp_graph_node(&graph, i)->location);
  for (std::size_t i = 0; i < graph.value_count; ++i) {
    const bp_value& value = *bp_graph_value(&graph, i);
    if ((value.flags & BP_VALUE_CONSTANT) != 0)
      out.put_array(static_cast<const char*>(value.data), value.data_bytes);
  }
  for (std::size_t i = 0; i < graph.attribute_count; ++i) {
    const bp_attribute& a = *bp_graph_attribute(&graph, i);
    out.put_text(a.name);
    out.put_text(a.text);
    out.put_array(a.integers, a.count);
    out.put_array(a.reals, a.count);
    out.put_array(a.class_flags, a.count);
  }
  for (std::size_t i = 0; i < graph.op_count; ++i) out.put_text(bp_graph_op(&graph, i)->name);
  for (std::size_t i = 0; i < graph.dim_class_count; ++i) {
    out.put_text(bp_graph_dim_class(&graph, i)->name);
    out.put_text(bp_graph_dim_class(&graph, i)->expression);
  }
}

WireGraph::WireGraph(WireReader& in) {
  const bp_string name = in.string();
  store_.nodes = in.array<bp_node>();
  store_.values = in.array<bp_value>();
  store_.attributes = in.array<bp_attribute>();
  store_.ops = in.array<bp_op>();
  store_.dim_classes = in.array<bp_dim_class>();
  store_.indices = in.array<std::uint32_t>();
  store_.dims = in.array<bp_dim>();
  store_.strides = in.array<bp_dim>();
  store_.inputs = in.array<std::uint32_t>();
  store_.outputs = in.array<std::uint32_t>();
  for (bp_node& node : store_.nodes) node.location = in.string();
  for (bp_value& value : store_.values) {
    value.data = nullptr;
    if ((value.flags & BP_VALUE_CONSTANT) == 0) continue;
    // Texts lie anywhere in a message; elements begin at multiples of their size.
    const std::string_view bytes = in.text();
    auto& store = store_.integers.emplace_back((bytes.size() + 7) / 8);
    if (!bytes.empty()) std::memcpy(store.data(), bytes.data(), bytes.size());
    value.data = store.data();
    value.data_bytes = bytes.size();
  }
  const auto kept = [](auto& stores, auto&& read) {
    auto& store = stores.emplace_back(read);
    return store.empty() ? nullptr : store.data();
  };
  for (bp_attribute& a : store_.attributes) {
    a.name = in.string();
    a.text = in.string();
    a.integers = kept(store_.integers, in.array<std::int64_t>());
    a.reals = kept(store_.reals, in.array<double>());
    a.class_flags = kept(store_.flags, in.array<std::uint8_t>());
  }
  for (bp_op& op : store_.ops) op.name = in.string();
  for (bp_dim_class& c : store_.dim_classes) {
    c.name = in.string();
    c.expression = in.string();
  }
  view_ = store_.view();
  view_.name = name;
}

void put_info(WireWriter& out, const bp_device_info& info) {
  bp_device_info known{};
  std::memcpy(&known, &info, std::min(info.struct_size, sizeof known));
  out.put(known);
  for (const bp_string* text : texts_of(known)) out.put_text(*text);
  put_elements(out, known.rates, known.rate_count, known.rate_stride);
}

WireInfo::WireInfo(WireReader& in) {
  view_ = in.get<bp_device_info>();
  const auto texts = texts_of(view_);
  static_assert(std::tuple_size_v<decltype(texts_)> == texts.size());
  for (std::size_t i = 0; i < texts.size(); ++i) {
    texts_[i] = in.text();
    *texts[i] = {texts_[i].data(), texts_[i].size()};
  }
  rates_ = in.array<bp_device_rate>();
  view_.rates = rates_.data();
  view_.rate_count = rates_.size();
  view_.rate_stride = sizeof(bp_device_rate);
}

void put_tensor(WireWriter& out, const bp_tensor_desc& desc) {
  out.put(desc.dtype);
  out.put(desc.layout);
  out.put_array(desc.dims, desc.rank);
  out.put_array(desc.strides, desc.rank);
}

WireTensor::WireTensor(WireReader& in) {
  view_.struct_size = sizeof view_;
  view_.dtype = in.get<bp_dtype>();
  view_.layout = in.get<bp_layout>();
  dims_ = in.array<std::int64_t>();
  strides_ = in.array<std::int64_t>();
  view_.rank = static_cast<std::uint32_t>(dims_.size());
  view_.dims = dims_.data();
  if (!strides_.empty()) view_.strides = strides_.data();
}

}  // namespace backplane::runtime
