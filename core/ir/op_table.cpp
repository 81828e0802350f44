#include "core/ir/op_table.h"

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "core/base/fork.h"

namespace backplane::ir {
namespace {

// clang-format off
#define BP_ROW(NAME, OPERANDS, RULE, FLOPS, GRADIENT, DATA_SHAPE, WRITES) \
  OpInfo{NAME, OPERANDS, kClass, ShapeRule::k##RULE, FLOPS, 1, GRADIENT, DATA_SHAPE, true, WRITES},
#define BP_OP(NAME, OPERANDS, RULE, FLOPS) BP_ROW(NAME, OPERANDS, RULE, FLOPS, false, false, false)
#define BP_OP_GRADIENT(NAME, OPERANDS, RULE, FLOPS) \
  BP_ROW(NAME, OPERANDS, RULE, FLOPS, true, false, false)
#define BP_OP_DATA_SHAPE(NAME, OPERANDS, RULE, FLOPS) \
  BP_ROW(NAME, OPERANDS, RULE, FLOPS, false, true, false)
#define BP_OP_WRITES(NAME, OPERANDS, RULE, FLOPS) \
  BP_ROW(NAME, OPERANDS, RULE, FLOPS, false, false, true)
#define BP_ROWS(ARRAY, CLASS) \
  constexpr OpClass kClass = OpClass::CLASS; \
  constexpr OpInfo ARRAY[] = {

namespace pointwise { BP_ROWS(kRows, kPointwise)
#include "core/ir/op_rows_pointwise.inc"
}; }
namespace reduction { BP_ROWS(kRows, kReduction)
#include "core/ir/op_rows_reduction.inc"
}; }
namespace view { BP_ROWS(kRows, kView)
#include "core/ir/op_rows_view.inc"
}; }
namespace movement { BP_ROWS(kRows, kMovement)
#include "core/ir/op_rows_movement.inc"
}; }
namespace matmul { BP_ROWS(kRows, kMatmul)
#include "core/ir/op_rows_matmul.inc"
}; }
namespace convolution { BP_ROWS(kRows, kConvolution)
#include "core/ir/op_rows_convolution.inc"
}; }
namespace pooling { BP_ROWS(kRows, kPooling)
#include "core/ir/op_rows_pooling.inc"
}; }
namespace normalization { BP_ROWS(kRows, kNormalization)
#include "core/ir/op_rows_normalization.inc"
}; }
namespace attention { BP_ROWS(kRows, kAttention)
#include "core/ir/op_rows_attention.inc"
}; }
namespace indexing { BP_ROWS(kRows, kIndexing)
#include "core/ir/op_rows_indexing.inc"
}; }
namespace factory { BP_ROWS(kRows, kFactory)
#include "core/ir/op_rows_factory.inc"
}; }
namespace random { BP_ROWS(kRows, kRandom)
#include "core/ir/op_rows_random.inc"
}; }
namespace other { BP_ROWS(kRows, kOther)
#include "core/ir/op_rows_other.inc"
}; }
// clang-format on

template <std::size_t... kCounts>
constexpr auto join(const OpInfo (&... arrays)[kCounts]) {
  std::array<OpInfo, (kCounts + ...)> rows{};
  std::size_t n = 0;
  const auto append = [&](const OpInfo* first, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) rows[n++] = first[i];
  };
  (append(arrays, kCounts), ...);
  std::sort(rows.begin(), rows.end(),
            [](const OpInfo& a, const OpInfo& b) { return a.name < b.name; });
  return rows;
}

constexpr auto kTable =
    join(pointwise::kRows, reduction::kRows, view::kRows, movement::kRows, matmul::kRows,
         convolution::kRows, pooling::kRows, normalization::kRows, attention::kRows,
         indexing::kRows, factory::kRows, random::kRows, other::kRows);

constexpr bool names_are_unique() {
  for (std::size_t i = 1; i < kTable.size(); ++i) {
    if (kTable[i - 1].name == kTable[i].name) return false;
  }
  return true;
}
static_assert(names_are_unique());

const std::unordered_map<std::string_view, const OpInfo*>& index_by_name() {
  // Never destroyed: threads may look ops up while the process ends.
  static const auto& index = *[] {
    auto* map = new std::unordered_map<std::string_view, const OpInfo*>;
    map->reserve(kTable.size());
    for (const OpInfo& row : kTable) map->emplace(row.name, &row);
    return map;
  }();
  return index;
}

struct InternedOp {
  std::string name;
  OpInfo info;
};

std::string_view trim(std::string_view s) {
  while (!s.empty() && s.front() == ' ') s.remove_prefix(1);
  while (!s.empty() && s.back() == ' ') s.remove_suffix(1);
  return s;
}

}  // namespace

const OpInfo* find_op(std::string_view name) {
  const auto& index = index_by_name();
  const auto it = index.find(name);
  return it == index.end() ? nullptr : it->second;
}

const OpInfo* find_or_intern_op(std::string_view name) {
  if (const OpInfo* row = find_op(name)) return row;
  static std::mutex& mutex = fork_mutex();
  static auto& interned = *new std::unordered_map<std::string_view, std::unique_ptr<InternedOp>>;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto it = interned.find(name);
  if (it != interned.end()) return &it->second->info;
  auto op = std::make_unique<InternedOp>();
  op->name = name;
  op->info.name = op->name;
  op->info.known = false;
  const OpInfo* info = &op->info;
  interned.emplace(info->name, std::move(op));
  return info;
}

std::span<const OpInfo> all_ops() { return kTable; }

std::vector<OperandInfo> operand_list(const OpInfo& op) {
  std::vector<OperandInfo> list;
  std::string_view rest = op.operands;
  while (!rest.empty()) {
    const std::size_t comma = rest.find(',');
    std::string_view item = trim(rest.substr(0, comma));
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    OperandInfo info;
    if (item.ends_with('?')) {
      info.is_optional = true;
      item.remove_suffix(1);
    }
    if (item.ends_with("[]")) {
      info.is_list = true;
      item.remove_suffix(2);
    }
    info.name = item;
    list.push_back(info);
  }
  return list;
}

bool has_effects(const OpInfo& op) {
  return !op.known || op.mutates || op.op_class == OpClass::kRandom;
}

std::string_view shape_rule_name(ShapeRule rule) {
  constexpr std::array<std::string_view, 5> kNames{"trusted", "broadcast", "as the first", "matmul",
                                                   "view"};
  return kNames[static_cast<std::size_t>(rule)];
}

std::string_view op_class_name(OpClass op_class) {
  switch (op_class) {
    case OpClass::kPointwise:
      return "pointwise";
    case OpClass::kReduction:
      return "reduction";
    case OpClass::kView:
      return "view";
    case OpClass::kMovement:
      return "movement";
    case OpClass::kMatmul:
      return "matmul";
    case OpClass::kConvolution:
      return "convolution";
    case OpClass::kPooling:
      return "pooling";
    case OpClass::kNormalization:
      return "normalization";
    case OpClass::kAttention:
      return "attention";
    case OpClass::kIndexing:
      return "indexing";
    case OpClass::kFactory:
      return "factory";
    case OpClass::kRandom:
      return "random";
    case OpClass::kOther:
      return "other";
  }
  return "invalid";
}

}  // namespace backplane::ir
