# shellcheck shell=bash
# What must be installed before anything is built: Debian packages, .venv, pinned requirements.

# need PROBE PACKAGE: remembers the package if the probe (a command, or an absolute path) is missing.
need() {
  case "$1" in
    /*) [ -e "$1" ] || missing_packages+=("$2") ;;
    *) command -v "$1" >/dev/null || missing_packages+=("$2") ;;
  esac
}

# ensure_debian [lint]
ensure_debian() {
  local missing_packages=()
  need gcc gcc
  need g++ g++
  need cmake cmake
  need ninja ninja-build
  need ccache ccache
  need strip binutils
  need /usr/include/boost/dll.hpp libboost-dev
  need /usr/include/gtest/gtest.h libgtest-dev
  need /usr/include/gmock/gmock.h libgmock-dev
  need /usr/include/CL/cl.h opencl-headers
  need "/usr/lib/$(gcc -print-multiarch)/libOpenCL.so" ocl-icd-opencl-dev
  need /etc/OpenCL/vendors/pocl.icd pocl-opencl-icd
  need oclgrind oclgrind
  if [ "${1:-}" = lint ]; then
    need clang-format clang-format
    need clang-tidy clang-tidy
  fi
  install_debian "${missing_packages[@]}"
}

install_debian() {
  if [ $# -eq 0 ]; then return; fi
  local command="apt-get update && apt-get install -y --no-install-recommends $*"
  command -v apt-get >/dev/null ||
    die "missing: $* (Debian names); install them with your package manager" 3
  if [ "$(id -u)" -ne 0 ]; then
    say "missing Debian packages; as root run:"
    echo "$command"
    exit 3
  fi
  say "installing Debian packages: $*"
  mkdir -p build
  DEBIAN_FRONTEND=noninteractive quietly build/apt.log bash -c "$command"
}

is_supported_python() {
  "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null
}

# Prints the interpreter for .venv.
find_python() {
  local candidate
  for candidate in "${BACKPLANE_PYTHON:-}" python3.11 python3; do
    if [ -n "$candidate" ] && is_supported_python "$candidate"; then
      command -v "$candidate"
      return
    fi
    if [ -n "$candidate" ] && [ "$candidate" = "${BACKPLANE_PYTHON:-}" ]; then
      die "BACKPLANE_PYTHON=$candidate is not Python 3.11 to 3.14" 3
    fi
  done
  die "no Python 3.11 to 3.14 found; set BACKPLANE_PYTHON" 3
}

ensure_venv() {
  if [ -x "$PYTHON" ] && is_supported_python "$PYTHON" && [ -x "$VENV/bin/pip" ]; then
    return
  fi
  local python version missing_packages=()
  python=$(find_python)
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  # Debian splits both from the interpreter.
  "$python" -c 'import ensurepip' 2>/dev/null || missing_packages+=("python$version-venv")
  need "$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" "python$version-dev"
  install_debian "${missing_packages[@]}"
  say "creating $VENV with $("$python" --version)"
  "$python" -m venv --clear "$VENV"
}

# install_requirements NAME FILE: once per content of the file and of the torch pin.
install_requirements() {
  local name=$1 file=$2 stamp
  stamp=$(hash_files "$file" "$TORCH_PIN")
  if stamp_is "requirements-$name" "$stamp"; then return; fi
  say "installing $(grep -v '^ *#' "$file" | tr -s '\n' ' ')"
  # The constraint keeps every later package from pulling another torch.
  mkdir -p build
  quietly "build/pip-$name.log" "$PYTHON" -m pip install -r "$file" -c "$TORCH_PIN"
  set_stamp "requirements-$name" "$stamp"
}

# ensure_python [NAME...]: .venv with torch, what a build and a run need, and the named extras.
ensure_python() {
  ensure_venv
  install_requirements torch "$TORCH_PIN" # first and alone: everything else builds on it
  install_requirements runtime requirements/runtime.txt
  install_requirements build requirements/build.txt
  install_requirements onednn plugins/cpu_onednn/requirements.txt
  install_extras "$@"
}

install_extras() {
  local extra
  for extra in "$@"; do
    install_requirements "$extra" "requirements/$extra.txt"
  done
}
