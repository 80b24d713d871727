// Fuzzes the parser of tf.train.Example: parsed data must not change when it is written and parsed
// again.
// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/fuzz_target.h"
#include "tutti/data/records.h"

using namespace tutti;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz(data, size, [](std::string_view bytes) {
    // Compares bytes, because NaN is not equal to itself.
    const std::string written = serialize_example(parse_example(bytes, "fuzz"));
    const auto is_read_again = [&]() noexcept {
      return serialize_example(parse_example(written, "again")) == written;
    };
    if (!is_read_again()) std::abort();
  });
}
