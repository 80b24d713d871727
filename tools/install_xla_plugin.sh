#!/usr/bin/env bash
# Installs XLA for the CPU (a PJRT plugin) in a folder, for tests and for TpuStrategy without a TPU.
# Usage: install_xla_plugin.sh FOLDER [PJRT VERSION: 0.115, 0.106 or 0.81]. The last line of
# the output contains the plugin's path. If pip, a package index or a package for this machine is
# missing, prints a message and installs nothing.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

folder=$1
case ${2:-0.115} in
  0.115)
    package=lammps-jax-pjrt-cpu==0.11.2
    sha256=1319390d948b39f69f7dade496b7c385149d9ca6097a6b62114da113216d9ad1
    plugin=$folder/lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so ;;
  0.106)
    package=fastatomstruct-xla-cpu==2026.6.23
    sha256=88b1c430b341b4bea40a37420311c9c75db6e22b46d2ff95b6986577bee6afe9
    plugin=$folder/fastatomstruct_xla_cpu/libpjrt_cpu.so ;;
  0.81)
    package=xla-cpu-pjrt==0.0.1
    sha256=55837b6b7b47daa717f2d9a5a03563ea0ceaa338d06a81a1e2d3f060d960decc
    plugin=$folder/xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so ;;
  *)
    echo "install_xla_plugin.sh: expected PJRT 0.115, 0.106 or 0.81, got $2" >&2
    exit 2 ;;
esac

if [ -f "$plugin" ]; then
  echo "XLA plugin: $plugin"
  exit 0
fi
mkdir -p "$folder"
list=$(mktemp)
trap 'rm -f "$list"' EXIT
echo "$package --hash=sha256:$sha256" > "$list"
# Install no dependencies, because the library does not need them.
if python3 -m pip install --quiet --disable-pip-version-check --no-input --no-deps --only-binary :all: \
    --retries 0 --timeout 15 --require-hashes --target "$folder" -r "$list" 2> "$folder/install.log"; then
  echo "XLA plugin: $plugin"
else
  echo "XLA plugin: $package could not be installed (see $folder/install.log); tests of XLA are not built"
fi
