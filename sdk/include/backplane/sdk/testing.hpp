// For a plugin's own tests, without a host: its services, and graphs written by hand.
#pragma once

#include <backplane/plugin.h>

#include <deque>
#include <map>
#include <string>
#include <vector>

namespace backplane::sdk::testing {

struct FakeError {
  bp_code code;
  std::string message;
  int count = 1;
};
inline FakeError* fake(bp_error* e) { return reinterpret_cast<FakeError*>(e); }
// What plugins keep between processes, by key.
inline std::map<std::string, std::string>& fake_cache() {
  static std::map<std::string, std::string> entries;
  return entries;
}
inline std::string* fake_bytes(const bp_byte_sink* sink) {
  return reinterpret_cast<std::string*>(const_cast<bp_byte_sink*>(sink));
}

struct FakeClaims {
  std::vector<std::uint32_t> claimed;
  std::vector<std::string> refused;
};

inline const bp_host_api& fake_host_api() {
  static const bp_host_api api = [] {
    bp_host_api h{};
    h.struct_size = sizeof h;
    h.version = BP_ABI_VERSION;
    h.error_create = [](bp_host*, const bp_error_args* a) {
      return reinterpret_cast<bp_error*>(
          new FakeError{a->code, std::string(a->message.data, a->message.size)});
    };
    h.error_retain = [](bp_host*, bp_error* e) { __atomic_add_fetch(&fake(e)->count, 1, 5); };
    h.error_release = [](bp_host*, bp_error* e) {
      if (e && __atomic_sub_fetch(&fake(e)->count, 1, 5) == 0) delete fake(e);
    };
    h.error_code = [](bp_host*, const bp_error* e) -> bp_code {
      return e ? reinterpret_cast<const FakeError*>(e)->code : bp_code{BP_OK};
    };
    h.error_message = [](bp_host*, const bp_error* e) {
      const std::string& m = reinterpret_cast<const FakeError*>(e)->message;
      return bp_string{m.data(), m.size()};
    };
    h.log = [](bp_host*, std::uint32_t, bp_string) {};
    h.thread_count = [](bp_host*) { return std::uint32_t{1}; };
    h.parallel_for = [](bp_host*, std::size_t n, std::size_t, void* user,
                        bp_error* (*body)(void*, std::size_t, std::size_t)) {
      return body(user, 0, n);
    };
    h.clock_ns = [](bp_host*) { return std::uint64_t{0}; };
    h.span_begin = [](bp_host*, bp_string) { return std::uint64_t{0}; };
    h.span_end = [](bp_host*, std::uint64_t) {};
    h.is_cancelled = [](const bp_cancel*) { return std::int32_t{0}; };
    h.claim_add = [](bp_claim_sink* s, const bp_claim* c) -> bp_error* {
      auto& out = *reinterpret_cast<FakeClaims*>(s);
      out.claimed.insert(out.claimed.end(), c->node_ids, c->node_ids + c->node_count);
      return nullptr;
    };
    h.refuse_add = [](bp_claim_sink* s, std::uint32_t, bp_refusal, bp_string text) -> bp_error* {
      reinterpret_cast<FakeClaims*>(s)->refused.emplace_back(text.data, text.size);
      return nullptr;
    };
    h.bytes_write = [](bp_byte_sink* s, const void* data, std::size_t n) -> bp_error* {
      fake_bytes(s)->append(static_cast<const char*>(data), n);
      return nullptr;
    };
    h.bytes_create = [](bp_host*) { return reinterpret_cast<bp_byte_sink*>(new std::string); };
    h.bytes_view = [](const bp_byte_sink* s) {
      return bp_string{fake_bytes(s)->data(), fake_bytes(s)->size()};
    };
    h.bytes_release = [](bp_byte_sink* s) { delete fake_bytes(s); };
    h.cache_get = [](bp_host*, bp_string key, bp_byte_sink* sink) -> std::int32_t {
      const auto found = fake_cache().find(std::string(key.data, key.size));
      if (found == fake_cache().end()) return 0;
      *fake_bytes(sink) = found->second;
      return 1;
    };
    h.cache_put = [](bp_host*, bp_string key, const void* data, std::size_t size) {
      fake_cache()[std::string(key.data, key.size)] =
          std::string(static_cast<const char*>(data), size);
    };
    return h;
  }();
  return api;
}

// Arrays of a bp_graph, grown value by value and node by node.
class GraphBuilder {
 public:
  using Dims = std::vector<std::int64_t>;

  std::uint32_t value(bp_dtype dtype, Dims dims, Dims strides = {}, std::uint64_t flags = 0) {
    if (strides.empty() && !dims.empty()) {
      strides.assign(dims.size(), 1);
      for (std::size_t i = dims.size(); i-- > 1;)
        strides[i - 1] = strides[i] * (dims[i] > 0 ? dims[i] : 1);
    }
    bp_value v{};
    v.id = static_cast<std::uint32_t>(values_.size());
    v.rank = static_cast<std::uint32_t>(dims.size());
    v.flags = flags;
    v.dtype = dtype;
    v.first_dim = static_cast<std::uint32_t>(dims_.size());
    v.producer = v.alias_of = BP_NONE;
    v.layout.kind = BP_LAYOUT_STRIDED;
    dims_.insert(dims_.end(), dims.begin(), dims.end());
    strides_.insert(strides_.end(), strides.begin(), strides.end());
    values_.push_back(v);
    return v.id;
  }
  std::uint32_t input(bp_dtype dtype, Dims dims, Dims strides = {}, std::uint64_t flags = 0) {
    inputs_.push_back(value(dtype, std::move(dims), std::move(strides), flags));
    return inputs_.back();
  }
  std::uint32_t dim_class(std::int64_t min, std::int64_t max, std::int64_t hint) {
    classes_.push_back({min, max, 1, hint, text("s"), {nullptr, 0}});
    return static_cast<std::uint32_t>(classes_.size() - 1);
  }
  void output(std::uint32_t value) { outputs_.push_back(value); }

