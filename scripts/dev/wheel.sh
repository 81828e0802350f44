# shellcheck shell=bash
# A wheel for other machines: its platform tag and what it bundles checked by auditwheel, then tried in
# an environment that holds nothing but torch and what it asks for.

# What a wheel of ours does not bundle: torch's own libraries, OpenMP, which is torch's as well, and the
# OpenCL loader, which finds the system's drivers.
WHEEL_EXCLUDES=('libtorch*.so' 'libc10*.so' libgomp.so.1 libOpenCL.so.1)

run_wheel() {
  local out=build/wheel exclude=() library
  build_package --no-cpp-tests
  lock
  install_requirements wheel requirements/wheel.txt
  for library in "${WHEEL_EXCLUDES[@]}"; do exclude+=(--exclude "$library"); done
  rm -rf "$out"
  mkdir -p "$out/built"
  say "making the wheel ($out.log)"
  quietly "$out.log" build_wheel "$(has_cpp_tests && echo ON || echo OFF)" "$out/built" \
    -C install.strip=true
  quietly "$out-audit.log" env "PATH=$PWD/$VENV/bin:$PATH" "$PYTHON" -m auditwheel repair "${exclude[@]}" \
    --wheel-dir "$out" "$out"/built/*.whl
  unlock
  say "trying it in an empty environment ($out/env)"
  "$PYTHON" -m venv "$out/env"
  quietly "$out-install.log" "$out/env/bin/python" -m pip install -c "$TORCH_PIN" -r requirements/runtime.txt \
    "$out"/*.whl
  (cd "$out/env" && bin/python ../../../scripts/wheel_smoke.py) || die "the wheel does not work"
  ls -l "$out"/*.whl
}
