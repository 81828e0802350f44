#include "core/torch/record/recorder.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "core/ir/text.h"
#include "core/ir/verifier.h"
#include "core/torch/record/replay.h"

namespace backplane::record {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Tensors = std::vector<at::Tensor>;

at::Tensor leaf(at::IntArrayRef sizes) { return at::randn(sizes).requires_grad_(true); }

Result<Recorded> record_one(const std::function<at::Tensor(const Tensors&)>& function,
                            const Tensors& arguments) {
  const Program program = [&](const Tensors& given) {
    return std::vector<c10::IValue>{function(given)};
  };
  return record(program, arguments, {});
}

std::string refusal(const std::function<at::Tensor(const Tensors&)>& function,
                    const Tensors& arguments) {
  const Result<Recorded> result = record_one(function, arguments);
  EXPECT_FALSE(result.ok()) << ir::print(result->graph);
  return result.status().message();
}

TEST(Recorder, RecordsForwardAndBackward) {
  const Result<Recorded> recorded =
      record_one([](const Tensors& in) { return (in[0] * in[1]).sum(); }, {leaf({3}), leaf({3})});
  ASSERT_TRUE(recorded.ok()) << recorded.status().to_string();
  EXPECT_EQ(ir::print(recorded->graph),
            "graph @joint(\n"
            "    %primals_1: f32[3],\n"
            "    %primals_2: f32[3],\n"
            "    %tangents_1: f32[]\n"
            ") -> (f32[], f32[3], f32[3]) {\n"
            "  %mul = aten.mul.Tensor(%primals_1, %primals_2) : f32[3]\n"
            "  %sum = aten.sum(%mul) : f32[]\n"
            "  %expand = aten.expand(%tangents_1, size=[3]) : f32[3] strides(0)\n"
            "  %mul_1 = aten.mul.Tensor(%expand, %primals_1) : f32[3]\n"
            "  %mul_2 = aten.mul.Tensor(%expand, %primals_2) : f32[3]\n"
            "  return %sum, %mul_2, %mul_1\n"
            "}\n");
  EXPECT_EQ(recorded->forward_node_count, 2u);
  EXPECT_EQ(recorded->arguments[0].gradient, 1u);
  EXPECT_EQ(recorded->arguments[1].gradient, 2u);
  EXPECT_EQ(recorded->outputs[0].tangent, 2u);
}

TEST(Recorder, ReplayGivesTheBitsOfEager) {
  const Tensors arguments{at::randn({2, 3, 8, 8}), leaf({4, 3, 3, 3}), leaf({4})};
  const auto function = [](const Tensors& in) {
    return at::max_pool2d(at::conv2d(in[0], in[1], in[2]).relu(), {2, 2}).square();
  };
  const Result<Recorded> recorded = record_one(function, arguments);
  ASSERT_TRUE(recorded.ok()) << recorded.status().to_string();
  EXPECT_TRUE(ir::verify(recorded->graph).ok());
  EXPECT_EQ(recorded->shapes.python, 0u);

  const at::Tensor output = function(arguments);
  const at::Tensor tangent = at::randn_like(output);
  output.backward(tangent);
  Tensors inputs;
  for (const at::Tensor& argument : arguments) inputs.push_back(argument.detach());
  inputs.push_back(tangent);
  const Result<Replayed> replayed = replay(recorded->graph, recorded->constants, inputs);
  ASSERT_TRUE(replayed.ok()) << replayed.status().to_string();
  EXPECT_THAT(replayed->differences, ElementsAre());
  EXPECT_THAT(replayed->restrided, ElementsAre());
  EXPECT_TRUE(replayed->outputs[0].equal(output));
  for (const std::size_t i : {1u, 2u})
    EXPECT_TRUE(replayed->outputs[recorded->arguments[i].gradient].equal(arguments[i].grad()));
}

TEST(Recorder, SaysWhichArgumentsAreWritten) {
  const Result<Recorded> recorded = record_one(
      [](const Tensors& in) {
        in[1].select(0, 1).add_(in[0]);
        return in[1];
      },
      {at::randn({3}), at::randn({2, 3})});
  ASSERT_TRUE(recorded.ok()) << recorded.status().to_string();
  EXPECT_FALSE(recorded->arguments[0].is_mutated);
  EXPECT_TRUE(recorded->arguments[1].is_mutated);
  EXPECT_EQ(recorded->outputs[0].kind, OutputKind::kArgument);
  EXPECT_EQ(recorded->outputs[0].base, 1u);
}

TEST(Recorder, KeepsNumbersExact) {
  const at::Tensor x = at::randn({64}).to(at::kBFloat16);
  const auto function = [](const Tensors& in) { return in[0] * 0.1; };
  const Result<Recorded> recorded = record_one(function, {x});
  ASSERT_TRUE(recorded.ok());
  const Result<Replayed> replayed = replay(recorded->graph, recorded->constants, Tensors{x});
  ASSERT_TRUE(replayed.ok());
  EXPECT_TRUE(replayed->outputs[0].equal(function({x})));
}

TEST(Recorder, EvaluatesWhatDependsOnNoInput) {
  const Result<Recorded> recorded = record_one(
      [](const Tensors& in) {
        const at::Tensor steps = at::arange(4);
        return steps.sum().item<std::int64_t>() == 6 ? in[0].sin() : in[0].cos();
      },
      {at::randn({3})});
  ASSERT_TRUE(recorded.ok()) << recorded.status().to_string();
  EXPECT_EQ(recorded->graph.nodes.size(), 1u);
  EXPECT_EQ(recorded->graph.nodes[0].op->name, "aten.sin");
}

TEST(Recorder, RefusesValues) {
  const Tensors x{at::randn({3})};
  EXPECT_THAT(refusal([](const Tensors& in) { return in[0] * in[0][0].item<float>(); }, x),
              HasSubstr("needs the values of a tensor that depends on inputs"));
  EXPECT_THAT(refusal([](const Tensors& in) { return in[0].nonzero(); }, x),
              HasSubstr("aten.nonzero needs the values"));
}

TEST(Recorder, RefusesEvenWhereTheProgramCatches) {
  const auto function = [](const Tensors& in) {
    try {
      return in[0].nonzero();
    } catch (const std::exception&) {
      return in[0];
    }
  };
  EXPECT_THAT(refusal(function, {at::randn({3})}), HasSubstr("aten.nonzero needs the values"));
}

TEST(Recorder, RefusesUnknownTensors) {
  const at::Tensor outside = at::randn({3});
  EXPECT_THAT(refusal([&](const Tensors& in) { return in[0] + outside; }, {at::randn({3})}),
              HasSubstr("neither an argument nor made by the program"));
}

TEST(Recorder, RefusesWritesToSharedMemory) {
  const at::Tensor base = at::randn({6});
  EXPECT_THAT(refusal([](const Tensors& in) { return in[0].add_(1) * in[1]; },
                      {base.slice(0, 0, 4), base.slice(0, 2, 6)}),
              HasSubstr("shares memory with argument 1"));
}

TEST(Recorder, ProgramsMayThrow) {
  const auto function = [](const Tensors&) -> at::Tensor { throw std::runtime_error("mine"); };
  EXPECT_EQ(refusal(function, {at::randn({3})}), "mine");
}

TEST(Recorder, ThreadsRecordAtOnce) {
  std::vector<std::string> texts(4);
  std::vector<std::thread> threads;
  for (std::string& text : texts)
    threads.emplace_back([&text] {
      for (int i = 0; i < 20; ++i) {
        const Result<Recorded> recorded =
            record_one([](const Tensors& in) { return at::gelu(at::linear(in[0], in[1])).sum(); },
                       {at::randn({2, 3}), leaf({4, 3})});
        text = recorded.ok() ? ir::print(recorded->graph) : recorded.status().to_string();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : texts) {
    EXPECT_THAT(text, HasSubstr("aten.gelu_backward"));
    EXPECT_EQ(text, texts[0]);
  }
}

}  // namespace
}  // namespace backplane::record
