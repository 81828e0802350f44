#include "flash_attention.hpp"

#include <algorithm>
#include <bit>
#include <initializer_list>
#include <limits>
#include <numbers>
#include <string_view>

#include "flash_attention_text.hpp"
#include "text.hpp"

namespace backplane::kernels {
namespace {

constexpr std::int64_t kMostDepth = 128;
constexpr std::int64_t kMostSharing = 128;  // heads whose gradients one kernel adds up
constexpr std::size_t kThreads = 128;
// Keys and values that stay in a device's cache while all rows read them.
constexpr std::int64_t kCacheBytes = std::int64_t{32} << 20;
constexpr std::int64_t kMostRowStride = INT32_MAX / 256;   // offsets in a tile are 32 bits
constexpr std::int64_t kMostMaskElements = INT32_MAX / 8;  // places in bytes are 32 bits

// How a kernel is cut for its registers and 48 KiB of shared memory.
struct Cut {
  std::int64_t depth = 0;      // padded, as tiles hold it
  std::int64_t row_tiles = 1;  // of 16 rows, per warp
  std::int64_t columns = 64;   // at a time
  std::int64_t stages = 2;     // buffers of columns

  std::int64_t rows() const { return row_tiles * 64; }
  // As in the texts: arguments of templates, and a word that keeps texts of other cuts apart where
  // numbers become arguments.
  std::string arguments() const { return joined(", "); }
  std::string word() const { return joined("_"); }

 private:
  std::string joined(const std::string& by) const {
    return number(depth) + by + number(row_tiles) + by + number(columns) + by + number(stages);
  }
};
constexpr std::int64_t kNarrow = 64, kWide = 96;  // depths
Cut forward_cut(const Attention& a) {
  Cut c;
  c.depth = ceil_div(a.depth, 16) * 16;
  if (a.queries <= c.rows() || (c.depth > kWide && a.mask)) {
    c.stages = c.depth <= kNarrow ? 2 : 1;
  } else {
    c.row_tiles = 2;
    c.columns = c.depth > kNarrow || a.mask ? 32 : 64;
    c.stages = c.depth > kWide ? 1 : 2;
  }
  return c;
}
Cut backward_cut(const Attention& a, bool by_keys) {
  Cut c;
  c.depth = ceil_div(a.depth, 16) * 16;
  c.columns = 32;
  if (c.depth > kWide && by_keys && a.mask)
    c.columns = 16;
  else if (c.depth > kWide)
    c.stages = 1;
  else if (c.depth <= kNarrow && by_keys && !a.mask)
    c.columns = 64;
  else if (c.depth <= kNarrow && !by_keys && a.queries > c.rows())
    c.row_tiles = 2;
  return c;
}

std::string_view element_word(Storage storage) {
  return storage == Storage::kBF16 ? "bp_bf16" : "bp_f16";
}
std::string mask_word(const Attention& a) {
  if (!a.mask) return "bp_no_mask";
  if (a.mask->storage == Storage::kBool) return "bp_bool_mask";
  return a.mask->storage == Storage::kF32
             ? "bp_float_mask"
             : "bp_half_mask<" + std::string(element_word(a.mask->storage)) + ">";
}

bool is_taken(const Builder& builder, const Attention& a,
              std::initializer_list<const TensorView*> tensors) {
  const Storage storage = a.query.storage;
  if (!builder.facts().has_matrix_tiles ||
      (storage != Storage::kF16 && storage != Storage::kBF16) || a.depth > kMostDepth ||
      a.values != a.depth || a.key.dims[1] != a.value.dims[1] || a.heads % a.key.dims[1] != 0 ||
      !(a.scale > 0 && a.scale <= std::numeric_limits<float>::max()) ||
      product({a.batch, a.heads, std::max(a.queries, a.keys)}) > INT32_MAX)
    return false;
  for (const TensorView* t : tensors)
    if (t->storage != storage || t->argument.kind == Argument::kOperandValue ||
        t->dims.size() != 4 || t->strides[2] > kMostRowStride)
      return false;
  if (!a.mask) return true;
  const TensorView& m = *a.mask;
  if (m.argument.kind == Argument::kOperandValue || m.dims.empty() || m.dims.size() > 4 ||
      (m.storage != Storage::kBool && m.storage != Storage::kF32 && m.storage != storage))
    return false;
  std::int64_t last = 0;
  for (std::size_t i = 0; i < m.dims.size(); ++i) last += (m.dims[i] - 1) * m.strides[i];
  return last <= kMostMaskElements;
}

// Parameters of a kernel's text, what is bound to them, and how they fill the fields of `a`.
class Parameters {
 public:
  void side(const std::string& name, const TensorView& t) {
    memory(name, ".data", "ushort", t);
    strides(name, t, {".batch", ".head", ".row", ".column"}, 1);
  }
  void mask(const TensorView& t) {
    memory("mask", ".data", "const uchar", t);
    strides("mask", t, {".batch", ".head", ".row", ".column"}, kernelgen::storage_bytes(t.storage));
  }
  void memory(const std::string& name, const std::string& field, const std::string& type,
              const TensorView& t) {
    text_ += (text_.empty() ? "BP_GLOBAL uchar* " : ", BP_GLOBAL uchar* ") + name +
             "_base, ulong " + name + "_offset";
    arguments_.push_back(t.argument);
    fill(name + field, "(" + type + "*)(" + name + "_base + " + name + "_offset)");
  }
  // Strides of the last dims, 0 where there is one of them or none.
  void strides(const std::string& name, const TensorView& t,
               std::initializer_list<const char*> fields, std::int64_t scale) {
    const std::size_t missing = fields.size() - t.dims.size();
    std::size_t i = 0;
    for (const char* field : fields) {
      const bool steps = i >= missing && t.dims[i - missing] != 1;
      value(name + "_" + std::to_string(i), steps ? t.strides[i - missing] * scale : 0);
      fill(name + field, "(long)" + name + "_" + std::to_string(i++));
    }
  }
  void integer(const std::string& name, std::int64_t v) {
    value(name, v);
    fill(name, "(int)" + name);
  }
  void sizes(const Attention& a) {
    integer("batches", a.batch);
    integer("heads", a.heads);
    integer("sharing", a.heads / a.key.dims[1]);
    integer("queries", a.queries);
    integer("keys", a.keys);
    integer("depth", a.depth);
  }
  void real(const std::string& name, double v) {
    value(name, std::bit_cast<std::int32_t>(static_cast<float>(v)));
    fill(name, "BP_BITS_F32(" + name + ")");
  }
  const std::string& text() const { return text_; }
  const std::string& fields() const { return fields_; }
  std::vector<Argument> take() { return std::move(arguments_); }

