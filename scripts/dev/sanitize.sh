# shellcheck shell=bash
# Builds and tests under a sanitizer, each in a build folder of its own.

# The package with address and undefined sanitizers, for a Python that is built without them.
sanitize_python() {
  build_package test # .venv and what the tests need
  local folder=build/asan-python package=$PWD/build/asan-python/package
  say "building the package under the address sanitizer (build/asan-python.log)"
  rm -rf "$package"
  quietly build/asan-python.log env "PATH=$PWD/$VENV/bin:$PATH" "$PYTHON" -m pip install --verbose \
    --no-build-isolation --no-deps --target "$package" . \
    -C build-dir="$folder" \
    -C cmake.build-type=RelWithDebInfo \
    -C cmake.define.BACKPLANE_SANITIZE=address \
    -C cmake.define.BACKPLANE_WERROR=OFF \
    -C cmake.define.BACKPLANE_ONEDNN_ROOT="${BACKPLANE_ONEDNN_ROOT:-}"
  local preload
  preload="$(g++ -print-file-name=libasan.so):$(g++ -print-file-name=libubsan.so):$(g++ -print-file-name=libstdc++.so.6)"
  # Leaks: the interpreter's own objects live until the process ends. Objects by malloc: the
  # interpreter's arenas would hide what is read after its release.
  env "LD_PRELOAD=$preload" "PYTHONPATH=$package" PYTHONMALLOC=malloc \
    ASAN_OPTIONS=detect_leaks=0:halt_on_error=1:allocator_may_return_null=1 \
    UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
    "$PYTHON" -m pytest -p no:cacheprovider -s -m "not host_memory" "$@"
}

run_sanitize() {
  local kind=${1:-} part=${2:-core} preset
  shift $(($# < 2 ? $# : 2))
  case "$kind $part" in
    "address core") preset=asan ;;
    "thread core") preset=tsan ;;
    "address python")
      sanitize_python "$@"
      return
      ;;
    "thread python") die "sanitize: torch is not built under the thread sanitizer, only core can be" 2 ;;
    *) die "sanitize: want address or thread, then core or python, not '$kind $part'" 2 ;;
  esac
  ensure_debian
  lock
  quietly "build/$preset-configure.log" cmake --preset "$preset"
  cmake --build --preset "$preset"
  unlock
  # libgomp, oneDNN and drivers are built without it; a device's threads live as long as the process.
  TSAN_OPTIONS="report_thread_leaks=0 ignore_noninstrumented_modules=1" run_ctest "build/$preset" "$@"
  return "$test_status"
}
