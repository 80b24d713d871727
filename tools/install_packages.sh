#!/usr/bin/env bash
# Installs missing Debian/Ubuntu packages of the given groups. Usage: install_packages.sh GROUP...
# (build, data, test or full)
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

build=(cmake ninja-build g++ libspdlog-dev nlohmann-json3-dev libcli11-dev libxxhash-dev libisal-dev libdnnl-dev
       zlib1g-dev libutf8proc-dev libpng-dev libjpeg-dev libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libssl-dev
       libopenmpi-dev openmpi-bin)
data=(dataset-fashion-mnist)
test=(python3 python3-pip openssl iproute2 pkg-config python3-yaml python3-grpcio python3-protobuf libgtest-dev libgmock-dev libgloo-dev libeigen3-dev
      doxygen mkdocs mkdocs-material)
full=(clang clang-format libclang-rt-14-dev mmdebstrap slurmctld slurmd slurm-client)

wanted=()
for group in "$@"; do
  case "$group" in
    build) wanted+=("${build[@]}") ;;
    data) wanted+=("${data[@]}") ;;
    test) wanted+=("${test[@]}") ;;
    full) wanted+=("${full[@]}") ;;
    *) echo "install_packages.sh: unknown group '$group'; expected build, data, test or full" >&2; exit 2 ;;
  esac
done

if ! command -v apt-get > /dev/null; then
  echo "install_packages.sh: no apt-get found; install these packages, or equivalent ones: ${wanted[*]}"
  exit 0
fi

missing=()
for package in "${wanted[@]}"; do
  state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2> /dev/null || true)
  [ "$state" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "packages: all ${#wanted[@]} packages are installed"
  exit 0
fi

line="apt-get install -y --no-install-recommends ${missing[*]}"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo > /dev/null; then
    echo "install_packages.sh: packages are missing, and only root can install them. Run as root:" >&2
    echo "    $line" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "packages: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -q > /dev/null
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive $line -q > /dev/null