 private:
  void value(const std::string& name, std::int64_t v) {
    text_ += ", ulong " + name;
    arguments_.push_back(Argument::bits(static_cast<std::uint64_t>(v)));
  }
  void fill(const std::string& field, const std::string& value) {
    fields_ += "  a." + field + " = " + value + ";\n";
  }
  std::string text_, fields_;
  std::vector<Argument> arguments_;
};

// `function` of `cut`, whose parameter is a `type`.
void launch(Builder& builder, std::string words, const std::string& function,
            const std::string& type, const Cut& cut, const std::string& cut_type,
            Parameters& parameters, std::int64_t blocks) {
  std::string text = std::move(words) + "// cut_" + cut.word() + "\nBP_KERNEL BP_ENTRY(BP_ITEM " +
                     parameters.text() + ") {\n  BP_BEGIN BP_COLLECTIVE\n  " + type + " a = {};\n" +
                     parameters.fields() + "  typedef " + cut_type +
                     " cut;\n  BP_LOCAL uint4 tiles[cut::kBytes / 16];\n  " + function +
                     "<cut>(a, bp_shared_at(tiles));\n}\n";
  builder.launch(kernelgen::name_entry(std::move(text)), parameters.take(),
                 {static_cast<std::size_t>(blocks) * kThreads, 1, 1}, {kThreads, 1, 1});
}
std::string cut_type(const std::string& name, const Attention& a, const Cut& cut) {
  return name + "<" + std::string(element_word(a.query.storage)) + ", " + cut.arguments() + ", " +
         (a.causal ? "true" : "false") + ", " + mask_word(a);
}

// Heads of which `rows` rows of two matrices stay in the cache together.
std::int64_t heads_together(const Attention& a, std::int64_t rows, std::int64_t sharing) {
  const std::int64_t bytes = std::max<std::int64_t>(rows * a.depth * 2 * 2, 1);
  return std::clamp<std::int64_t>(kCacheBytes / bytes * sharing, 1, a.batch * a.heads);
}

// Of each query: its shift of exponents, infinite where there is nothing to attend to, and what is
// subtracted from its slopes.
Result<TensorView> add_facts(Builder& builder, const Attention& a, const AttentionGradients& g) {
  constexpr std::int64_t kInTurn = 64;  // rows that kernels may look at beyond the last query
  TensorView facts =
      builder.scratch(Storage::kF32, {a.batch, a.heads, ceil_div(a.queries, kInTurn) * kInTurn, 2});
  Draft d(builder, {a.batch, a.heads, a.queries}, {a.values});
  Expressions& e = d.e();
  Indices at = d.outer();
  at.push_back(d.loop()[0]);
  const Expr slope =
      e.reduce(kernelgen::Reduction::kSum, e.mul(d.load(g.grad, at), d.load(g.out, at)));
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto real = [&](double v) { return e.constant(kernelgen::Type::kF32, v); };
  const Expr sum = d.load(g.sums, d.outer());
  const Expr shift = e.select(e.binary(kernelgen::Op::kEq, sum, real(-kInfinity)), real(kInfinity),
                              e.mul(sum, real(std::numbers::log2e)));
  std::int64_t which = 0;
  for (const Expr fact : {shift, slope}) {
    at.back() = d.index(which++);
    d.store(facts, at, fact);
  }
  BP_SDK_RETURN_IF_ERROR(d.finish());
  return facts;
}

// Gradients of heads that share keys, one head of `result` after the other.
Status add_shared_heads(Builder& builder, const TensorView& parts, const TensorView& result,
                        std::int64_t sharing) {
  Draft d(builder, result.dims);
  Expressions& e = d.e();
  Indices at = d.outer();
  Expr sum = kernelgen::kNoExpr;
  for (std::int64_t i = 0; i < sharing; ++i) {
    at[1] = e.add(e.mul(d.outer()[1], d.index(sharing)), d.index(i));
    const Expr part = d.load(parts, at);
    sum = i == 0 ? part : e.add(sum, part);
  }
  d.store(result, d.outer(), sum);
  return d.finish();
}

}  // namespace

Result<bool> add_flash_attention(Builder& builder, const Attention& a, const TensorView& result,
                                 const std::optional<TensorView>& sums) {
  if (!is_taken(builder, a, {&a.query, &a.key, &a.value, &result})) return false;
  if (product(result.dims) == 0) return true;
  const Cut cut = forward_cut(a);
  const std::int64_t sharing = a.heads / a.key.dims[1];
  Parameters p;
  p.side("query", a.query);
  p.side("key", a.key);
  p.side("value", a.value);
  p.side("out", result);
  if (a.mask) p.mask(*a.mask);
  if (sums) {
    p.memory("sums", "", "float", *sums);
    p.strides("sums", *sums, {"_batch", "_head", "_row"}, 1);
  }
  p.sizes(a);
  p.integer("together", heads_together(a, a.keys, sharing));
  p.real("scale", a.scale * std::numbers::log2e);
  launch(builder, forward_attention_text(), "bp_attend", "bp_attention", cut,
         cut_type("bp_forward_cut", a, cut) + ">", p,
         ceil_div(a.queries, cut.rows()) * a.batch * a.heads);
  return true;
}

Result<bool> add_flash_gradients(Builder& builder, const Attention& a,
                                 const AttentionGradients& g) {
  if (a.key.dims[0] != a.batch || a.value.dims[0] != a.batch ||
      !is_taken(builder, a, {&a.query, &a.key, &a.value, &g.grad, &g.out}) ||
      g.sums.storage != Storage::kF32)
    return false;
  for (const auto* result : {&g.query, &g.key, &g.value})
    if (*result && !is_taken(builder, a, {&**result})) return false;
  if (product({a.batch, a.heads, a.queries, a.keys, a.depth}) == 0) return false;
  auto facts = add_facts(builder, a, g);
  if (!facts.ok()) return facts.status();
  const std::int64_t sharing = a.heads / a.key.dims[1];
  for (const bool by_keys : {false, true}) {
    std::optional<TensorView> first = by_keys ? g.key : g.query,
                              second = by_keys ? g.value : std::nullopt;
    if (!first && !second) continue;
    if (by_keys && sharing > 1)  // of each head of queries, added up below
      for (auto* result : {&first, &second})
        if (*result)
          *result = builder.scratch(a.query.storage, {a.batch, a.heads, a.keys, a.depth});
    const std::int64_t rows = by_keys ? a.keys : a.queries, columns = by_keys ? a.queries : a.keys;
    const Cut cut = backward_cut(a, by_keys);
    Parameters p;
    p.side("query", a.query);
    p.side("key", a.key);
    p.side("value", a.value);
    p.side("grad", g.grad);
    if (first) p.side("first", *first);
    if (second) p.side("second", *second);
    if (a.mask) p.mask(*a.mask);
    p.memory("facts", "", "const float", *facts);
    p.integer("held_queries", facts->dims[2]);
    p.sizes(a);
    p.integer("together", heads_together(a, columns, by_keys ? 1 : sharing));
    p.real("scale", a.scale);
    p.real("times_log2_e", a.scale * std::numbers::log2e);
    launch(builder, backward_attention_text(), "bp_go_back", "bp_attention_gradients", cut,
           cut_type("bp_backward_cut", a, cut) + (by_keys ? ", true>" : ", false>"), p,
           ceil_div(rows, cut.rows()) * a.batch * a.heads);
    if (!by_keys || sharing == 1) continue;
    if (first) BP_SDK_RETURN_IF_ERROR(add_shared_heads(builder, *first, *g.key, sharing));
    if (second) BP_SDK_RETURN_IF_ERROR(add_shared_heads(builder, *second, *g.value, sharing));
  }
  return true;
}

bool takes_shared_gradients(const Facts& facts, const sdk::NodeView& node) {
  const sdk::ValueView query = node.operand(1), key = node.operand(2);
  const auto storage = storage_of(query.dtype());
  const bp_dim depth = query.dims()[3], heads = query.dims()[1], shared = key.dims()[1];
  return facts.has_matrix_tiles && (storage == Storage::kF16 || storage == Storage::kBF16) &&
         depth > 0 && depth <= kMostDepth && node.operand(3).dims()[3] == depth && shared > 0 &&
         heads % shared == 0 && heads / shared <= kMostSharing && node.real_or("scale", 1) > 0;
}

}  // namespace backplane::kernels
