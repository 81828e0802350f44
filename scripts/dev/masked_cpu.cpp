// Another processor's words, for tests: a library that is loaded before all others and answers
// CPUID as a processor with fewer instruction sets would. PyTorch, oneDNN, LLVM and the kernels of
// plugins then choose what they would choose there; nothing stops them from using more than they
// were told of.
//
//   BACKPLANE_MASKED_CPU=avx2 | sse42
//
// CPUID is made to fault (arch_prctl, Linux on Intel's processors since Ivy Bridge), threads and
// children made by fork inherit that, and the fault's handler answers. A SIGSEGV that is none of
// these goes to the handler that the program set. Who opens /proc/cpuinfo, as Inductor does, reads
// the same answer.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <asm/prctl.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

struct Registers {
  std::uint32_t eax, ebx, ecx, edx;
};

// What a processor has of the leaves that say something of instruction sets.
struct Level {
  const char* name;
  std::uint32_t signature;    // leaf 1, EAX: family, model and stepping
  std::uint32_t extensions;   // leaf 1, ECX: what stays
  std::uint32_t structured;   // leaf 7, EBX: what stays
  std::uint32_t saved_state;  // leaf 13, EAX: what stays
  const char* flags;          // in /proc/cpuinfo: beginnings of those that go
};

constexpr std::uint32_t kFma = 1U << 12, kXsave = 1U << 26, kOsxsave = 1U << 27, kAvx = 1U << 28,
                        kF16c = 1U << 29;
constexpr std::uint32_t kBmi1 = 1U << 3, kBmi2 = 1U << 8;
// FSGSBASE, SMEP, ERMS, INVPCID, RDSEED, ADX, SMAP, CLFLUSHOPT: nothing computes with them.
constexpr std::uint32_t kPlain =
    1U | 1U << 7 | 1U << 9 | 1U << 10 | 1U << 18 | 1U << 19 | 1U << 20 | 1U << 23;
constexpr std::uint32_t kAvx2 = 1U << 5;

constexpr Level kLevels[] = {
    {"avx2", 0x306C3 /* Haswell */, ~0U, kPlain | kBmi1 | kBmi2 | kAvx2, 7,
     " avx512 avx_vnni amx_ gfni vaes vpclmulqdq "},
    {"sse42", 0x106A5 /* Nehalem */, ~(kFma | kXsave | kOsxsave | kAvx | kF16c), kPlain, 3,
     " avx amx_ gfni vaes vpclmulqdq fma f16c bmi xsave "},
};

const Level* g_level = nullptr;
struct sigaction g_program;  // what the program set for SIGSEGV
using Sigaction = int (*)(int, const struct sigaction*, struct sigaction*);
Sigaction g_real = nullptr;

// The kernel's own form of an action.
struct KernelAction {
  void (*handler)(int);
  std::uint64_t flags;
  void (*restorer)();
  std::uint64_t mask;
};

