#include "core/ir/op_table.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "core/ir/literal.h"

namespace backplane::ir {
namespace {

TEST(OpTable, RowsAreSortedAndWritable) {
  const auto ops = all_ops();
  EXPECT_GT(ops.size(), 350u);
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (i > 0) {
      EXPECT_LT(ops[i - 1].name, ops[i].name);
    }
    EXPECT_TRUE(is_op_name(ops[i].name)) << ops[i].name;
    EXPECT_TRUE(ops[i].known);
    EXPECT_EQ(find_op(ops[i].name), &ops[i]);
    EXPECT_GE(ops[i].flops_per_element, 0) << ops[i].name;
  }
}

TEST(OpTable, OperandSpecsAreWellFormed) {
  for (const OpInfo& op : all_ops()) {
    std::set<std::string_view> names;
    int lists = 0;
    for (const OperandInfo& operand : operand_list(op)) {
      EXPECT_TRUE(is_identifier(operand.name)) << op.name;
      EXPECT_TRUE(names.insert(operand.name).second) << op.name;
      lists += operand.is_list ? 1 : 0;
    }
    EXPECT_LE(lists, 1) << op.name;
    // A rule needs something to look at.
    if (op.shape_rule != ShapeRule::kTrusted) {
      EXPECT_FALSE(names.empty()) << op.name;
    }
  }
}

TEST(OpTable, WellKnownRows) {
  const OpInfo* add = find_op("aten.add.Tensor");
  ASSERT_NE(add, nullptr);
  EXPECT_EQ(add->op_class, OpClass::kPointwise);
  EXPECT_EQ(add->shape_rule, ShapeRule::kBroadcast);
  const auto index = operand_list(*find_op("aten.index.Tensor"));
  ASSERT_EQ(index.size(), 2u);
  EXPECT_EQ(index[1].name, "indices");
  EXPECT_TRUE(index[1].is_list && index[1].is_optional);
  EXPECT_TRUE(find_op("aten.nonzero")->data_dependent_shape);
  EXPECT_TRUE(has_effects(*find_op("aten.native_dropout")));
  EXPECT_TRUE(has_effects(*find_op("aten._native_batch_norm_legit")));
  EXPECT_FALSE(has_effects(*find_op("aten._native_batch_norm_legit_functional")));
  EXPECT_EQ(find_op("aten.permute")->op_class, OpClass::kView);
  EXPECT_TRUE(find_op("aten.gelu_backward")->is_gradient);
  EXPECT_FALSE(find_op("aten.gelu")->is_gradient);
  EXPECT_EQ(find_op("aten.relu.default"), nullptr);
}

TEST(OpTable, InternedRowsAreSharedAcrossThreads) {
  std::vector<const OpInfo*> rows(8);
  {
    std::vector<std::thread> threads;
    for (auto& row : rows) {
      threads.emplace_back([&row] {
        for (int i = 0; i < 200; ++i) {
          row = find_or_intern_op("test.op" + std::to_string(i));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  for (const OpInfo* row : rows) EXPECT_EQ(row, rows[0]);
  EXPECT_EQ(rows[0]->name, "test.op199");
  EXPECT_FALSE(rows[0]->known);
  EXPECT_EQ(find_op("test.op199"), nullptr);
}

}  // namespace
}  // namespace backplane::ir
