// Fuzzes the parsers of .npy and .npz files: any input gives tensors or an Error.
// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/fuzz_target.h"
#include "tutti/data/npy.h"

using namespace tutti;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz(data, size, [](std::string_view bytes) {
    if (bytes.substr(0, 2) == "PK") {
      parse_npz(bytes, "fuzz");
      return;
    }
    const Tensor tensor = parse_npy(bytes, "fuzz");
    if (parse_npy(format_npy(tensor), "again").shape() != tensor.shape()) std::abort();
  });
}
