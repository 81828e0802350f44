// Random graphs over several devices, each call compared with plain evaluation: memory that is
// reused too early, a copy that nobody waited for or a wrong view offset shows as a wrong number.
#include "core/runtime/plan/call_frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "core/runtime/testing/run_graph.h"

namespace backplane::runtime {
namespace {

using testing_graph::call;
using testing_graph::Classes;
using testing_graph::compile;
using testing_graph::evaluate;
using testing_graph::Inputs;
using testing_graph::reference_device;
using testing_graph::scripted_device;

struct Size {
  std::string text;  // "4" or "s0"
  std::int64_t hint;
};
struct Shaped {
  std::string name;
  std::vector<Size> dims;
  std::vector<std::int64_t> factors;  // strides; that of dim i is factors[i], times s0 if scaled[i]
  std::vector<bool> scaled;
};

class Generator {
 public:
  Generator(unsigned seed, bool dynamic) : random_(seed), dynamic_(dynamic) {}

  std::string make() {
    const std::vector<std::vector<Size>> shapes{
        {rows(), {"4", 4}}, {{"4", 4}, rows()}, {{"4", 4}, {"4", 4}}};
    std::string heads;
    for (int i = 0; i < 5; ++i) {
      Shaped value{"x" + std::to_string(i), shapes[static_cast<std::size_t>(i) % 3], {}, {}};
      lay(value);
      heads += (i ? ", %" : "%") + value.name + ": " + type(value);
      if (i >= 3 && shapes[static_cast<std::size_t>(i) % 3][0].text == "4") heads += " static";
      values_.push_back(value);
    }
    for (int i = 0; i < 40; ++i) step(i);
    std::string outputs, types;
    for (int i = 0; i < 4; ++i) {
      const Shaped& value = i == 0 ? values_.back() : pick();
      outputs += (i ? ", %" : "%") + value.name;
      types += (i ? ", " : "") + type(value);
    }
    return "graph @random(" + heads + ") -> (" + types + ")" +
           (dynamic_ ? " classes(s0: 3 [2, 64], s1 = \"4*s0\": 12)" : "") + " {\n" + body_ +
           "  return " + outputs + "\n}\n";
  }

 private:
  std::size_t number(std::size_t limit) { return random_() % limit; }
  Size rows() const { return dynamic_ ? Size{"s0", 3} : Size{"3", 3}; }
  const Shaped& pick() { return values_[number(values_.size())]; }

  // Row-major.
  static void lay(Shaped& value) {
    value.factors.assign(value.dims.size(), 1);
    value.scaled.assign(value.dims.size(), false);
    std::int64_t factor = 1;
    bool scaled = false;
    for (std::size_t i = value.dims.size(); i-- > 0;) {
      value.factors[i] = factor;
      value.scaled[i] = scaled;
      if (value.dims[i].text == "s0")
        scaled = true;
      else
        factor *= value.dims[i].hint;
    }
  }
  static std::string stride(std::int64_t factor, bool scaled) {
    if (!scaled) return std::to_string(factor);
    return factor == 4 ? "s1" : "s0";
  }
  static std::string type(const Shaped& value) {
    std::string dims, strides;
    for (std::size_t i = 0; i < value.dims.size(); ++i) {
      dims += (i ? ", " : "") + value.dims[i].text;
      strides += (i ? ", " : "") + stride(value.factors[i], value.scaled[i]);
    }
    return "f32[" + dims + "]" + (value.dims.empty() ? "" : " strides(" + strides + ")");
  }
  void node(Shaped made, const std::string& text) {
    body_ += "  %" + made.name + " = " + text + " : " + type(made) + "\n";
    values_.push_back(std::move(made));
  }
  static bool same_dims(const Shaped& a, const Shaped& b) {
    return std::ranges::equal(a.dims, b.dims, {}, &Size::text, &Size::text);
  }

