// A plugin with one fault: what $BACKPLANE_MUTANT names, in front of the library that
// $BACKPLANE_MUTANT_OF names. tests/conformance/test_mutants.py runs the conformance kit on each; the
// names are listed at the end, so that the list and the code are one.
#include <backplane/plugin.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <clocale>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

BP_NOTE(BP_ABI_VERSION, BP_ABI_VERSION, "mutant", "Backplane tests", "0.1", BP_SANITIZER_NONE);

namespace {

const bp_plugin_api* inner = nullptr;
const bp_host_api* host = nullptr;
bp_host_api own_host;

const std::string& fault() {
  static const std::string name = [] {
    const char* text = std::getenv("BACKPLANE_MUTANT");
    return std::string(text != nullptr ? text : "");
  }();
  return name;
}
bool is(const char* name) { return fault() == name; }

bp_error* make_error(bp_code code, const char* text) {
  bp_error_args args;
  std::memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.code = code;
  args.message = {text, std::strlen(text)};
  return host->error_create(host->host, &args);
}

// ---- While the library is loaded ---------------------------------------------------------------

struct AtLoad {
  AtLoad() {
#if defined(__x86_64__)
    if (is("load-sets-flush-to-zero")) _mm_setcsr(_mm_getcsr() | 0x8040);
#endif
    if (is("load-changes-folder") && ::chdir("/") != 0) std::abort();
    if (is("load-sets-variable")) ::setenv("MUTANT", "1", 1);
    if (is("load-prints")) std::puts("hello"), std::fflush(stdout);
    if (is("load-starts-thread")) std::thread([] { ::pause(); }).detach();
    if (is("load-takes-signal")) std::signal(SIGUSR1, SIG_IGN);
    if (is("load-changes-umask")) ::umask(0);
    if (is("load-changes-locale")) std::setlocale(LC_ALL, "C.UTF-8");
    if (is("load-aborts")) std::abort();
    if (is("load-exits")) std::exit(0);
    if (is("exit-aborts")) std::atexit([] { std::abort(); });
    if (is("exit-hangs")) std::atexit([] { ::pause(); });
    if (is("exit-changes-status")) std::atexit([] { ::_exit(1); });
    if (is("fork-kills-child"))
      ::pthread_atfork(nullptr, nullptr, [] {
        if (inner != nullptr) std::abort();
      });
  }
} at_load;

// ---- What is known of the inner plugin's objects -----------------------------------------------

struct Known {
  std::size_t inputs = 0, outputs = 0;
  std::vector<bp_dtype> output_types;
  std::vector<std::int64_t> hints;
  std::map<std::uintptr_t, std::vector<std::vector<char>>> answers;  // by first input's address
  std::vector<std::vector<char>> last;
  std::atomic<int> calls{0};
};
std::mutex mutex;
std::map<bp_executable*, Known*> known;
std::map<bp_buffer*, std::uint64_t> buffer_bytes;
bp_device* the_device = nullptr;

std::vector<char> content_of(const bp_range& range) {
  std::vector<char> out(range.size_bytes);
  if (out.empty()) return out;
  if (range.buffer == nullptr) {
    std::memcpy(out.data(), static_cast<char*>(range.host) + range.offset_bytes, out.size());
    return out;
  }
  bp_copy_args args;
  std::memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.source = range;
  args.target.host = out.data();
  args.target.size_bytes = out.size();
  inner->copy(the_device, &args);
  return out;
}
void put_content(const bp_range& range, const std::vector<char>& content, std::uint64_t at = 0) {
  if (content.empty()) return;
  if (range.buffer == nullptr) {
    std::memcpy(static_cast<char*>(range.host) + range.offset_bytes + at, content.data(),
                content.size());
    return;
  }
  bp_copy_args args;
  std::memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.target = range;
  args.target.offset_bytes += at;
  args.target.size_bytes = content.size();
  args.source.host = const_cast<char*>(content.data());
  args.source.size_bytes = content.size();
  inner->copy(the_device, &args);
}

bool is_float(bp_dtype type, int bits) { return type.code == BP_DTYPE_FLOAT && type.bits == bits; }

// One result after the real kernels, changed as the fault says.
void change_result(std::vector<char>& now, const std::vector<char>& before, bp_dtype type,
                   Known& info, std::size_t number) {
  const std::size_t element = (type.bits + 7) / 8, count = now.size() / element;
  const auto each_float = [&](auto&& change) {
    for (std::size_t i = 0; is_float(type, 32) && i < count; ++i) {
      float value;
      std::memcpy(&value, now.data() + i * 4, 4);
      change(value);
      std::memcpy(now.data() + i * 4, &value, 4);
    }
  };
  const auto each_bits = [&](auto&& change) {
    for (std::size_t i = 0; is_float(type, 32) && i < count; ++i) {
      std::uint32_t bits;
      std::memcpy(&bits, now.data() + i * 4, 4);
      change(bits);
      std::memcpy(now.data() + i * 4, &bits, 4);
    }
  };
  if (count == 0) return;
  if (is("result-last-unwritten"))
    std::memcpy(now.data() + (count - 1) * element, before.data() + (count - 1) * element, element);
  if (is("result-first-unwritten")) std::memcpy(now.data(), before.data(), element);
  if (is("result-large-tail-unwritten") && count > 100)
    std::memcpy(now.data() + 100 * element, before.data() + 100 * element, (count - 100) * element);
  if (is("result-nothing-written")) now = before;
  if (is("result-zeros")) std::memset(now.data(), 0, now.size());
  if (is("result-rounds-to-zero")) each_bits([](std::uint32_t& b) { b &= ~15U; });
  if (is("result-in-half-precision")) each_bits([](std::uint32_t& b) { b &= ~0x1fffU; });
  if (is("result-in-brain-float")) each_bits([](std::uint32_t& b) { b &= ~0xffffU; });
  if (is("result-nan-to-zero")) each_float([](float& v) { v = std::isnan(v) ? 0 : v; });
  if (is("result-saturates"))
    each_float([](float& v) { v = std::isinf(v) ? std::copysign(3.4e38F, v) : v; });
  if (is("result-never-negative")) each_float([](float& v) { v = v < 0 ? 0 : v; });
  if (is("result-relative-error")) each_float([](float& v) { v *= 1.0001F; });
  if (is("result-absolute-error")) each_float([](float& v) { v += 1e-3F; });
  if (is("result-one-element-wrong")) {
    float value = 0;
    if (is_float(type, 32)) {
      std::memcpy(&value, now.data() + count / 2 * 4, 4);
      value = value * 2 + 1;
      std::memcpy(now.data() + count / 2 * 4, &value, 4);
    }
  }
  if (is("result-swaps-elements") && count > 1) {
    std::vector<char> first(now.begin(), now.begin() + static_cast<long>(element));
    std::memcpy(now.data(), now.data() + (count - 1) * element, element);
    std::memcpy(now.data() + (count - 1) * element, first.data(), element);
  }
  if (is("result-reversed"))
    for (std::size_t i = 0; i < count / 2; ++i)
      for (std::size_t b = 0; b < element; ++b)
        std::swap(now[i * element + b], now[(count - 1 - i) * element + b]);
  if (is("result-integers-off-by-one") && type.code == BP_DTYPE_INT)
    for (std::size_t i = 0; i < count; ++i) now[i * element] = static_cast<char>(now[i * element] + 1);
  if (is("result-integers-in-32-bits") && type.code == BP_DTYPE_INT && type.bits == 64)
    for (std::size_t i = 0; i < count; ++i) std::memset(now.data() + i * 8 + 1, 0, 7);
  if (is("result-true-is-all-ones") && type.code == BP_DTYPE_BOOL)
    for (char& c : now) c = c != 0 ? '\xff' : 0;
  if (is("result-bools-inverted") && type.code == BP_DTYPE_BOOL)
    for (char& c : now) c = c == 0;
  if (is("result-doubles-in-single") && is_float(type, 64))
    for (std::size_t i = 0; i < count; ++i) {
      double value;
      std::memcpy(&value, now.data() + i * 8, 8);
      value = static_cast<float>(value);
      std::memcpy(now.data() + i * 8, &value, 8);
    }
  if (is("result-halves-in-eight-bits") && is_float(type, 16))
    for (std::size_t i = 0; i < count; ++i) now[i * 2] = 0;
  if (is("result-brain-floats-in-seven-bits") && type.code == BP_DTYPE_BFLOAT)
    for (std::size_t i = 0; i < count; ++i) now[i * 2] = static_cast<char>(now[i * 2] & 0xf0);
  if (is("result-complex-conjugated") && type.code == BP_DTYPE_COMPLEX)
    for (std::size_t i = 0; i < count; ++i) now[(i + 1) * element - 1] ^= '\x80';
  if (is("result-differs-from-call-to-call") && info.calls % 3 == 0)
    each_bits([](std::uint32_t& b) { b ^= 1; });
  if (is("result-of-the-last-call") && number < info.last.size() &&
      info.last[number].size() == now.size())
    now.swap(info.last[number]);
  if (is("second-result-is-the-first") && number == 1 && !info.last.empty() &&
      info.last[0].size() == now.size())
    now = info.last[0];
}

bp_order without_signal(const bp_order& order, bp_event* signal) {
  bp_order out = order;
  out.signal = signal;
  return out;
}
bp_error* signal_now(const bp_order& order) {
  if (order.signal == nullptr) return nullptr;
  bp_copy_args args;
  std::memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.order.stream = order.stream;
  args.order.signal = order.signal;
  return inner->copy(the_device, &args);
}

const bp_binding& binding(const bp_binding* first, std::size_t stride, std::size_t i) {
  return *reinterpret_cast<const bp_binding*>(reinterpret_cast<const char*>(first) + stride * i);
}

bp_error* execute_and_wait(bp_executable* executable, bp_execute_args args) {
  bp_event* event = nullptr;
  if (args.order.stream != nullptr || args.order.signal != nullptr)
    if (bp_error* const error = inner->event_create(the_device, &event)) return error;
  args.order = without_signal(args.order, event);
  bp_error* error = inner->execute(executable, &args);
  if (error == nullptr && event != nullptr) error = inner->event_wait(event, UINT64_MAX);
  if (event != nullptr) inner->event_release(event);
  return error;
}

void make_owed_copies();
bp_error* execute(bp_executable* executable, const bp_execute_args* theirs) {
  make_owed_copies();
  if (is("execute-ignores-sizes") && theirs->struct_size == 0) return nullptr;
  if (theirs->struct_size < sizeof *theirs || theirs->struct_size > BP_STRUCT_SIZE_LIMIT)
    return inner->execute(executable, theirs);
  bp_execute_args args = *theirs;
  args.struct_size = sizeof args;
  Known* info = nullptr;
  {
    const std::lock_guard lock(mutex);
    if (const auto found = known.find(executable); found != known.end()) info = found->second;
  }
  if (info == nullptr) return inner->execute(executable, theirs);
  ++info->calls;
  if (is("execute-crashes")) std::raise(SIGSEGV);
  if (is("execute-hangs")) ::pause();
  if (is("execute-throws")) throw std::runtime_error("thrown by execute");
  if (is("execute-fails")) return make_error(BP_INTERNAL, "it always fails");
  if (is("execute-fails-at-the-third-call") && info->calls == 3)
    return make_error(BP_INTERNAL, "not today");
  if (is("execute-at-the-hints") && !info->hints.empty()) args.dims = info->hints.data();
  std::vector<std::int64_t> dims;
  if (is("execute-one-size-less") && args.dims != nullptr && !info->hints.empty()) {
    dims.assign(args.dims, args.dims + info->hints.size());
    if (dims[0] > 2) --dims[0];
    args.dims = dims.data();
  }
  if (is("execute-accepts-missing-bindings"))
    for (std::size_t i = 0; i < info->outputs; ++i) {
      const bp_range& range = binding(args.outputs, args.binding_stride, i).range;
      if (range.buffer == nullptr && range.host == nullptr) return signal_now(args.order);
    }

  const bool early = is("event-before-the-work"), late = is("output-changes-after-the-event");
  std::vector<std::vector<char>> before;
  for (std::size_t i = 0; i < info->outputs; ++i)
    before.push_back(content_of(binding(args.outputs, args.binding_stride, i).range));
  if (bp_error* const error = execute_and_wait(executable, args)) return error;
  std::vector<std::vector<char>> results;
  for (std::size_t i = 0; i < info->outputs; ++i) {
    const bp_range& range = binding(args.outputs, args.binding_stride, i).range;
    results.push_back(content_of(range));
    const std::vector<char> right = results.back();
    if (i < info->output_types.size())
      change_result(results[i], before[i], info->output_types[i], *info, i);
    if (results[i] != right) put_content(range, results[i]);
    if (is("writes-past-the-output") && range.size_bytes != 0)
      put_content(range, {'\x11'}, range.size_bytes);
    if (is("writes-before-the-output") && range.size_bytes != 0 &&
        (range.buffer == nullptr || range.offset_bytes != 0))
      put_content(range, {'\x11'}, std::uint64_t{0} - 1);
    if (i >= info->last.size()) info->last.resize(i + 1);
    if (!is("result-of-the-last-call")) info->last[i] = right;
  }
  if (is("writes-an-input") && info->inputs != 0) {
    const bp_range& range = binding(args.inputs, args.binding_stride, 0).range;
    if (range.size_bytes != 0) put_content(range, {'\x3f'}, range.size_bytes - 1);
  }
  if (is("answers-from-memory")) {
    const bp_range* const first =
        info->inputs != 0 ? &binding(args.inputs, args.binding_stride, 0).range : nullptr;
    const auto key = first == nullptr ? 0
                     : first->buffer != nullptr
                         ? reinterpret_cast<std::uintptr_t>(first->buffer) + first->offset_bytes
                         : reinterpret_cast<std::uintptr_t>(first->host) + first->offset_bytes;
    auto& kept = info->answers[key];
    if (kept.empty()) kept = results;
    for (std::size_t i = 0; i < kept.size(); ++i)
      if (kept[i].size() == results[i].size())
        put_content(binding(args.outputs, args.binding_stride, i).range, kept[i]);
  }
  if (is("shares-scratch-between-threads")) {
    static std::vector<std::vector<char>> scratch;
    scratch = results;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    for (std::size_t i = 0; i < info->outputs && i < scratch.size(); ++i)
      if (scratch[i].size() == results[i].size())
        put_content(binding(args.outputs, args.binding_stride, i).range, scratch[i]);
  }
  if ((early || late) && args.order.signal != nullptr) {
    std::vector<bp_range> ranges;
    for (std::size_t i = 0; i < info->outputs; ++i) {
      ranges.push_back(binding(args.outputs, args.binding_stride, i).range);
      put_content(ranges.back(), before[i]);
      if (late) put_content(ranges.back(), results[i]);
    }
    std::thread([ranges, results, late] {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      for (std::size_t i = 0; i < ranges.size(); ++i) {
        std::vector<char> content = results[i];
        if (late && !content.empty()) content[0] ^= 1;
        put_content(ranges[i], content);
      }
    }).detach();
  }
  if (is("event-never") && args.order.signal != nullptr) {
    static std::set<bp_event*> lost;
    lost.insert(args.order.signal);
    return nullptr;
  }
  if (is("leaks-errors-of-calls")) make_error(BP_INTERNAL, "nobody's");
  if (is("leaks-byte-sinks-of-calls")) host->bytes_create(host->host);
  if (is("leaks-at-execute")) {
    static std::vector<char*> kept;
    kept.push_back(new char[1 << 17]);
    std::memset(kept.back(), 1, 1 << 17);
  }
  return signal_now(args.order);
}

// ---- Graphs on their way to the inner plugin ---------------------------------------------------

// The arrays that a fault changes; kept, since executables may look later.
struct Arrays {
  bp_graph graph;
  std::vector<bp_node> nodes;
  std::vector<bp_value> values;
  std::vector<bp_attribute> attributes;
  std::vector<bp_op> ops;
  std::vector<std::uint32_t> indices;
  std::vector<bp_dim> strides;
  std::vector<std::vector<char>> constants;
};

bool changes_graphs() {
  return fault().starts_with("graph-") || is("claims-unknown-layouts") ||
         is("claims-unknown-versions") || is("claims-unknown-effects") ||
         is("claims-unknown-attributes") || is("claims-must-understand");
}

const bp_graph* changed(const bp_graph* theirs, bool compiles) {
  if (!changes_graphs() || theirs->struct_size < sizeof *theirs ||
      theirs->struct_size > BP_STRUCT_SIZE_LIMIT)
    return theirs;
  auto* const a = new Arrays;
  a->graph = *theirs;
  a->graph.struct_size = sizeof(bp_graph);
  const bool by_size = is("graph-steps-by-sizeof");
  for (std::size_t i = 0; i < theirs->node_count; ++i)
    a->nodes.push_back(by_size ? theirs->nodes[i] : *bp_graph_node(theirs, i));
  for (std::size_t i = 0; i < theirs->value_count; ++i)
    a->values.push_back(by_size ? theirs->values[i] : *bp_graph_value(theirs, i));
  for (std::size_t i = 0; i < theirs->attribute_count; ++i)
    a->attributes.push_back(*bp_graph_attribute(theirs, i));
  for (std::size_t i = 0; i < theirs->op_count; ++i) a->ops.push_back(*bp_graph_op(theirs, i));
  a->indices.assign(theirs->indices, theirs->indices + theirs->index_count);
  a->strides.assign(theirs->strides, theirs->strides + theirs->dim_count);
  if (is("claims-unknown-versions"))
    for (bp_op& op : a->ops) op.version = 1;
  if (is("claims-unknown-layouts"))
    for (bp_value& value : a->values) value.layout.kind = BP_LAYOUT_STRIDED;
  if (is("claims-must-understand"))
    for (bp_value& value : a->values) value.flags &= 0xffffffffU;
  if (is("claims-unknown-effects"))
    for (bp_node& node : a->nodes) node.effects &= 3;
  if (is("claims-unknown-attributes"))
    for (bp_node& node : a->nodes)
      for (std::uint32_t i = 0; i < node.attribute_count; ++i)
        if (a->attributes[node.first_attribute + i].kind > BP_ATTRIBUTE_BOOLS)
          node.attribute_count = i;
  if (compiles) {
    const auto contiguous = [&](const bp_value& value) {
      std::int64_t next = 1;
      for (std::uint32_t d = value.rank; d-- > 0;) {
        if (theirs->dims[value.first_dim + d] < 0) return;
        a->strides[value.first_dim + d] = next;
        next *= std::max<std::int64_t>(theirs->dims[value.first_dim + d], 1);
      }
    };
    if (is("graph-ignores-input-strides"))
      for (std::size_t i = 0; i < theirs->input_count; ++i)
        contiguous(a->values[theirs->inputs[i]]);
    if (is("graph-ignores-output-strides"))
      for (std::size_t i = 0; i < theirs->output_count; ++i)
        if (a->values[theirs->outputs[i]].alias_of == BP_NONE)
          contiguous(a->values[theirs->outputs[i]]);
    for (bp_value& value : a->values) {
      if (is("graph-ignores-offsets")) value.alias_offset = 0;
      const auto number = static_cast<std::uint32_t>(&value - a->values.data());
      const auto is_bound = [&](const std::uint32_t* list, std::size_t count) {
        return std::find(list, list + count, number) != list + count;
      };
      if (is("graph-keeps-digits") && value.dtype.bits == 16 &&
          (is_float(value.dtype, 16) || value.dtype.code == BP_DTYPE_BFLOAT) &&
          !is_bound(theirs->inputs, theirs->input_count) &&
          !is_bound(theirs->outputs, theirs->output_count))
        value.dtype = {BP_DTYPE_FLOAT, 32, 1};
      if (is("graph-counts-bytes-of-bools") && value.dtype.code == BP_DTYPE_BOOL &&
          is_bound(theirs->inputs, theirs->input_count))
        value.dtype = {BP_DTYPE_UINT, 8, 1};
      if (is("graph-ignores-view-strides") && value.alias_of != BP_NONE) contiguous(value);
      if (is("graph-zeroes-constants") && (value.flags & BP_VALUE_CONSTANT) != 0) {
        a->constants.emplace_back(value.data_bytes, 0);
        value.data = a->constants.back().data();
      }
    }
    for (bp_attribute& attribute : a->attributes) {
      if (is("graph-whole-numbers-only") && attribute.kind == BP_ATTRIBUTE_FLOAT)
        attribute.real = std::round(attribute.real);
      if (is("graph-flags-inverted") && attribute.kind == BP_ATTRIBUTE_BOOL)
        attribute.integer = attribute.integer == 0;
      if (is("graph-dim-is-always-zero") && attribute.kind == BP_ATTRIBUTE_INT &&
          std::string(attribute.name.data, attribute.name.size) == "dim")
        attribute.integer = 0;
    }
    for (bp_node& node : a->nodes) {
      if (is("graph-forgets-attributes")) node.attribute_count = 0;
      if (is("graph-forgets-last-attribute") && node.attribute_count != 0) --node.attribute_count;
      if (node.operand_count < 2) continue;
      std::uint32_t& first = a->indices[node.first_operand];
      std::uint32_t& second = a->indices[node.first_operand + 1];
      if (first == BP_NONE || second == BP_NONE) continue;
      const bp_value &x = a->values[first], &y = a->values[second];
      const bool alike = x.rank == y.rank && x.dtype.code == y.dtype.code &&
                         x.dtype.bits == y.dtype.bits &&
                         std::memcmp(theirs->dims + x.first_dim, theirs->dims + y.first_dim,
                                     x.rank * sizeof(bp_dim)) == 0;
      if (alike && is("graph-swaps-operands")) std::swap(first, second);
      if (alike && is("graph-reads-one-operand-twice")) second = first;
    }
  }
  a->graph.nodes = a->nodes.data(), a->graph.node_stride = sizeof(bp_node);
  a->graph.values = a->values.data(), a->graph.value_stride = sizeof(bp_value);
  a->graph.attributes = a->attributes.data(), a->graph.attribute_stride = sizeof(bp_attribute);
  a->graph.ops = a->ops.data(), a->graph.op_stride = sizeof(bp_op);
  a->graph.indices = a->indices.data();
  a->graph.strides = a->strides.data();
  return &a->graph;
}

bp_error* compile(bp_plugin* plugin, const bp_compile_args* theirs, bp_executable** out) {
  if (theirs->struct_size < sizeof *theirs || theirs->struct_size > BP_STRUCT_SIZE_LIMIT) {
    if (is("leaks-errors-of-refusals")) make_error(BP_INTERNAL, "nobody's");
    if (is("compile-ignores-sizes") && theirs->struct_size != 0)
      return make_error(BP_INTERNAL, "surprise");
    return inner->compile(plugin, theirs, out);
  }
  if (is("compile-crashes")) std::raise(SIGSEGV);
  if (is("compile-throws")) throw std::runtime_error("thrown by compile");
  if (is("compile-gives-back")) return make_error(BP_UNSUPPORTED, "second thoughts");
  if (is("refuses-larger-structs") && theirs->struct_size > sizeof *theirs)
    return make_error(BP_INVALID_ARGUMENT, "too large");
  if (is("leaks-files") && ::open("/dev/null", O_RDONLY) < 0) std::abort();
  if (is("leaks-threads")) std::thread([] { ::pause(); }).detach();
  if (is("leaks-errors")) make_error(BP_INTERNAL, "nobody's");
  if (is("leaks-byte-sinks")) host->bytes_create(host->host);
  if (is("leaks-memory")) {
    char* const lost = new char[1 << 17];
    std::memset(lost, 1, 1 << 17);
    static char* volatile last = nullptr;
    last = lost;
  }
  bp_compile_args args = *theirs;
  args.struct_size = sizeof args;
  args.graph = changed(theirs->graph, true);
  if (bp_error* const error = inner->compile(plugin, &args, out)) return error;
  auto* const info = new Known;
  const bp_graph& graph = *theirs->graph;
  info->inputs = graph.input_count;
  info->outputs = graph.output_count;
  for (std::size_t i = 0; i < graph.output_count; ++i)
    info->output_types.push_back(bp_graph_value(&graph, graph.outputs[i])->dtype);
  for (std::size_t i = 0; i < graph.dim_class_count; ++i)
    info->hints.push_back(bp_graph_dim_class(&graph, i)->hint);
  const std::lock_guard lock(mutex);
  known[*out] = info;
  return nullptr;
}

bp_error* claims(bp_plugin* plugin, const bp_device_info* info, const bp_graph* graph,
                 bp_claim_sink* sink) {
  if (graph->struct_size < sizeof *graph || graph->struct_size > BP_STRUCT_SIZE_LIMIT)
    return is("claims-ignore-sizes") ? nullptr : inner->claims(plugin, info, graph, sink);
  if (is("claims-nothing")) return nullptr;
  if (is("leaks-errors-of-claims")) make_error(BP_UNSUPPORTED, "nobody's");
  if (is("claims-everything") || is("claims-unknown-operators") || is("claims-unknown-types")) {
    bp_claim claim;
    std::memset(&claim, 0, sizeof claim);
    claim.struct_size = sizeof claim;
    std::vector<std::uint32_t> ids;
    for (std::size_t i = 0; graph->struct_size >= sizeof *graph && i < graph->node_count; ++i)
      ids.push_back(bp_graph_node(graph, i)->id);
    claim.node_ids = ids.data();
    claim.node_count = ids.size();
    claim.flags = BP_CLAIM_DIVISIBLE;
    if (!ids.empty()) return host->claim_add(sink, &claim);
  }
  if (is("claims-a-node-that-is-not-there")) {
    const std::uint32_t id = 4711;
    bp_claim claim;
    std::memset(&claim, 0, sizeof claim);
    claim.struct_size = sizeof claim;
    claim.node_ids = &id;
    claim.node_count = 1;
    return host->claim_add(sink, &claim);
  }
  if (is("claims-what-it-refuses") && graph->node_count != 0)
    if (bp_error* error = host->refuse_add(sink, bp_graph_node(graph, 0)->id, BP_REFUSED_COST,
                                           {"too slow", 8}))
      return error;
  return inner->claims(plugin, info, changed(graph, false), sink);
}

// Copies without a signal that are still to be made, when somebody asks for what is behind them.
std::vector<bp_copy_args> owed_copies;
void make_owed_copies() {
  for (const bp_copy_args& args : std::exchange(owed_copies, {})) inner->copy(the_device, &args);
}
bool is_owed(const bp_copy_args& args) {
  if (args.order.stream == nullptr || args.order.signal != nullptr || args.order.wait_count != 0 ||
      args.source.size_bytes == 0)
    return false;
  return (is("copy-reads-the-host-late") && args.source.buffer == nullptr) ||
         (is("copy-writes-the-host-late") && args.target.buffer == nullptr);
}
// The last object again, where the fault says so: how often each was given.
template <class Object>
std::map<Object*, int>& given_again() {
  static std::map<Object*, int> counts;
  return counts;
}
template <class Object>
bool give_again(Object** out) {
  auto& counts = given_again<Object>();
  if (counts.empty()) return false;
  ++counts.begin()->second;
  *out = counts.begin()->first;
  return true;
}
template <class Object>
bool was_last(Object* object) {
  const auto found = given_again<Object>().find(object);
  if (found == given_again<Object>().end() || --found->second == 0) {
    given_again<Object>().erase(object);
    return true;
  }
  return false;
}

// ---- All other entries -------------------------------------------------------------------------

std::uint32_t device_count(bp_plugin* plugin) { return inner->device_count(plugin); }
bp_error* device_describe(bp_plugin* plugin, std::uint32_t index, bp_device_info* out) {
  if (is("describe-any-index")) index = 0;
  if (is("describe-throws") && index != 0) throw std::runtime_error("no such device");
  if (is("describe-ignores-sizes") &&
      (out->struct_size < sizeof *out || out->struct_size > BP_STRUCT_SIZE_LIMIT)) {
    out->struct_size = sizeof *out;
  }
  return inner->device_describe(plugin, index, out);
}
bp_error* device_open(bp_plugin* plugin, std::uint32_t index, bp_device** out) {
  if (is("open-any-index")) index = 0;
  bp_error* const error = inner->device_open(plugin, index, out);
  if (error == nullptr) the_device = *out;
  return error;
}
void device_close(bp_device* device) {
  if (is("leaks-errors-at-close")) make_error(BP_INTERNAL, "nobody's");
  inner->device_close(device);
}
bp_error* buffer_create(bp_device* device, std::uint64_t bytes, bp_buffer** out) {
  const std::uint64_t wanted = bytes;
  if (is("buffers-are-too-small") && bytes > (UINT64_C(1) << 40)) bytes = 64;
  if (is("buffers-are-given-twice") && bytes == 4096 && give_again(out)) return nullptr;
  bp_error* const error = inner->buffer_create(device, bytes, out);
  const std::lock_guard lock(mutex);
  if (error == nullptr) buffer_bytes[*out] = wanted;
  if (error == nullptr && is("buffers-are-given-twice") && bytes == 4096)
    given_again<bp_buffer>()[*out] = 1;
  return error;
}
void buffer_release(bp_buffer* buffer) {
  if (is("release-null-buffer-crashes") && buffer == nullptr) std::raise(SIGSEGV);
  if (is("leaks-buffers") || !was_last(buffer)) return;
  inner->buffer_release(buffer);
}
bp_error* copy(bp_device* device, const bp_copy_args* theirs) {
  if (theirs->struct_size < sizeof *theirs || theirs->struct_size > BP_STRUCT_SIZE_LIMIT) {
    if (is("copy-ignores-sizes")) return nullptr;
    return inner->copy(device, theirs);
  }
  bp_copy_args args = *theirs;
  args.struct_size = sizeof args;
  if (is("copy-takes-the-smaller-size"))
    args.source.size_bytes = args.target.size_bytes =
        std::min(args.source.size_bytes, args.target.size_bytes);
  if (is("copy-cuts-at-the-end"))
    for (bp_range* range : {&args.source, &args.target}) {
      const std::lock_guard lock(mutex);
      if (range->buffer == nullptr || range->offset_bytes + range->size_bytes <=
                                          buffer_bytes[range->buffer])
        continue;
      return nullptr;
    }
  if (is("copy-of-nothing-fails") && args.source.size_bytes == 0)
    return make_error(BP_INVALID_ARGUMENT, "nothing to copy");
  if (is("copy-loses-the-last-byte") && args.source.size_bytes > 1)
    --args.source.size_bytes, --args.target.size_bytes;
  if (is("copy-ignores-offsets") && args.source.size_bytes != 0)
    args.source.offset_bytes = args.target.offset_bytes = 0;
  if (is("copy-runs-late") && args.order.stream != nullptr && args.order.signal == nullptr &&
      args.source.size_bytes != 0) {
    const std::vector<char> content = content_of(args.source);
    std::thread([target = args.target, content] {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      put_content(target, content);
    }).detach();
    return nullptr;
  }
  if (is_owed(args)) {
    owed_copies.push_back(args);
    return nullptr;
  }
  make_owed_copies();
  return inner->copy(device, &args);
}
bp_error* executable_describe(bp_executable* executable, bp_executable_info* out) {
  if (is("describe-executable-ignores-sizes") && out->struct_size < sizeof *out) return nullptr;
  bp_error* const error = inner->executable_describe(executable, out);
  if (error == nullptr && is("contract-asks-too-little-workspace")) out->workspace_bytes = 0;
  return error;
}
void executable_release(bp_executable* executable) {
  if (is("release-null-executable-crashes") && executable == nullptr) std::raise(SIGSEGV);
  if (is("leaks-executables")) {
    char* const lost = new char[1 << 16];
    std::memset(lost, 1, 1 << 16);
    static char* volatile last = nullptr;
    last = lost;
    return;
  }
  {
    const std::lock_guard lock(mutex);
    known.erase(executable);
  }
  inner->executable_release(executable);
}
void shutdown(bp_plugin* plugin) {
  if (is("shutdown-crashes")) std::raise(SIGSEGV);
  if (is("shutdown-hangs")) ::pause();
  if (is("leaks-byte-sinks-at-shutdown")) host->bytes_create(host->host);
  inner->shutdown(plugin);
}
bp_error* device_counters(bp_device* device, bp_device_counters* out) {
  if (is("counters-ignore-sizes") && out->struct_size < sizeof *out) return nullptr;
  bp_error* const error = inner->device_counters(device, out);
  if (error == nullptr && is("counters-stand-still")) out->live_bytes = 12345;
  static std::uint64_t most = 0;
  most = std::max(most, out->live_bytes);
  if (error == nullptr && is("counters-never-fall")) out->live_bytes = most;
  return error;
}
bp_error* stream_create(bp_device* device, bp_stream** out) {
  return inner->stream_create(device, out);
}
void stream_release(bp_stream* stream) {
  if (is("release-null-stream-crashes") && stream == nullptr) std::raise(SIGSEGV);
  inner->stream_release(stream);
}
bp_error* event_create(bp_device* device, bp_event** out) {
  if (is("events-are-given-twice") && give_again(out)) return nullptr;
  bp_error* const error = inner->event_create(device, out);
  if (error == nullptr && is("events-are-given-twice")) given_again<bp_event>()[*out] = 1;
  return error;
}
void event_release(bp_event* event) {
  if (is("release-null-event-crashes") && event == nullptr) std::raise(SIGSEGV);
  if (was_last(event)) inner->event_release(event);
}
bp_error* event_query(bp_event* event, std::int32_t* out_done) {
  make_owed_copies();
  bp_error* const error = inner->event_query(event, out_done);
  if (is("event-never")) *out_done = 0;
  if (is("new-event-is-pending")) {
    static std::set<bp_event*> seen;
    if (seen.insert(event).second) *out_done = 0;
  }
  return error;
}
bp_error* event_wait(bp_event* event, std::uint64_t timeout_ns) {
  if (is("wait-returns-at-once") || is("event-before-the-work")) return nullptr;
  make_owed_copies();
  return inner->event_wait(event, timeout_ns);
}
bp_error* layout_bytes(bp_plugin* plugin, const bp_device_info* info, const bp_tensor_desc* desc,
                       std::uint64_t* out) {
  if (is("layouts-of-anybody") && desc->struct_size >= sizeof *desc) {
    *out = 64;
    return nullptr;
  }
  return inner->layout_bytes(plugin, info, desc, out);
}
bp_error* layout_convert(bp_device* device, const bp_tensor_desc* source_desc,
                         const bp_range* source, const bp_tensor_desc* target_desc,
                         const bp_range* target, const bp_order* order) {
  if (is("pack-is-never-filled")) return signal_now(*order);
  return inner->layout_convert(device, source_desc, source, target_desc, target, order);
}
bp_error* executable_workspace(bp_executable* executable, const std::int64_t* dims,
                               std::uint64_t* out) {
  return inner->executable_workspace(executable, dims, out);
}
bp_error* executable_save(bp_executable* executable, bp_byte_sink* sink) {
  if (is("leaks-byte-sinks-of-blobs")) host->bytes_create(host->host);
  return inner->executable_save(executable, sink);
}
bp_error* blob_check(bp_plugin* plugin, const bp_device_info* info, bp_string requirement,
                     std::uint32_t* out) {
  if (is("blobs-of-anybody")) {
    *out = BP_BLOB_COMPATIBLE;
    return nullptr;
  }
  return inner->blob_check(plugin, info, requirement, out);
}
bp_executable* some_executable = nullptr;
bp_error* executable_load(bp_device* device, const void* data, std::size_t size,
                          bp_executable** out) {
  if (is("blob-noise-crashes") && size == 4096) std::raise(SIGSEGV);
  bp_error* const error = inner->executable_load(device, data, size, out);
  if (error == nullptr) some_executable = *out;
  if (error != nullptr && is("cut-blobs-are-loaded") && some_executable != nullptr) {
    host->error_release(host->host, error);
    *out = nullptr;
    return nullptr;
  }
  return error;
}
bp_error* profile_begin(bp_device* device) { return inner->profile_begin(device); }
bp_error* profile_end(bp_device* device, bp_profile_sink* sink) {
  return inner->profile_end(device, sink);
}

bp_plugin_api table;

}  // namespace

