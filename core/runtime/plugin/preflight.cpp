// Reads a plugin's ELF file without loading it: nothing of the file runs, every offset and size in
// it is untrusted. The program headers are used, not the sections, so stripped files work too.
#include <elf.h>
#include <sys/auxv.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>

#include "core/runtime/host/error.h"
#include "core/runtime/plugin/library_facts.h"
#include "core/runtime/plugin/plugin.h"

namespace backplane::runtime {

namespace {

#if defined(__x86_64__)
constexpr std::uint16_t kMachine = EM_X86_64;
constexpr std::string_view kMachineName = "x86-64";
#elif defined(__aarch64__)
constexpr std::uint16_t kMachine = EM_AARCH64;
constexpr std::string_view kMachineName = "aarch64";
#else
#error "Backplane runs on x86-64 and aarch64"
#endif

constexpr std::string_view kOwner{"backplane\0\0\0", 12};  // with its padding
constexpr std::uint64_t kNoteLimit = std::uint64_t{1} << 20;

std::string in_quotes(std::string_view text) {
  return "'" + copy_text({text.data(), text.size()}, 200) + "'";
}

std::string machine_name(std::uint16_t machine) {
  switch (machine) {
    case EM_386:
      return "x86 (32-bit)";
    case EM_X86_64:
      return "x86-64";
    case EM_ARM:
      return "ARM (32-bit)";
    case EM_AARCH64:
      return "aarch64";
    case EM_RISCV:
      return "RISC-V";
    case EM_PPC64:
      return "POWER";
    default:
      return "ELF machine number " + std::to_string(machine);
  }
}

Status refuse(std::string text) { return {Code::kInvalidArgument, std::move(text)}; }
Status truncated(std::string_view what) {
  return {Code::kDataCorrupt, "it is truncated or damaged: " + std::string(what) +
                                  " lies outside the file; copy or build the library again"};
}

// The checks, in the order in which they run. Every message completes "PATH was refused: ".
class Preflight {
 public:
  explicit Preflight(const LibraryFile& file) : file_(file) {}
  Status run() {
    BP_RETURN_IF_ERROR(check_header());
    BP_RETURN_IF_ERROR(check_segments());
    BP_RETURN_IF_ERROR(read_dynamic());
    BP_RETURN_IF_ERROR(check_needed());
    BP_RETURN_IF_ERROR(check_run_paths());
    BP_RETURN_IF_ERROR(check_entry());
    BP_RETURN_IF_ERROR(read_note());
    return check_note();
  }
  PluginNote take_note() { return std::move(result_); }
  LibraryFacts take_facts() {
    facts_.note = std::move(result_);
    facts_.needed = std::move(needed_);
    return std::move(facts_);
  }

 private:
  Status check_header();
  Status check_segments();
  Status read_dynamic();
  Status check_needed();
  Status check_run_paths() const;
  Status check_entry();
  Status read_note();
  Status check_note();

  // The file offset of a virtual address with `bytes` file bytes behind it.
  std::optional<std::uint64_t> offset_of(std::uint64_t address, std::uint64_t bytes) const {
    for (const Elf64_Phdr& segment : segments_) {
      if (segment.p_type != PT_LOAD || address < segment.p_vaddr) continue;
      const std::uint64_t inside = address - segment.p_vaddr;
      if (inside > segment.p_filesz || bytes > segment.p_filesz - inside) continue;
      return segment.p_offset + inside;
    }
    return std::nullopt;
  }
  std::string string_at(std::uint64_t offset) const {
    if (offset >= strings_.size()) return {};
    return strings_.c_str() + offset;  // the string's own terminator ends the last one
  }
  // Compared in place: a damaged table may be one string of megabytes.
  bool is_string_at(std::uint64_t offset, std::string_view text) const {
    return offset < strings_.size() && strings_.size() - offset >= text.size() &&
           std::memcmp(strings_.data() + offset, text.data(), text.size()) == 0 &&
           strings_.c_str()[offset + text.size()] == '\0';
  }
  void add_run_paths(std::string_view text);
  void note_symbol(const Elf64_Sym& symbol);
  std::optional<std::uint64_t> symbol_count() const;

