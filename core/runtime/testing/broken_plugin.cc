// Plugins with one fault each: BROKEN_CASE is a number of this list, in the order of
// CMakeLists.txt. Not ".cpp", because every .cpp of this folder is a source of the runtime library.
#define BROKEN_NO_ENTRY 1
#define BROKEN_ENTRY_IS_DATA 2
#define BROKEN_NO_NOTE 3
#define BROKEN_NOTE_DISAGREES 4
#define BROKEN_ABI_NEWER 5
#define BROKEN_ABI_OLDER 6
#define BROKEN_ANSWERS_VERSION 7
#define BROKEN_REQUIRED_NULL 8
#define BROKEN_ENTRY_IN_LIBC 9
#define BROKEN_ENTRY_IN_DATA 10
#define BROKEN_SIZE_ZERO 11
#define BROKEN_SIZE_HUGE 12
#define BROKEN_SIZE_PAST_MAPPING 13
#define BROKEN_HALF_GROUP 14
#define BROKEN_THROWS 15
#define BROKEN_SANITIZER 16
#define BROKEN_UNDEFINED_SYMBOL 17
#define BROKEN_SETS_FTZ 18  // loads; the state is restored
#define BROKEN_CHOSEN_OUTSIDE 19
#define BROKEN_NO_TABLE 20
#define BROKEN_TABLE_ON_HEAP 21
#define BROKEN_FAILS_WITH_TEXT 22
#define BROKEN_CHANGES_PROCESS 23  // loads; the state is restored
#define BROKEN_EXECUTABLE_STACK 24
#define BROKEN_NEEDS_TORCH 25
#define BROKEN_UNKNOWN_FLAG 26
#define BROKEN_NAME 27
#define BROKEN_SILENT 28             // leaves the answer untouched
#define BROKEN_DESCRIBES_NOTHING 29  // loads; its device cannot be opened
#define BROKEN_OPENS_NOTHING 30      // loads; its device cannot be opened
#define BROKEN_SMALL_TABLE 31
#define BROKEN_THROWS_UNKNOWN 32
#define BROKEN_FOREIGN_ERROR 33       // loads; its copy fails with a pointer that is no error
#define BROKEN_LEAVES_FTZ_IN_COPY 34  // loads; the state is restored

#include <backplane/plugin.h>
#include <csignal>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <stdexcept>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#if BROKEN_CASE == BROKEN_ABI_NEWER
#define TEST_NOTE_MIN (BP_ABI_VERSION + 1)
#define TEST_NOTE_MAX (BP_ABI_VERSION + 2)
#elif BROKEN_CASE == BROKEN_ABI_OLDER
#define TEST_NOTE_MIN BP_VERSION(0, 0)
#define TEST_NOTE_MAX BP_VERSION(0, 0)
#elif BROKEN_CASE == BROKEN_NO_NOTE
#define TEST_WITHOUT_NOTE
#elif BROKEN_CASE == BROKEN_NAME
#undef TEST_PLUGIN_NAME
#define TEST_PLUGIN_NAME "../evil"
#elif BROKEN_CASE == BROKEN_SANITIZER
#if defined(__SANITIZE_THREAD__)
#define TEST_NOTE_SANITIZER BP_SANITIZER_ADDRESS
#else
#define TEST_NOTE_SANITIZER BP_SANITIZER_THREAD
#endif
#endif

#if BROKEN_CASE == BROKEN_ENTRY_IS_DATA
// The header declares it as a function; the linker sees this name only.
extern "C" BP_EXPORT int data_of_that_name __asm__("backplane_plugin_negotiate");
int data_of_that_name = 1;
#endif

#include "core/runtime/testing/good_plugin.c"  // NOLINT(bugprone-suspicious-include)

