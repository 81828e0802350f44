#include "flash_attention.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <numbers>
#include <string_view>

#include "flash_attention_text.hpp"
#include "text.hpp"

namespace backplane::kernels {
namespace {

constexpr std::int64_t kMostDepth = 128;
constexpr std::size_t kThreads = 128;
// Keys and values that stay in a device's cache while all rows read them.
constexpr std::int64_t kCacheBytes = std::int64_t{32} << 20;
constexpr std::int64_t kMostMaskElements = INT32_MAX / 8;  // of a row: places in bytes are 32 bits

// How a kernel is cut for its registers and 48 KiB of shared memory.
struct Cut {
  std::int64_t depth = 0;      // padded, as tiles hold it
  std::int64_t row_tiles = 2;  // of 16 rows, per warp
  std::int64_t keys = 64;      // at a time
  std::int64_t stages = 1;     // tiles of keys and values in memory
  std::int64_t rows() const { return row_tiles * 64; }
};
Cut cut_of(const Attention& a) {
  Cut c;
  c.depth = ceil_div(a.depth, 16) * 16;
  c.stages = c.depth <= 64 ? 2 : 1;
  const bool wide = c.depth > 96;
  if (a.queries <= 64 || (wide && a.mask))
    c.row_tiles = 1;
  else if (wide || a.mask)
    c.keys = 32;
  return c;
}

std::string_view element_word(Storage storage) {
  return storage == Storage::kBF16 ? "bp_bf16" : "bp_f16";
}
std::string mask_word(const Attention& a) {
  if (!a.mask) return "bp_no_mask";
  if (a.mask->storage == Storage::kBool) return "bp_bool_mask";
  return a.mask->storage == Storage::kF32 ? "bp_float_mask"
                                          : std::string(element_word(a.mask->storage));
}

bool is_taken(const Builder& builder, const Attention& a, const TensorView& result) {
  const Storage storage = a.query.storage;
  if (!builder.facts().has_matrix_tiles ||
      (storage != Storage::kF16 && storage != Storage::kBF16) || a.depth > kMostDepth ||
      a.values != a.depth || a.key.dims[1] != a.value.dims[1] || a.heads % a.key.dims[1] != 0 ||
      !(a.scale > 0 && a.scale <= std::numeric_limits<float>::max()))
    return false;
  for (const TensorView* t : {&a.query, &a.key, &a.value, &result})
    if (t->storage != storage || t->argument.kind == Argument::kOperandValue || t->dims.size() != 4)
      return false;
  if (!a.mask) return true;
  const TensorView& m = *a.mask;
  return m.argument.kind != Argument::kOperandValue && !m.dims.empty() && m.dims.size() <= 4 &&
         (m.storage == Storage::kBool || m.storage == Storage::kF32 || m.storage == storage) &&
         m.strides.back() * a.keys <= kMostMaskElements;
}

// Parameters of the kernel's text with what is bound to them.
class Parameters {
 public:
  void memory(const std::string& name, const Argument& argument) {
    text_ += (text_.empty() ? "BP_GLOBAL uchar* " : ", BP_GLOBAL uchar* ") + name +
             "_base, ulong " + name + "_offset";
    arguments_.push_back(argument);
  }
  void number(const std::string& name, std::int64_t value) {
    text_ += ", ulong " + name;
    arguments_.push_back(Argument::bits(static_cast<std::uint64_t>(value)));
  }
  // Strides of the last `count` dims, 0 where there is one of them or none, as `name_0`….
  void strides(const std::string& name, const TensorView& t, std::size_t count,
               std::int64_t scale) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t missing = count - t.dims.size();
      const bool steps = i >= missing && t.dims[i - missing] != 1;
      number(name + "_" + std::to_string(i), steps ? t.strides[i - missing] * scale : 0);
    }
  }
  const std::string& text() const { return text_; }
  std::vector<Argument> take() { return std::move(arguments_); }

 private:
  std::string text_;
  std::vector<Argument> arguments_;
};

