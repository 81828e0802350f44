# shellcheck shell=bash
# Random programs and graphs. What is found is left in build/fuzz, unless --out names another folder.

run_fuzz() {
  case "${1:-}" in
    programs | graphs) ;;
    *) die "fuzz: want programs or graphs, not '${1:-}'" 2 ;;
  esac
  build_package --no-cpp-tests test
  local out=()
  case " $* " in
    *" --out"* | *" --show "*) ;;
    *) out=(--out build/fuzz) ;;
  esac
  "$PYTHON" scripts/fuzz.py "$@" "${out[@]}"
}
