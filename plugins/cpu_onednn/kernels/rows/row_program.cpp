#include "kernels/rows/row_program.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>

#include "parallel.h"

namespace backplane::onednn {
namespace {

// Elements of a block: a handful of registers of this size stay in the first-level cache.
constexpr std::int64_t kBlock = 1024;
// Rows shorter than this are taken several at a time.
constexpr std::int64_t kShortRow = 256;
constexpr std::int64_t kNarrowBytes = kLanes * 8;
constexpr std::size_t kRegisterLimit = 512;
constexpr std::int64_t kMostStaged =
    512 * 1024;  // bytes per tensor: stays in the second-level cache

std::array<Register, RowProgram::kSources> sources_of(std::initializer_list<Register> given) {
  std::array<Register, RowProgram::kSources> all;
  all.fill(kNoRegister);
  std::copy(given.begin(), given.end(), all.begin());
  return all;
}

std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }
std::int64_t element_size(Type t) { return bytes_of(t); }

}  // namespace

// ---- Building ----------------------------------------------------------------------------------

Register RowProgram::add_register(Domain domain, bool narrow) {
  if (registers_.size() >= kRegisterLimit)
    throw std::length_error("a pointwise group with too many values");
  registers_.push_back({domain, narrow});
  return static_cast<Register>(registers_.size() - 1);
}

Register RowProgram::load(std::uint32_t operand, Type type, Domain domain, bool narrow) {
  const Register r = add_register(domain, narrow);
  loads_.push_back({r, operand, type});
  return r;
}

Register RowProgram::constant(Domain domain, double real, std::int64_t integer) {
  for (const Constant& c : constants_)
    if (registers_[c.target].domain == domain && c.integer == integer &&
        std::memcmp(&c.real, &real, sizeof real) == 0)
      return c.target;
  const Register r = add_register(domain, true);
  constants_.push_back({r, real, integer});
  return r;
}

Register RowProgram::apply(Opcode op, Register a, Register b, Register c, Register d, Register e) {
  const Domain domain = registers_[a].domain;
  bool narrow = registers_[a].narrow;
  for (const Register r : {b, c, d, e}) {
    if (r == kNoRegister) continue;
    narrow = narrow && registers_[r].narrow;
    if (registers_[r].domain != domain) throw std::logic_error("registers of different domains");
  }
  const bool reduce = is_reduce(op);
  if (reduce) a = widen(a);
  const BlockFunction function = block_function(op, domain);
  if (function == nullptr)
    throw std::invalid_argument("an operation on floats that only integers have");
  const Register target = add_register(domain, narrow || reduce);
  instructions_.push_back(
      {function, target, kNoRegister, sources_of({a, b, c, d, e}), reduce, !reduce});
  return target;
}

std::pair<Register, Register> RowProgram::exp_sum(Register a, Register b) {
  a = widen(a);
  const Domain domain = registers_[a].domain;
  const Register target = add_register(domain, false), second = add_register(domain, true);
  instructions_.push_back(
      {block_function(Opcode::kExpSum, domain), target, second, sources_of({a, b}), true, true});
  return {target, second};
}

std::pair<Register, Register> RowProgram::moments(Register a, double eps) {
  a = widen(a);
  const Domain domain = registers_[a].domain;
  const Register mean = add_register(domain, true), rstd = add_register(domain, true);
  instructions_.push_back(
      {block_function(Opcode::kMoments, domain), mean, rstd, sources_of({a}), true, false, eps});
  return {mean, rstd};
}

Register RowProgram::softmax(Register a) {
  a = widen(a);
  const Domain domain = registers_[a].domain;
  const Register target = add_register(domain, false);
  instructions_.push_back(
      {block_function(Opcode::kSoftmax, domain), target, kNoRegister, sources_of({a}), true, true});
  return target;
}

Register RowProgram::convert(Register from, Domain to) {
  if (registers_[from].domain == to) return from;
  const Register target = add_register(to, registers_[from].narrow);
  instructions_.push_back({convert_function(to, registers_[from].domain), target, kNoRegister,
                           sources_of({from}), false, false});
  return target;
}

Register RowProgram::widen(Register from) {
  if (!registers_[from].narrow) return from;
  const Register target = add_register(registers_[from].domain, false);
  instructions_.push_back({block_function(Opcode::kCopy, registers_[from].domain), target,
                           kNoRegister, sources_of({from}), false, false});
  return target;
}

void RowProgram::store(Register source, std::uint32_t result, Type type) {
  stores_.push_back({source, result, type});
}

// ---- Preparing ---------------------------------------------------------------------------------