extern "C" BP_EXPORT void backplane_plugin_negotiate(bp_negotiation* negotiation) {
  const char* path = std::getenv("BACKPLANE_MUTANT_OF");
  if (path == nullptr) return;
  void* const library = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return;
  auto* const entry =
      reinterpret_cast<void (*)(bp_negotiation*)>(::dlsym(library, BP_ENTRY_NAME));
  bp_negotiation asked = *negotiation;
  if (is("negotiates-anything"))
    asked.magic = BP_NEGOTIATE_MAGIC, asked.host_min = asked.host_max = BP_ABI_VERSION;
  host = negotiation->host;
  own_host = *host;
  if (is("swallows-parallel-failures"))
    own_host.parallel_for = [](bp_host* h, std::size_t count, std::size_t grain, void* user,
                               bp_error* (*body)(void*, std::size_t, std::size_t)) -> bp_error* {
      host->error_release(host->host, host->parallel_for(h, count, grain, user, body));
      return nullptr;
    };
  if (is("loses-claim-failures"))
    own_host.claim_add = [](bp_claim_sink* sink, const bp_claim* claim) -> bp_error* {
      host->error_release(host->host, host->claim_add(sink, claim));
      return nullptr;
    };
  asked.host = &own_host;
  entry(&asked);
  asked.host = negotiation->host;
  asked.magic = negotiation->magic;
  asked.host_min = negotiation->host_min;
  asked.host_max = negotiation->host_max;
  *negotiation = asked;
  if (is("refuses-its-own-version")) negotiation->result = BP_NEGOTIATE_VERSION;
  if (is("chooses-another-version")) negotiation->chosen = BP_VERSION(0, 1);
  if (is("message-without-end")) std::memset(negotiation->message, 'x', 256);
  if (is("hides-its-versions")) negotiation->plugin_min = negotiation->plugin_max = 0;
  if (is("states-another-range")) negotiation->plugin_max = BP_ABI_VERSION + 3;
  if (negotiation->result != BP_NEGOTIATE_OK) {
    if (is("refuses-with-a-table")) negotiation->api = &table;
    return;
  }
  inner = asked.api;
  table = *inner;
  const auto put = [](auto& slot, auto function) {
    if (slot != nullptr) slot = function;
  };
  put(table.device_count, device_count);
  put(table.device_describe, device_describe);
  put(table.device_open, device_open);
  put(table.device_close, device_close);
  put(table.buffer_create, buffer_create);
  put(table.buffer_release, buffer_release);
  put(table.copy, copy);
  put(table.claims, claims);
  put(table.compile, compile);
  put(table.executable_describe, executable_describe);
  put(table.executable_release, executable_release);
  put(table.execute, execute);
  put(table.shutdown, shutdown);
  put(table.device_counters, device_counters);
  put(table.stream_create, stream_create);
  put(table.stream_release, stream_release);
  put(table.event_create, event_create);
  put(table.event_release, event_release);
  put(table.event_query, event_query);
  put(table.event_wait, event_wait);
  put(table.layout_bytes, layout_bytes);
  put(table.layout_convert, layout_convert);
  put(table.executable_workspace, executable_workspace);
  put(table.executable_save, executable_save);
  put(table.blob_check, blob_check);
  put(table.executable_load, executable_load);
  put(table.profile_begin, profile_begin);
  put(table.profile_end, profile_end);
  if (is("half-a-group")) table.event_wait = nullptr;
  if (is("without-a-required-entry")) table.claims = nullptr;
  negotiation->api = &table;
}
