#!/bin/sh
# Installs tutti's Debian packages with their dependencies in a fresh system, and trains with them.
# SPDX-License-Identifier: Apache-2.0
# This system may not have the compiler launchers of the caller.
unset CMAKE_C_COMPILER_LAUNCHER CMAKE_CXX_COMPILER_LAUNCHER
cd /root/tutti
export DEBIAN_FRONTEND=noninteractive
apt-get install -q -y --no-install-recommends ./tutti_*.deb  # must run without the other packages
tutti doctor
tutti run -n 2 -- tutti cluster
apt-get install -q -y --no-install-recommends ./libtutti-dev_*.deb ./tutti-doc_*.deb cmake g++ make pkg-config
test -f /usr/share/doc/tutti/examples/CMakeLists.txt
cmake -S . -B build
cmake --build build
build/ten_lines && echo "cmake: trained"
g++ -std=c++20 ten_lines.cc -o ten_lines $(pkg-config --static --cflags --libs tutti)
./ten_lines && echo "pkg-config: trained"
