// What the file says about itself, and what loading it does to the process.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "core/runtime/host/process_state.h"
#include "core/runtime/plugin/library_facts.h"
#include "sdk/conformance/src/raw.h"

namespace backplane::conformance {

using runtime::LibraryFacts;

namespace {

struct Package {
  LibraryFacts facts;
  struct stat file {};
  std::string path;
};

Result<Package> read_package(const std::string& path) {
  Package out;
  out.path = path;
  BP_ASSIGN_OR_RETURN(out.facts, runtime::read_library(path));
  if (::stat(path.c_str(), &out.file) != 0)
    return Status(Code::kNotFound, path + " cannot be read");
  return out;
}

// Empty: it holds.
using Rule = std::string (*)(const Package& package);

bool is_text(const std::string& text) {
  return !text.empty() && text.find('?') == std::string::npos;
}

struct NamedRule {
  const char* name;
  Rule rule;
};
const NamedRule kRules[] = {
    {"preflight", [](const Package&) { return std::string(); }},
    {"vendor",
     [](const Package& p) {
       return std::string(is_text(p.facts.note.vendor) ? "" : "the note names no vendor");
     }},
    {"version",
     [](const Package& p) {
       return std::string(!p.facts.note.version.empty() && std::isdigit(p.facts.note.version[0])
                              ? ""
                              : "the note's version does not begin with a number");
     }},
    {"abi-range",
     [](const Package& p) {
       return std::string(p.facts.note.abi_min <= BP_ABI_VERSION &&
                                  BP_ABI_VERSION <= p.facts.note.abi_max
                              ? ""
                              : "the note's range leaves out the kit's version");
     }},
    {"no-sanitizer",
     [](const Package& p) {
       return std::string(p.facts.note.sanitizer == BP_SANITIZER_NONE ? ""
                                                                      : "it is a sanitized build");
     }},
    {"file-name",
     [](const Package& p) {
       const std::string want = "libbackplane_" + p.facts.note.name + ".so";
       const std::string have = std::filesystem::path(p.path).filename();
       return have == want ? std::string() : "the file is " + have + ", expected " + want;
     }},
    {"one-export",
     [](const Package& p) {
       for (const std::string& name : p.facts.exports)
         if (name != BP_ENTRY_NAME)
           return "it exports " + name + " beside " BP_ENTRY_NAME +
                  "; build it with backplane_add_plugin()'s version script";
       return std::string();
     }},
    {"no-unique-symbols",
     [](const Package& p) {
       return p.facts.unique.empty() ? std::string()
                                     : "its symbol " + p.facts.unique[0] +
                                           " is one for the whole process (STB_GNU_UNIQUE); build "
                                           "it with -fno-gnu-unique, "
                                           "as backplane_add_plugin() does";
     }},
    {"no-interposition",
     [](const Package& p) {
       return std::string(p.facts.interposes ? "it asks to stand before other libraries" : "");
     }},
    {"needs-plain-names",
     [](const Package& p) {
       for (const std::string& name : p.facts.needed)
         if (name.find('/') != std::string::npos) return "it needs " + name + " by its path";
       return std::string();
     }},
    {"no-rpath",
     [](const Package& p) {
       return std::string(
           p.facts.has_rpath ? "it has DT_RPATH, which nobody can override; use DT_RUNPATH" : "");
     }},
    {"run-path-of-its-own",
     [](const Package& p) {
       for (const std::string& part : p.facts.run_paths)
         if (part.starts_with("/home") || part.starts_with("/tmp") || part.starts_with("/root"))
           return "its run path holds a folder of the machine that built it: " + part;
       return std::string();
     }},
    {"soname",
     [](const Package& p) {
       const std::string have = std::filesystem::path(p.path).filename();
       return p.facts.soname.empty() || p.facts.soname == have
                  ? std::string()
                  : "its soname is " + p.facts.soname + ", its file " + have;
     }},
    {"relocations-read-only",
     [](const Package& p) {
       return std::string(p.facts.has_relro ? "" : "no read-only relocations; link with -z relro");
     }},
    {"thread-storage",
     [](const Package& p) {
       constexpr std::uint64_t kMost = 4096;
       return std::string(p.facts.static_tls && p.facts.tls_bytes > kMost
                              ? "it takes more than 4 KiB of the static thread storage"
                              : "");
     }},
    {"regular-file",
     [](const Package& p) {
       return std::string(S_ISREG(p.file.st_mode) ? "" : "it is no regular file");
     }},
    {"owner",
     [](const Package& p) {
       return std::string(
           p.file.st_uid == 0 || p.file.st_uid == ::geteuid() ? "" : "it belongs to somebody else");
     }},
    {"not-writable-by-all",
     [](const Package& p) {
       return std::string((p.file.st_mode & S_IWOTH) == 0 ? "" : "anybody may write the file");
     }},
    {"folder-not-writable-by-all",
     [](const Package& p) {
       struct stat folder {};
       const std::string parent = std::filesystem::path(p.path).parent_path();
       if (::stat(parent.c_str(), &folder) != 0) return parent + " cannot be read";
       const bool open = (folder.st_mode & S_IWOTH) != 0 && (folder.st_mode & S_ISVTX) == 0;
       return open ? "anybody may put another file into " + parent : std::string();
     }},
};

// What a process looks like before and after a library is loaded.
struct ProcessFacts {
  runtime::FpControl floating_point;
  std::string folder, environment, locale;
  mode_t mask = 0;
  std::vector<struct sigaction> handlers;
  std::size_t threads = 0, descriptors = 0;