// libc's syscall() is replaced below.
long ask_kernel(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0,
                long f = 0) {
  register long r10 asm("r10") = d;
  register long r8 asm("r8") = e;
  register long r9 asm("r9") = f;
  long out = 0;
  asm volatile("syscall"
               : "=a"(out)
               : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  return out;
}

bool fault_at_cpuid(bool wanted) {
  return ask_kernel(SYS_arch_prctl, ARCH_SET_CPUID, wanted ? 0 : 1) == 0;
}

Registers ask(std::uint32_t leaf, std::uint32_t subleaf) {
  Registers r{leaf, 0, subleaf, 0};
  fault_at_cpuid(false);
  asm volatile("cpuid" : "+a"(r.eax), "=b"(r.ebx), "+c"(r.ecx), "=d"(r.edx));
  fault_at_cpuid(true);
  return r;
}

Registers masked(std::uint32_t leaf, std::uint32_t subleaf) {
  Registers r = ask(leaf, subleaf);
  if (leaf == 1) {
    r.eax = g_level->signature;
    r.ecx &= g_level->extensions;
  } else if (leaf == 7) {
    r = subleaf == 0 ? Registers{0, r.ebx & g_level->structured, 0, 0} : Registers{};
  } else if (leaf == 0xd && subleaf == 0) {
    r.eax &= g_level->saved_state;
  } else if (leaf >= 0x19 && leaf < 0x80000000U) {
    r = {};  // keys, tiles and vectors of later processors
  }
  return r;
}

void pass_on(int signal, siginfo_t* info, void* context) {
  if ((g_program.sa_flags & SA_SIGINFO) != 0) return g_program.sa_sigaction(signal, info, context);
  if (g_program.sa_handler != SIG_DFL && g_program.sa_handler != SIG_IGN)
    return g_program.sa_handler(signal);
  if (g_program.sa_handler == SIG_IGN && info->si_code <= 0) return;
  // An instruction faults again and ends the process; what another process or this one sent does
  // not.
  g_real(SIGSEGV, &g_program, nullptr);
  if (info->si_code <= 0) ask_kernel(SYS_tgkill, getpid(), ask_kernel(SYS_gettid), signal);
}

void on_fault(int signal, siginfo_t* info, void* context) {
  auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const auto* at = reinterpret_cast<const unsigned char*>(registers[REG_RIP]);
  // The kernel tells an address where memory is missing, and none where an instruction is refused.
  const bool is_cpuid = info->si_code == SI_KERNEL && at[0] == 0x0F && at[1] == 0xA2;
  if (!is_cpuid) return pass_on(signal, info, context);
  const Registers r = masked(static_cast<std::uint32_t>(registers[REG_RAX]),
                             static_cast<std::uint32_t>(registers[REG_RCX]));
  registers[REG_RAX] = r.eax;
  registers[REG_RBX] = r.ebx;
  registers[REG_RCX] = r.ecx;
  registers[REG_RDX] = r.edx;
  registers[REG_RIP] += 2;
}

void take_faults() {
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  g_real(SIGSEGV, &action, &g_program);
}

// Runs before libc's own start, which sets environ.
[[gnu::constructor]] void start(int, char**, char** environment) {
  constexpr const char kName[] = "BACKPLANE_MASKED_CPU=";
  const char* wanted = nullptr;
  for (; *environment != nullptr; ++environment)
    if (std::strncmp(*environment, kName, sizeof(kName) - 1) == 0)
      wanted = *environment + sizeof(kName) - 1;
  if (wanted == nullptr) return;
  for (const Level& level : kLevels)
    if (std::strcmp(level.name, wanted) == 0) g_level = &level;
  g_real = reinterpret_cast<Sigaction>(dlsym(RTLD_NEXT, "sigaction"));
  if (g_level == nullptr || !fault_at_cpuid(true)) {
    std::fprintf(stderr, "BACKPLANE_MASKED_CPU=%s: %s\n", wanted,
                 g_level == nullptr ? "want avx2 or sse42" : "this machine's CPUID does not fault");
    _exit(3);
  }
  take_faults();
}

bool is_masked_flag(const char* word, std::size_t length) {
  for (const char* at = g_level->flags; *(at += std::strspn(at, " ")) != 0;) {
    const std::size_t own = std::strcspn(at, " ");
    if (length >= own && std::strncmp(word, at, own) == 0) return true;
    at += own;
  }
  return false;
}

// A file without a name that says of the processor what CPUID says; -1 where there is none.
int open_cpuinfo() {
  const long real = ask_kernel(SYS_open, reinterpret_cast<long>("/proc/cpuinfo"), O_RDONLY);
  const long made = ask_kernel(SYS_memfd_create, reinterpret_cast<long>("cpuinfo"), 0);
  if (real < 0 || made < 0) return -1;
  std::FILE* from = fdopen(static_cast<int>(real), "r");
  char* line = nullptr;
  std::size_t room = 0;
  while (getline(&line, &room, from) >= 0) {
    for (char *word = line, *end = nullptr; *word != 0; word = end) {
      const std::size_t length = std::strcspn(word, " \n");
      end = word + length + (word[length] != 0 ? 1 : 0);
      const bool is_flag = std::strncmp(line, "flags", 5) == 0 && is_masked_flag(word, length);
      const char* shown = is_flag ? word + length : word;
      ask_kernel(SYS_write, made, reinterpret_cast<long>(shown), end - shown);
    }
  }
  std::free(line);
  std::fclose(from);
  ask_kernel(SYS_lseek, made, 0, SEEK_SET);
  return static_cast<int>(made);
}

bool is_cpuinfo(const char* path) {
  return g_level != nullptr && path != nullptr && std::strcmp(path, "/proc/cpuinfo") == 0;
}

// The next library's function of that name and type.
template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" int open(const char* path, int flags, ...) {
  if (is_cpuinfo(path)) return open_cpuinfo();
  mode_t mode = 0;
  if ((flags & (O_CREAT | O_TMPFILE)) != 0) {
    va_list given;
    va_start(given, flags);
    mode = va_arg(given, mode_t);
    va_end(given);
  }
  return next<int(const char*, int, ...)>("open")(path, flags, mode);
}
extern "C" std::FILE* fopen(const char* path, const char* mode) {
  if (is_cpuinfo(path)) return fdopen(open_cpuinfo(), mode);
  return next<std::FILE*(const char*, const char*)>("fopen")(path, mode);
}
// Offsets have 64 bits by either name.
extern "C" [[gnu::alias("open")]] int open64(const char* path, int flags, ...);
extern "C" [[gnu::alias("fopen")]] std::FILE* fopen64(const char* path, const char* mode);

// The program's handler stands behind the one above, whenever it is set.
extern "C" int sigaction(int signal, const struct sigaction* action, struct sigaction* before) {
  if (g_real == nullptr) g_real = reinterpret_cast<Sigaction>(dlsym(RTLD_NEXT, "sigaction"));
  if (signal != SIGSEGV || g_level == nullptr) return g_real(signal, action, before);
  const struct sigaction last = g_program;
  if (action != nullptr) g_program = *action;
  if (before != nullptr) *before = last;
  return 0;
}

extern "C" sighandler_t signal(int number, sighandler_t handler) {
  struct sigaction action {
  }, before{};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  if (sigaction(number, &action, &before) != 0) return SIG_ERR;
  return before.sa_handler;
}

// For those who go round libc, as who restores exactly what there was.
extern "C" long syscall(long number, ...) {
  va_list given;
  va_start(given, number);
  long a[6];
  for (long& one : a) one = va_arg(given, long);
  va_end(given);
  if (number == SYS_rt_sigaction && a[0] == SIGSEGV && g_level != nullptr) {
    const struct sigaction last = g_program;
    if (const auto* action = reinterpret_cast<const KernelAction*>(a[1])) {
      g_program = {};
      g_program.sa_handler = action->handler;
      g_program.sa_flags = static_cast<int>(action->flags);
      g_program.sa_restorer = action->restorer;
      std::memcpy(&g_program.sa_mask, &action->mask, sizeof action->mask);
    }
    if (auto* before = reinterpret_cast<KernelAction*>(a[2])) {
      *before = {last.sa_handler, static_cast<std::uint32_t>(last.sa_flags), last.sa_restorer, 0};
      std::memcpy(&before->mask, &last.sa_mask, sizeof before->mask);
    }
    return 0;
  }
  const long out = ask_kernel(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  if (out < 0 && out > -4096) {
    errno = static_cast<int>(-out);
    return -1;
  }
  return out;
}