  void step(int i) {
    const Shaped a = pick();
    Shaped made = a;
    made.name = "v" + std::to_string(i);
    const std::string operand = "(%" + a.name;
    switch (number(10)) {
      case 0: {
        lay(made);
        return node(made, "aten.neg" + operand + ")");
      }
      case 1:
      case 2: {
        lay(made);
        return node(made, "test.twice" + operand + ")");
      }
      case 3: {
        lay(made);
        return node(made, "aten.relu" + operand + ")");
      }
      case 4:
      case 5: {
        Shaped b = pick();
        if (!same_dims(a, b)) b = a;
        lay(made);
        return node(made, "aten.sub.Tensor" + operand + ", %" + b.name + ")");
      }
      case 6: {
        Shaped b = pick();
        if (!same_dims(a, b)) b = a;
        lay(made);
        return node(made, "aten.add.Tensor" + operand + ", %" + b.name + ")");
      }
      case 7: {
        if (a.dims.size() != 2) return;
        std::swap(made.dims[0], made.dims[1]);
        std::swap(made.factors[0], made.factors[1]);
        const bool scaled = made.scaled[0];
        made.scaled[0] = made.scaled[1];
        made.scaled[1] = scaled;
        return node(made, "aten.t" + operand + ")");
      }
      case 8: {
        if (a.dims.empty()) return;
        const std::size_t dim = number(a.dims.size());
        const std::size_t index = number(2);
        made.dims.erase(made.dims.begin() + static_cast<std::ptrdiff_t>(dim));
        made.factors.erase(made.factors.begin() + static_cast<std::ptrdiff_t>(dim));
        made.scaled.erase(made.scaled.begin() + static_cast<std::ptrdiff_t>(dim));
        return node(made, "aten.select.int" + operand + ", dim=" + std::to_string(dim) +
                              ", index=" + (index ? "-1" : "1") + ")");
      }
      default: {
        for (std::size_t dim = 0; dim < a.dims.size(); ++dim) {
          if (a.dims[dim].text != "4") continue;
          made.dims[dim] = {"2", 2};
          const std::size_t start = number(3);
          return node(made, "aten.slice.Tensor" + operand + ", dim=" + std::to_string(dim) +
                                ", start=" + std::to_string(start) +
                                ", end=" + std::to_string(start + 2) + ")");
        }
      }
    }
  }

  std::mt19937 random_;
  bool dynamic_;
  std::vector<Shaped> values_;
  std::string body_;
};

void check(const std::vector<Device*>& devices, unsigned first_seed, bool dynamic) {
  for (Device* device : devices) ASSERT_NE(device, nullptr);
  for (unsigned seed = first_seed; seed < first_seed + 40; ++seed) {
    const std::string text = Generator(seed, dynamic).make();
    SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + text);
    const auto compiled = compile(text, devices);
    ASSERT_TRUE(compiled.ok()) << compiled.status().message();
    const std::vector<std::int64_t> sizes =
        dynamic ? std::vector<std::int64_t>{3, 11, 2, 3} : std::vector<std::int64_t>{0, 0};
    for (const std::int64_t s0 : sizes) {
      const Classes classes = dynamic ? Classes{s0, 4 * s0} : Classes{};
      Inputs inputs = Inputs::random((*compiled)->graph(), classes, seed);
      const auto expected = evaluate((*compiled)->graph(), inputs, classes);
      ASSERT_TRUE(expected.ok()) << expected.status().message();
      const auto found = call(**compiled, inputs, classes);
      ASSERT_TRUE(found.ok()) << found.status().message() << "\n" << (*compiled)->print_plan();
      ASSERT_EQ(*found, *expected) << (*compiled)->print_plan();
    }
  }
}

TEST(CallFrame, RandomGraphsOnALazyDevice) {
  check({scripted_device()}, 1, false);
  check({scripted_device()}, 101, true);
}

TEST(CallFrame, RandomGraphsOnTheReferenceDevice) {
  check({reference_device()}, 201, false);
  check({reference_device()}, 301, true);
}

TEST(CallFrame, RandomGraphsOnTwoDevices) {
  check({scripted_device(), reference_device(0, "reference_minimal")}, 401, false);
  check({scripted_device(), reference_device()}, 501, true);
}

TEST(CallFrame, RandomGraphsOnHostMemory) {
  const testing_graph::Script script("host_memory");  // at the first use of the plugins
  Device* device = scripted_device("scripted_serial");
  Device* lazy = scripted_device();
  ASSERT_NE(device, nullptr);
  ASSERT_NE(lazy, nullptr);
  // ctest runs every test in a process of its own; in one process another test came first.
  if (!device->binds_host_memory() || !lazy->binds_host_memory())
    GTEST_SKIP() << "a plugin was loaded before";
  check({device}, 601, false);
  check({device, reference_device()}, 701, true);
  check({lazy}, 801, true);
}

TEST(CallFrame, RandomGraphsWhoseExecutablesAreLentMemory) {
  const testing_graph::Script script("host_memory,lends");
  Device* device = scripted_device("scripted_serial");
  ASSERT_NE(device, nullptr);
  if (!device->binds_host_memory()) GTEST_SKIP() << "a plugin was loaded before";
  check({device}, 901, false);
  check({device, reference_device()}, 1001, true);
}

TEST(CallFrame, MemoryComesLateAndGoesEarly) {
  const testing_graph::Script script("host_memory,lends");
  Device* device = scripted_device("scripted_serial");
  ASSERT_NE(device, nullptr);
  if (!device->binds_host_memory()) GTEST_SKIP() << "a plugin was loaded before";
  const auto compiled =
      compile(R"(graph @late(%x: f32[4], %y: f32[4], %z: f32[4]) -> (f32[4], f32[4], f32[2]) {
  %a = aten.relu(%x) : f32[4]
  %b = aten.add.Tensor(%a, %y) : f32[4]
  %c = aten.neg(%b) : f32[4]
  %d = aten.mul.Tensor(%c, %b) : f32[4]
  %e = aten.slice.Tensor(%z, dim=0, start=0, end=2) : f32[2]
  return %b, %d, %e
}
)",
              {device});
  ASSERT_TRUE(compiled.ok()) << compiled.status().message();
  Inputs inputs = Inputs::random((*compiled)->graph());
  const auto expected = evaluate((*compiled)->graph(), inputs);
  std::string order;
  const auto found = call(**compiled, inputs, {}, nullptr, &order);
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(*found, *expected);
  EXPECT_EQ(order, " -x +b -y +d");  // z is shown as an output
}