  static ProcessFacts now() {
    ProcessFacts out;
    out.floating_point = runtime::read_fp_control();
    std::error_code error;
    out.folder = std::filesystem::current_path(error).string();
    for (char** entry = environ; *entry != nullptr; ++entry)
      out.environment += std::string(*entry) + "\n";
    out.locale = std::setlocale(LC_ALL, nullptr);
    out.mask = ::umask(022);
    ::umask(out.mask);
    for (int signal = 1; signal < 32; ++signal) {
      struct sigaction& handler = out.handlers.emplace_back();
      std::memset(&handler, 0, sizeof handler);
      ::sigaction(signal, nullptr, &handler);
    }
    out.threads = entries_of("/proc/self/task");
    out.descriptors = entries_of("/proc/self/fd");
    return out;
  }
};

using Comparison = std::string (*)(const ProcessFacts& before, const ProcessFacts& after);
struct NamedComparison {
  const char* name;
  Comparison compare;
};
const NamedComparison kComparisons[] = {
    {"floating-point",
     [](const ProcessFacts& a, const ProcessFacts& b) {
       return std::string(a.floating_point == b.floating_point
                              ? ""
                              : "loading changes how the process rounds or flushes numbers");
     }},
    {"folder",
     [](const ProcessFacts& a, const ProcessFacts& b) {
       return std::string(a.folder == b.folder ? "" : "loading changes the working directory");
     }},
    {"environment",
     [](const ProcessFacts& a, const ProcessFacts& b) {
       return std::string(a.environment == b.environment ? "" : "loading changes the environment");
     }},
    {"locale",
     [](const ProcessFacts& a, const ProcessFacts& b) {
       return std::string(a.locale == b.locale ? "" : "loading changes the locale");
     }},
    {"umask",
     [](const ProcessFacts& a, const ProcessFacts& b) {
       return std::string(a.mask == b.mask ? "" : "loading changes the umask");
     }},
    {"signals",
     [](const ProcessFacts& a, const ProcessFacts& b) {
       for (std::size_t i = 0; i < a.handlers.size(); ++i)
         if (a.handlers[i].sa_sigaction != b.handlers[i].sa_sigaction)
           return "loading changes the handler of signal " + std::to_string(i + 1);
       return std::string();
     }},
    {"threads",
     [](const ProcessFacts& a, const ProcessFacts& b) {
       return std::string(a.threads == b.threads ? "" : "loading starts threads");
     }},
};

std::string load(const std::string& path) {
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return std::string("it cannot be loaded: ") + ::dlerror();
  if (::dlsym(library, BP_ENTRY_NAME) == nullptr) return "the loaded library has no entry";
  return {};
}

// How a child ends that loads the library and leaves.
Outcome load_in_child(const std::string& path, bool closes) {
  constexpr int kDone = 77;
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr && closes) ::dlclose(library);
    std::exit(library != nullptr ? kDone : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFSIGNALED(status))
    return Outcome::fail("a process that loaded it ended by signal " +
                         std::to_string(WTERMSIG(status)));
  if (WEXITSTATUS(status) != kDone)
    return Outcome::fail("a process that loaded it and ended with status 77 gave " +
                         std::to_string(WEXITSTATUS(status)));
  return {};
}

Outcome load_silently(const std::string& path) {
  int pipe_ends[2];
  if (::pipe(pipe_ends) != 0) return Outcome::mistrusted("no pipe");
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    ::dup2(pipe_ends[1], STDOUT_FILENO);
    ::dup2(pipe_ends[1], STDERR_FILENO);
    ::close(pipe_ends[0]);
    ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    ::_exit(0);
  }
  ::close(pipe_ends[1]);
  char text[200];
  const ssize_t got = ::read(pipe_ends[0], text, sizeof text);
  ::close(pipe_ends[0]);
  ::waitpid(child, nullptr, 0);
  if (got > 0)
    return Outcome::fail("loading it prints: " + std::string(text, static_cast<std::size_t>(got)));
  return {};
}

}  // namespace

void add_package_cases(std::vector<Case>& out) {
  const auto add = [&](const std::string& name, std::function<Outcome(Kit&)> run, Door door) {
    out.push_back({"package:" + name, 0, door, std::move(run)});
  };
  for (const NamedRule& rule : kRules)
    add(
        rule.name,
        [&rule](Kit& kit) {
          const auto package = read_package(kit.files().plugin);
          if (!package.ok()) return Outcome::fail(package.status().message());
          return Outcome::of(rule.rule(*package));
        },
        Door::kAny);
  for (const NamedComparison& comparison : kComparisons)
    add(
        std::string("loading-keeps-") + comparison.name,
        [&comparison](Kit& kit) {
          const ProcessFacts before = ProcessFacts::now();
          if (std::string wrong = load(kit.files().plugin); !wrong.empty())
            return Outcome::fail(std::move(wrong));
          return Outcome::of(comparison.compare(before, ProcessFacts::now()));
        },
        Door::kAlone);
  add(
      "loads", [](Kit& kit) { return Outcome::of(load(kit.files().plugin)); }, Door::kAlone);
  add(
      "loads-twice",
      [](Kit& kit) {
        const std::string& path = kit.files().plugin;
        void* const first = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
        void* const second = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
        return Outcome::of(first != nullptr && first == second ? "" : "it is not one library");
      },
      Door::kAlone);
  add(
      "process-ends", [](Kit& kit) { return load_in_child(kit.files().plugin, false); },
      Door::kAlone);
  add(
      "closes-and-process-ends", [](Kit& kit) { return load_in_child(kit.files().plugin, true); },
      Door::kAlone);
  add(
      "loads-silently", [](Kit& kit) { return load_silently(kit.files().plugin); }, Door::kAlone);
}

}  // namespace backplane::conformance
