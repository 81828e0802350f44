#include <backplane/kernelgen/kernel.hpp>

#include <algorithm>
#include <cstdio>
#include <string_view>

#include "functions.hpp"
#include "group_plan.hpp"
#include "printer.hpp"

namespace backplane::kernelgen {
namespace {

std::string number(std::int64_t v) { return std::to_string(v); }

std::size_t choose_lane_axis(const Kernel& kernel, std::int64_t lanes) {
  const auto extents = kernel.expressions.extents();
  std::size_t best = PointPrinter::kNoAxis;
  std::int64_t best_score = -1;
  const auto consider = [&](std::size_t axis) {
    if (extents[axis] < lanes) return;
    const std::int64_t score = lane_score(kernel, axis);
    if (score > best_score) {
      best = axis;
      best_score = score;
    }
  };
  if (extents.size() > kernel.outer_count && !is_serial(kernel)) consider(extents.size() - 1);
  if (kernel.outer_count > 0) consider(kernel.outer_count - 1);
  return best;
}

}  // namespace

std::string decode_points(const Kernel& kernel, std::size_t count, const std::string& flat,
                          const std::string& type, std::int64_t chunk) {
  std::string out;
  const auto extents = kernel.expressions.extents();
  out += "  " + type + " rest = " + flat + ";\n";
  for (std::size_t a = count; a-- > 0;) {
    const std::string name = "a" + number(static_cast<std::int64_t>(a));
    const bool whole = chunk == 1 || a + 1 != count;
    const std::string step = whole ? "" : " * " + number(chunk);
    const std::string extent = number(whole ? extents[a] : extents[a] / chunk);
    if (a == 0)
      out += "  " + type + " " + name + " = rest" + step + ";\n";
    else
      out += "  " + type + " " + name + " = rest % " + extent + step + ";\n  rest /= " + extent +
             ";\n";
  }
  return out;
}

std::string print_parameters(const Kernel& kernel) {
  std::string out;
  for (std::size_t i = 0; i < kernel.tensors.size(); ++i) {
    const std::string n = number(static_cast<std::int64_t>(i));
    out += (out.empty() ? "" : ", ") + std::string("BP_GLOBAL uchar* b") + n + ", ulong o" + n;
  }
  for (std::size_t i = 0; i < kernel.values.size(); ++i)
    out +=
        (out.empty() ? "" : ", ") + std::string("ulong s") + number(static_cast<std::int64_t>(i));
  return out;
}

std::string print_declarations(const Kernel& kernel) {
  std::string out;
  for (std::size_t i = 0; i < kernel.tensors.size(); ++i) {
    const std::string n = number(static_cast<std::int64_t>(i));
    const std::string type = "BP_GLOBAL " + std::string(element_type(kernel.tensors[i])) + "*";
    out += "  " + type + " t" + n + " = (" + type + ")(b" + n + " + o" + n + ");\n";
  }
  return out;
}

std::uint64_t hash_text(const std::string& text) {
  std::uint64_t hash = 0xcbf29ce484222325U;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return hash;
}

Printed print(const Kernel& kernel, Dialect dialect, const Schedule& schedule) {
  const auto extents = kernel.expressions.extents();
  const std::size_t outer = kernel.outer_count;
  const std::int64_t points = product(extents.subspan(0, outer));
  const std::int64_t row = product(extents.subspan(outer));
  const std::string type = kernel.expressions.index_type() == Type::kI64 ? "long" : "int";
  Printed out;
  if (points == 0) return out;
  const bool has_loops = extents.size() > outer;
  const bool vectors = !schedule.gpu && schedule.lanes > 1 && dialect == Dialect::kOpenCL;
  const std::size_t lane_axis =
      vectors ? choose_lane_axis(kernel, schedule.lanes) : PointPrinter::kNoAxis;
  PointPrinter printer(kernel, dialect, lane_axis, schedule);

  std::string body;
  if (schedule.gpu) {
    std::optional<GroupPlan> plan;
    if (has_loops) plan = plan_group(kernel, dialect, schedule, printer.kept_bytes());
    if (plan) {
      out.group = static_cast<std::uint64_t>(plan->group);
      out.items = static_cast<std::uint64_t>(group_count(kernel, *plan)) * out.group;
      body += printer.group(*plan);
    } else if (const auto tile = dialect == Dialect::kC11
                                     ? std::nullopt
                                     : printer.plan_tile(schedule.group_size)) {
      out.group = static_cast<std::uint64_t>(tile->group);
      out.items = static_cast<std::uint64_t>(printer.tile_count(*tile)) * out.group;
      body += printer.tile(*tile);
    } else {
      const std::int64_t group = schedule.group_size;
      const std::int64_t chunk = std::max<std::int64_t>(printer.chunk(), 1);
      const std::int64_t count = points / chunk;
      out.group = static_cast<std::uint64_t>(group);
      out.items = static_cast<std::uint64_t>((count + group - 1) / group * group);
      const std::string id = "(" + type + ")BP_ID(0)";
      body += "  if (" + id + " >= " + number(count) + ") return;\n";
      body += decode_points(kernel, outer, id, type, chunk);
      body += chunk > 1 ? printer.points(chunk) : printer.point(false);
    }
  } else {
    // A work-item computes `tile` points along the last outer axis, or whole rows of it.
    const std::int64_t length = outer > 0 ? extents[outer - 1] : 1;
    const std::int64_t rows = points / std::max<std::int64_t>(length, 1);
    const std::int64_t tile_points =
        std::max<std::int64_t>(schedule.grain / std::max<std::int64_t>(row, 1), 1);
    const bool split = outer > 0 && length > tile_points;
    std::int64_t tile = length;
    if (split) tile = tile_points;
    if (split && lane_axis == outer - 1)  // whole vectors
      tile = (tile_points + schedule.lanes - 1) / schedule.lanes * schedule.lanes;
    const std::int64_t tiles = (length + tile - 1) / tile;
    const std::int64_t rows_per_item = split ? 1 : std::max<std::int64_t>(tile_points / length, 1);
    out.items = static_cast<std::uint64_t>((rows + rows_per_item - 1) / rows_per_item * tiles);
    const std::string id = "(" + type + ")BP_ID(0)";
    body += "  const " + type + " tile = " + id + " % " + number(tiles) + ";\n";
    body += "  const " + type + " first = " + id + " / " + number(tiles) + " * " +
            number(rows_per_item) + ";\n";
    const std::string bounded = rows_per_item > 1 ? "BP_MIN(first + " + number(rows_per_item) +
                                                        ", (" + type + ")" + number(rows) + ")"
                                                  : "first + 1";
    body += "  for (" + type + " row = first; row < " + bounded + "; ++row) {\n";
    if (outer > 1) body += decode_points(kernel, outer - 1, "row", type);
    if (outer > 0) {
      const std::string a = "a" + number(static_cast<std::int64_t>(outer - 1));
      const std::string end =
          split ? "tile * " + number(tile) + " + " + number(tile) : number(length);
      body += "  " + type + " " + a + " = tile * " + number(tile) + ";\n";
      body +=
          "  const " + type + " end = " +
          (split ? "(" + end + " < " + number(length) + " ? " + end + " : " + number(length) + ")"
                 : end) +
          ";\n";
      if (lane_axis == outer - 1) {
        body += "  for (; " + a + " + " + number(schedule.lanes) + " <= end; " + a +
                " += " + number(schedule.lanes) + ") {\n" + printer.point(true) + "  }\n";
      }
      const bool tail = lane_axis != outer - 1 || length % schedule.lanes != 0;
      if (tail)
        body += "  for (; " + a + " < end; ++" + a + ") {\n" + printer.point(false) + "  }\n";
    } else {
      body += printer.point(false);
    }
    body += "  }\n";
    if (printer.streams()) body += "  BP_STREAMED;\n";
  }
  std::string text = "BP_KERNEL BP_ENTRY(BP_ITEM " + print_parameters(kernel) +
                     ") {\n  BP_BEGIN\n" + print_declarations(kernel) + body + "}\n";
  Printed named = name_entry(std::move(text));
  out.text = std::move(named.text);
  out.entry = std::move(named.entry);
  return out;
}

Printed name_entry(std::string text) {
  constexpr std::string_view kPlaceholder = "BP_ENTRY";
  char name[32];
  std::snprintf(name, sizeof name, "bp_%016llx", static_cast<unsigned long long>(hash_text(text)));
  Printed out;
  out.entry = name;
  if (const std::size_t at = text.find(kPlaceholder); at != std::string::npos)
    text.replace(at, kPlaceholder.size(), out.entry);
  out.text = std::move(text);
  return out;
}

Fragment print_fragment(const Kernel& kernel, Dialect dialect, std::size_t lane_axis,
                        std::int64_t lanes) {
  Fragment out;
  Schedule schedule;
  schedule.lanes = lanes;
  schedule.unroll = false;
  PointPrinter printer(kernel, dialect, lane_axis, schedule);
  if (lanes > 1) out.wide = printer.point(true);
  out.narrow = printer.point(false);
  return out;
}

}  // namespace backplane::kernelgen
