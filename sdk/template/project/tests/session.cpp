// A graph through the whole plugin as a host uses it: no PyTorch, no Python.
#include <backplane/sdk/testing/session.hpp>
#include <cstdio>
#include <cstring>

namespace {

using namespace backplane::sdk;
using namespace backplane::sdk::testing;

// relu(x w) of any number of rows.
GraphBuilder products() {
  GraphBuilder g;
  g.dim_class(1, 64, 8);
  const auto x = g.input(kFloat32, {-1, 2}, {2, 1}), w = g.input(kFloat32, {2, 2});
  const auto y = g.value(kFloat32, {-1, 2}, {2, 1}), z = g.value(kFloat32, {-1, 2}, {2, 1});
  g.node("aten.mm", {x, w}, {y});
  g.node("aten.relu", {y}, {z});
  g.output(z);
  return g;
}

int run() {
  const GraphBuilder graph = products();
  HostTensor turn(kFloat32, {2, 2});
  turn.set_values(Floats{0, 1, 1, 0});
  Session session;
  for (const std::int64_t rows : {3, 5}) {
    HostTensor x(kFloat32, {rows, 2}), expected(kFloat32, {rows, 2});
    x.set_values(Floats{1, -2});
    expected.set_values(Floats{0, 1});
    for (const bool streamed : {false, true}) {
      if (streamed && !session.has_streams()) continue;
      const auto made =
          session.run(graph.graph(), {x, turn}, {.dims = {rows}, .streamed = streamed});
      if (made.at(0).values() == expected.values()) continue;
      std::fprintf(stderr, "wrong numbers for %d rows\n", static_cast<int>(rows));
      return 1;
    }
  }
  return 0;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const Failure& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    // Without the hardware, or its driver, there is nothing to test.
    const bool is_absent = dynamic_cast<const NoDevice*>(&failure) != nullptr ||
                           std::strstr(failure.what(), "no device: ") != nullptr;
    return is_absent ? 77 : 1;
  }
}
