#include "kernels/rows/reduction_plan.h"

#include <algorithm>

namespace backplane::onednn {
namespace {

std::vector<std::size_t> listed_dims(const sdk::StepContext& context) {
  const std::size_t rank = context.operand(0).rank();
  std::vector<std::size_t> dims;
  const bp_attribute* a = context.node().attribute("dim");
  if (a && a->kind == BP_ATTRIBUTE_INT) {
    if (rank) dims.push_back(static_cast<std::size_t>(wrap_dim(a->integer, rank)));
  } else if (a) {
    for (std::size_t i = 0; i < a->count && rank; ++i)
      dims.push_back(static_cast<std::size_t>(wrap_dim(a->integers[i], rank)));
  }
  if (dims.empty())
    for (std::size_t d = 0; d < rank; ++d) dims.push_back(d);
  std::sort(dims.begin(), dims.end());
  return dims;
}

}  // namespace

ReductionPlan reduction_plan(const sdk::StepContext& context, std::size_t result) {
  const sdk::TensorSpec &in = context.operand(0), &out = context.result(result);
  const auto dims = listed_dims(context);
  ReductionPlan p;
  p.from = p.as = known_type(in.dtype);
  p.to = known_type(out.dtype);
  const bool keeps = out.rank() == in.rank();
  std::size_t at = 0;
  for (std::size_t d = 0; d < in.rank(); ++d) {
    if (std::binary_search(dims.begin(), dims.end(), d)) {
      p.reduced.push_back(in.dims[d]);
      p.reduced_from.push_back(in.strides[d]);
      p.count *= in.dims[d];
      if (keeps) ++at;
      continue;
    }
    p.kept.push_back(in.dims[d]);
    p.kept_from.push_back(in.strides[d]);
    p.kept_to.push_back(out.strides[at++]);
  }
  return p;
}

ReductionPlan converting_plan(const sdk::StepContext& context) {
  ReductionPlan p = reduction_plan(context);
  p.as = p.to;
  return p;
}

}  // namespace backplane::onednn
