// What each thread does inside of plugins right now, in memory that outlives the process: a file
// beside those of other processes, where there is a folder for it. Crashes, long calls and the next
// start read it; a call writes it without a lock, an allocation or a question to the system.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace backplane::runtime {

// Text in shared memory, cut where it does not fit. Words, so that it can be read while it is
// written: a reader sees old or new ones, and an end.
template <std::size_t kBytes>
class SharedText {
 public:
  void set(std::string_view text) {
    const std::size_t size = std::min(text.size(), kBytes - 1), whole = size / sizeof(Word);
    for (std::size_t i = 0; i < whole; ++i)
      words_[i].store(load(text.data() + i * sizeof(Word)), std::memory_order_relaxed);
    // The last word has the end. Without a copy of unknown length, which would be a call.
    const std::size_t rest = size % sizeof(Word);
    Word last = 0;
    if (rest != 0 && whole != 0) {
      last = load(text.data() + size - sizeof(Word)) >> (8 * (sizeof(Word) - rest));
    } else {
      for (std::size_t i = 0; i < rest; ++i)
        last |= Word{static_cast<unsigned char>(text[i])} << (8 * i);
    }
    words_[whole].store(last, std::memory_order_relaxed);
  }
  // Into kBytes characters; safe inside of a signal handler.
  void get(char* out) const {
    for (std::size_t i = 0; i < words_.size(); ++i) {
      const Word word = words_[i].load(std::memory_order_relaxed);
      std::memcpy(out + i * sizeof word, &word, sizeof word);
    }
    out[kBytes - 1] = 0;
  }
  std::string text() const {
    std::array<char, kBytes> out{};
    get(out.data());
    return out.data();
  }

 private:
  using Word = std::uint64_t;  // of a little-endian machine
  static Word load(const char* text) {
    Word word = 0;
    std::memcpy(&word, text, sizeof word);
    return word;
  }
  std::array<std::atomic<Word>, kBytes / sizeof(Word)> words_;
};

// The call of one thread. Shared memory: no pointers. Written by its thread alone, read by all.
struct CallSlot {
  std::atomic<std::uint32_t> thread;    // the kernel's number; 0: nobody's
  std::atomic<std::uint32_t> sequence;  // odd: inside of a call
  std::atomic<std::int32_t> ended_by;   // the signal that ended the process inside of the call
  std::uint32_t reserved;
  SharedText<64> who;      // "acme:0", or "acme" before a device is known
  SharedText<48> entry;    // "compile"
  SharedText<128> detail;  // "aten.mm, aten.relu and 3 more"

  bool is_inside() const { return sequence.load(std::memory_order_acquire) % 2 != 0; }
};
static_assert(sizeof(CallSlot) == 256);
inline constexpr std::int32_t kEndedByExit = -1;  // `ended_by`: it called exit()

// "acme:0: compile (aten.mm and 3 more)"
std::string slot_text(const CallSlot& slot);

// A library that was loaded, so that a crash finds back to its content.
struct LoadedPlugin {
  char name[64];
  char sha256[65];
  char reserved[63];
};

inline constexpr std::string_view kBoardMagic = "BPCALLS1";
inline constexpr std::uint32_t kBoardVersion = 1;

struct CallBoard {
  static constexpr std::size_t kSlots = 224, kPlugins = 32;
  char magic[8];
  std::uint32_t version;
  std::atomic<std::uint32_t> plugin_count;
  std::int64_t pid;
  std::atomic<std::int64_t> end_s;  // when a plugin ended it, since 1970
  char reserved[224];
  std::array<LoadedPlugin, kPlugins> plugins;
  std::array<CallSlot, kSlots> slots;
  CallSlot of_foreign_threads;  // of a crash in a thread that a plugin started
};

// This process's board; made at the first question, and anew in a child of fork().
CallBoard& call_board();
CallBoard* board_now();  // null before; safe inside of a signal handler
// A board's file is locked by its process while that lives; not inherited. False: somebody has it.
bool lock_board_file(int fd);
// Before any code of the library runs.
void note_plugin(std::string_view name, std::string_view sha256);
// Where boards and the list of quarantined plugins lie: $BACKPLANE_STATE_DIR, else
// $XDG_STATE_HOME/backplane, else ~/.local/state/backplane. Empty where there is none to use:
// then nothing outlives the process.
const std::string& state_directory();

namespace detail {
struct ThreadSlot {
  CallSlot* slot = nullptr;
  std::uint32_t depth = 0;
  std::uint32_t board = 0;  // of which number
};
extern constinit thread_local ThreadSlot thread_slot;
extern std::atomic<std::uint32_t> board_number;  // 0: there is none; another one after fork()
void take_slot();
inline void write_slot(CallSlot& slot, std::string_view who, std::string_view entry,
                       std::string_view about) {
  slot.sequence.store(slot.sequence.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  slot.who.set(who);
  slot.entry.set(entry);
  slot.detail.set(about);
}
}  // namespace detail

// From before a plugin's code runs until after it. An inner one says nothing: the outer call is
// what the program waits for.
class CallScope {
 public:
  CallScope(std::string_view who, std::string_view entry, std::string_view about = {}) {
    detail::ThreadSlot& mine = detail::thread_slot;
    if (mine.board != detail::board_number.load(std::memory_order_relaxed)) [[unlikely]]
      detail::take_slot();
    if (mine.depth++ == 0 && mine.slot != nullptr)
      detail::write_slot(*mine.slot, who, entry, about);
  }
  ~CallScope() {
    detail::ThreadSlot& mine = detail::thread_slot;
    if (--mine.depth != 0 || mine.slot == nullptr) return;
    mine.slot->sequence.store(mine.slot->sequence.load(std::memory_order_relaxed) + 1,
                              std::memory_order_release);
  }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;
};

}  // namespace backplane::runtime
