# shellcheck shell=bash
# Every kind of test writes a JUnit file; the summary counts those, so a run of nothing cannot pass.

test_status=0
junit_files=()

# run_ctest BUILD_DIR [ctest arguments]
run_ctest() {
  local dir=$1
  shift
  rm -f "$dir/ctest.xml"
  ctest --test-dir "$dir" --output-on-failure --no-tests=error --parallel "$JOBS" \
    --output-junit "$PWD/$dir/ctest.xml" "$@" | grep -vE '^ *Start +[0-9]+:|\.\.\. +Passed ' || test_status=1
  junit_files+=("ctest=$dir/ctest.xml")
}

# run_pytest [pytest arguments]
# Without any, or with --long alone, it is the whole suite, in processes side by side, each of which
# takes whole files, in the order in which tests/conftest.py puts them. At most four: each has torch,
# models and two threads of its own.
run_pytest() {
  if [ $# -eq 0 ] || [ "$*" = --long ]; then
    set -- "$@" --numprocesses "$((JOBS < 4 ? JOBS : 4))" --dist loadfile --no-loadscope-reorder
  fi
  rm -f build/pytest.xml
  "$PYTHON" -m pytest --junitxml=build/pytest.xml "$@" || test_status=1
  junit_files+=("pytest=build/pytest.xml")
}

# Intel's runtime in a folder of its own: .venv stays free of its libraries, the loader sees it alone.
install_intel_opencl() {
  local folder=$PWD/$VENV/opencl-intel stamp
  stamp=$(hash_files requirements/opencl-intel.txt)
  if ! stamp_is opencl-intel "$stamp"; then
    say "installing Intel's OpenCL runtime"
    rm -rf "$folder"
    "$PYTHON" -m pip install --prefix "$folder" --ignore-installed --no-warn-script-location \
      -r requirements/opencl-intel.txt >build/pip-opencl-intel.log 2>&1 ||
      die "test: pip cannot install Intel's OpenCL runtime (build/pip-opencl-intel.log); it is optional, and for x86-64 alone" 3
    [ -f "$folder/lib/libintelocl.so" ] || die "test: Intel's packages hold no lib/libintelocl.so" 3
    mkdir -p "$folder/vendors"
    echo "$folder/lib/libintelocl.so" >"$folder/vendors/intel.icd" # theirs names a path of conda
    set_stamp opencl-intel "$stamp"
  fi
  export OCL_ICD_VENDORS="$folder/vendors/"
  export LD_LIBRARY_PATH="$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
}

# test_opencl DRIVER [pytest arguments]: plugin:opencl on another driver than the system's.
test_opencl() {
  local driver=${1:-}
  [ "$driver" = intel ] || die "test --opencl: want intel, not '$driver'" 2
  shift
  build_package test
  install_intel_opencl
  if [ $# -gt 0 ]; then
    run_pytest "$@"
  else
    run_pytest tests/integration/test_opencl.py tests/integration/test_opencl_math.py \
      tests/integration/test_opencl_profile.py tests/integration/test_opencl_products.py \
      tests/integration/test_opencl_movement.py tests/integration/test_opencl_convolutions.py \
      tests/integration/test_whole_numbers_wrap.py tests/integration/test_reductions.py
    "$PYTHON" -m torch_backplane.cli opinfo --plugin opencl || test_status=1
  fi
}

# NVIDIA's compiler of kernels in a folder of its own; needs no GPU.
install_nvrtc() {
  local folder=$PWD/$VENV/nvrtc stamp
  stamp=$(hash_files requirements/nvrtc.txt)
  if ! stamp_is nvrtc "$stamp"; then
    say "installing NVRTC"
    rm -rf "$folder"
    "$PYTHON" -m pip install --no-deps --target "$folder" -r requirements/nvrtc.txt >build/pip-nvrtc.log 2>&1 ||
      die "test: pip cannot install NVRTC (build/pip-nvrtc.log)" 3
    set_stamp nvrtc "$stamp"
  fi
  local libraries=$folder/nvidia/cu13/lib
  export BACKPLANE_EMULATED_NVRTC="$libraries/libnvrtc.so.13"
  export LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" # where it looks for its own
}

# test_nvrtc: every kernel of the operator samples and of the models' training steps, built by NVIDIA's
# compiler for three architectures; what its assembler says of registers and spills, with limits.
test_nvrtc() {
  build_package test
  install_nvrtc
  local log=$PWD/build/nvrtc.log emulated=$PWD/$BACKPLANE_BUILD/testing_layers/libbackplane_emulated_cuda.so
  rm -rf "$log" build/nvrtc-cache
  export BACKPLANE_CUDA_DRIVER=$emulated BACKPLANE_CUDA_NVRTC=$emulated BACKPLANE_CUDA_BLAS=$emulated
  export BACKPLANE_EMULATED_NVRTC_LOG=$log BACKPLANE_CACHE_DIR=$PWD/build/nvrtc-cache
  "$PYTHON" -m torch_backplane.cli opinfo --plugin cuda || test_status=1
  run_pytest tests/models -k "gradients and cuda"
  "$PYTHON" scripts/kernel_resources.py "$log" "$@" || test_status=1
}

# Packages that others wrote, in a folder of their own: .venv stays free of them and of what they ask
# for, and none of them can bring another torch.
install_peers() {
  local folder=$PWD/$VENV/peers stamp
  stamp=$(hash_files requirements/peers.txt "$TORCH_PIN")
  if stamp_is peers "$stamp"; then return; fi
  say "installing the packages of requirements/peers.txt"
  mkdir -p build
  lock
  rm -rf "$folder"
  quietly build/pip-peers.log "$PYTHON" -m pip install --no-deps --target "$folder" \
    -r requirements/peers.txt -c "$TORCH_PIN"
  set_stamp peers "$stamp"
  unlock
}

# test_peers [cpython|databases|libraries|paritybench|pytorch] [arguments]: suites that others wrote;
# without a name all but the last two, which need a checkout.
test_peers() {
  local suites=(cpython databases libraries) suite
  case "${1:-}" in
    cpython | databases | libraries | paritybench | pytorch)
      suites=("$1")
      shift
      ;;
  esac
  build_package test
  for suite in "${suites[@]}"; do
    case "$suite" in
      cpython) run_peers cpython "$@" ;;
      databases) run_peers torch_databases "$@" ;;
      paritybench) run_peers paritybench_runs "$@" ;;
      pytorch) run_peers pytorch "$@" ;;
      libraries)
        install_peers
        run_peers libraries_runs "$@"
        ;;
    esac
  done
}

