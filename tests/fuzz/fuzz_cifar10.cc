// Fuzzes the parser for CIFAR-10's binary files: any input yields images or an Error.
// SPDX-License-Identifier: Apache-2.0
#include "data/image_sets.h"
#include "tests/fuzz/fuzz_target.h"

using namespace tutti;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz(data, size, [](std::string_view bytes) { parse_cifar10(bytes, "fuzz"); });
}