RowExecutor::RowExecutor(RowProgram program, RowSpace space)
    : program_(std::move(program)), space_(std::move(space)), threads_(omp_get_max_threads()) {
  if (space_.whole_rows) {
    chunk_ = space_.inner;
  } else if (space_.inner >= kShortRow) {
    // Even pieces, whole vectors.
    const std::int64_t pieces = (space_.inner + kBlock - 1) / kBlock;
    chunk_ = std::min(space_.inner, round_up((space_.inner + pieces - 1) / pieces, kLanes));
  } else {
    chunk_ = space_.inner;
    unit_rows_ = std::clamp<std::int64_t>(kBlock / std::max<std::int64_t>(chunk_, 1), 1,
                                          std::max<std::int64_t>(space_.rows, 1));
  }
  const auto parts = [](std::int64_t n, std::int64_t size) {
    return size == 0 ? 0 : (n + size - 1) / size;
  };
  chunks_ = space_.whole_rows ? 1 : parts(space_.inner, chunk_);  // an empty row has a sum too
  row_units_ = parts(space_.rows, unit_rows_);
  outer_units_ = product(space_.outer);
  allocate();

  const std::int64_t count = chunk_ * unit_rows_;
  const auto dense = [&](const RowTensor& t) {
    return t.offsets.empty() && (t.inner_stride == 1 || chunk_ == 1) &&
           (unit_rows_ == 1 || t.row_stride == chunk_) && count % kLanes == 0;
  };
  for (const auto& load : program_.loads()) {
    const RowTensor& t = space_.operands[load.operand];
    const auto& info = program_.info(load.target);
    load_functions_.push_back(load_function(load.type, info.domain));
    load_direct_.push_back(!info.narrow && same_bits(load.type, info.domain) && dense(t));
    const bool fixed = t.row_stride == 0 && t.inner_stride == 0 && t.offsets.empty() &&
                       std::all_of(t.outer.begin(), t.outer.end(), [](auto s) { return s == 0; });
    load_invariant_.push_back(fixed);
    load_stages_.push_back(stage_of(t, load.type, load.target));
  }
  std::vector<int> stored(program_.registers().size(), 0);
  for (const auto& store : program_.stores()) ++stored[store.source];
  for (const auto& load : program_.loads()) stored[load.target] = 2;  // never written
  for (const auto& store : program_.stores()) {
    const auto& info = program_.info(store.source);
    store_functions_.push_back(store_function(store.type, info.domain));
    store_direct_.push_back(!info.narrow && stored[store.source] == 1 &&
                            same_bits(store.type, info.domain) &&
                            dense(space_.results[store.result]));
    store_stages_.push_back(stage_of(space_.results[store.result], store.type, store.source));
  }
}

RowStage RowExecutor::stage_of(const RowTensor& t, Type type, Register r) {
  const auto& info = program_.info(r);
  RowStage stage{space_.inner, bytes_of(info.domain), 0};
  const bool pays = space_.whole_rows && !info.narrow && t.offsets.empty() && !t.empty &&
                    t.row_stride == 1 && t.inner_stride > 1 && space_.rows > 1 && space_.inner > 1;
  if (!pays || stage.bytes() > kMostStaged) return stage;
  stage.step = t.inner_stride * element_size(type);
  stage_bytes_ += stage.bytes();
  return stage;
}

// Registers share places once their last reader has run.
void RowExecutor::allocate() {
  const auto& registers = program_.registers();
  const auto& instructions = program_.instructions();
  std::vector<std::size_t> last(registers.size(), 0);
  for (std::size_t i = 0; i < instructions.size(); ++i)
    for (const Register r : instructions[i].sources)
      if (r != kNoRegister) last[r] = i;
  for (const auto& store : program_.stores()) last[store.source] = instructions.size();
  // Invariant loads are filled once, before any block.
  for (const auto& load : program_.loads()) {
    const RowTensor& t = space_.operands[load.operand];
    if (t.row_stride == 0 && t.inner_stride == 0 && t.offsets.empty())
      last[load.target] = instructions.size();
  }

  bool wide8 = false;
  for (const auto& r : registers) wide8 = wide8 || (!r.narrow && bytes_of(r.domain) == 8);
  slot_bytes_ = round_up(round_up(chunk_ * unit_rows_, kLanes) * (wide8 ? 8 : 4), 64);

  std::vector<std::int64_t> slot(registers.size(), -1), free;
  const auto take = [&](Register r) {
    if (registers[r].narrow) return;
    if (free.empty()) {
      slot[r] = slot_count_++;
    } else {
      slot[r] = free.back();
      free.pop_back();
    }
  };
  for (const auto& load : program_.loads()) take(load.target);
  for (std::size_t i = 0; i < instructions.size(); ++i) {
    const auto& in = instructions[i];
    const auto release = [&] {
      for (std::size_t k = 0; k < RowProgram::kSources; ++k) {
        const Register r = in.sources[k];
        if (r == kNoRegister || registers[r].narrow || last[r] != i || slot[r] < 0) continue;
        if (std::find(in.sources.begin(), in.sources.begin() + k, r) != in.sources.begin() + k)
          continue;
        free.push_back(slot[r]);
      }
    };
    if (in.may_share) release();
    take(in.target);
    if (!in.may_share) release();
    if (last[in.target] == 0 && !registers[in.target].narrow) last[in.target] = i;
  }
  std::int64_t narrow = 0;
  place_.resize(registers.size());
  for (std::size_t r = 0; r < registers.size(); ++r)
    place_[r] = registers[r].narrow ? kNarrowBytes * narrow++ : slot[r] * slot_bytes_;
  narrow_bytes_ = round_up(kNarrowBytes * narrow, 64);
  for (std::size_t r = 0; r < registers.size(); ++r)
    if (!registers[r].narrow) place_[r] += narrow_bytes_;
}

