// Fuzzes the parser of CIFAR-10's binary files: any bytes give images or an Error.
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>

#include "data/image_sets.h"
#include "tutti/core/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    tutti::parse_cifar10({reinterpret_cast<const char*>(data), size}, "fuzz");
  } catch (const tutti::Error&) {
  }
  return 0;
}