  // Attributes belong to the next node.
  bp_attribute& attribute(const std::string& name, bp_attribute_kind kind) {
    bp_attribute a{};
    a.name = text(name);
    a.kind = kind;
    attributes_.push_back(a);
    return attributes_.back();
  }
  void integer(const std::string& name, std::int64_t v) {
    attribute(name, BP_ATTRIBUTE_INT).integer = v;
  }
  void boolean(const std::string& name, bool v) { attribute(name, BP_ATTRIBUTE_BOOL).integer = v; }
  void real(const std::string& name, double v) { attribute(name, BP_ATTRIBUTE_FLOAT).real = v; }
  void string(const std::string& name, const std::string& v) {
    attribute(name, BP_ATTRIBUTE_STRING).text = text(v);
  }
  void integers(const std::string& name, Dims v, bp_attribute_kind kind = BP_ATTRIBUTE_INTS) {
    lists_.push_back(std::move(v));
    bp_attribute& a = attribute(name, kind);
    a.integers = lists_.back().data();
    a.count = lists_.back().size();
  }
  void reals(const std::string& name, std::vector<double> v) {
    reals_.push_back(std::move(v));
    bp_attribute& a = attribute(name, BP_ATTRIBUTE_FLOATS);
    a.reals = reals_.back().data();
    a.count = reals_.back().size();
  }

  void node(const std::string& op, const std::vector<std::uint32_t>& operands,
            const std::vector<std::uint32_t>& results, std::uint32_t list_first = 0,
            std::uint32_t list_count = 0) {
    bp_node n{};
    n.id = static_cast<std::uint32_t>(nodes_.size());
    n.op = static_cast<std::uint32_t>(ops_.size());
    ops_.push_back({text(op), 1, 0});
    n.first_operand = static_cast<std::uint32_t>(indices_.size());
    n.operand_count = static_cast<std::uint32_t>(operands.size());
    indices_.insert(indices_.end(), operands.begin(), operands.end());
    n.first_result = static_cast<std::uint32_t>(indices_.size());
    n.result_count = static_cast<std::uint32_t>(results.size());
    indices_.insert(indices_.end(), results.begin(), results.end());
    for (std::uint32_t r : results)
      if (r != BP_NONE) values_[r].producer = n.id;
    n.list_first = list_first;
    n.list_count = list_count;
    n.first_attribute = first_attribute_;
    n.attribute_count = static_cast<std::uint32_t>(attributes_.size()) - first_attribute_;
    first_attribute_ = static_cast<std::uint32_t>(attributes_.size());
    nodes_.push_back(n);
  }

  // A node whose result is a view of the operand, `offset` elements behind its start.
  void view(const std::string& op, std::uint32_t operand, std::uint32_t result,
            std::int64_t offset = 0) {
    node(op, {operand}, {result});
    values_[result].alias_of = operand;
    values_[result].alias_offset = offset;
  }

  bp_graph graph() const {
    bp_graph g{};
    g.struct_size = sizeof g;
    g.nodes = nodes_.data(), g.node_count = nodes_.size(), g.node_stride = sizeof(bp_node);
    g.values = values_.data(), g.value_count = values_.size(), g.value_stride = sizeof(bp_value);
    g.attributes = attributes_.data(), g.attribute_count = attributes_.size();
    g.attribute_stride = sizeof(bp_attribute);
    g.ops = ops_.data(), g.op_count = ops_.size(), g.op_stride = sizeof(bp_op);
    g.dim_classes = classes_.data(), g.dim_class_count = classes_.size();
    g.dim_class_stride = sizeof(bp_dim_class);
    g.indices = indices_.data(), g.index_count = indices_.size();
    g.dims = dims_.data(), g.strides = strides_.data(), g.dim_count = dims_.size();
    g.inputs = inputs_.data(), g.input_count = inputs_.size();
    g.outputs = outputs_.data(), g.output_count = outputs_.size();
    return g;
  }

 private:
  bp_string text(const std::string& s) {
    texts_.push_back(s);
    return {texts_.back().data(), texts_.back().size()};
  }
  std::vector<bp_node> nodes_;
  std::vector<bp_value> values_;
  std::vector<bp_attribute> attributes_;
  std::vector<bp_op> ops_;
  std::vector<bp_dim_class> classes_;
  std::vector<std::uint32_t> indices_, inputs_, outputs_;
  Dims dims_, strides_;
  std::deque<std::string> texts_;
  std::deque<Dims> lists_;
  std::deque<std::vector<double>> reals_;
  std::uint32_t first_attribute_ = 0;
};

}  // namespace backplane::sdk::testing