  const LibraryFile& file_;
  Elf64_Ehdr header_{};
  std::vector<Elf64_Phdr> segments_;
  std::string strings_;
  std::vector<std::string> needed_;
  std::uint64_t symbols_ = 0, sysv_hash_ = 0, gnu_hash_ = 0;  // addresses, 0: none
  bp_note note_{};
  PluginNote result_;
  LibraryFacts facts_;
};

Status Preflight::check_header() {
  if (file_.size() == 0) return refuse("it is empty; expected a shared library (.so)");
  unsigned char ident[EI_NIDENT] = {};
  const std::uint64_t have = std::min<std::uint64_t>(file_.size(), EI_NIDENT);
  if (!file_.read(0, ident, have)) return truncated("the ELF header");
  if (have < SELFMAG || std::memcmp(ident, ELFMAG, SELFMAG) != 0) {
    const std::string_view start(reinterpret_cast<const char*>(ident),
                                 std::min<std::uint64_t>(have, 8));
    return refuse("it is not an ELF library; it starts with " +
                  in_quotes(start.substr(0, start.find_first_of("\r\n"))) +
                  "; copy or build the library again");
  }
  const std::optional<Elf64_Ehdr> header = file_.read_as<Elf64_Ehdr>(0);
  if (!header) return truncated("the ELF header");
  header_ = *header;
  if (ident[EI_CLASS] != ELFCLASS64) return refuse("it is not a 64-bit library");
  if (ident[EI_DATA] != ELFDATA2LSB) return refuse("it is not a little-endian library");
  if (header_.e_machine != kMachine) {
    return refuse("it is built for " + machine_name(header_.e_machine) + ", this process runs " +
                  std::string(kMachineName) + "; use the vendor's build for " +
                  std::string(kMachineName));
  }
  if (header_.e_type != ET_DYN) {
    return refuse("it is not a shared library (ELF type " + std::to_string(header_.e_type) +
                  ", expected " + std::to_string(ET_DYN) + "); link it with -shared");
  }
  if (header_.e_phentsize != sizeof(Elf64_Phdr) || header_.e_phnum == 0 ||
      header_.e_phnum == PN_XNUM) {
    return refuse("its program header table is damaged");
  }
  // The loader needs no sections, but a file that ends before them was cut off.
  if (header_.e_shoff != 0 &&
      !file_.contains(header_.e_shoff, std::uint64_t{header_.e_shnum} * header_.e_shentsize)) {
    return truncated("its section table");
  }
  return {};
}

Status Preflight::check_segments() {
  bool executable = false;
  bool stack_seen = false;
  const auto table =
      file_.read_bytes(header_.e_phoff, std::uint64_t{header_.e_phnum} * sizeof(Elf64_Phdr));
  if (!table) return truncated("its program header table");
  segments_.resize(header_.e_phnum);
  std::memcpy(segments_.data(), table->data(), table->size());
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    const Elf64_Phdr& segment = segments_[i];
    if (segment.p_type != PT_GNU_STACK && !file_.contains(segment.p_offset, segment.p_filesz)) {
      return truncated("segment " + std::to_string(i));
    }
    if (segment.p_type == PT_LOAD) {
      if (segment.p_filesz > segment.p_memsz ||
          segment.p_vaddr > std::numeric_limits<std::uint64_t>::max() - segment.p_memsz) {
        return refuse("segment " + std::to_string(i) + " has impossible sizes");
      }
      if ((segment.p_flags & PF_X) != 0 && (segment.p_flags & PF_W) != 0) {
        return refuse("segment " + std::to_string(i) + " is writable and executable");
      }
      executable = executable || (segment.p_flags & PF_X) != 0;
    }
    if (segment.p_type == PT_GNU_RELRO) facts_.has_relro = true;
    if (segment.p_type == PT_TLS) facts_.tls_bytes = segment.p_memsz;
    if (segment.p_type == PT_GNU_STACK) {
      stack_seen = true;
      if ((segment.p_flags & PF_X) != 0) {
        return refuse("it asks for an executable stack; link it with -Wl,-z,noexecstack");
      }
    }
  }
  if (!executable) return refuse("it has no executable segment");
  if (!stack_seen) {
    return refuse(
        "it has no PT_GNU_STACK header, which asks for an executable stack; "
        "link it with -Wl,-z,noexecstack");
  }
  return {};
}

Status Preflight::read_dynamic() {
  const auto dynamic = std::find_if(segments_.begin(), segments_.end(),
                                    [](const Elf64_Phdr& s) { return s.p_type == PT_DYNAMIC; });
  if (dynamic == segments_.end()) return refuse("it has no dynamic section, so it exports nothing");
  if (std::ranges::count(segments_, std::uint32_t{PT_DYNAMIC}, &Elf64_Phdr::p_type) != 1)
    return refuse("it has two dynamic sections; the loader would read the other one");
  std::uint64_t strings = 0, strings_size = 0;
  std::vector<std::uint64_t> needed, run_paths;
  std::optional<std::uint64_t> soname;
  const auto data = file_.read_bytes(dynamic->p_offset, dynamic->p_filesz);
  if (!data) return truncated("its dynamic section");
  Elf64_Dyn entry{};
  for (std::size_t at = 0; at + sizeof(entry) <= data->size(); at += sizeof(entry)) {
    std::memcpy(&entry, data->data() + at, sizeof(entry));
    if (entry.d_tag == DT_NULL) break;
    const std::uint64_t value = entry.d_un.d_val;
    switch (entry.d_tag) {
      case DT_STRTAB:
        strings = value;
        break;
      case DT_STRSZ:
        strings_size = value;
        break;
      case DT_SYMTAB:
        symbols_ = value;
        break;
      case DT_HASH:
        sysv_hash_ = value;
        break;
      case DT_GNU_HASH:
        gnu_hash_ = value;
        break;
      case DT_NEEDED:
        needed.push_back(value);
        break;
      case DT_RPATH:
        facts_.has_rpath = true;
        [[fallthrough]];
      case DT_RUNPATH:
        run_paths.push_back(value);
        break;
      case DT_SONAME:
        soname = value;
        break;
      case DT_FILTER:
      case DT_AUXILIARY:
        return refuse(
            "it is a filter (DT_FILTER or DT_AUXILIARY), so that another library would answer in "
            "its place; link it without -F and -f");
      case DT_BIND_NOW:
        facts_.binds_at_load = true;
        break;
      case DT_SYMENT:
        if (value != sizeof(Elf64_Sym)) return refuse("its symbol table is damaged");
        break;
      case DT_TEXTREL:
        return refuse("it has text relocations; compile it with -fPIC");
      case DT_FLAGS:
        if ((value & DF_TEXTREL) != 0) {
          return refuse("it has text relocations; compile it with -fPIC");
        }
        facts_.static_tls = (value & DF_STATIC_TLS) != 0;
        facts_.binds_at_load = facts_.binds_at_load || (value & DF_BIND_NOW) != 0;
        break;
      case DT_FLAGS_1:
        facts_.interposes = (value & (DF_1_INTERPOSE | DF_1_GLOBAL)) != 0;
        facts_.binds_at_load = facts_.binds_at_load || (value & DF_1_NOW) != 0;
        if ((value & DF_1_PIE) != 0) return refuse("it is a program, not a shared library");
        break;
      default:
        break;
    }
  }
  const auto offset = offset_of(strings, strings_size);
  const auto table = offset ? file_.read_bytes(*offset, strings_size) : std::nullopt;
  if (!table) return truncated("its string table");
  strings_ = *table;
  for (const std::uint64_t name : needed) {
    if (name >= strings_.size()) return truncated("the name of a needed library");
    needed_.push_back(string_at(name));
  }
  for (const std::uint64_t path : run_paths) {
    if (path >= strings_.size()) return truncated("a run path");
    add_run_paths(string_at(path));
  }
  if (soname) facts_.soname = string_at(*soname);
  return {};
}

void Preflight::add_run_paths(std::string_view text) {
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(':', begin), text.size());
    facts_.run_paths.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
}

