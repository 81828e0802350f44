// SHA-256 (FIPS 180-4), for names of cache files and libraries.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace backplane::runtime {

class Sha256 {
 public:
  using Digest = std::array<std::uint8_t, 32>;
  void update(std::string_view bytes);
  Digest finish();  // once, last

 private:
  void compress(const std::uint8_t* block);
  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::uint8_t, 64> block_{};
  std::size_t filled_ = 0;
  std::uint64_t total_bytes_ = 0;
};

Sha256::Digest sha256(std::string_view bytes);
std::string to_hex(const Sha256::Digest& digest);

}  // namespace backplane::runtime