// What a plugin does to lent memory that it must not: told, and nothing is freed that was not lent.
TEST(CallFrame, MisusedLendingIsAnErrorThatSaysWhat) {
  using ::testing::HasSubstr;
  const testing_graph::Script script("host_memory,lends");
  Device* device = scripted_device("scripted_serial");
  ASSERT_NE(device, nullptr);
  if (!device->binds_host_memory()) GTEST_SKIP() << "a plugin was loaded before";
  const auto compiled = compile(R"(graph @lent(%x: f32[4]) -> (f32[4]) {
  %a = aten.neg(%x) : f32[4]
  return %a
}
)",
                                {device});
  ASSERT_TRUE(compiled.ok()) << compiled.status().message();
  const auto said = [&](const std::string& word) {
    const testing_graph::Script misuse(("host_memory,lends," + word).c_str());
    Inputs inputs = Inputs::random((*compiled)->graph());
    std::string order;
    const auto found = call(**compiled, inputs, {}, nullptr, &order);
    return found.ok() ? std::string() : found.status().message();
  };
  EXPECT_EQ(said(""), "");
  EXPECT_THAT(said("lends_late"), HasSubstr("lend_workspace after its call"));
  EXPECT_THAT(said("gives_back_twice"),
              HasSubstr("gave back 64 bytes at offset 0 that it was not"));
  EXPECT_THAT(said("gives_back_foreign"), HasSubstr("that it was not lent"));
  EXPECT_THAT(said("gives_back_part"),
              HasSubstr("gave back 32 bytes at offset 0 as kind 2; lent were 64 bytes"));
  EXPECT_THAT(said("keeps_lent"), HasSubstr("'scripted_serial': execute: kept 1 lent workspaces"));
  EXPECT_THAT(said("inputs_done_twice"), HasSubstr("input_done: input 0 of 1; expected each at"));
  EXPECT_EQ(said(""), "");
}

// The plugin ends the process where its event goes before the work.
TEST(CallFrame, WorkWhoseWaitFailsIsWaitedForAllTheSame) {
  Device* device = scripted_device();
  ASSERT_NE(device, nullptr);
  const auto compiled = compile(R"(graph @waited(%x: f32[4]) -> (f32[4]) {
  %a = aten.neg(%x) : f32[4]
  return %a
}
)",
                                {device});
  ASSERT_TRUE(compiled.ok()) << compiled.status().message();
  for (const bool fails : {false, true, false}) {
    const testing_graph::Script script(fails ? "wait_fails" : "");
    Inputs inputs = Inputs::random((*compiled)->graph());
    const auto found = call(**compiled, inputs);
    ASSERT_EQ(found.ok(), !fails);
    if (found.ok()) continue;
    EXPECT_THAT(found.status().message(), ::testing::HasSubstr("asked not to wait"));
  }
  EXPECT_FALSE(device->is_given_up());
}

}  // namespace
}  // namespace backplane::runtime
