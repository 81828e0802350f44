// Sums over all but the channels of dense images [N, C, area], or of rows of channels.
#pragma once

#include <algorithm>

#include "kernels/rows/column_runs.h"
#include "kernels/rows/float_rows.h"
#include "parallel.h"

namespace backplane::onednn {

class ChannelSum {
 public:
  // `inside`: memory is rows of channels, `area` of them per image.
  ChannelSum(std::int64_t images, std::int64_t channels, std::int64_t area, bool inside, Type from,
             Type to)
      : images_(images),
        channels_(channels),
        area_(area),
        inside_(inside),
        from_(from),
        read_(from),
        write_(to),
        parts_(team_size(inside ? images * area : channels, work())) {}

  std::uint64_t scratch_bytes() const {
    return static_cast<std::uint64_t>((inside_ ? 3 * parts_ : 1) * channels_) * sizeof(float);
  }
  void run(const std::byte* data, std::byte* out, std::byte* scratch) const {
    auto* sums = reinterpret_cast<float*>(scratch);
    parallel_ranges(parts_, work(), [&](int, std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part)
        inside_ ? add_rows(data, sums, part) : add_planes(data, sums, part);
    });
    for (std::int64_t part = 1; inside_ && part < parts_; ++part)
      row_loops().add_row(sums, sums + part * channels_, 1, channels_);
    write_.put(out, 0, channels_, sums);
  }

 private:
  std::int64_t work() const { return images_ * channels_ * area_; }

  void add_rows(const std::byte* data, float* sums, std::int64_t part) const {
    float *own = sums + part * channels_, *room = sums + (parts_ + part) * channels_;
    ColumnRuns runs(own, sums + (2 * parts_ + part) * channels_, channels_);
    const std::int64_t rows = images_ * area_;
    for (std::int64_t r = rows * part / parts_; r < rows * (part + 1) / parts_; ++r)
      row_loops().add_row(runs.next(), read_(data, r * channels_, channels_, room), 1, channels_);
    runs.finish();
  }
  void add_planes(const std::byte* data, float* sums, std::int64_t part) const {
    const auto plane = row_loops().plane_sums[from_ == Type::kF32 ? 0 : 1];
    for (std::int64_t c = channels_ * part / parts_; c < channels_ * (part + 1) / parts_; ++c) {
      float total = 0;
      for (std::int64_t image = 0; image < images_; ++image) {
        const std::byte* at = data + (image * channels_ + c) * area_ * bytes_of(from_);
        total += plane(at, at, 0, area_).grad;
      }
      sums[c] = total;
    }
  }

  std::int64_t images_, channels_, area_;
  bool inside_;
  Type from_;
  RowReader read_;
  RowWriter write_;
  std::int64_t parts_;
};

}  // namespace backplane::onednn
