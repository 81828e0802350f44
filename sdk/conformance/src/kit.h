// A plugin under test, and the cases that it is tested with.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/runtime/plugin/plugin.h"
#include "sdk/conformance/src/corpus.h"

namespace backplane::conformance {

enum class Verdict : std::uint8_t {
  kPass,
  kFail,
  kUnsupported,  // the plugin claims none of it
  kUndelegated,  // claimed, and run by somebody else all the same
  kMistrusted,   // nothing was compared that could have been wrong
};
std::string_view verdict_name(Verdict verdict);

struct Outcome {
  Verdict verdict = Verdict::kPass;
  std::string text;           // of a failure: what was expected and found
  double share_of_bound = 0;  // of the worst element
  std::string graph;          // of a failure: what `backplane replay` runs
  std::string operators;      // that the plugin ran, by comma

  static Outcome fail(std::string text) { return {Verdict::kFail, std::move(text), 0, {}, {}}; }
  static Outcome unsupported(std::string text) {
    return {Verdict::kUnsupported, std::move(text), 0, {}, {}};
  }
  static Outcome mistrusted(std::string text) {
    return {Verdict::kMistrusted, std::move(text), 0, {}, {}};
  }
  // Of what is wrong; empty: a pass.
  static Outcome of(std::string wrong) {
    return wrong.empty() ? Outcome{} : fail(std::move(wrong));
  }
};

struct Files {
  std::string plugin;  // absolute
  std::string oracle;  // of the plugin `reference`
  std::string corpus;  // folder of operators.txt, gradients.txt and random.txt
  std::uint32_t device = 0;
};

// Loads what a case asks for, once.
class Kit {
 public:
  explicit Kit(Files files) : files_(std::move(files)) {}

  const Files& files() const { return files_; }
  Result<runtime::Device*> device();
  Result<runtime::Device*> oracle();

 private:
  Files files_;
  std::unique_ptr<runtime::Plugin> plugin_, oracle_;
};

// Cases of one door may share a process.
enum class Door : std::uint8_t {
  kAny,    // does not load the plugin
  kHost,   // through the host's runtime
  kTable,  // through the plugin's table
  kAlone,  // wants a process that has not loaded it
};
std::string_view door_name(Door door);

struct Case {
  std::string id;  // "operators:abs/f32/0"; the family stands before the colon
  int level = 0;
  Door door = Door::kHost;
  std::function<Outcome(Kit& kit)> run;
};

// All cases, in the order in which they run. Case ids are unique. `corpus` outlives them.
struct Corpus {
  std::vector<CorpusGraph> operators, gradients, random;
  // The first of each operator in float32, where it computes all of its outputs and shows no views.
  std::vector<const CorpusGraph*> plain;
  static Result<Corpus> read(const std::string& folder);
};
std::vector<Case> all_cases(const Corpus& corpus);

// The families, each in a file of its own.
void add_graph_cases(const Corpus& corpus, std::vector<Case>& out);
void add_unary_cases(const Corpus& corpus, std::vector<Case>& out);
void add_digits_cases(std::vector<Case>& out);
void add_element_cases(std::vector<Case>& out);
void add_package_cases(std::vector<Case>& out);
void add_negotiation_cases(const Corpus& corpus, std::vector<Case>& out);
void add_misuse_cases(const Corpus& corpus, std::vector<Case>& out);
void add_life_cases(const Corpus& corpus, std::vector<Case>& out);
void add_memory_cases(const Corpus& corpus, std::vector<Case>& out);
void add_service_cases(const Corpus& corpus, std::vector<Case>& out);

}  // namespace backplane::conformance
