// Ed25519 signatures, checked by the system's OpenSSL, which is loaded at the first question.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"

namespace backplane::runtime {

using PublicKey = std::array<std::uint8_t, 32>;
using Signature = std::array<std::uint8_t, 64>;

// An error where no OpenSSL is there to say; else whether the signature fits.
Result<bool> verify_ed25519(const PublicKey& key, std::string_view message,
                            const Signature& signature);

// Null where the text is not base64 (RFC 4648, with padding).
std::optional<std::vector<std::uint8_t>> decode_base64(std::string_view text);

}  // namespace backplane::runtime
