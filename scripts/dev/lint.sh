# shellcheck shell=bash
# Checks that need no build. Each prints one line when it passes.

TIDY_LIMIT=24 # files per run with BACKPLANE_TIDY=changed: clang-tidy takes seconds for each

lint_status=0

# check NAME COMMAND...
check() {
  local name=$1
  shift
  if "$@"; then echo "lint: $name ok"; else
    echo "lint: $name FAILED"
    lint_status=1
  fi
}

# Tracked and new files with the given suffixes that still exist.
list_files() {
  local patterns=()
  for suffix in "$@"; do patterns+=("*.$suffix"); done
  git ls-files --cached --others --exclude-standard -- "${patterns[@]}" | sort -u |
    while read -r file; do if [ -f "$file" ]; then echo "$file"; fi; done
}

list_cpp() { list_files h hpp c cpp cu; }

# One line per file that ./dev format would change.
check_format() {
  list_cpp | xargs -r clang-format --dry-run -Werror 2>&1 |
    sed -n 's/^\([^:]*\):[0-9]*:[0-9]*: error:.*/\1/p' | uniq -c | sort -rn | sed 's/$/ (clang-format)/' >&2
  return "${PIPESTATUS[1]}"
}

# The commit that "changed" is counted from.
tidy_base() {
  local base
  base=$(git merge-base HEAD origin/main 2>/dev/null || true)
  if [ -n "$base" ] && [ "$base" != "$(git rev-parse HEAD)" ]; then
    echo "$base"
  else
    git rev-parse --verify --quiet HEAD~1 || git hash-object -t tree /dev/null
  fi
}

# Sources with a compile command that clang-tidy should read.
tidy_files() {
  local known
  known=$(any_python -c '
import json, os
for entry in json.load(open("build/tidy/compile_commands.json")):
    print(os.path.relpath(entry["file"]))' |
    grep -vE '^build/|_(baseline|avx2|avx512)\.cpp$' | sort -u) # vector built-ins of g++ alone
  if [ "${BACKPLANE_TIDY:-changed}" = all ]; then
    echo "$known"
  else
    {
      git diff --name-only --diff-filter=d "$(tidy_base)" -- '*.cpp'
      git ls-files --others --exclude-standard -- '*.cpp'
    } | sort -u | comm -12 - <(echo "$known")
  fi
}

check_tidy() {
  # A copy of the commands without g++'s own flags, which clang rejects, and without warnings, which
  # the build judges.
  mkdir -p build/tidy/include
  # clang's own omp.h needs another package; g++'s has an attribute that clang lacks.
  sed 's/__malloc__ *([^)]*)/__malloc__/' "$(g++ -print-file-name=include/omp.h)" \
    >build/tidy/include/omp.h
  sed 's/ -fno-gnu-unique//g; s/ -fpch-preprocess//g; s/ -W[a-z][a-z-]*//g' build/core/compile_commands.json \
    >build/tidy/compile_commands.json
  local files count
  files=$(tidy_files)
  count=$(grep -c . <<<"$files" || true)
  if [ "${BACKPLANE_TIDY:-changed}" = changed ] && [ "$count" -gt "$TIDY_LIMIT" ]; then
    echo "lint: clang-tidy reads the first $TIDY_LIMIT of $count changed files (BACKPLANE_TIDY=all reads every file)"
    files=$(head -n "$TIDY_LIMIT" <<<"$files")
  fi
  if [ "$count" -eq 0 ]; then return; fi
  xargs -r -P "$JOBS" -n 1 clang-tidy --quiet -p build/tidy --extra-arg=-isystem$PWD/build/tidy/include <<<"$files" >build/tidy/log 2>&1 && return
  grep -vE '^[0-9]+ warnings? generated|^Suppressed|^Use -header-filter' build/tidy/log
  return 1
}

run_lint() {
  ensure_debian lint
  ensure_venv
  install_requirements lint requirements/lint.txt
  check "layers" any_python scripts/check_layers.py
  check "locks" any_python scripts/check_locks.py
  check "ABI surface" any_python scripts/check_abi_surface.py
  check "documents" any_python scripts/check_docs.py
  check "clang-format" check_format
  check "ruff" "$VENV/bin/ruff" check --quiet --output-format concise .
  check "ruff format" "$VENV/bin/ruff" format --check --quiet --output-format concise .
  if [ "${BACKPLANE_TIDY:-changed}" != off ]; then
    lock
    quietly build/core-configure.log cmake --preset core
    unlock
    check "clang-tidy" check_tidy
  fi
  return "$lint_status"
}

run_format() {
  ensure_debian lint
  ensure_venv
  install_requirements lint requirements/lint.txt
  list_cpp | xargs -r clang-format -i
  "$VENV/bin/ruff" check --quiet --select I --fix .
  "$VENV/bin/ruff" format --quiet .
}
