# shellcheck shell=bash
# One archive for a machine with a GPU on which nothing can be installed.

# Unpacked there: PYTHONPATH=<folder>/site python3 benchmarks/gpu.py
run_pack_gpu() {
  local out=build/gpu site packages limit=$((64 << 20)) size
  build_package --no-cpp-tests test
  site=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  packages=(torch_backplane torch_backplane_names backplane_conformance expecttest)
  rm -rf "$out" "$out.tar.gz"
  mkdir -p "$out/site"
  for package in "${packages[@]}"; do cp -r "$site/$package" "$out/site/"; done
  cp -r "$site"/torch_backplane-*.dist-info "$out/site/"
  # Nothing there runs on the CPU's plugin.
  rm -rf "$out"/site/torch_backplane/plugins/{libbackplane_cpu_onednn.so,libdnnl*}
  find "$out/site" -name __pycache__ -prune -exec rm -rf {} +
  find "$out/site" \( -name '*.so' -o -path '*/bin/*' \) -type f -exec strip -g {} +
  cp -r tests benchmarks plugins "$out/"
  tar -C "$out" -czf "$out.tar.gz" .
  size=$(stat -c %s "$out.tar.gz")
  [ "$size" -le "$limit" ] || die "pack-gpu: $out.tar.gz has $size bytes, more than $limit"
  ls -l "$out.tar.gz"
}