# run_peers PROGRAM [arguments]
run_peers() {
  local program=$1
  shift
  env "PYTHONPATH=$PWD/tests" "$PYTHON" -m "peers.$program" --jobs "$JOBS" "$@" || test_status=1
}

run_tests() {
  local kind=all
  if [ "${1:-}" = peers ]; then
    shift
    test_peers "$@"
    return "$test_status"
  fi
  if [ "${1:-}" = --opencl ]; then
    shift
    test_opencl "$@"
    any_python scripts/dev/summarize_tests.py "${junit_files[@]}" || test_status=1
    return "$test_status"
  fi
  if [ "${1:-}" = --nvrtc ]; then
    shift
    test_nvrtc "$@"
    any_python scripts/dev/summarize_tests.py "${junit_files[@]}" || test_status=1
    return "$test_status"
  fi
  case "${1:-}" in
    core | python | all | long)
      kind=$1
      shift
      ;;
  esac
  case "$kind" in
    core)
      build_core
      run_ctest build/core "$@"
      ;;
    python)
      build_package test
      run_pytest "$@"
      ;;
    long)
      build_package test
      run_pytest --long "$@"
      ;;
    all)
      build_package test
      run_ctest "$BACKPLANE_BUILD"
      run_pytest "$@"
      ;;
  esac
  echo
  any_python scripts/dev/summarize_tests.py "${junit_files[@]}" || test_status=1
  return "$test_status"
}
