// Attention against plain loops in double.
#include <gtest/gtest.h>

#include "kernels/testing/run_kernel.h"

namespace backplane::onednn {
namespace {

using testing::Floats;
using testing::OneNode;
using testing::random_floats;

struct Case {
  std::int64_t batch = 2, heads = 2, queries = 5, keys = 7, depth = 8, values = 8, key_heads = 2;
  bool causal = false, mask = false;
  bp_dtype type = sdk::kFloat32;
};

void check(const Case& k) {
  const Shape q_dims{k.batch, k.heads, k.queries, k.depth},
      k_dims{k.batch, k.key_heads, k.keys, k.depth}, v_dims{k.batch, k.key_heads, k.keys, k.values},
      o_dims{k.batch, k.heads, k.queries, k.values};
  const Floats q = random_floats(product(q_dims), 1), key = random_floats(product(k_dims), 2),
               v = random_floats(product(v_dims), 3);
  Floats mask = random_floats(k.batch * k.queries * k.keys, 4);
  // A query that may see nothing at all.
  if (k.mask)
    for (std::int64_t j = 0; j < k.keys; ++j)
      mask[static_cast<std::size_t>(j)] = -std::numeric_limits<float>::infinity();
  OneNode node("aten._scaled_dot_product_flash_attention_for_cpu");
  const auto turned = [](const Shape& d) {
    return Shape{d[1] * d[2] * d[3], d[3], d[1] * d[3], 1};
  };
  node.in(q_dims, q, turned(q_dims), k.type).in(k_dims, key, turned(k_dims), k.type);
  node.in(v_dims, v, turned(v_dims), k.type);
  if (k.mask)
    node.in({k.batch, 1, k.queries, k.keys}, mask);
  else
    node.none();
  node.flag("is_causal", k.causal);
  node.out(o_dims, turned(o_dims), k.type);
  node.out({k.batch, k.heads, k.queries}, {k.heads * k.queries, 1, k.heads});
  node.run(testing::kernel);

  const Floats out = node.result(0), lse = node.result(1);
  const double limit = k.type.bits == 32 ? 1e-5 : 2e-2;
  const double scale = 1 / std::sqrt(static_cast<double>(k.depth));
  for (std::int64_t p = 0; p < k.batch * k.heads; ++p)
    for (std::int64_t i = 0; i < k.queries; ++i) {
      const std::int64_t kp = p / k.heads * k.key_heads + p % k.heads / (k.heads / k.key_heads);
      std::vector<double> e(static_cast<std::size_t>(k.keys), 0);
      double total = 0;
      for (std::int64_t j = 0; j < k.keys; ++j) {
        if (k.causal && j > i) continue;
        double s = 0;
        for (std::int64_t c = 0; c < k.depth; ++c)
          s += double{q[static_cast<std::size_t>((p * k.queries + i) * k.depth + c)]} *
               key[static_cast<std::size_t>((kp * k.keys + j) * k.depth + c)] * scale;
        if (k.mask) s += mask[static_cast<std::size_t>((p / k.heads * k.queries + i) * k.keys + j)];
        total += e[static_cast<std::size_t>(j)] = std::exp(s);
      }
      const auto row = static_cast<std::size_t>(p * k.queries + i);
      if (total != 0) {
        ASSERT_NEAR(lse[row], std::log(total), limit);
      } else {
        ASSERT_EQ(lse[row], -std::numeric_limits<float>::infinity());
      }
      for (std::int64_t c = 0; c < k.values; ++c) {
        double sum = 0;
        for (std::int64_t j = 0; j < k.keys; ++j)
          sum += e[static_cast<std::size_t>(j)] *
                 v[static_cast<std::size_t>((kp * k.keys + j) * k.values + c)];
        ASSERT_NEAR(out[row * static_cast<std::size_t>(k.values) + static_cast<std::size_t>(c)],
                    total == 0 ? 0 : sum / total, limit);
      }
    }
}

TEST(Attention, Small) { check({}); }
TEST(Attention, ManyBlocks) {
  check({.batch = 1, .queries = 101, .keys = 600, .depth = 24, .values = 40});
}
TEST(Attention, WholeVectors) { check({.queries = 64, .keys = 64, .depth = 32, .values = 32}); }
TEST(Attention, OneQuery) { check({.queries = 1, .keys = 300, .depth = 64, .values = 64}); }
TEST(Attention, Causal) { check({.queries = 300, .keys = 300, .causal = true}); }
TEST(Attention, CausalLastQueriesSeeAll) { check({.queries = 70, .keys = 30, .causal = true}); }
TEST(Attention, MaskWithHiddenRow) { check({.queries = 50, .keys = 300, .mask = true}); }
TEST(Attention, SharedKeyHeads) { check({.heads = 4, .key_heads = 2}); }
TEST(Attention, Bfloat16) {
  check({.queries = 60, .keys = 60, .depth = 32, .values = 32, .type = sdk::kBFloat16});
}

}  // namespace
}  // namespace backplane::onednn
