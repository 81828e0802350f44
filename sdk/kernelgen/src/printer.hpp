// Prints the statements that compute a kernel's stores at one point, or at a vector of points.
#pragma once

#include <backplane/kernelgen/kernel.hpp>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "group_plan.hpp"

namespace backplane::kernelgen {

// Variables of the outer axes [0, count) from a flat index, which counts `chunk` points of the last
// one at a time.
std::string decode_points(const Kernel& kernel, std::size_t count, const std::string& flat,
                          const std::string& type, std::int64_t chunk = 1);

class PointPrinter {
 public:
  static constexpr std::size_t kNoAxis = SIZE_MAX;
  static constexpr std::int64_t kSumBlock = 1024;  // elements of a compensated sum's blocks

  // `lane_axis`: the axis that vectors run along (an outer axis, or the last loop axis).
  PointPrinter(const Kernel& kernel, Dialect dialect, std::size_t lane_axis,
               const Schedule& schedule);

  // With `wide`, and lanes along an outer axis, at `lanes` points; else at one.
  std::string point(bool wide);
  // At `count` points in a row of the last outer axis, which begin at its variable: whole chunks
  // are read and written where all addresses allow, else one element after the other. Of kernels
  // without loops for which `chunk` is not 0.
  std::string points(std::int64_t count);
  // What a work-group computes that shares rows or columns.
  std::string group(const GroupPlan& plan);
  // Points of which some operands lie along another axis than the results: `loads` along `from`,
  // the rest along `to`. A group takes a square of both.
  struct Tile {
    std::size_t to = 0, from = kNoAxis;
    std::int64_t side = 0, group = 0;
    std::int64_t chunk = 1, read = 1;  // elements of an access along `to` and along `from`
    std::vector<Expr> loads;
  };
  // Of a group of so many work-items; nothing where points are best computed as they lie.
  std::optional<Tile> plan_tile(std::int64_t group) const;
  std::int64_t tile_count(const Tile& tile) const;
  std::string tile(const Tile& tile);
  // What a group's work-items keep of each element that several passes need.
  std::int64_t kept_bytes() const;
  // How many points are best computed at a time; 0: one.
  std::int64_t chunk() const;
  // Stores that are in no order with others: the kernel's text ends with BP_STREAMED.
  bool streams() const;

 private:
  using Key = std::pair<Expr, bool>;

  bool varies(Expr e) const { return lane_axis_ != kNoAxis && (mask(e) >> lane_axis_ & 1) != 0; }
  std::uint64_t mask(Expr e) const { return masks_[static_cast<std::size_t>(e)]; }
  std::int32_t depth(Expr e) const { return depths_[static_cast<std::size_t>(e)]; }
  bool in_loops(Expr e) const { return (mask(e) & loop_mask_) != 0; }
  bool lanes_in_loop() const { return lane_axis_ != kNoAxis && lane_axis_ >= kernel_.outer_count; }

  void analyse();
  void find_passes();
  void choose_kept();
  bool is_dear_again(Expr e) const;
  void mark_reached(Expr e, std::vector<bool>& reached) const;
  std::string ref(Expr e, bool wide);
  std::string text(Expr e, bool wide);
  std::string kept_name(Expr e) const;
  std::string kept_value(Expr e, bool wide) const;
  void keep_value(Expr e, const std::string& value, bool wide);
  std::string text_binary(const Node& n, bool wide);
  std::string text_whole(const std::string& a, const char* op, const std::string& b, Type type,
                         std::int64_t width);
  std::string text_negative(const std::string& a, Type type, bool wide);
  std::string text_quotient(const Node& n, const char* op, const std::string& a,
                            const std::string& b, bool wide);
  std::string text_unary(const Node& n, bool wide);
  std::string text_load(const Node& n, bool wide);
  std::string text_cast(const std::string& from, Type from_type, Type to, bool wide);
  std::string call_own(Op op, bool wide, const std::string& arguments);
  std::string literal(const Node& n) const;
  std::string splat(Type type, const std::string& value) const;
  std::string truth(const std::string& comparison, Type of, bool wide) const;
  std::string fold(Reduction how, Type type, const std::string& a, const std::string& b,
                   std::int64_t width);
  std::string combine(Reduction how, Type type, const std::string& a, const std::string& b,
                      bool wide);
  std::string join(Reduction how, Type type, const std::string& a, const std::string& b,
                   std::int64_t width);
  std::string initial(Reduction how, Type type) const;

