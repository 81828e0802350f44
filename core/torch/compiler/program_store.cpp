#include "core/torch/compiler/program_store.h"

#include <c10/util/ScopeExit.h>

#include <utility>

#include "core/base/log.h"
#include "core/torch/compiler/read_for_gradients.h"

namespace backplane::compiler {

namespace {

// What shares a program has one structure.
std::shared_ptr<const ir::FlatGraph> flatten(const record::Recorded& recorded, bool all_static,
                                             const std::vector<std::int64_t>& key) {
  auto flat = std::make_shared<ir::FlatGraph>(*flatten_with_border(recorded));
  const std::vector<std::int64_t>& part = all_static ? flat->numbers : key;
  flat->structure.insert(flat->structure.end(), part.begin(), part.end());
  return flat;
}

}  // namespace

Result<std::shared_ptr<StagedProgram>> ProgramStore::compile(
    record::Recorded recorded, const std::string& name, const std::vector<at::Tensor>& examples,
    const CutEntry::Eager& eager) const {
  CutOptions options = options_;
  options.name = name;
  if (foreign_) {
    if (recorded.graph.inputs.size() == recorded.border.argument_count)
      return foreign_(std::move(recorded), examples);
    log(LogLevel::kWarning, options.name +
                                " has gradients: PyTorch runs its forward and backward graphs, as "
                                "other back ends get graphs without gradients only");
  }
  BP_ASSIGN_OR_RETURN(std::shared_ptr<StagedProgram> made,
                      CutEntry::compile(std::move(recorded), options, eager));
  return made;
}

Result<Program> ProgramStore::add(record::Recorded recorded, const SizeChoice& sizes,
                                  const std::vector<at::Tensor>& examples,
                                  const CutEntry::Eager& eager, const Accept& accept) {
  BP_RETURN_IF_ERROR(check_process(options_.devices));
  // Before a known structure serves it, whose own arguments were others.
  BP_RETURN_IF_ERROR(refuse_saved_inference_tensors(recorded));
  if (adding_.load(std::memory_order_relaxed) == std::this_thread::get_id())
    return Status(Code::kUnsupported, "called while its program is being compiled");
  BP_ASSIGN_OR_RETURN(const LongMutex::Lock lock,
                      mutex_.hold("Compiling '" + recorded.graph.name + "'"));
  adding_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  const auto done = c10::make_scope_exit([&] { adding_.store({}, std::memory_order_relaxed); });

  // A foreign compiler takes numbers, not our classes of sizes.
  const bool all_static = sizes.all_static || foreign_;
  SizeFamily::Invent invent;
  if (sizes.inventor && !all_static)
    invent = [&](const ir::FlatGraph& first) {
      return sizes.inventor->samples(
          [&](const InventedSizes& invented) -> Result<SizeInventor::Sample> {
            BP_ASSIGN_OR_RETURN(const record::Recorded other, sizes.record(invented));
            SizeInventor::Sample flat = flatten(other, all_static, sizes.key);
            if (flat->structure != first.structure)
              return Status(Code::kUnsupported, "it makes another graph there");
            return flat;
          },
          sizes.note);
    };
  auto flat = flatten(recorded, all_static, sizes.key);
  const std::string name = recorded.graph.name;
  BP_ASSIGN_OR_RETURN(
      SizeFamily::Member member,
      family_.add(
          std::move(recorded), std::move(flat),
          [&](record::Recorded given) { return compile(std::move(given), name, examples, eager); },
          invent));
  structures_.fetch_add(member.new_structure ? 1 : 0, std::memory_order_relaxed);
  splits_.fetch_add(member.split ? 1 : 0, std::memory_order_relaxed);
  if (member.is_new && accept)
    for (Stage& stage : member.entry->stages()) BP_RETURN_IF_ERROR(accept(std::move(stage)));
  return Program{std::move(member.entry), std::move(member.sizes)};
}

}  // namespace backplane::compiler
