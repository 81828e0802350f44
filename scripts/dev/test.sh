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
run_pytest() {
  rm -f build/pytest.xml
  "$PYTHON" -m pytest --junitxml=build/pytest.xml "$@" || test_status=1
  junit_files+=("pytest=build/pytest.xml")
}

run_tests() {
  local kind=all
  case "${1:-}" in
    core | python | all)
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
