// Recordings of one program at several sizes: those of one structure share a compiled program.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/base/status.h"
#include "core/ir/generalize.h"
#include "core/torch/autograd/cut_program.h"
#include "core/torch/compiler/cut_entry.h"
#include "core/torch/record/recorder.h"

namespace backplane::compiler {

// What goes in and out belongs to its structure, but for sizes.
std::shared_ptr<const ir::FlatGraph> flatten_with_border(const record::Recorded& recorded);

// One caller at a time.
class SizeFamily {
 public:
  using Compile = std::function<Result<std::shared_ptr<StagedProgram>>(record::Recorded)>;
  // More recordings of a structure that is new; those of another structure are left out.
  using Samples = std::vector<std::shared_ptr<const ir::FlatGraph>>;
  using Invent = std::function<Result<Samples>(const ir::FlatGraph& first)>;

  struct Member {
    std::shared_ptr<StagedProgram> entry;
    std::shared_ptr<const autograd::SizeRecord> sizes;
    bool is_new = false;         // compiled for it
    bool new_structure = false;  // the first of its structure
    bool split = false;          // refuted a guess about others
  };

  // `compile` is called where no program serves the recording. What `invent` refuses stays unknown.
  Result<Member> add(record::Recorded recorded, std::shared_ptr<const ir::FlatGraph> flat,
                     const Compile& compile, const Invent& invent = {});

 private:
  // What was recorded of one structure, and the last that was compiled for it.
  struct Structure {
    std::vector<std::shared_ptr<const ir::FlatGraph>> samples;
    record::Recorded first;  // samples[0]
    std::optional<ir::GeneralGraph> general;
    std::shared_ptr<StagedProgram> entry;
  };
  static Result<std::vector<std::int64_t>> generalize(Structure& structure,
                                                      const ir::FlatGraph& flat,
                                                      const Compile& compile);

  std::list<Structure> structures_;
};

}  // namespace backplane::compiler
