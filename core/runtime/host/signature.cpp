#include "core/runtime/host/signature.h"

#include <dlfcn.h>

namespace backplane::runtime {
namespace {

// The part of OpenSSL's interface that is needed: the same since 1.1.1. Its id of Ed25519 keys.
constexpr int kEd25519 = 1087;
struct OpenSsl {
  void* (*new_key)(int type, void* engine, const unsigned char* key, std::size_t size) = nullptr;
  void (*free_key)(void* key) = nullptr;
  void* (*new_context)() = nullptr;
  void (*free_context)(void* context) = nullptr;
  int (*begin)(void* context, void** key_context, const void* digest, void* engine,
               void* key) = nullptr;
  int (*verify)(void* context, const unsigned char* signature, std::size_t signature_size,
                const unsigned char* message, std::size_t size) = nullptr;
  bool is_there = false;
};

const OpenSsl& open_ssl() {
  static const OpenSsl loaded = [] {
    OpenSsl out;
    for (const char* name : {"libcrypto.so.3", "libcrypto.so.1.1"}) {
      void* const library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (library == nullptr) continue;
      const auto find = [&](auto& function, const char* symbol) {
        function =
            reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, symbol));
        return function != nullptr;
      };
      out.is_there =
          find(out.new_key, "EVP_PKEY_new_raw_public_key") && find(out.free_key, "EVP_PKEY_free") &&
          find(out.new_context, "EVP_MD_CTX_new") && find(out.free_context, "EVP_MD_CTX_free") &&
          find(out.begin, "EVP_DigestVerifyInit") && find(out.verify, "EVP_DigestVerify");
      if (out.is_there) break;
    }
    return out;
  }();
  return loaded;
}

}  // namespace

Result<bool> verify_ed25519(const PublicKey& key, std::string_view message,
                            const Signature& signature) {
  const OpenSsl& ssl = open_ssl();
  if (!ssl.is_there)
    return Status(Code::kUnsupported,
                  "signatures are checked with OpenSSL, and neither libcrypto.so.3 nor "
                  "libcrypto.so.1.1 can be loaded; install it (Debian: libssl3)");
  void* const public_key = ssl.new_key(kEd25519, nullptr, key.data(), key.size());
  if (public_key == nullptr) return false;
  void* const context = ssl.new_context();
  const bool fits =
      context != nullptr && ssl.begin(context, nullptr, nullptr, nullptr, public_key) == 1 &&
      ssl.verify(context, signature.data(), signature.size(),
                 reinterpret_cast<const unsigned char*>(message.data()), message.size()) == 1;
  if (context != nullptr) ssl.free_context(context);
  ssl.free_key(public_key);
  return fits;
}

std::optional<std::vector<std::uint8_t>> decode_base64(std::string_view text) {
  static constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  if (text.size() % 4 != 0) return std::nullopt;
  std::size_t padding = 0;
  while (padding < 2 && padding < text.size() && text[text.size() - 1 - padding] == '=') ++padding;
  std::vector<std::uint8_t> out;
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool pad = i >= text.size() - padding;
    const std::size_t digit = pad ? 0 : kDigits.find(text[i]);
    if (digit == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    if (i % 4 != 3) continue;
    for (const int shift : {16, 8, 0}) out.push_back(static_cast<std::uint8_t>(bits >> shift));
    bits = 0;
  }
  out.resize(out.size() - padding);
  return out;
}

}  // namespace backplane::runtime