std::string pointer(const std::string& type, const std::string& name) {
  return "(" + type + "*)(" + name + "_base + " + name + "_offset)";
}
// Assignments of a side's strides: `member` of `a` from parameters of that name.
std::string assign(const std::string& member, std::initializer_list<const char*> fields,
                   const std::string& separator) {
  std::string out;
  std::int64_t i = 0;
  for (const char* field : fields)
    out += "  a." + member + separator + field + " = (long)" + member + "_" + number(i++) + ";\n";
  return out;
}

// Heads whose keys and values stay in the cache together.
std::int64_t heads_together(const Attention& a) {
  const std::int64_t bytes = std::max<std::int64_t>(a.keys * a.depth * 2 * 2, 1),
                     sharing = a.heads / a.key.dims[1];
  return std::clamp<std::int64_t>(kCacheBytes / bytes * sharing, 1, a.batch * a.heads);
}

}  // namespace

Result<bool> add_flash_attention(Builder& builder, const Attention& a, const TensorView& result,
                                 const std::optional<TensorView>& sums) {
  if (!is_taken(builder, a, result)) return false;
  const std::int64_t rows = a.batch * a.heads * a.queries;
  if (rows > INT32_MAX || a.keys > INT32_MAX / 2) return false;
  if (rows == 0) return true;
  const Cut cut = cut_of(a);
  Parameters p;
  std::string fields;
  const struct {
    const char* name;
    const TensorView& tensor;
  } sides[] = {{"query", a.query}, {"key", a.key}, {"value", a.value}, {"out", result}};
  for (const auto& [name, tensor] : sides) {
    p.memory(name, tensor.argument);
    p.strides(name, tensor, 4, 1);
    fields += "  a." + std::string(name) + ".data = " + pointer("ushort", name) + ";\n" +
              assign(name, {"batch", "head", "row", "column"}, ".");
  }
  if (a.mask) {
    p.memory("mask", a.mask->argument);
    p.strides("mask", *a.mask, 4, kernelgen::storage_bytes(a.mask->storage));
    fields += "  a.mask.data = " + pointer("const uchar", "mask") + ";\n" +
              assign("mask", {"batch", "head", "row", "column"}, ".");
  }
  if (sums) {
    p.memory("sums", sums->argument);
    p.strides("sums", *sums, 3, 1);
    fields += "  a.sums = " + pointer("float", "sums") + ";\n" +
              assign("sums", {"batch", "head", "row"}, "_");
  }
  const std::pair<const char*, std::int64_t> numbers[] = {
      {"batches", a.batch},           {"heads", a.heads}, {"sharing", a.heads / a.key.dims[1]},
      {"queries", a.queries},         {"keys", a.keys},   {"depth", a.depth},
      {"together", heads_together(a)}};
  for (const auto& [name, value] : numbers) {
    p.number(name, value);
    fields += "  a." + std::string(name) + " = (int)" + name + ";\n";
  }
  const auto scale = static_cast<float>(a.scale * std::numbers::log2e);
  p.number("scale", std::bit_cast<std::int32_t>(scale));
  fields += "  a.scale = BP_BITS_F32(scale);\n";

  const std::string kind = "bp_forward_cut<" + std::string(element_word(a.query.storage)) + ", " +
                           number(cut.depth) + ", " + number(cut.row_tiles) + ", " +
                           number(cut.keys) + ", " + number(cut.stages) + ", " +
                           (a.causal ? "true" : "false") + ", " + mask_word(a) + ">";
  // The comment keeps texts of other depths and cuts apart where numbers become arguments.
  std::string text =
      forward_attention_text() + "// cut_" + number(cut.depth) + "_" + number(cut.row_tiles) + "_" +
      number(cut.keys) + "\nBP_KERNEL BP_ENTRY(BP_ITEM " + p.text() +
      ") {\n  BP_BEGIN BP_COLLECTIVE\n  bp_attention a = {};\n" + fields + "  typedef " + kind +
      " cut;\n  BP_LOCAL uint4 tiles[cut::kBytes / 16];\n"
      "  bp_attend<cut>(a, bp_shared_at(tiles));\n}\n";
  const auto blocks = static_cast<std::size_t>(ceil_div(a.queries, cut.rows()) * a.batch * a.heads);
  builder.launch(kernelgen::name_entry(std::move(text)), p.take(), {blocks * kThreads, 1, 1},
                 {kThreads, 1, 1});
  return true;
}

}  // namespace backplane::kernels
