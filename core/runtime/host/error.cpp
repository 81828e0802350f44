#include "core/runtime/host/error.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>

#include "core/runtime/host/handles.h"
#include "core/runtime/host/host_services.h"

namespace backplane::runtime {

namespace {

constexpr std::size_t kSizeLimit = std::size_t{1} << 24;  // longer ones are not believed
constexpr std::size_t kBeginLimit = 400;                  // so much of them is told
constexpr std::size_t kNodeIdLimit = 65536;               // more are no count: not read

// What a bp_error* leads to.
struct ErrorObject {
  explicit ErrorObject(std::string_view owner = {}) : handle(HandleKind::kError, this, owner) {}
  std::uint32_t count = 1;  // under the mutex of handles
  bool is_static = false, is_plugins = false;
  bp_code code = BP_INTERNAL;
  std::string message, site;
  std::vector<std::uint32_t> node_ids;
  Handle handle;  // last: gone before what it leads to
};

// Made before it is needed; its count is never looked at.
const ErrorObject& out_of_memory_error() {
  static const ErrorObject* const error = [] {
    auto* made = new ErrorObject;
    made->is_static = true;
    made->code = BP_OUT_OF_MEMORY;
    made->message = "out of memory while an error was made";
    return made;
  }();
  return *error;
}
[[maybe_unused]] const ErrorObject& made_at_start = out_of_memory_error();

bp_error* handle_of(std::unique_ptr<ErrorObject> error) {
  auto* const handle = error->handle.as<bp_error>();
  if (handle == nullptr) return out_of_memory_error().handle.as<bp_error>();
  static_cast<void>(error.release());  // error_release's
  return handle;
}

// Calls act(ErrorObject&) with the mutex held, or tells why it cannot.
template <class Act>
bool with_error(bp_host* host, const bp_error* error, const char* entry, Act&& act) {
  const char* fault = nullptr;
  const std::string_view user = host_name(host);
  {
    const std::lock_guard lock(handle_mutex());
    const FoundHandle found = find_handle(HandleKind::kError, error, user);
    fault = found.fault;
    if (fault == nullptr) act(*static_cast<ErrorObject*>(found.object));
  }
  if (fault == nullptr) return true;
  report_misuse(user, entry, std::string("the error ") + fault);
  return false;
}

bp_code known_code(bp_code code) {
  return code >= BP_INVALID_ARGUMENT && code <= BP_INTERNAL ? code : bp_code{BP_INTERNAL};
}

std::string describe_site(const bp_error_args& args) {
  std::string site = copy_text(args.file, 512);
  if (args.line != 0) site += ":" + std::to_string(args.line);
  const std::string function = copy_text(args.function, 512);
  if (!function.empty()) site += (site.empty() ? "" : " ") + function;
  return site;
}

bp_error* error_create(bp_host* host, const bp_error_args* args) {
  try {
    auto error = std::make_unique<ErrorObject>(host_name(host));
    if (args == nullptr || args->struct_size < sizeof(bp_error_args) ||
        args->struct_size > BP_STRUCT_SIZE_LIMIT) {
      error->message =
          "the plugin made an error with an implausible bp_error_args.struct_size of " +
          std::to_string(args ? args->struct_size : 0);
      return handle_of(std::move(error));
    }
    error->is_plugins = !host_name(host).empty();
    error->code = known_code(args->code);
    error->message = copy_text(args->message);
    if (error->message.empty()) error->message = "the plugin gave no message";
    error->site = describe_site(*args);
    if (args->node_count > kNodeIdLimit)
      error->message +=
          " (about " + std::to_string(args->node_count) + " nodes, which is no count)";
    else if (args->node_ids != nullptr)
      error->node_ids.assign(args->node_ids, args->node_ids + args->node_count);
    return handle_of(std::move(error));
  } catch (const std::exception&) {  // only bad_alloc and length_error can get here
    return out_of_memory_error().handle.as<bp_error>();
  }
}

void error_retain(bp_host* host, bp_error* error) {
  if (error == nullptr) return;
  with_error(host, error, "error_retain", [](ErrorObject& found) { ++found.count; });
}

void error_release(bp_host* host, bp_error* error) {
  if (error == nullptr) return;
  std::unique_ptr<ErrorObject> last;
  with_error(host, error, "error_release", [&](ErrorObject& found) {
    if (found.is_static || --found.count != 0) return;
    found.handle.close();
    last.reset(&found);
  });
}

bp_code error_code(bp_host* host, const bp_error* error) {
  if (error == nullptr) return BP_OK;
  bp_code code = BP_INTERNAL;
  with_error(host, error, "error_code", [&](const ErrorObject& found) { code = found.code; });
  return code;
}

bp_string error_message(bp_host* host, const bp_error* error) {
  bp_string message{nullptr, 0};
  if (error == nullptr) return message;
  with_error(host, error, "error_message", [&](const ErrorObject& found) {
    message = {found.message.data(), found.message.size()};
  });
  return message;
}

// What there is to be read of a text whose size is not believed: to its first zero, or to the end
// of the memory behind it.
std::string readable(const char* data, std::size_t limit) {
  constexpr std::size_t kPage = 4096;
  std::string out(limit, '\0');
  std::size_t read = 0;
  while (read < limit) {
    const auto at = reinterpret_cast<std::uintptr_t>(data) + read;
    const std::size_t here = std::min(limit - read, kPage - at % kPage);
    const struct iovec to = {out.data() + read, here};
    const struct iovec from = {reinterpret_cast<void*>(at), here};
    if (::process_vm_readv(::getpid(), &to, 1, &from, 1, 0) != static_cast<ssize_t>(here)) break;
    read += here;
  }
  out.resize(read);
  out.resize(std::min(read, out.find('\0')));
  return out;
}

// Length of the UTF-8 sequence at `bytes`, 0 when it is none.
std::size_t utf8_length(const unsigned char* bytes, std::size_t left) {
  const unsigned char first = bytes[0];
  const std::size_t length = first < 0x80   ? 1
                             : first < 0xc2 ? 0
                             : first < 0xe0 ? 2
                             : first < 0xf0 ? 3
                             : first < 0xf5 ? 4
                                            : 0;
  if (length == 0 || length > left) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((bytes[i] & 0xc0) != 0x80) return 0;
  }
  if (length == 3 && first == 0xe0 && bytes[1] < 0xa0) return 0;   // overlong
  if (length == 3 && first == 0xed && bytes[1] >= 0xa0) return 0;  // surrogate
  if (length == 4 && first == 0xf0 && bytes[1] < 0x90) return 0;   // overlong
  if (length == 4 && first == 0xf4 && bytes[1] >= 0x90) return 0;  // beyond U+10FFFF
  return length;
}

}  // namespace

