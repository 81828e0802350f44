// A straight-line program over registers that hold a block of elements: any DAG of pointwise
// operations over one iteration space, with loads that broadcast and convert, and, where a block is
// a whole row, reductions of the row (softmax, norms) in the same pass.
#pragma once

#include "kernels/rows/block.h"
#include "kernels/rows/row_stage.h"

#include <array>
#include <type_traits>
#include <utility>
#include <vector>

namespace backplane::onednn {

using Register = std::uint32_t;
inline constexpr Register kNoRegister = 0xffffffffU;

class RowProgram {
 public:
  static constexpr std::size_t kSources = std::extent_v<decltype(BlockArgs::sources)>;
  struct RegisterInfo {
    Domain domain;
    bool narrow;  // one value for the whole block
  };
  struct Load {
    Register target;
    std::uint32_t operand;
    Type type;
  };
  struct Constant {
    Register target;
    double real;
    std::int64_t integer;
  };
  struct Instruction {
    BlockFunction function;
    Register target, second;
    std::array<Register, kSources> sources;
    bool whole_row;  // takes the true number of elements
    bool may_share;  // the target may take the place of a source that ends here
    double parameter = 0;
  };
  struct Store {
    Register source;
    std::uint32_t result;
    Type type;
  };

  Register load(std::uint32_t operand, Type type, Domain domain, bool narrow);
  Register constant(Domain domain, double real, std::int64_t integer);
  // Throws std::invalid_argument where the operation has no meaning in the domain.
  Register apply(Opcode op, Register a, Register b = kNoRegister, Register c = kNoRegister,
                 Register d = kNoRegister, Register e = kNoRegister);
  // exp(a - b) and its sum over the row.
  std::pair<Register, Register> exp_sum(Register a, Register b);
  // The mean of the row and 1 / sqrt(its variance + eps).
  std::pair<Register, Register> moments(Register a, double eps);
  Register softmax(Register a);
  Register convert(Register from, Domain to);
  // A narrow value repeated over the block.
  Register widen(Register from);
  void store(Register source, std::uint32_t result, Type type);

  const RegisterInfo& info(Register r) const { return registers_[r]; }
  const std::vector<RegisterInfo>& registers() const { return registers_; }
  const std::vector<Load>& loads() const { return loads_; }
  const std::vector<Constant>& constants() const { return constants_; }
  const std::vector<Instruction>& instructions() const { return instructions_; }
  const std::vector<Store>& stores() const { return stores_; }

 private:
  Register add_register(Domain domain, bool narrow);

  std::vector<RegisterInfo> registers_;
  std::vector<Load> loads_;
  std::vector<Constant> constants_;
  std::vector<Instruction> instructions_;
  std::vector<Store> stores_;
};

// Where a tensor lies in the iteration space, which has outer dims and a block of rows x inner.
struct RowTensor {
  Shape outer;  // strides over the outer dims, in elements
  std::int64_t row_stride = 0;
  std::int64_t inner_stride = 0;
  Shape offsets;       // of the inner elements, where one stride does not say it
  bool empty = false;  // has no element that may be read or written
};

struct RowSpace {
  Shape outer;            // sizes
  std::int64_t rows = 1;  // of the dim that blocks of several rows come from
  std::int64_t inner = 1;
  bool whole_rows = false;  // blocks are whole single rows: the program reduces
  std::vector<RowTensor> operands, results;
};

// Runs a program over a space. Safe from several threads at once.
class RowExecutor {
 public:
  RowExecutor(RowProgram program, RowSpace space);
  std::uint64_t scratch_bytes() const;
  void run(std::byte* const* operands, std::byte* const* results, std::byte* scratch) const;

 private:
  struct Frame;
  void run_units(const Frame& frame, std::int64_t begin, std::int64_t end,
                 std::byte* scratch) const;
  void allocate();
  RowStage stage_of(const RowTensor& tensor, Type type, Register r);

  RowProgram program_;
  RowSpace space_;
  std::int64_t chunk_ = 0, unit_rows_ = 1;  // block shape
  std::int64_t chunks_ = 1, row_units_ = 1, outer_units_ = 1;
  std::int64_t slot_bytes_ = 0, slot_count_ = 0, narrow_bytes_ = 0;
  int threads_ = 1;
  std::vector<std::int64_t> place_;  // byte offset of each register in scratch
  std::vector<LoadFunction> load_functions_;
  std::vector<StoreFunction> store_functions_;
  std::vector<bool> load_direct_, load_invariant_, store_direct_;
  // Per load and per store: no step where it is not staged.
  std::vector<RowStage> load_stages_, store_stages_;
  std::int64_t stage_bytes_ = 0;
};

}  // namespace backplane::onednn
