// Fuzzes the parser of tf.train.Example: parsed data is written to bytes that parse equally.
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "tutti/core/error.h"
#include "tutti/data/records.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tutti::Example example;
  try {
    example = tutti::parse_example({reinterpret_cast<const char*>(data), size}, "fuzz");
  } catch (const tutti::Error&) {
    return 0;
  }
  // Compared as bytes: NaN is not equal to itself.
  const std::string bytes = tutti::serialize_example(example);
  if (tutti::serialize_example(tutti::parse_example(bytes, "again")) != bytes) std::abort();
  return 0;
}