// The current directory is nobody's to load from.
Status Preflight::check_run_paths() const {
  for (const std::string& part : facts_.run_paths) {
    if (part.starts_with('/') || part == "$ORIGIN" || part.starts_with("$ORIGIN/") ||
        part == "${ORIGIN}" || part.starts_with("${ORIGIN}/"))
      continue;
    return refuse("its run path has the relative part " + in_quotes(part) +
                  ", which is searched from the current directory; begin it with $ORIGIN or /");
  }
  return {};
}

Status Preflight::check_needed() {
  for (const std::string& name : needed_) {
    const std::string_view file = std::string_view(name).substr(name.rfind('/') + 1);
    for (const std::string_view forbidden : {"libtorch", "libc10.", "libc10_", "libpython"}) {
      if (!file.starts_with(forbidden)) continue;
      return refuse("it needs " + in_quotes(name) +
                    "; a plugin is linked to the plugin API and its vendor's libraries only, "
                    "never to torch or Python; remove it from the link line");
    }
    if (name.find('/') != std::string::npos && !name.starts_with('/'))
      return refuse("it needs " + in_quotes(name) +
                    ", which is searched from the current directory; link it by its plain name");
  }
  return {};
}

std::optional<std::uint64_t> Preflight::symbol_count() const {
  if (sysv_hash_ != 0) {
    const auto offset = offset_of(sysv_hash_, 8);
    const auto count = offset ? file_.read_as<std::uint32_t>(*offset + 4) : std::nullopt;
    return count ? std::optional<std::uint64_t>(*count) : std::nullopt;
  }
  struct GnuHash {
    std::uint32_t bucket_count, first_symbol, bloom_count, bloom_shift;
  };
  const auto offset = offset_of(gnu_hash_, sizeof(GnuHash));
  if (gnu_hash_ == 0 || !offset) return std::nullopt;
  const auto head = file_.read_as<GnuHash>(*offset);
  if (!head) return std::nullopt;
  const std::uint64_t buckets = *offset + sizeof(GnuHash) + std::uint64_t{head->bloom_count} * 8;
  const auto data = file_.read_bytes(buckets, std::uint64_t{head->bucket_count} * 4);
  if (!data) return std::nullopt;
  std::uint32_t last = 0;
  for (std::size_t at = 0; at < data->size(); at += 4) {
    std::uint32_t first = 0;
    std::memcpy(&first, data->data() + at, 4);
    last = std::max(last, first);
  }
  if (last < head->first_symbol) return head->first_symbol;
  // The chain of the last bucket ends with an odd value.
  constexpr std::uint64_t kChainLimit = 1 << 20;
  const std::uint64_t chain = buckets + data->size();
  for (std::uint64_t index = last; index - last < kChainLimit; ++index) {
    const auto value = file_.read_as<std::uint32_t>(chain + (index - head->first_symbol) * 4);
    if (!value) return std::nullopt;
    if ((*value & 1) != 0) return index + 1;
  }
  return std::nullopt;
}