  void line(const std::string& statement);
  void open(const std::string& head);
  void close();
  // Prints `body(wide, copy)` inside the loops over the loop axes; `copies` of it side by side, and
  // again for what vectors leave. `end_block` comes after at most kSumBlock points along vectors.
  void loops(const std::function<void(bool, std::int64_t)>& body, bool wide_outside,
             std::int64_t copies, const std::function<void()>& end_block);
  bool has_empty_loop() const;
  void hoist(Expr e, bool wide);

  // Reductions: variables r<n>, along vectors their parts q<n>, by copy.
  void reduce_phase(const std::vector<Expr>& reductions, bool wide);
  static std::string partial(Expr r, std::int64_t copy);
  static std::string blocks(Expr r);  // the sum of whole blocks
  bool is_compensated(Expr r) const;
  void declare(Expr r, bool wide, std::int64_t copies);
  void declare_columns(Expr r, const std::string& start);
  void add_compensated(const std::string& sum, const std::string& value, bool vector);
  void update_position(Expr r, const std::string& name, const std::string& value, bool vector);
  void join_copies(Expr r, std::int64_t copies);
  void end_block(Expr r, std::int64_t copies);
  void join_lanes(Expr r);

  // A group's rows or columns. `lane`: which of a row's work-items, or which line of columns;
  // `live`: has a row or column, where some have none.
  struct Chunk {
    std::string name;
    std::size_t tensor;
    Storage storage;
    Expr offset;
    bool is_stored;
    std::vector<bool> passes;  // that need it
    bool is_held;              // from its first pass on
  };
  std::vector<Expr> needed_loads() const;
  std::string tile_text(const Tile& tile, bool in_words);
  void tile_loop(const Tile& tile, std::int64_t chunk, const std::string& begin,
                 const std::string& to, const std::function<void()>& body);
  void check_alignment_of(std::size_t tensor, Expr offset, std::int64_t bytes);
  std::string begin_group();
  std::string begin_points(const std::string& flat, std::int64_t chunk) const;
  void find_chunks(bool in_words);
  Chunk* add_chunk(std::size_t tensor, Storage storage, Expr offset, bool is_stored);
  void declare_chunk(const Chunk& c, std::int64_t count);
  void copy_chunk(const Chunk& c);
  void copy_words(std::int64_t element_bytes, std::int64_t count, const std::string& held,
                  bool is_stored);
  void check_alignment();
  std::string group_point();
  void group_loop(const std::function<void()>& body);
  void begin_step();
  void columns_of_chunk(const std::function<void()>& body);
  void join_group(const std::vector<Expr>& reductions);
  void join_warps(const std::vector<Expr>& reductions);
  void join_tree(Expr r);
  void join_lines(Expr r);
  std::string group_items() const;
  std::int64_t sharers() const;  // work-items of all groups that share a row or column
  std::int64_t steps() const;
  std::string element_index() const;

  // Whether elements lie next to each other along the last outer axis.
  bool is_dense(Expr offset) const;
  std::string chunk_of(std::size_t tensor, Expr offset) const;

  bool is_streamed(const Store& s) const;
  bool is_walked(const Store& s) const;
  void read_ahead();
  void store(const Store& s, bool wide);
  void add_to(const Store& s, bool wide);
  void store_non_zero(const Store& s, bool wide);

  const Kernel& kernel_;
  const Expressions& e_;
  Dialect dialect_;
  std::size_t lane_axis_;
  std::int64_t lanes_;
  GroupPlan plan_;
  bool grouped_ = false;
  std::vector<Chunk> group_chunks_;
  std::int64_t shared_ = 0;  // words of the group's memory that are taken
  bool is_partial_ = false;  // some work-items of the last group have no row or column
  std::int64_t stream_bytes_;
  std::int64_t vectors_ = 0;  // of an unrolled row; 0: it is a loop
  std::int64_t vector_ = 0;   // the one that is printed
  std::uint64_t loop_mask_ = 0;
  std::vector<std::uint64_t> masks_;
  std::vector<std::int32_t> depths_;
  std::vector<bool> needed_;  // by stores
  std::vector<Expr> reductions_;
  std::int32_t deepest_ = 0;                // of the reductions
  std::vector<std::vector<bool>> reached_;  // by pass: what its loops compute
  std::vector<std::map<Key, std::string>> scopes_;
  std::string out_;
  std::size_t indent_ = 1;
  // Values that several passes over a row need and that are dear to compute: the first pass keeps
  // them in private memory. By expression: that pass, 0 where it is not kept.
  std::vector<std::int32_t> kept_;
  struct Place {
    std::string name, index;
  };
  std::map<std::string, Place> chunks_;  // by tensor and offset: where its element is held
  std::int32_t pass_ = 0;  // reductions of this depth; one more than the deepest: the stores
};

}  // namespace backplane::kernelgen
