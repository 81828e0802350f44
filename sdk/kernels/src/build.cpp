#include <backplane/kernels/build.hpp>

#include <cstring>

namespace backplane::kernels {
namespace {

bool is_number(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// The number of a line in one line of a log; empty where it has none.
std::string_view line_number(std::string_view text) {
  for (std::size_t at = text.find_first_of(":("); at != std::string_view::npos;
       at = text.find_first_of(":(", at + 1)) {
    const bool in_parentheses = text[at] == '(';
    const std::size_t end = text.find(in_parentheses ? ')' : ':', at + 1);
    const std::string_view line = text.substr(at + 1, end - at - 1);
    if (!is_number(line)) continue;
    if (in_parentheses) return line;
    const std::string_view column = text.substr(std::min(at + line.size() + 2, text.size()));
    if (is_number(column.substr(0, column.find(':')))) return line;
  }
  return {};
}

}  // namespace

std::string failing_line(const std::string& log, const std::string& source) {
  const std::size_t error = log.find("error");
  if (error == std::string::npos) return {};
  const std::size_t before = log.rfind('\n', error);
  std::string_view text(log);
  text.remove_prefix(before == std::string::npos ? 0 : before + 1);
  const std::string line(line_number(text.substr(0, text.find('\n'))));
  if (line.empty() || line.size() > 9) return {};
  const auto wanted = std::stoul(line);
  std::size_t from = 0;
  for (unsigned long n = 1; n < wanted && from != std::string::npos; ++n) {
    from = source.find('\n', from);
    if (from != std::string::npos) ++from;
  }
  if (from == std::string::npos) return {};
  constexpr std::size_t kMost = 200;
  return "; line " + line + ": " +
         source.substr(from, std::min(source.find('\n', from) - from, kMost));
}

void put_sealed(const std::string& key, const std::string& content) {
  const std::uint64_t sum = kernelgen::hash_text(content);
  const std::string sealed = std::string(reinterpret_cast<const char*>(&sum), sizeof sum) + content;
  sdk::host().cache_put(sdk::host().host, sdk::raw(key), sealed.data(), sealed.size());
}

std::string get_sealed(const std::string& key) {
  bp_byte_sink* sink = sdk::host().bytes_create(sdk::host().host);
  if (sink == nullptr) return {};
  std::string content;
  std::uint64_t sum = 0;
  if (sdk::host().cache_get(sdk::host().host, sdk::raw(key), sink) == 1) {
    const std::string_view sealed = sdk::view(sdk::host().bytes_view(sink));
    if (sealed.size() > sizeof sum) {
      std::memcpy(&sum, sealed.data(), sizeof sum);
      content = sealed.substr(sizeof sum);
    }
  }
  sdk::host().bytes_release(sink);
  return kernelgen::hash_text(content) == sum ? content : std::string();
}

// Two independent hashes: the host's cache compares keys alone.
std::string sealed_key(const std::string& prefix, const std::string& text) {
  return prefix + "-" + std::to_string(kernelgen::hash_text(text)) + "-" +
         std::to_string(kernelgen::hash_text(text + "second")) + "-" + std::to_string(text.size());
}

std::uint32_t FaultLabels::number_of(const std::string& label) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find(labels_.begin(), labels_.end(), label);
  const auto at = static_cast<std::uint32_t>(found - labels_.begin());
  if (found == labels_.end()) labels_.push_back(label);
  return at + 1;
}

Status FaultLabels::outcome(std::uint32_t number) {
  if (number == 0) return {};
  const std::lock_guard lock(mutex_);
  const bool known = number <= labels_.size();
  return {BP_INVALID_ARGUMENT,
          (known ? labels_[number - 1] : std::string("a kernel")) + ": an index is out of range"};
}

}  // namespace backplane::kernels
