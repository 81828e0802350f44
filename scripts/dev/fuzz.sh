# shellcheck shell=bash
# Random programs and graphs. What is found is left in build/fuzz, unless --out names another folder.

# A clang++ that has libFuzzer.
find_fuzzing_clang() {
  local name probe
  probe=$(mktemp -d)
  echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' >"$probe/p.cpp"
  for name in clang++ clang++-{19,18,17,16,15,14}; do
    if command -v "$name" >/dev/null &&
      "$name" -fsanitize=fuzzer,address "$probe/p.cpp" -o "$probe/p" 2>/dev/null; then
      rm -rf "$probe"
      echo "$name"
      return
    fi
  done
  rm -rf "$probe"
  return 1
}

# What reads bytes of others (tests/parsers), with libFuzzer under the address sanitizer.
fuzz_parsers() {
  local minutes=1 seed=1 target status=0
  while [ $# -gt 0 ]; do
    case "$1" in
      --minutes) minutes=$2 ;;
      --seed) seed=$2 ;;
      *) die "fuzz parsers: want --minutes M or --seed N, not '$1'" 2 ;;
    esac
    shift 2
  done
  ensure_debian
  local clang folder=$PWD/build/fuzz
  clang=$(find_fuzzing_clang) ||
    die "fuzz parsers: no clang++ has libFuzzer; install clang and libclang-rt-dev (Debian: clang-15, libclang-common-15-dev)" 3
  lock
  quietly build/fuzz-configure.log cmake --preset fuzz -DCMAKE_CXX_COMPILER="$clang" \
    -DCMAKE_C_COMPILER="${clang/++/}"
  quietly build/fuzz-build.log cmake --build build/fuzz --target fuzz_{graph_text,library_file,certificate,plugin_calls}
  unlock
  for target in graph_text library_file certificate plugin_calls; do
    mkdir -p "$folder/corpus/$target"
    cp -n "tests/parsers/corpus/$target/"* "$folder/corpus/$target/"
    [ $target != library_file ] || cp -n "$folder"/plugins/*.so "$folder/corpus/$target/"
    say "fuzz: $target for $minutes minutes (build/fuzz/$target.log)"
    BACKPLANE_STATE_DIR="$folder/state" BACKPLANE_CRASH_WORDS=0 BACKPLANE_QUARANTINE=off \
      ASAN_OPTIONS=allocator_may_return_null=1 "$folder/bin/fuzz_$target" -seed="$seed" \
      -max_total_time="$(awk "BEGIN { print int($minutes * 60) }")" -timeout=20 -malloc_limit_mb=0 \
      -rss_limit_mb=4000 -artifact_prefix="$folder/found_$target-" "$folder/corpus/$target" \
      >"$folder/$target.log" 2>&1 || status=1
    tail -n 1 "$folder/$target.log"
  done
  return $status
}

run_fuzz() {
  case "${1:-}" in
    programs | tensors | graphs | sizes) ;;
    parsers)
      fuzz_parsers "${@:2}"
      return
      ;;
    *) die "fuzz: want programs, tensors, graphs, sizes or parsers, not '${1:-}'" 2 ;;
  esac
  build_package --no-cpp-tests test
  local out=()
  case " $* " in
    *" --out"* | *" --show "*) ;;
    *) out=(--out build/fuzz) ;;
  esac
  "$PYTHON" scripts/fuzz.py "$@" "${out[@]}"
}