std::string copy_text(bp_string text, std::size_t limit) {
  std::string result;
  if (text.data == nullptr) return result;
  if (text.size > kSizeLimit) {
    const std::string begin = readable(text.data, std::min(kBeginLimit, limit));
    return copy_text({begin.data(), begin.size()}) + "... (a text of " + std::to_string(text.size) +
           " bytes)";
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data);
  const std::size_t size = std::min(text.size, limit);
  result.reserve(size);
  for (std::size_t i = 0; i < size;) {
    const std::size_t length = utf8_length(bytes + i, size - i);
    if (length == 0 && size < text.size && size - i < 4) break;  // cut inside a sequence
    const bool control = length == 1 && (bytes[i] < 0x20 || bytes[i] == 0x7f) && bytes[i] != '\n' &&
                         bytes[i] != '\t';
    if (length == 0 || control) {
      result.push_back('?');
      ++i;
    } else {
      result.append(text.data + i, length);
      i += length;
    }
  }
  if (size < text.size) result += "...";
  return result;
}

std::string what_text(const char* what) {
  return what != nullptr ? copy_text({what, std::string_view(what).size()}) : "it says nothing";
}

bp_error* make_error(bp_code code, std::string_view message) {
  bp_error_args args{};
  args.struct_size = sizeof(args);
  args.code = code;
  args.message = {message.data(), message.size()};
  return error_create(nullptr, &args);
}

PluginError read_error(const bp_error* error) {
  PluginError result;
  if (error == nullptr) {
    result.code = BP_OK;
    return result;
  }
  const std::lock_guard lock(handle_mutex());
  const FoundHandle found = find_handle(HandleKind::kError, error);
  if (found.fault != nullptr) {
    result.message = std::string("the plugin returned an error that ") + found.fault +
                     "; return what error_create gave, once, and do not release it";
    return result;
  }
  const auto& object = *static_cast<const ErrorObject*>(found.object);
  result.code = object.code;
  result.message = object.message;
  result.site = object.site;
  result.node_ids = object.node_ids;
  result.is_valid = true;
  // Whoever has asked for it knows; to everybody else it is a failure like any other.
  if (object.is_plugins && result.code == BP_CANCELLED) {
    result.code = BP_INTERNAL;
    result.message += "; it was cancelled, and nobody asked for that";
  }
  return result;
}

Status take_error(bp_error* error, std::string_view call) {
  if (error == nullptr) return {};
  PluginError read = read_error(error);
  if (read.is_valid) error_release(nullptr, error);
  std::string text = std::string(call) + " failed: " + read.message;
  if (!read.node_ids.empty()) {
    constexpr std::size_t kShown = 8;
    text += read.node_ids.size() == 1 ? " (node " : " (nodes ";
    for (std::size_t i = 0; i < std::min(read.node_ids.size(), kShown); ++i) {
      text += (i == 0 ? "" : ", ") + std::to_string(read.node_ids[i]);
    }
    text += read.node_ids.size() > kShown ? ", ...)" : ")";
  }
  if (!read.site.empty()) text += " (at " + read.site + ")";
  return {static_cast<Code>(read.code), std::move(text)};
}

void fill_error_entries(bp_host_api& table) {
  table.error_create = error_create;
  table.error_retain = error_retain;
  table.error_release = error_release;
  table.error_code = error_code;
  table.error_message = error_message;
}

}  // namespace backplane::runtime
