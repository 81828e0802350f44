// Work split over the host's threads: rows, and reductions. In the body of parallel_for, or with
// one thread, all of it runs where it is called.
#pragma once

#include <backplane/sdk/core.hpp>

#include <algorithm>
#include <memory>

namespace backplane::sdk {

// Bytes that a part reads at least, so that it is worth a thread.
inline constexpr std::size_t kBytesOfAPart = std::size_t{32} << 10;

// How many rows make a part, of which each reads so many bytes.
constexpr std::size_t rows_of_a_part(std::size_t bytes_of_a_row) {
  return std::max<std::size_t>(1, kBytesOfAPart / std::max<std::size_t>(1, bytes_of_a_row));
}

// body(begin, end) answers a Status; every row belongs to one part.
template <class Body>
Status split_rows(std::size_t rows, std::size_t bytes_of_a_row, const Body& body) {
  return parallel_for(rows, rows_of_a_part(bytes_of_a_row), body);
}

// out = join(...join(join(out, part(0, n)), part(n, 2n))...): parts have one length, and are joined
// in order, so that the result does not depend on how many threads there are. T is copied.
template <class T, class Part, class Join>
Status split_reduction(std::size_t count, std::size_t bytes_of_an_element, T& out, const Part& part,
                       const Join& join) {
  const std::size_t length = rows_of_a_part(bytes_of_an_element);
  const std::size_t parts = (count + length - 1) / length;
  const std::unique_ptr<T[]> found(new T[parts]());
  BP_SDK_RETURN_IF_ERROR(parallel_for(parts, 1, [&](std::size_t begin, std::size_t end) -> Status {
    for (std::size_t p = begin; p < end; ++p)
      found[p] = part(p * length, std::min(count, (p + 1) * length));
    return {};
  }));
  for (std::size_t p = 0; p < parts; ++p) out = join(out, found[p]);
  return {};
}

}  // namespace backplane::sdk
