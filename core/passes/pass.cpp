#include "core/passes/pass.h"

#include <algorithm>

#include "core/ir/verifier.h"
#include "core/passes/cse.h"
#include "core/passes/dead_code.h"
#include "core/passes/fold_padding.h"
#include "core/passes/fold_views.h"
#include "core/passes/recompose_linear.h"
#include "core/passes/remove_noop.h"
#include "core/passes/sum_products.h"

namespace backplane::passes {
namespace {

constexpr PassInfo kPasses[] = {
    {"cse", "Computes equal subexpressions once.", cse},
    {"dead-code", "Drops nodes without effects whose results nobody reads.", dead_code},
    {"fold-padding", "Moves zeros around images into the padding of their convolutions.",
     fold_padding},
    {"fold-views", "Merges chains of views into one view and of permutations into one permute.",
     fold_views},
    {"recompose-linear", "Turns mm and addmm by a transposed weight into aten.linear.",
     recompose_linear},
    {"remove-noop", "Drops ops that return their operand unchanged.", remove_noop},
    {"sum-products", "Turns sums of small matrix products into one product.", sum_products},
};

struct Pipeline {
  std::string_view name;
  std::string_view passes;
};
// recompose-linear comes before fold-views, which would merge the views that it looks for with
// their neighbours. sum-products comes after the transpositions around gradients are gone, and
// before a cse: sums may share factors. Results of "canonicalize" are eager's bit for bit where
// eager's kernels run them; fold-padding and sum-products round in another order.
constexpr Pipeline kPipelines[] = {
    {"canonicalize", "remove-noop,recompose-linear,fold-views,remove-noop,cse,dead-code"},
    {"optimize", "fold-padding,canonicalize,sum-products,cse"},
};

std::string_view trim(std::string_view s) {
  while (!s.empty() && s.front() == ' ') s.remove_prefix(1);
  while (!s.empty() && s.back() == ' ') s.remove_suffix(1);
  return s;
}

Status collect(std::string_view list, std::vector<const PassInfo*>& out_passes) {
  while (!trim(list).empty()) {
    const std::size_t comma = list.find(',');
    const std::string_view name = trim(list.substr(0, comma));
    list = comma == std::string_view::npos ? std::string_view() : list.substr(comma + 1);
    const auto pass = std::find_if(std::begin(kPasses), std::end(kPasses),
                                   [&](const PassInfo& info) { return info.name == name; });
    if (pass != std::end(kPasses)) {
      out_passes.push_back(&*pass);
      continue;
    }
    const auto pipeline =
        std::find_if(std::begin(kPipelines), std::end(kPipelines),
                     [&](const Pipeline& candidate) { return candidate.name == name; });
    if (pipeline == std::end(kPipelines)) {
      std::string known;
      const auto add = [&](std::string_view one) {
        known += (known.empty() ? "" : ", ") + std::string(one);
      };
      for (const PassInfo& info : kPasses) add(info.name);
      for (const Pipeline& known_pipeline : kPipelines) add(known_pipeline.name);
      return Status(Code::kNotFound, "No pass or pipeline is called \"" + std::string(name) +
                                         "\"; there are " + known + ".");
    }
    BP_RETURN_IF_ERROR(collect(pipeline->passes, out_passes));
  }
  return {};
}

}  // namespace

std::span<const PassInfo> all_passes() { return kPasses; }

Status run_pipeline(
    ir::Graph& graph, std::string_view pipeline,
    const std::function<void(std::string_view pass, const ir::Graph&)>& after_each) {
  std::vector<const PassInfo*> passes;
  BP_RETURN_IF_ERROR(collect(pipeline, passes));
  BP_RETURN_IF_ERROR(ir::verify(graph).with_context("verifying the graph before any pass"));
  for (const PassInfo* pass : passes) {
    Status status = pass->run(graph);
    if (!status.ok()) return std::move(status).with_context("running " + std::string(pass->name));
    status = ir::verify(graph);
    if (!status.ok()) {
      return std::move(status).with_context("verifying the graph after " + std::string(pass->name));
    }
    if (after_each) after_each(pass->name, graph);
  }
  return {};
}

}  // namespace backplane::passes
