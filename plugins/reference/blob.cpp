#include "blob.h"

#include <backplane/sdk/program.hpp>

#include "kernels/element.h"

namespace backplane::reference {
namespace {

constexpr std::uint32_t kMagic = 0x46455242;  // "BREF"
constexpr std::uint32_t kVersion = 1;

// FNV-1a
std::uint64_t sum_of(const void* data, std::size_t size) {
  std::uint64_t sum = 0xcbf29ce484222325;
  for (std::size_t i = 0; i < size; ++i)
    sum = (sum ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3;
  return sum;
}

class Writer {
 public:
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void put(const T& value) { out_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  void bytes(const void* data, std::size_t size) {
    put(static_cast<std::uint64_t>(size));
    if (size) out_.append(static_cast<const char*>(data), size);
  }
  void text(bp_string s) { bytes(s.data, s.size); }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

struct Corrupt : std::runtime_error {
  using std::runtime_error::runtime_error;
};
void check(bool fine) {
  if (!fine) throw Corrupt("the blob does not parse");
}

class Reader {
 public:
  Reader(std::span<const std::byte> data, LoadedGraph& owner) : data_(data), owner_(owner) {}
  template <class T>
  T get() {
    T value;
    std::memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }
  // Count of things of at least `least` bytes each: bounded by what is left.
  std::size_t count(std::size_t least) {
    const auto n = get<std::uint64_t>();
    check(n <= left() / least);
    return static_cast<std::size_t>(n);
  }
  const void* bytes(std::size_t& size) {
    size = count(1);
    auto& block =
        owner_.blocks.emplace_back(new std::max_align_t[size / sizeof(std::max_align_t) + 1]);
    std::memcpy(block.get(), take(size), size);
    return block.get();
  }
  bp_string text() {
    bp_string s;
    s.data = static_cast<const char*>(bytes(s.size));
    return s;
  }
  template <class T>
  void array(std::vector<T>& out) {
    out.resize(count(sizeof(T)));
    if (!out.empty()) std::memcpy(out.data(), take(out.size() * sizeof(T)), out.size() * sizeof(T));
  }
  std::size_t left() const { return data_.size() - at_; }

 private:
  const std::byte* take(std::size_t size) {
    check(size <= left());
    const std::byte* p = data_.data() + at_;
    at_ += size;
    return p;
  }
  std::span<const std::byte> data_;
  std::size_t at_ = 0;
  LoadedGraph& owner_;
};

bool inside(std::uint64_t first, std::uint64_t count, std::uint64_t limit) {
  return first <= limit && count <= limit - first;
}

void put_attribute(Writer& w, const bp_attribute& a) {
  w.text(a.name);
  w.put(a.kind);
  w.put(a.dtype);
  w.put(a.integer);
  w.put(a.real);
  w.text(a.text);
  w.put(a.is_class);
  w.bytes(a.integers, a.integers ? a.count * 8 : 0);
  w.bytes(a.reals, a.reals ? a.count * 8 : 0);
  w.bytes(a.class_flags, a.class_flags ? a.count : 0);
}
bp_attribute get_attribute(Reader& r) {
  bp_attribute a{};
  a.name = r.text();
  a.kind = r.get<bp_attribute_kind>();
  a.dtype = r.get<bp_dtype>();
  a.integer = r.get<std::int64_t>();
  a.real = r.get<double>();
  a.text = r.text();
  a.is_class = r.get<std::uint32_t>();
  std::size_t integers = 0, reals = 0, flags = 0;
  const void* integer_data = r.bytes(integers);
  const void* real_data = r.bytes(reals);
  const void* flag_data = r.bytes(flags);
  check(integers % 8 == 0 && reals % 8 == 0);
  check(reals == 0 || integers == 0);
  check(flags == 0 || flags == integers / 8);
  a.count = (integers ? integers : reals) / 8;
  a.integers = integers ? static_cast<const std::int64_t*>(integer_data) : nullptr;
  a.reals = reals ? static_cast<const double*>(real_data) : nullptr;
  a.class_flags = flags ? static_cast<const std::uint8_t*>(flag_data) : nullptr;
  if (a.kind == BP_ATTRIBUTE_FLOATS) check(integers == 0);
  if (a.kind == BP_ATTRIBUTE_INTS || a.kind == BP_ATTRIBUTE_BOOLS) check(reals == 0);
  return a;
}

void put_value(Writer& w, const bp_value& v) {
  w.put(v.id);
  w.put(v.rank);
  w.put(v.flags);
  w.put(v.dtype);
  w.put(v.first_dim);
  w.put(v.producer);
  w.put(v.alias_of);
  w.put(v.alias_offset);
  w.put(v.layout);
  w.bytes(v.data, v.data ? static_cast<std::size_t>(v.data_bytes) : 0);
}
bp_value get_value(Reader& r) {
  bp_value v{};
  v.id = r.get<std::uint32_t>();
  v.rank = r.get<std::uint32_t>();
  v.flags = r.get<std::uint64_t>();
  v.dtype = r.get<bp_dtype>();
  v.first_dim = r.get<std::uint32_t>();
  v.producer = r.get<std::uint32_t>();
  v.alias_of = r.get<std::uint32_t>();
  v.alias_offset = r.get<bp_dim>();
  v.layout = r.get<bp_layout>();
  std::size_t size = 0;
  const void* data = r.bytes(size);
  v.data = size ? data : nullptr;
  v.data_bytes = size;
  return v;
}

// A view is one of its node's operand 0.
void check_view(const LoadedGraph& g, const bp_value& v) {
  check(v.producer != BP_NONE);
  const bp_node& n = g.nodes[v.producer];
  check(n.operand_count > 0 && inside(n.first_operand, n.operand_count, g.indices.size()));
  check(g.indices[n.first_operand] == v.alias_of);
}

void check_graph(const LoadedGraph& g) {
  const auto value = [&](std::uint32_t i, bool optional) {
    check(i < g.values.size() || (optional && i == BP_NONE));
  };
  const auto dim = [&](std::int64_t d) {
    check(d >= 0 ? d <= INT64_MAX / 2 : static_cast<std::uint64_t>(-1 - d) < g.classes.size());
  };
  check(g.dims.size() == g.strides.size());
  for (const bp_dim d : g.dims) dim(d);
  for (const bp_dim d : g.strides) dim(d);
  for (const std::uint32_t i : g.indices) value(i, true);
  for (const std::uint32_t i : g.inputs) value(i, false);
  for (const std::uint32_t i : g.outputs) value(i, false);
  check(g.layouts.empty() || g.layouts.size() == g.inputs.size());
  for (const bp_value& v : g.values) {
    check(inside(v.first_dim, v.rank, g.dims.size()));
    check(v.producer == BP_NONE || v.producer < g.nodes.size());
    value(v.alias_of, true);
    if (v.alias_of != BP_NONE) check_view(g, v), dim(v.alias_offset);
    check(type_of(v.dtype) != Type::kNone);
    if ((v.flags & BP_VALUE_CONSTANT) == 0 || v.producer != BP_NONE) continue;
    std::uint64_t bytes = static_cast<std::uint64_t>(bytes_of(type_of(v.dtype)));
    for (std::uint32_t i = 0; i < v.rank; ++i) {
      const bp_dim d = g.dims[v.first_dim + i];
      check(d >= 0 &&
            (d == 0 || bytes <= v.data_bytes / static_cast<std::uint64_t>(d) || v.data_bytes == 0));
      bytes *= static_cast<std::uint64_t>(d);
    }
    check(bytes <= v.data_bytes);
  }
  for (const bp_attribute& a : g.attributes) {
    if (a.kind == BP_ATTRIBUTE_INT && a.is_class) dim(a.integer), check(a.integer < 0);
    for (std::size_t i = 0; a.class_flags && i < a.count; ++i)
      if (a.class_flags[i]) dim(a.integers[i]), check(a.integers[i] < 0);
  }
  for (const bp_node& n : g.nodes) {
    check(n.op < g.ops.size());

    check(inside(n.first_operand, n.operand_count, g.indices.size()));
    check(inside(n.first_result, n.result_count, g.indices.size()));
    check(inside(n.list_first, n.list_count, n.operand_count));
    check(inside(n.first_attribute, n.attribute_count, g.attributes.size()));
  }
}

// Order, so that every value has memory before it is read.
void check_order(const LoadedGraph& g) {
  std::vector<bool> known(g.values.size(), false);
  for (const std::uint32_t i : g.inputs) known[i] = true;
  for (std::size_t i = 0; i < g.values.size(); ++i)
    if ((g.values[i].flags & BP_VALUE_CONSTANT) && g.values[i].producer == BP_NONE) known[i] = true;
  for (const bp_node& n : g.nodes) {
    for (std::uint32_t i = 0; i < n.operand_count; ++i) {
      const std::uint32_t v = g.indices[n.first_operand + i];
      check(v == BP_NONE || known[v]);
    }
    for (std::uint32_t i = 0; i < n.result_count; ++i) {
      const std::uint32_t v = g.indices[n.first_result + i];
      if (v == BP_NONE) continue;
      check(!known[v]);
      known[v] = true;
    }
  }
  for (const std::uint32_t i : g.outputs) check(known[i]);
}

}  // namespace

std::string save_graph(const sdk::GraphView& view, const std::vector<bp_layout>& layouts) {
  const bp_graph& g = view.raw();
  Writer w;
  w.put(kMagic);
  w.put(kVersion);
  w.bytes(layouts.data(), layouts.size() * sizeof(bp_layout));
  w.text(g.name);
  w.put(static_cast<std::uint64_t>(g.op_count));
  for (std::size_t i = 0; i < g.op_count; ++i) {
    w.text(bp_graph_op(&g, i)->name);
    w.put(bp_graph_op(&g, i)->version);
  }
  w.put(static_cast<std::uint64_t>(g.dim_class_count));
  for (std::size_t i = 0; i < g.dim_class_count; ++i) {
    const bp_dim_class& c = *bp_graph_dim_class(&g, i);
    for (const std::int64_t n : {c.min, c.max, c.divisor, c.hint}) w.put(n);
    w.text(c.name);
    w.text(c.expression);
  }
  w.put(static_cast<std::uint64_t>(g.attribute_count));
  for (std::size_t i = 0; i < g.attribute_count; ++i) put_attribute(w, *bp_graph_attribute(&g, i));
  w.put(static_cast<std::uint64_t>(g.value_count));
  for (std::size_t i = 0; i < g.value_count; ++i) put_value(w, *bp_graph_value(&g, i));
  w.put(static_cast<std::uint64_t>(g.node_count));
  for (std::size_t i = 0; i < g.node_count; ++i) {
    const bp_node& n = *bp_graph_node(&g, i);
    for (const std::uint32_t field :
         {n.id, n.op, n.first_operand, n.operand_count, n.first_result, n.result_count,
          n.list_first, n.list_count, n.first_attribute, n.attribute_count})
      w.put(field);
    w.put(n.effects);
    w.text(n.location);
  }
  const auto array = [&](const auto* data, std::size_t count) {
    w.put(static_cast<std::uint64_t>(count));
    for (std::size_t i = 0; i < count; ++i) w.put(data[i]);
  };
  array(g.indices, g.index_count);
  array(g.dims, g.dim_count);
  array(g.strides, g.dim_count);
  array(g.inputs, g.input_count);
  array(g.outputs, g.output_count);
  std::string blob = w.take();
  const std::uint64_t sum = sum_of(blob.data(), blob.size());
  blob.append(reinterpret_cast<const char*>(&sum), sizeof sum);
  return blob;
}

sdk::Result<std::unique_ptr<LoadedGraph>> load_graph(std::span<const std::byte> blob) {
  auto out = std::make_unique<LoadedGraph>();
  LoadedGraph& g = *out;
  try {
    std::uint64_t sum = 0;
    check(blob.size() >= sizeof sum);
    const auto body = blob.first(blob.size() - sizeof sum);
    std::memcpy(&sum, body.data() + body.size(), sizeof sum);
    check(sum == sum_of(body.data(), body.size()));
    Reader r(body, g);
    check(r.get<std::uint32_t>() == kMagic && r.get<std::uint32_t>() == kVersion);
    std::size_t layout_bytes = 0;
    const void* layouts = r.bytes(layout_bytes);
    check(layout_bytes % sizeof(bp_layout) == 0);
    g.layouts.resize(layout_bytes / sizeof(bp_layout));
    if (layout_bytes) std::memcpy(g.layouts.data(), layouts, layout_bytes);
    const bp_string name = r.text();
    g.ops.resize(r.count(12));
    for (bp_op& op : g.ops) op = {r.text(), r.get<std::uint32_t>(), 0};
    g.classes.resize(r.count(48));
    for (bp_dim_class& c : g.classes) {
      for (std::int64_t* n : {&c.min, &c.max, &c.divisor, &c.hint}) *n = r.get<std::int64_t>();
      c.name = r.text();
      c.expression = r.text();
    }
    g.attributes.resize(r.count(64));
    for (bp_attribute& a : g.attributes) a = get_attribute(r);
    g.values.resize(r.count(64));
    for (bp_value& v : g.values) v = get_value(r);
    g.nodes.resize(r.count(56));
    for (bp_node& n : g.nodes) {
      for (std::uint32_t* field :
           {&n.id, &n.op, &n.first_operand, &n.operand_count, &n.first_result, &n.result_count,
            &n.list_first, &n.list_count, &n.first_attribute, &n.attribute_count})
        *field = r.get<std::uint32_t>();
      n.effects = r.get<std::uint64_t>();
      n.location = r.text();
    }
    r.array(g.indices);
    r.array(g.dims);
    r.array(g.strides);
    r.array(g.inputs);
    r.array(g.outputs);
    check(r.left() == 0);
    check_graph(g);
    check_order(g);
    g.graph = sdk::make<bp_graph>();
    g.graph.name = name;
  } catch (const Corrupt& error) {
    return sdk::Status(BP_DATA_CORRUPT, error.what());
  }
  bp_graph& b = g.graph;
  b.nodes = g.nodes.data(), b.node_count = g.nodes.size(), b.node_stride = sizeof(bp_node);
  b.values = g.values.data(), b.value_count = g.values.size(), b.value_stride = sizeof(bp_value);
  b.attributes = g.attributes.data(), b.attribute_count = g.attributes.size();
  b.attribute_stride = sizeof(bp_attribute);
  b.ops = g.ops.data(), b.op_count = g.ops.size(), b.op_stride = sizeof(bp_op);
  b.dim_classes = g.classes.data(), b.dim_class_count = g.classes.size();
  b.dim_class_stride = sizeof(bp_dim_class);
  b.indices = g.indices.data(), b.index_count = g.indices.size();
  b.dims = g.dims.data(), b.strides = g.strides.data(), b.dim_count = g.dims.size();
  b.inputs = g.inputs.data(), b.input_count = g.inputs.size();
  b.outputs = g.outputs.data(), b.output_count = g.outputs.size();
  return out;
}

}  // namespace backplane::reference
