# shellcheck shell=bash
# Paths, environment and small helpers. Sourced by ./dev from the repository root.

# Another Python or torch than the usual one has a .venv and a build folder of its own, so that
# going from one to the other builds nothing anew.
variant=
if [ -n "${BACKPLANE_PYTHON:-}" ]; then
  version=$("$BACKPLANE_PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])' || true)
  if [ "$version" != 3.11 ]; then variant+=-py$version; fi
fi
TORCH_PIN=requirements/torch.txt
if [ -n "${BACKPLANE_TORCH:-}" ] && [ "torch==$BACKPLANE_TORCH" != "$(cat $TORCH_PIN)" ]; then
  variant+=-torch$BACKPLANE_TORCH
  TORCH_PIN=build/torch$variant.txt
  mkdir -p build
  echo "torch==$BACKPLANE_TORCH" >"$TORCH_PIN"
fi
VENV=.venv$variant
export BACKPLANE_BUILD=build/dev$variant # tests find what is not installed there
PYTHON=$VENV/bin/python
STAMPS=$VENV/.backplane
JOBS=${BACKPLANE_JOBS:-$(nproc)}

export PIP_DISABLE_PIP_VERSION_CHECK=1
export PIP_ROOT_USER_ACTION=ignore
export PIP_NO_INPUT=1
export HF_HUB_OFFLINE=1
export CMAKE_BUILD_PARALLEL_LEVEL=$JOBS
# Checkouts share results: paths inside one are taken as relative.
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$PWD} CCACHE_NOHASHDIR=${CCACHE_NOHASHDIR:-1}
# Precompiled headers carry times that say nothing about their content.
export CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS:-pch_defines,time_macros,include_file_mtime,include_file_ctime}
# Else the environment's PYTHONPATH could put another package before the one under test.
unset PYTHONPATH PYTHONHOME

say() { printf 'dev: %s\n' "$*" >&2; }

die() {
  say "$1"
  exit "${2:-1}"
}

hash_text() { sha256sum | cut -d' ' -f1; }

# hash_files PATH...: one hash over names and contents of all files under the paths.
hash_files() {
  local paths=()
  for path in "$@"; do
    if [ -e "$path" ]; then paths+=("$path"); fi
  done
  find "${paths[@]}" -type f -not -path '*/__pycache__/*' -not -name '*.so' -print0 |
    LC_ALL=C sort -z | xargs -0 -r sha256sum | hash_text
}

stamp_is() { [ -f "$STAMPS/$1" ] && [ "$(cat "$STAMPS/$1")" = "$2" ]; }

set_stamp() {
  mkdir -p "$STAMPS"
  echo "$2" >"$STAMPS/$1"
}

# quietly LOG COMMAND...: runs a command whose output matters only if it fails.
quietly() {
  local log=$1
  shift
  if [ -n "${BACKPLANE_VERBOSE:-}" ]; then
    "$@" 2>&1 | tee "$log"
    return
  fi
  if ! "$@" >"$log" 2>&1 </dev/null; then
    # Compiler messages stand before pip's summary; show both.
    grep -nE 'error:|^ERROR|FAILED:|CMake Error|undefined reference' "$log" | head -n 40 >&2 || true
    tail -n 30 "$log" >&2
    die "failed: ${*:1:4} … (whole output: $log)"
  fi
}

# The interpreter for scripts that need nothing but the standard library.
any_python() {
  if [ -x "$PYTHON" ]; then "$PYTHON" "$@"; else "$(find_python)" "$@"; fi
}

# One ./dev at a time installs or builds; the others wait. Tests run outside the lock.
lock() {
  mkdir -p build
  exec 9>build/.dev.lock
  if ! flock --nonblock 9; then
    say "waiting for another ./dev in this checkout"
    flock 9
  fi
}

unlock() { exec 9>&-; }

# mask_cpu LEVEL: what this process starts from here on asks a processor that answers as one of LEVEL.
mask_cpu() {
  local library=$PWD/build/masked_cpu.so
  mkdir -p build
  g++ -std=c++20 -O2 -Wall -Wextra -Werror -fPIC -shared -Wl,-z,initfirst -o "$library" \
    scripts/dev/masked_cpu.cpp -ldl || die "--cpu: cannot build scripts/dev/masked_cpu.cpp"
  BACKPLANE_MASKED_CPU=$1 LD_PRELOAD=$library env true || die "--cpu: see above" 3
  export BACKPLANE_MASKED_CPU=$1 LD_PRELOAD=$library
}
