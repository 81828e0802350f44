#include "core/runtime/host/signature.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace backplane::runtime {
namespace {

template <std::size_t N>
std::array<std::uint8_t, N> from_hex(std::string_view text) {
  std::array<std::uint8_t, N> out{};
  for (std::size_t i = 0; i < N; ++i)
    out[i] = static_cast<std::uint8_t>(std::stoi(std::string(text.substr(2 * i, 2)), nullptr, 16));
  return out;
}

// RFC 8032, section 7.1, test 1: an empty message.
TEST(Signature, FitsItsMessageAlone) {
  const auto key = from_hex<32>("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a");
  auto signature = from_hex<64>(
      "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9"
      "b4"
      "6bd25bf5f0595bbe24655141438e7a100b");
  const auto fits = verify_ed25519(key, "", signature);
  ASSERT_TRUE(fits.ok()) << fits.status().message();
  EXPECT_TRUE(*fits);
  EXPECT_FALSE(*verify_ed25519(key, "x", signature));
  signature[10] ^= 1;
  EXPECT_FALSE(*verify_ed25519(key, "", signature));
}

TEST(Signature, Base64) {
  const auto text = [](std::string_view encoded) -> std::string {
    const auto bytes = decode_base64(encoded);
    return bytes ? std::string(bytes->begin(), bytes->end()) : "none";
  };
  EXPECT_EQ(text(""), "");
  EXPECT_EQ(text("Zg=="), "f");
  EXPECT_EQ(text("Zm8="), "fo");
  EXPECT_EQ(text("Zm9vYmFy"), "foobar");
  for (const char* wrong : {"Z", "Zg=", "Z===", "Zg==Zg==", "Zm 9", "Zm9*"})
    EXPECT_EQ(text(wrong), "none") << wrong;
}

}  // namespace
}  // namespace backplane::runtime