std::uint64_t RowExecutor::scratch_bytes() const {
  // A line apart, so that threads do not share one.
  return static_cast<std::uint64_t>(
      (narrow_bytes_ + slot_count_ * slot_bytes_ + stage_bytes_ + 64) * threads_);
}

// ---- Running -----------------------------------------------------------------------------------

struct RowExecutor::Frame {
  std::byte* const* operands;
  std::byte* const* results;
};

void RowExecutor::run(std::byte* const* operands, std::byte* const* results,
                      std::byte* scratch) const {
  const std::int64_t units = outer_units_ * row_units_ * chunks_;
  if (units == 0) return;
  const Frame frame{operands, results};
  const std::int64_t elements = outer_units_ * space_.rows * space_.inner;
  const auto cost = static_cast<std::int64_t>(program_.instructions().size() + 1);
  const std::int64_t per_thread = static_cast<std::int64_t>(scratch_bytes()) / threads_;
  const int team = std::min(threads_, team_size(units, elements * cost));
  if (team <= 1) {
    run_units(frame, 0, units, scratch);
    return;
  }
  run_team(team, [&](std::int64_t thread, std::int64_t count) {
    run_units(frame, units * thread / count, units * (thread + 1) / count,
              scratch + thread * per_thread);
  });
}

void RowExecutor::run_units(const Frame& frame, std::int64_t begin, std::int64_t end,
                            std::byte* scratch) const {
  const auto& loads = program_.loads();
  const auto& stores = program_.stores();
  std::array<std::byte*, kRegisterLimit> at;
  for (std::size_t r = 0; r < place_.size(); ++r) at[r] = scratch + place_[r];
  for (const auto& c : program_.constants())
    splat(program_.info(c.target).domain, at[c.target], c.real, c.integer);

  const auto offset_of = [&](const RowTensor& t, const std::int64_t* index, std::int64_t row,
                             std::int64_t column) {
    std::int64_t offset = row * t.row_stride + column * t.inner_stride;
    for (std::size_t d = 0; d < space_.outer.size(); ++d) offset += index[d] * t.outer[d];
    return offset;
  };
  // One value into every lane.
  const auto fill = [&](std::size_t l, const std::byte* from) {
    std::byte* to = at[loads[l].target];
    const auto& info = program_.info(loads[l].target);
    load_functions_[l](to, from, 0, info.narrow ? kLanes : round_up(chunk_ * unit_rows_, kLanes));
  };

  std::array<std::int64_t, 16> index{};
  bool first = true;
  std::int64_t staged_until = 0, staged_row = 0;  // units, and the row of the first of them
  for (std::int64_t unit = begin; unit < end; ++unit, first = false) {
    std::int64_t rest = unit;
    const std::int64_t column = rest % chunks_ * chunk_;
    rest /= chunks_;
    const std::int64_t row = rest % row_units_ * unit_rows_;
    rest /= row_units_;
    for (std::size_t d = space_.outer.size(); d-- > 0;) {
      index[d] = rest % space_.outer[d];
      rest /= space_.outer[d];
    }
    const std::int64_t rows = std::min(unit_rows_, space_.rows - row);
    const std::int64_t columns = std::min(chunk_, space_.inner - column);
    const std::int64_t count = rows * columns;
    const bool whole = count % kLanes == 0;
    const std::int64_t padded = round_up(count, kLanes);
    std::byte* stage = scratch + narrow_bytes_ + slot_count_ * slot_bytes_;
    const bool fills_stages = stage_bytes_ != 0 && (first || unit == staged_until);
    if (fills_stages) {
      staged_row = row;
      staged_until = std::min({end, unit + kStagedRows, unit + space_.rows - row});
    }

    for (std::size_t l = 0; l < loads.size(); ++l) {
      const auto& load = loads[l];
      const RowTensor& t = space_.operands[load.operand];
      if (t.empty) continue;
      if (load_invariant_[l]) {
        if (first) fill(l, frame.operands[load.operand]);
        continue;
      }
      const std::int64_t size = element_size(load.type);
      std::byte* from = frame.operands[load.operand] +
                        offset_of(t, index.data(), row, t.offsets.empty() ? column : 0) * size;
      if (program_.info(load.target).narrow) {
        load_functions_[l](at[load.target], from, 0, kLanes);
      } else if (load_stages_[l].step != 0) {
        const RowStage& staged = load_stages_[l];
        if (fills_stages) staged.fill(stage, from, load_functions_[l], staged_until - unit);
        at[load.target] = stage + (row - staged_row) * staged.pitch();
        stage += staged.bytes();
      } else if (load_direct_[l] && whole) {
        at[load.target] = from;
      } else {
        std::byte* to = scratch + place_[load.target];
        at[load.target] = to;
        const std::int64_t step = bytes_of(program_.info(load.target).domain);
        if (!t.offsets.empty()) {
          for (std::int64_t i = 0; i < columns; ++i)
            load_functions_[l](to + i * step,
                               from + t.offsets[static_cast<std::size_t>(column + i)] * size, 1, 1);
        } else if (rows == 1 || t.row_stride == columns * t.inner_stride) {
          load_functions_[l](to, from, t.inner_stride, count);
        } else {
          for (std::int64_t r = 0; r < rows; ++r)
            load_functions_[l](to + r * columns * step, from + r * t.row_stride * size,
                               t.inner_stride, columns);
        }
      }
    }
    for (std::size_t s = 0; s < stores.size(); ++s) {
      if (!store_direct_[s]) continue;
      const RowTensor& t = space_.results[stores[s].result];
      at[stores[s].source] =
          whole ? frame.results[stores[s].result] +
                      offset_of(t, index.data(), row, column) * element_size(stores[s].type)
                : scratch + place_[stores[s].source];
    }

    for (const auto& in : program_.instructions()) {
      BlockArgs args{};
      args.target = at[in.target];
      args.second = in.second == kNoRegister ? nullptr : at[in.second];
      const bool narrow = !in.whole_row && program_.info(in.target).narrow;
      for (std::size_t k = 0; k < RowProgram::kSources; ++k) {
        const Register r = in.sources[k];
        if (r == kNoRegister) continue;
        args.sources[k] = at[r];
        args.steps[k] = program_.info(r).narrow && !narrow ? 0 : 1;
      }
      args.parameter = in.parameter;
      args.count = in.whole_row ? count : (narrow ? kLanes : padded);
      in.function(args);
    }

    for (std::size_t s = 0; s < stores.size(); ++s) {
      const auto& store = stores[s];
      const RowTensor& t = space_.results[store.result];
      if (t.empty || (store_direct_[s] && whole)) continue;
      const std::int64_t size = element_size(store.type);
      std::byte* to = frame.results[store.result] +
                      offset_of(t, index.data(), row, t.offsets.empty() ? column : 0) * size;
      const std::byte* from = at[store.source];
      const auto& info = program_.info(store.source);
      const std::int64_t step = bytes_of(info.domain);
      if (store_stages_[s].step != 0) {
        const RowStage& staged = store_stages_[s];
        std::memcpy(stage + (row - staged_row) * staged.pitch(), from,
                    static_cast<std::size_t>(count * step));
        if (unit + 1 == staged_until)
          staged.spill(to - (row - staged_row) * size, stage, store_functions_[s],
                       row + 1 - staged_row);
        stage += staged.bytes();
      } else if (info.narrow && space_.whole_rows && t.inner_stride == 0 && t.offsets.empty()) {
        store_functions_[s](to, 1, from, 1);  // one value a row
      } else if (info.narrow) {
        for (std::int64_t r = 0; r < rows; ++r)
          for (std::int64_t i = 0; i < columns; ++i) {
            const std::int64_t inner = t.offsets.empty()
                                           ? i * t.inner_stride
                                           : t.offsets[static_cast<std::size_t>(column + i)];
            store_functions_[s](to + (r * t.row_stride + inner) * size, 1, from, 1);
          }
      } else if (!t.offsets.empty()) {
        for (std::int64_t i = 0; i < columns; ++i)
          store_functions_[s](to + t.offsets[static_cast<std::size_t>(column + i)] * size, 1,
                              from + i * step, 1);
      } else if (rows == 1 || t.row_stride == columns * t.inner_stride) {
        store_functions_[s](to, t.inner_stride, from, count);
      } else {
        for (std::int64_t r = 0; r < rows; ++r)
          store_functions_[s](to + r * t.row_stride * size, t.inner_stride,
                              from + r * columns * step, columns);
      }
    }
  }
}

}  // namespace backplane::onednn
