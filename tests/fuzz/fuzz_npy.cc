// Fuzzes the parsers of .npy and .npz files: any bytes give tensors or an Error.
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "tutti/core/error.h"
#include "tutti/data/npy.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    if (bytes.substr(0, 2) == "PK") {
      tutti::parse_npz(bytes, "fuzz");
    } else {
      const tutti::Tensor tensor = tutti::parse_npy(bytes, "fuzz");
      const tutti::Tensor again = tutti::parse_npy(tutti::format_npy(tensor), "again");
      if (again.shape() != tensor.shape()) std::abort();
    }
  } catch (const tutti::Error&) {
  }
  return 0;
}