Status Preflight::check_entry() {
  const std::string missing = "it exports no function '" BP_ENTRY_NAME "'";
  const auto count = symbol_count();
  if (!count || symbols_ == 0) return refuse(missing + " (no readable symbol table)");
  const std::uint64_t bytes = *count * sizeof(Elf64_Sym);
  const auto offset = offset_of(symbols_, bytes);
  const auto table = offset ? file_.read_bytes(*offset, bytes) : std::nullopt;
  if (!table) return truncated("its symbol table");
  bool defined = false;
  for (std::uint64_t i = 0; i < *count; ++i) {
    Elf64_Sym symbol;
    std::memcpy(&symbol, table->data() + i * sizeof(symbol), sizeof(symbol));
    note_symbol(symbol);
    if (!is_string_at(symbol.st_name, BP_ENTRY_NAME) || defined) continue;
    if (symbol.st_shndx == SHN_UNDEF) {
      return refuse("it uses the symbol '" BP_ENTRY_NAME "' and does not define it");
    }
    const unsigned kind = ELF64_ST_TYPE(symbol.st_info);
    if (kind != STT_FUNC) {
      return refuse("its symbol '" BP_ENTRY_NAME "' is " +
                    std::string(kind == STT_OBJECT
                                    ? "data"
                                    : "of another kind (" + std::to_string(kind) + ")") +
                    "; expected a function");
    }
    const unsigned visibility = ELF64_ST_VISIBILITY(symbol.st_other);
    if (ELF64_ST_BIND(symbol.st_info) == STB_LOCAL ||
        (visibility != STV_DEFAULT && visibility != STV_PROTECTED)) {
      return refuse("its function '" BP_ENTRY_NAME "' is hidden; mark it BP_EXPORT");
    }
    for (const Elf64_Phdr& segment : segments_) {
      if (segment.p_type == PT_LOAD && (segment.p_flags & PF_X) != 0 &&
          symbol.st_value >= segment.p_vaddr &&
          symbol.st_value - segment.p_vaddr < segment.p_filesz) {
        defined = true;
      }
    }
    if (!defined) return refuse("its function '" BP_ENTRY_NAME "' lies outside the code");
  }
  if (!defined)
    return refuse(missing + ", so it is no Backplane plugin; BP_PLUGIN of the SDK makes one");
  return {};
}

