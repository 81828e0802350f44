#include "kernels/movement/strided_copy.h"

#include <cstring>

#include "parallel.h"

namespace backplane::onednn {
namespace {

// Square tiles keep both sides' lines in the cache.
constexpr std::int64_t kTile = 16;

class CopyKernel : public sdk::Kernel {
 public:
  explicit CopyKernel(StridedCopy copy) : copy_(std::move(copy)) {}
  sdk::Status run(const sdk::KernelCall& call) const override {
    copy_.run(call.results[0], call.operands[0]);
    return {};
  }

 private:
  StridedCopy copy_;
};

}  // namespace

StridedCopy::StridedCopy(const Shape& dims, const Shape& target, const Shape& source,
                         std::int64_t element)
    : walk_(dims, {target, source}), element_(element), empty_(product(dims) == 0) {
  walk_.sort_by(0);
  // The source's dense dim lies outside: two dims are walked in tiles.
  const std::size_t rank = walk_.dims.size();
  if (rank < 2 || walk_.inner_stride(0) != 1 || walk_.inner_stride(1) == 1) return;
  for (std::size_t d = 0; d + 1 < rank; ++d) {
    if (walk_.strides[1][d] != 1 || walk_.dims[d] < 4) continue;
    const auto move = [&](Shape& s) {
      const std::int64_t v = s[d];
      s.erase(s.begin() + static_cast<std::ptrdiff_t>(d));
      s.insert(s.end() - 1, v);
    };
    move(walk_.dims);
    for (Shape& s : walk_.strides) move(s);
    transposed_ = true;
    return;
  }
}

void StridedCopy::transpose(std::byte* target, const std::byte* source) const {
  const std::size_t rank = walk_.dims.size();
  const std::int64_t columns = walk_.dims[rank - 1], rows = walk_.dims[rank - 2];
  const std::int64_t target_row = walk_.strides[0][rank - 2],
                     source_column = walk_.strides[1][rank - 1];
  Walk outer = walk_;
  outer.dims.pop_back();
  for (Shape& s : outer.strides) s.pop_back();
  outer.dims.back() = (rows + kTile - 1) / kTile;
  outer.strides[0].back() = target_row * kTile;
  outer.strides[1].back() = kTile;
  // One unit is a strip of kTile rows; the cursor walks all outer dims, the last one too.
  outer.dims.push_back(1);
  for (Shape& s : outer.strides) s.push_back(0);
  const std::int64_t strips_per_matrix = outer.dims[rank - 2];
  with_size(element_, [&](auto sample) {
    using T = decltype(sample);
    parallel_ranges(
        outer.rows(), product(walk_.dims), [&](int, std::int64_t begin, std::int64_t end) {
          RowCursor<2> at(outer, begin);
          for (std::int64_t u = begin; u < end; ++u, at.next()) {
            auto* to = reinterpret_cast<T*>(target) + at.offset(0);
            const auto* from = reinterpret_cast<const T*>(source) + at.offset(1);
            const std::int64_t height = std::min(kTile, rows - u % strips_per_matrix * kTile);
            for (std::int64_t c0 = 0; c0 < columns; c0 += kTile) {
              const std::int64_t width = std::min(kTile, columns - c0);
              for (std::int64_t r = 0; r < height; ++r)
                for (std::int64_t c = c0; c < c0 + width; ++c)
                  to[r * target_row + c] = from[c * source_column + r];
            }
          }
        });
  });
}

void StridedCopy::run(std::byte* target, const std::byte* source) const {
  if (empty_) return;
  if (transposed_) return transpose(target, source);
  const std::int64_t inner = walk_.inner(), to_step = walk_.inner_stride(0),
                     from_step = walk_.inner_stride(1);
  const bool dense = inner == 1 || (to_step == 1 && from_step == 1);
  if (walk_.rows() == 1 && dense) {
    parallel_ranges(inner, inner, [&](int, std::int64_t begin, std::int64_t end) {
      std::memcpy(target + begin * element_, source + begin * element_,
                  static_cast<std::size_t>((end - begin) * element_));
    });
    return;
  }
  parallel_ranges(walk_.rows(), walk_.rows() * inner,
                  [&](int, std::int64_t begin, std::int64_t end) {
                    RowCursor<2> at(walk_, begin);
                    for (std::int64_t r = begin; r < end; ++r, at.next()) {
                      std::byte* to = target + at.offset(0) * element_;
                      const std::byte* from = source + at.offset(1) * element_;
                      if (dense) {
                        std::memcpy(to, from, static_cast<std::size_t>(inner * element_));
                        continue;
                      }
                      with_size(element_, [&](auto sample) {
                        using T = decltype(sample);
                        auto* t = reinterpret_cast<T*>(to);
                        const auto* f = reinterpret_cast<const T*>(from);
                        for (std::int64_t i = 0; i < inner; ++i) t[i * to_step] = f[i * from_step];
                      });
                    }
                  });
}

void strided_fill(const Shape& dims, const Shape& strides, std::int64_t element, std::byte* target,
                  std::uint64_t value) {
  if (product(dims) == 0) return;
  Walk walk(dims, {strides});
  walk.sort_by(0);
  with_size(element, [&](auto sample) {
    using T = decltype(sample);
    const auto v = static_cast<T>(value);
    const std::int64_t inner = walk.inner(), step = walk.inner_stride(0);
    parallel_ranges(walk.rows(), walk.rows() * inner,
                    [&](int, std::int64_t begin, std::int64_t end) {
                      RowCursor<1> at(walk, begin);
                      for (std::int64_t r = begin; r < end; ++r, at.next()) {
                        T* to = reinterpret_cast<T*>(target) + at.offset(0);
                        for (std::int64_t i = 0; i < inner; ++i) to[i * step] = v;
                      }
                    });
  });
}

sdk::Result<std::unique_ptr<sdk::Kernel>> make_copy_kernel(const sdk::TensorSpec& source,
                                                           const sdk::TensorSpec& target) {
  return std::unique_ptr<sdk::Kernel>(std::make_unique<CopyKernel>(
      StridedCopy(target.dims, target.strides, broadcast_strides(source, target.dims),
                  sdk::element_bytes(target.dtype))));
}

}  // namespace backplane::onednn