namespace {

void set_flush_to_zero() {
#if defined(__x86_64__)
  _mm_setcsr(_mm_getcsr() | 0x8040);
#endif
}

#if BROKEN_CASE == BROKEN_SETS_FTZ
__attribute__((constructor)) void at_load() { set_flush_to_zero(); }
#elif BROKEN_CASE == BROKEN_CHANGES_PROCESS
__attribute__((constructor)) void at_load() {
  signal(SIGUSR1, SIG_IGN);
  umask(0);
  if (chdir("/") != 0) abort();
}
#elif BROKEN_CASE == BROKEN_UNDEFINED_SYMBOL
extern "C" void backplane_symbol_that_nobody_defines();
__attribute__((constructor)) void at_load() { backplane_symbol_that_nobody_defines(); }
#elif BROKEN_CASE == BROKEN_NEEDS_TORCH
extern "C" void backplane_symbol_of_fake_torch();
__attribute__((constructor)) void at_load() { backplane_symbol_of_fake_torch(); }
#endif

[[maybe_unused]] bp_error* describe_nothing(bp_plugin*, std::uint32_t, bp_device_info* out_info) {
  out_info->struct_size = 0;
  return nullptr;
}
[[maybe_unused]] bp_error* open_nothing(bp_plugin*, std::uint32_t, bp_device**) { return nullptr; }
[[maybe_unused]] bp_error* copy_with_foreign_error(bp_device*, const bp_copy_args*) {
  static std::uint64_t memory[64] = {};
  return reinterpret_cast<bp_error*>(memory);
}
[[maybe_unused]] bp_error* copy_with_ftz(bp_device* device, const bp_copy_args* args) {
  set_flush_to_zero();
  return copy(device, args);
}
[[maybe_unused]] bp_error* create_stream(bp_device*, bp_stream**) { return nullptr; }

// Spoils an answer that was right.
[[maybe_unused]] void spoil(bp_negotiation* answer) {
  static const bp_plugin_api* const none = nullptr;
  switch (BROKEN_CASE) {
    case BROKEN_NOTE_DISAGREES:
      answer->plugin_max = BP_ABI_VERSION + 1;
      break;
    case BROKEN_ANSWERS_VERSION:
      answer->result = BP_NEGOTIATE_VERSION;
      answer->plugin_min = BP_ABI_VERSION + 1;
      answer->plugin_max = BP_ABI_VERSION + 3;
      break;
    case BROKEN_REQUIRED_NULL:
      table.copy = nullptr;
      table.execute = nullptr;
      break;
    case BROKEN_ENTRY_IN_LIBC:
      table.shutdown = reinterpret_cast<void (*)(bp_plugin*)>(&abort);
      break;
    case BROKEN_ENTRY_IN_DATA:
      table.shutdown = reinterpret_cast<void (*)(bp_plugin*)>(&table);
      break;
    case BROKEN_SIZE_ZERO:
      table.struct_size = 0;
      break;
    case BROKEN_SIZE_HUGE:
      table.struct_size = std::size_t{1} << 40;
      break;
    case BROKEN_SIZE_PAST_MAPPING:
      table.struct_size = 60000;
      break;
    case BROKEN_SMALL_TABLE:
      table.struct_size = offsetof(bp_plugin_api, profile_end);  // an entry less than version 0.2
      break;
    case BROKEN_HALF_GROUP:
      table.stream_create = create_stream;
      break;
    case BROKEN_THROWS:
      throw std::runtime_error("vendor runtime is missing");
    case BROKEN_THROWS_UNKNOWN:
      throw 42;
    case BROKEN_CHOSEN_OUTSIDE:
      answer->chosen = BP_VERSION(0, 7);
      break;
    case BROKEN_NO_TABLE:
      answer->api = none;
      break;
    case BROKEN_TABLE_ON_HEAP: {
      static bp_plugin_api* const heap = new bp_plugin_api(table);
      answer->api = heap;
      break;
    }
    case BROKEN_FAILS_WITH_TEXT:
      answer->result = BP_NEGOTIATE_FAILED;
      std::memcpy(answer->message, "driver 12 is too old", 21);
      break;
    case BROKEN_UNKNOWN_FLAG:
      table.flags = UINT64_C(1) << 40;
      break;
    case BROKEN_DESCRIBES_NOTHING:
      table.device_describe = describe_nothing;
      break;
    case BROKEN_OPENS_NOTHING:
      table.device_open = open_nothing;
      break;
    case BROKEN_FOREIGN_ERROR:
      table.copy = copy_with_foreign_error;
      break;
    case BROKEN_LEAVES_FTZ_IN_COPY:
      table.copy = copy_with_ftz;
      break;
    default:
      break;
  }
}

}  // namespace

#if BROKEN_CASE != BROKEN_NO_ENTRY && BROKEN_CASE != BROKEN_ENTRY_IS_DATA
void backplane_plugin_negotiate(bp_negotiation* negotiation) {
#if BROKEN_CASE != BROKEN_SILENT
  answer(negotiation);
  spoil(negotiation);
#else
  (void)negotiation;
  (void)answer;
#endif
}
#endif