void Preflight::note_symbol(const Elf64_Sym& symbol) {
  constexpr std::size_t kMost = 1000;  // names that are kept
  const unsigned bind = ELF64_ST_BIND(symbol.st_info);
  const unsigned visibility = ELF64_ST_VISIBILITY(symbol.st_other);
  if (symbol.st_shndx == SHN_UNDEF || bind == STB_LOCAL || facts_.exports.size() >= kMost ||
      (visibility != STV_DEFAULT && visibility != STV_PROTECTED))
    return;
  facts_.exports.push_back(copy_text(
      {strings_.data() + std::min<std::uint64_t>(symbol.st_name, strings_.size()),
       symbol.st_name < strings_.size() ? ::strnlen(strings_.c_str() + symbol.st_name, 200) : 0}));
  if (bind == STB_GNU_UNIQUE) facts_.unique.push_back(facts_.exports.back());
}

Status Preflight::read_note() {
  bool found = false;
  for (const Elf64_Phdr& segment : segments_) {
    if (segment.p_type != PT_NOTE) continue;
    if (segment.p_filesz > kNoteLimit) return refuse("a note segment is absurdly large");
    const auto data = file_.read_bytes(segment.p_offset, segment.p_filesz);
    if (!data) return truncated("a note segment");
    const std::uint64_t align = segment.p_align == 8 ? 8 : 4;
    const auto rounded = [align](std::uint64_t n) { return (n + align - 1) / align * align; };
    std::uint64_t at = 0;
    while (at + sizeof(Elf64_Nhdr) <= data->size()) {
      Elf64_Nhdr note;
      std::memcpy(&note, data->data() + at, sizeof(note));
      const std::uint64_t name = at + sizeof(note);
      // Sizes are 32-bit, so these sums cannot overflow.
      const std::uint64_t description = rounded(name + note.n_namesz);
      if (description + note.n_descsz > data->size()) break;  // damaged, or not for us
      if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == sizeof(ELF_NOTE_GNU) &&
          std::memcmp(data->data() + name, ELF_NOTE_GNU, sizeof(ELF_NOTE_GNU)) == 0)
        facts_.has_build_id = true;
      const bool ours = note.n_type == 1 && note.n_namesz == kOwner.size() &&
                        std::memcmp(data->data() + name, kOwner.data(), kOwner.size()) == 0;
      if (ours) {
        if (found) return refuse("it carries two Backplane notes; one BP_NOTE is right");
        constexpr std::size_t kOwnHeader = offsetof(bp_note, plugin_min);
        if (note.n_descsz < sizeof(bp_note) - kOwnHeader) {
          return refuse("its Backplane note has " + std::to_string(note.n_descsz) +
                        " bytes; expected " + std::to_string(sizeof(bp_note) - kOwnHeader));
        }
        std::memcpy(reinterpret_cast<char*>(&note_) + kOwnHeader, data->data() + description,
                    sizeof(bp_note) - kOwnHeader);
        found = true;
      }
      at = rounded(description + note.n_descsz);
    }
  }
  if (!found) {
    return refuse(
        "it has no Backplane note; put BP_NOTE(...) into one source file, and keep the "
        "section .note.backplane when linking");
  }
  return {};
}

