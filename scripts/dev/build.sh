# shellcheck shell=bash
# One build serves all: pip drives CMake in $BACKPLANE_BUILD, ctest and pytest run what it left.

# Everything that decides what the installed package is. Tests beside the sources do not.
package_hash() {
  {
    find CMakeLists.txt CMakePresets.json cmake pyproject.toml README.md LICENSE plugin_api core \
      plugins sdk tools python -type f -not -name '*_test.cpp' -not -path '*/__pycache__/*' \
      \( -not -name '*.md' -o -path 'sdk/template/*' \) -print0 2>/dev/null | LC_ALL=C sort -z | xargs -0 -r sha256sum
    cat "$TORCH_PIN" requirements/build.txt plugins/cpu_onednn/requirements.txt
    "$PYTHON" --version
    g++ --version | head -n 1
    echo "${BACKPLANE_ONEDNN_ROOT:-}"
  } | hash_text
}

installed_package() {
  compgen -G "$VENV/lib/python3.*/site-packages/torch_backplane" >/dev/null
}

build_core() {
  ensure_debian
  if [ -x "$PYTHON" ]; then # without a .venv the core builds all the same, less the oneDNN plugin
    install_requirements build requirements/build.txt
    install_requirements onednn plugins/cpu_onednn/requirements.txt
  fi
  lock
  quietly build/core-configure.log cmake --preset core
  cmake --build --preset core
  unlock
}

# Whether the build folder builds the C++ tests.
has_cpp_tests() { grep -qs '^BACKPLANE_BUILD_TESTS:[A-Z]*=ON$' "$BACKPLANE_BUILD/CMakeCache.txt"; }

# build_wheel CPP_TESTS FOLDER [arguments]: puts the checkout's wheel there.
build_wheel() {
  local cpp_tests=$1 wheels=$2
  shift 2
  env "PATH=$PWD/$VENV/bin:$PATH" "$PYTHON" -m pip wheel --no-build-isolation --no-deps -w "$wheels" "$@" . \
    -C build-dir="$BACKPLANE_BUILD" \
    -C cmake.build-type=RelWithDebInfo \
    -C cmake.define.BACKPLANE_BUILD_TESTS="$cpp_tests" \
    -C cmake.define.BACKPLANE_WERROR=ON \
    -C cmake.define.BACKPLANE_ONEDNN_ROOT="${BACKPLANE_ONEDNN_ROOT:-}"
}

# build_package [--no-cpp-tests] [EXTRA...]: also installs requirements/EXTRA.txt, while the compiler works.
# A folder that has built the C++ tests once goes on to build them.
build_package() {
  local cpp_tests=ON
  if [ "${1:-}" = --no-cpp-tests ]; then
    shift
    if ! has_cpp_tests; then cpp_tests=OFF; fi
  fi
  ensure_debian
  lock
  ensure_python
  install_extras "$@" &
  local extras=$! hash log=$BACKPLANE_BUILD-build.log wheels=$BACKPLANE_BUILD-wheel
  hash=$(package_hash)
  if stamp_is package "$hash" && installed_package; then
    # Only tests can have changed.
    if [ $cpp_tests = ON ]; then
      if ! has_cpp_tests; then
        say "building the C++ tests ($log)"
        quietly "$log" cmake -D BACKPLANE_BUILD_TESTS=ON "$BACKPLANE_BUILD"
      fi
      quietly "$log" cmake --build "$BACKPLANE_BUILD"
    fi
    wait "$extras" || exit
  else
    say "building and installing torch-backplane ($log)"
    rm -rf "$wheels"
    quietly "$log" build_wheel "$cpp_tests" "$wheels" --verbose
    wait "$extras" || exit # one pip at a time writes to the environment
    quietly "$BACKPLANE_BUILD-install.log" "$PYTHON" -m pip install --no-deps --force-reinstall "$wheels"/*.whl
    set_stamp package "$hash"
  fi
  unlock
}

run_build() {
  case "${1:-all}" in
    core) build_core ;;
    all) build_package ;;
    *) die "build: want core or all, not '$1'" 2 ;;
  esac
}

run_demo() {
  build_package --no-cpp-tests test # the model and its tokenizer
  "$PYTHON" scripts/demo.py "$@"
}

run_bench() {
  [ -f benchmarks/run.py ] || die "benchmarks/run.py does not exist" 2
  if [ "${1:-}" = --plugin ] && [ "${2:-}" = cuda ] && [ "${3:-}" = --gpu ]; then
    shift 3
    build_package --no-cpp-tests test
    "$PYTHON" benchmarks/gpu.py "$@"
    return
  fi
  build_package --no-cpp-tests test bench
  "$PYTHON" benchmarks/run.py "$@"
}

run_opinfo() {
  build_package --no-cpp-tests test
  "$PYTHON" -m torch_backplane.cli opinfo "$@"
}

run_clean() {
  rm -rf build
  if [ "${1:-}" = all ]; then rm -rf .venv .venv-*; fi
}
