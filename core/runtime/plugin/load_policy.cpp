#include "core/runtime/plugin/load_policy.h"

#include <sys/auxv.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>

namespace backplane::runtime {
namespace {

namespace fs = std::filesystem;

Status broken(const std::string& place, const std::string& what) {
  return {Code::kInvalidArgument, place + ": " + what + "; nothing is loaded until it is mended"};
}

bool is_sha256(std::string_view text) {
  return text.size() == 64 && std::ranges::all_of(text, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

// Calls `take(first word, the rest)` for each line. A file that is not there has none.
Status read_lines(const fs::path& path,
                  const std::function<std::string(std::string, std::string)>& take) {
  std::error_code error;
  if (!fs::exists(path, error)) {
    if (error) return broken(path.string(), error.message());
    return {};
  }
  std::ifstream file(path);
  if (!file) return broken(path.string(), "it cannot be read");
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    line = line.substr(0, line.find('#'));
    std::istringstream words(line);
    std::string first, rest;
    if (!(words >> first)) continue;
    std::getline(words >> std::ws, rest);
    while (!rest.empty() && std::isspace(static_cast<unsigned char>(rest.back())) != 0)
      rest.pop_back();
    if (std::string wrong = take(std::move(first), std::move(rest)); !wrong.empty())
      return broken(path.string() + ":" + std::to_string(number), wrong);
  }
  return {};
}

std::string add_word(LoadPolicy& policy, std::string_view word) {
  if (word == "off") return {};
  if (word != "allow-list" && word != "signed" && word != "signed+allow-list")
    return "\"" + std::string(word) +
           "\" is no policy; there are off, allow-list, signed, signed+allow-list";
  policy.wants_allowed = policy.wants_allowed || word.ends_with("allow-list");
  policy.wants_signature = policy.wants_signature || word.starts_with("signed");
  return {};
}

Status read_folder(const fs::path& folder, LoadPolicy& policy) {
  BP_RETURN_IF_ERROR(read_lines(
      folder / "policy",
      [&](const std::string& word, const std::string&) { return add_word(policy, word); }));
  BP_RETURN_IF_ERROR(
      read_lines(folder / "allowed", [&](std::string hash, const std::string&) -> std::string {
        if (!is_sha256(hash)) return "\"" + hash + "\" is no sha256";
        policy.allowed.insert(std::move(hash));
        return {};
      }));
  BP_RETURN_IF_ERROR(
      read_lines(folder / "denied", [&](std::string hash, std::string reason) -> std::string {
        if (!is_sha256(hash)) return "\"" + hash + "\" is no sha256";
        policy.denied[std::move(hash)] = std::move(reason);
        return {};
      }));
  std::error_code error;
  std::vector<fs::path> keys;
  for (fs::directory_iterator entry(folder / "trusted_keys", error), end; !error && entry != end;
       entry.increment(error))
    if (entry->path().extension() == ".pub") keys.push_back(entry->path());
  std::ranges::sort(keys);
  for (const fs::path& path : keys)
    BP_RETURN_IF_ERROR(read_lines(path, [&](const std::string& text, const std::string& name) {
      const auto bytes = decode_base64(text);
      PublicKey key;
      if (!bytes || bytes->size() != key.size()) return std::string("no Ed25519 public key");
      std::ranges::copy(*bytes, key.begin());
      policy.keys[key] = name.empty() ? path.stem().string() : name;
      return std::string();
    }));
  return {};
}

std::optional<fs::path> user_folder() {
  if (::getauxval(AT_SECURE) != 0) return std::nullopt;
  if (const char* config = std::getenv("XDG_CONFIG_HOME"); config != nullptr && *config == '/')
    return fs::path(config) / "backplane";
  if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/')
    return fs::path(home) / ".config/backplane";
  return std::nullopt;
}

// The value behind "name: " of the line that begins so.
std::optional<std::string> field(std::string_view text, std::string_view name) {
  const std::string head = std::string(name) + ": ";
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    if (line.starts_with(head)) return std::string(line.substr(head.size()));
    at = end + 1;
  }
  return std::nullopt;
}

}  // namespace

std::string LoadPolicy::text() const {
  if (loads_nothing) return "safe mode";
  if (wants_allowed && wants_signature) return "signed+allow-list";
  if (wants_signature) return "signed";
  return wants_allowed ? "allow-list" : "off";
}

Result<LoadPolicy> read_load_policy() {
  LoadPolicy out;
  BP_RETURN_IF_ERROR(read_folder("/etc/backplane", out));
  if (const auto folder = user_folder()) BP_RETURN_IF_ERROR(read_folder(*folder, out));
  if (const char* word = std::getenv("BACKPLANE_LOAD_POLICY"); word != nullptr && *word != 0)
    if (const std::string wrong = add_word(out, word); !wrong.empty())
      return broken("BACKPLANE_LOAD_POLICY", wrong);
  const char* const safe = std::getenv("BACKPLANE_SAFE_MODE");
  out.loads_nothing = safe != nullptr && *safe != 0 && std::string_view(safe) != "0";
  return out;
}

Result<Certificate> read_certificate(const std::string& path, std::string_view sha256,
                                     const LoadPolicy& policy, std::string_view today) {
  const auto bad = [&](const std::string& why) {
    return Status(Code::kInvalidArgument, path + " " + why);
  };
  constexpr std::uintmax_t kMost = 1 << 20;
  std::error_code error;
  const std::uintmax_t size = fs::file_size(path, error);
  if (error) return bad("is not there");
  std::ifstream file(path, std::ios::binary);
  std::string text(static_cast<std::size_t>(std::min(size, kMost)), '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  constexpr std::string_view kHead = "backplane-certificate 1\n", kSignature = "\nsignature: ";
  const std::size_t at = text.find(kSignature);
  if (!file || size > kMost || !text.starts_with(kHead) || at == std::string::npos)
    return bad("is no certificate");
  const std::string_view content = std::string_view(text).substr(0, at + 1);
  std::string_view written = std::string_view(text).substr(at + kSignature.size());
  if (!written.ends_with('\n')) return bad("is cut off");
  written.remove_suffix(1);
  const auto raw_signature = decode_base64(written);
  const auto raw_key = decode_base64(field(content, "key").value_or(""));
  PublicKey key;
  Signature signature;
  if (!raw_signature || raw_signature->size() != signature.size() || !raw_key ||
      raw_key->size() != key.size())
    return bad("is no certificate: key or signature cannot be read");
  std::ranges::copy(*raw_signature, signature.begin());
  std::ranges::copy(*raw_key, key.begin());
  const auto trusted = policy.keys.find(key);
  if (trusted == policy.keys.end()) return bad("is signed with a key that is not trusted");
  BP_ASSIGN_OR_RETURN(const bool fits, verify_ed25519(key, content, signature));
  if (!fits) return bad("was changed after it was signed: the signature does not fit");
  if (field(content, "sha256").value_or("") != sha256) return bad("is for another library");
  Certificate out;
  out.signer = trusted->second;
  out.end = field(content, "end").value_or("");
  const std::string level = field(content, "level").value_or("");
  const auto [end, code] = std::from_chars(level.data(), level.data() + level.size(), out.level);
  if (code != std::errc() || end != level.data() + level.size() || out.end.size() != 10)
    return bad("lacks level or end");
  if (out.end < today) return bad("ended on " + out.end);
  return out;
}

Status check_load(const LoadPolicy& policy, const std::string& library, std::string_view sha256,
                  std::string_view today) {
  const auto refuse = [](std::string why) {
    return Status(Code::kInvalidArgument, std::move(why));
  };
  if (policy.loads_nothing) return refuse("safe mode loads no plugin; unset BACKPLANE_SAFE_MODE");
  if (const auto denied = policy.denied.find(std::string(sha256)); denied != policy.denied.end())
    return refuse("it stands on the deny list" +
                  (denied->second.empty() ? std::string() : ": " + denied->second));
  if (policy.wants_allowed && !policy.allowed.contains(std::string(sha256)))
    return refuse("the load policy is " + policy.text() +
                  ", and it does not stand on the allow list; add its sha256 " +
                  std::string(sha256) + " to ~/.config/backplane/allowed");
  if (!policy.wants_signature) return {};
  const auto certificate = read_certificate(library + ".certificate", sha256, policy, today);
  if (certificate.ok()) return {};
  return refuse("the load policy is " + policy.text() + ", and " + certificate.status().message());
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[16];
  std::strftime(text, sizeof text, "%Y-%m-%d", &parts);
  return text;
}

}  // namespace backplane::runtime