Status Preflight::check_note() {
  const auto text = [](const char* field, std::size_t size) -> std::optional<std::string> {
    const void* end = std::memchr(field, '\0', size);
    if (end == nullptr) return std::nullopt;
    const auto length = static_cast<std::size_t>(static_cast<const char*>(end) - field);
    return copy_text({field, length});
  };
  const auto name = text(note_.plugin_name, sizeof(note_.plugin_name));
  const auto vendor = text(note_.plugin_vendor, sizeof(note_.plugin_vendor));
  const auto version = text(note_.plugin_version, sizeof(note_.plugin_version));
  if (!name || !vendor || !version) return refuse("a text of its Backplane note has no end");
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  };
  if (name->empty() || !std::all_of(name->begin(), name->end(), allowed)) {
    return refuse("its note names it " + in_quotes(*name) +
                  "; a name has letters, digits, '_' and '-' only, and at least one");
  }
  if (BP_VERSION_MAJOR(note_.plugin_min) != BP_VERSION_MAJOR(note_.plugin_max) ||
      note_.plugin_min > note_.plugin_max) {
    return refuse("its note states an ABI range that is none (" + std::to_string(note_.plugin_min) +
                  " to " + std::to_string(note_.plugin_max) +
                  "); expected two versions of one major, the smaller first");
  }
  result_ = {*name, *vendor, *version, note_.plugin_min, note_.plugin_max, note_.sanitizer};
  // The note of a sanitized build may have been forgotten; its run-time library tells.
  for (const std::string& library : needed_) {
    if (result_.sanitizer != BP_SANITIZER_NONE) break;
    if (library.starts_with("libasan.so")) result_.sanitizer = BP_SANITIZER_ADDRESS;
    if (library.starts_with("libtsan.so")) result_.sanitizer = BP_SANITIZER_THREAD;
  }
  return {};
}

}  // namespace

namespace {

// Whoever may write to a library, or put another in its place, runs code in this process. That it
// belongs to somebody else is usual: installations of an administrator do.
Status check_writers(const LibraryFile& file) {
  const char* const allowed = std::getenv("BACKPLANE_WRITABLE_PLUGINS");
  if (allowed != nullptr && std::string_view(allowed) == "1" && ::getauxval(AT_SECURE) == 0)
    return {};
  constexpr const char* kRemedy =
      " (BACKPLANE_WRITABLE_PLUGINS=1 takes it where file systems have no modes)";
  if (file.is_writable_to_all())
    return refuse("everybody may write to it; chmod o-w it" + std::string(kRemedy));
  std::error_code error;
  std::filesystem::path at = std::filesystem::read_symlink(file.descriptor_path(), error);
  if (error) at = std::filesystem::canonical(file.path(), error);  // no /proc
  if (error) return refuse("its folder is not to be found (" + error.message() + ")");
  while (at.has_relative_path()) {
    at = at.parent_path();
    struct stat info {};
    if (::stat(at.c_str(), &info) != 0) continue;
    if ((info.st_mode & S_IWOTH) != 0 && (info.st_mode & S_ISVTX) == 0)
      return refuse("everybody may put another file in its place, as the folder " +
                    in_quotes(at.string()) + " is writable to all; chmod o-w the folder" + kRemedy);
  }
  return {};
}

Status run_checks(const LibraryFile& file, Preflight& checks) {
  Status status = checks.run();
  if (status.ok()) status = check_writers(file);
  if (status.ok()) return {};
  return {status.code(),
          "Plugin " + in_quotes(file.path()) + " was refused: " + status.message() + "."};
}

}  // namespace

Result<LibraryFile> open_library_file(const std::string& path) {
  if (path.empty() || path.front() != '/' || path.find('\0') != std::string::npos) {
    return Status(Code::kInvalidArgument, "Plugin " + in_quotes(path) +
                                              " was refused: its path is not absolute; give the "
                                              "full path of the library.");
  }
  Result<LibraryFile> file = LibraryFile::open(path);
  if (file.ok()) return file;
  return Status(file.status().code(),
                "Plugin " + in_quotes(path) + " was refused: " + file.status().message() + ".");
}

Result<PluginNote> preflight(const std::string& path) {
  BP_ASSIGN_OR_RETURN(const LibraryFile file, open_library_file(path));
  Preflight checks(file);
  BP_RETURN_IF_ERROR(run_checks(file, checks));
  return checks.take_note();
}

Result<LibraryFacts> read_library(const LibraryFile& file) {
  Preflight checks(file);
  BP_RETURN_IF_ERROR(run_checks(file, checks));
  return checks.take_facts();
}

Result<LibraryFacts> read_library(const std::string& path) {
  BP_ASSIGN_OR_RETURN(const LibraryFile file, open_library_file(path));
  return read_library(file);
}

}  // namespace backplane::runtime
