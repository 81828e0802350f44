// What a recorded program gives back: each result, and how it relates to arguments and other
// results.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <array>
#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "core/torch/record/handed.h"
#include "core/torch/record/recorder.h"

namespace backplane::record {

class Outputs {
 public:
  // All outlive it. `had_grad`, `in_inference`: of the caller.
  Outputs(Session& session, const std::vector<Handed>& handed, bool had_grad, bool in_inference)
      : session_(session), handed_(handed), had_grad_(had_grad), in_inference_(in_inference) {}

  Status add(const c10::IValue& result);
  // After the last: who is a view of whom. Adds what results are parts of, to `program` too where
  // there is one.
  Status relate(ProgramTape* program);

  std::size_t size() const { return infos_.size(); }
  OutputInfo& info(std::size_t output) { return infos_[output]; }
  const at::Tensor& tensor(std::size_t output) const {
    return tensors_[output];
  }                                                                        // plain: undefined
  ValueNumber value(std::size_t output) const { return values_[output]; }  // plain: kNoValue
  // A view that the caller's own autograd differentiates.
  bool is_differentiated_view(std::uint32_t output) const;
  std::vector<OutputInfo> take() { return std::move(infos_); }

 private:
  const Handed& find_handed(std::uint32_t argument) const;
  bool is_handed(const at::Tensor& tensor) const;
  // As its graph output lies, which need not be as the program's tensor does (layout.h).
  const at::Tensor& meta_of(std::uint32_t output) const;
  bool reads_memory_otherwise(ValueNumber view, std::array<ValueNumber, 2> bases) const;
  void show_memory_of(const Handed& handed, const at::Tensor& view, OutputInfo& info) const;
  Status find_base(const at::Tensor& tensor, std::uint32_t index, OutputInfo& info);
  void show_views_of_their_own_base();
  void show_views_of_parts(std::uint32_t whole);
  bool may_be_base(const at::Tensor& base, const at::Tensor& view) const;
  at::Tensor whole_of_parts(std::uint32_t first);
  Status find_whole_of_parts(ProgramTape* program);
  void find_shared_counters();

  Session& session_;
  const std::vector<Handed>& handed_;
  const bool had_grad_, in_inference_;
  std::vector<OutputInfo> infos_;
  std::vector<at::Tensor> tensors_;
  std::vector<ValueNumber> values_;
};

}  // namespace backplane::record
