// Gradients of attention, embedding and nll_loss against plain loops.
#include <gtest/gtest.h>
#include <omp.h>

#include "kernels/testing/run_kernel.h"

namespace backplane::onednn {
namespace {

using testing::difference;
using testing::Floats;
using testing::OneNode;
using testing::random_floats;
using Doubles = std::vector<double>;

struct Case {
  std::int64_t batch = 2, heads = 2, queries = 5, keys = 7, depth = 8, values = 8, key_heads = 2;
  bool causal = false, mask = false;
  bp_dtype type = sdk::kFloat32;
};

void check(const Case& k) {
  const double scale = 1 / std::sqrt(static_cast<double>(k.depth));
  const std::int64_t pairs = k.batch * k.heads, shared = k.heads / k.key_heads;
  const Shape q_dims{k.batch, k.heads, k.queries, k.depth},
      k_dims{k.batch, k.key_heads, k.keys, k.depth}, v_dims{k.batch, k.key_heads, k.keys, k.values},
      o_dims{k.batch, k.heads, k.queries, k.values};
  const Floats q = testing::rounded(random_floats(product(q_dims), 1)),
               key = testing::rounded(random_floats(product(k_dims), 2)),
               v = testing::rounded(random_floats(product(v_dims), 3)),
               g = testing::rounded(random_floats(product(o_dims), 4)),
               mask = testing::rounded(random_floats(k.batch * k.queries * k.keys, 5));
  Floats out(g.size()), lse(static_cast<std::size_t>(pairs * k.queries));
  Doubles gq(q.size()), gk(key.size()), gv(v.size());
  for (std::int64_t p = 0; p < pairs; ++p)
    for (std::int64_t i = 0; i < k.queries; ++i) {
      const std::int64_t kp = p / k.heads * k.key_heads + p % k.heads / shared;
      const auto at_q = [&](std::int64_t c) {
        return static_cast<std::size_t>((p * k.queries + i) * k.depth + c);
      };
      const auto at_k = [&](std::int64_t j, std::int64_t c) {
        return static_cast<std::size_t>((kp * k.keys + j) * k.depth + c);
      };
      const auto at_v = [&](std::int64_t j, std::int64_t c) {
        return static_cast<std::size_t>((kp * k.keys + j) * k.values + c);
      };
      const auto at_g = [&](std::int64_t c) {
        return static_cast<std::size_t>((p * k.queries + i) * k.values + c);
      };
      const std::int64_t seen = k.causal ? std::min(i + 1, k.keys) : k.keys;
      Doubles s(static_cast<std::size_t>(seen));
      double total = 0;
      for (std::int64_t j = 0; j < seen; ++j) {
        double& e = s[static_cast<std::size_t>(j)];
        for (std::int64_t c = 0; c < k.depth; ++c)
          e += double{q[at_q(c)]} * key[at_k(j, c)] * scale;
        if (k.mask) e += mask[static_cast<std::size_t>((p / k.heads * k.queries + i) * k.keys + j)];
        total += e = std::exp(e);
      }
      lse[static_cast<std::size_t>(p * k.queries + i)] = static_cast<float>(std::log(total));
      double delta = 0;
      Doubles o(static_cast<std::size_t>(k.values));
      for (std::int64_t c = 0; c < k.values; ++c) {
        double sum = 0;
        for (std::int64_t j = 0; j < seen; ++j)
          sum += s[static_cast<std::size_t>(j)] / total * v[at_v(j, c)];
        out[at_g(c)] = static_cast<float>(sum);
        delta += sum * g[at_g(c)];
      }
      for (std::int64_t j = 0; j < seen; ++j) {
        const double prob = s[static_cast<std::size_t>(j)] / total;
        double slope = -delta;
        for (std::int64_t c = 0; c < k.values; ++c) {
          slope += double{g[at_g(c)]} * v[at_v(j, c)];
          gv[at_v(j, c)] += prob * g[at_g(c)];
        }
        for (std::int64_t c = 0; c < k.depth; ++c) {
          gq[at_q(c)] += prob * slope * scale * key[at_k(j, c)];
          gk[at_k(j, c)] += prob * slope * scale * q[at_q(c)];
        }
      }
    }
  // Heads between rows, as models have them.
  const auto turned = [](const Shape& d) {
    return Shape{d[1] * d[2] * d[3], d[3], d[1] * d[3], 1};
  };
  OneNode node("aten._scaled_dot_product_flash_attention_for_cpu_backward");
  node.in(o_dims, g, turned(o_dims), k.type).in(q_dims, q, turned(q_dims), k.type);
  node.in(k_dims, key, turned(k_dims), k.type).in(v_dims, v, turned(v_dims), k.type);
  node.in(o_dims, out, turned(o_dims), k.type);
  node.in({k.batch, k.heads, k.queries}, lse, {k.heads * k.queries, 1, k.heads});
  if (k.mask)
    node.in({k.batch, 1, k.queries, k.keys}, mask, {}, k.type);
  else
    node.none();
  node.real("dropout_p", 0).flag("is_causal", k.causal);
  node.out(q_dims, turned(q_dims), k.type)
      .out(k_dims, turned(k_dims), k.type)
      .out(v_dims, turned(v_dims), k.type);
  node.run(testing::kernel);
  const double limit = k.type.bits == 32 ? 1e-4 : 3e-2;
  EXPECT_LT(difference(node.result(0), gq), limit);
  EXPECT_LT(difference(node.result(1), gk), limit);
  EXPECT_LT(difference(node.result(2), gv), limit);
}

TEST(AttentionBackward, Small) { check({}); }
TEST(AttentionBackward, ManyBlocks) {
  check({.batch = 1, .queries = 101, .keys = 530, .depth = 24, .values = 40});
}
TEST(AttentionBackward, WholeVectors) {
  check({.queries = 64, .keys = 64, .depth = 32, .values = 16});
}
TEST(AttentionBackward, Causal) {
  check({.queries = 70, .keys = 70, .causal = true});
  check({.batch = 1, .queries = 300, .keys = 300, .causal = true});
}
TEST(AttentionBackward, Mask) { check({.queries = 50, .keys = 19, .mask = true}); }
TEST(AttentionBackward, SharedKeyHeads) { check({.heads = 4, .key_heads = 2}); }
TEST(AttentionBackward, Bfloat16) {
  check({.queries = 33, .keys = 40, .depth = 16, .mask = true, .type = sdk::kBFloat16});
}

// ---- Embedding ----

Floats embedding(const Floats& g, const std::vector<std::int64_t>& index, std::int64_t rows,
                 std::int64_t width, bool by_frequency, bp_dtype type) {
  const auto count = static_cast<std::int64_t>(index.size());
  OneNode node("aten.embedding_dense_backward");
  node.in({count, width}, g, {}, type).index({count}, index);
  node.number("num_weights", rows)
      .number("padding_idx", 0)
      .flag("scale_grad_by_freq", by_frequency);
  node.out({rows, width}, {}, type).run(testing::kernel);
  return node.result(0);
}

TEST(EmbeddingBackward, SumsRowsOfEveryIndex) {
  const std::int64_t rows = 300, width = 37, count = 1000;
  const Floats g = testing::rounded(random_floats(count * width, 1));
  std::vector<std::int64_t> index;
  for (std::int64_t i = 0; i < count; ++i) index.push_back(i * i % 97);
  for (const bool by_frequency : {false, true})
    for (const bp_dtype type : {sdk::kFloat32, sdk::kBFloat16}) {
      Doubles want(static_cast<std::size_t>(rows * width));
      for (std::size_t i = 0; i < index.size(); ++i) {
        if (index[i] == 0) continue;
        const auto times = static_cast<double>(std::count(index.begin(), index.end(), index[i]));
        for (std::size_t c = 0; c < 37; ++c)
          want[static_cast<std::size_t>(index[i]) * 37 + c] +=
              g[i * 37 + c] / (by_frequency ? times : 1);
      }
      EXPECT_LT(difference(embedding(g, index, rows, width, by_frequency, type), want),
                type.bits == 32 ? 1e-5 : 1e-2);
    }
}
TEST(EmbeddingBackward, SameBitsOnAnyTeam) {
  const Floats g = random_floats(4000 * 16, 1);
  std::vector<std::int64_t> index;
  for (std::int64_t i = 0; i < 4000; ++i) index.push_back(i * 31 % 53);
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  const Floats one = embedding(g, index, 500, 16, false, sdk::kFloat32);
  omp_set_num_threads(3);
  const Floats three = embedding(g, index, 500, 16, false, sdk::kFloat32);
  omp_set_num_threads(threads);
  EXPECT_EQ(one, three);
}

// ---- nll_loss ----

TEST(NllLoss, MeanWithWeightsAndIgnoredTargets) {
  const std::int64_t n = 3, classes = 5, inner = 4;
  const Floats x = random_floats(n * classes * inner, 1), w{0.5F, 1, 2, 0.25F, 3};
  std::vector<std::int64_t> target;
  for (std::int64_t i = 0; i < n * inner; ++i) target.push_back(i % 4 == 1 ? -100 : i % classes);
  OneNode forward("aten.nll_loss2d_forward");
  forward.in({n, classes, 2, 2}, x).index({n, 2, 2}, target).in({classes}, w);
  forward.number("reduction", 1).number("ignore_index", -100).out({}).out({}).run(testing::kernel);
  OneNode backward("aten.nll_loss2d_backward");
  double loss = 0, total = 0;
  Doubles slopes(x.size());
  for (std::size_t i = 0; i < target.size(); ++i) {
    if (target[i] < 0) continue;
    const auto t = static_cast<std::size_t>(target[i]);
    const std::size_t at = (i / 4 * 5 + t) * 4 + i % 4;
    loss -= double{w[t]} * x[at];
    total += w[t];
    slopes[at] = -double{w[t]} * 0.5;
  }
  for (double& v : slopes) v /= total;
  EXPECT_NEAR(forward.result(0)[0], loss / total, 1e-6);
  EXPECT_NEAR(forward.result(1)[0], total, 1e-6);
  backward.in({}, {0.5F}).in({n, classes, 2, 2}, x).index({n, 2, 2}, target).in({classes}, w);
  backward.in({}, {static_cast<float>(total)});
  backward.number("reduction", 1)
      .number("ignore_index", -100)
      .out({n, classes, 2, 2})
      .run(testing::kernel);
  EXPECT_LT(difference(backward.result(0), slopes), 1e-6);
}

}  // namespace
}  // namespace backplane::onednn
