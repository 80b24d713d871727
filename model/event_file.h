// TensorBoard event files: scalars over steps.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

namespace tutti {

/// Appends scalars to "<directory>/events.out.tfevents.<seconds>.<host>.<process>", which
/// TensorBoard reads. The file is flushed after each record. Throws kUnavailable naming the path
/// when it cannot be written. Used by one thread.
class EventFileWriter {
 public:
  explicit EventFileWriter(const std::string& directory);

  void scalar(std::string_view tag, std::int64_t step, double value);
  const std::string& path() const { return path_; }

 private:
  void write_record(std::string_view event);

  std::string path_;
  std::ofstream file_;
};

/// CRC-32C (Castagnoli), as in RFC 3720: crc32c("123456789") == 0xe3069283.
std::uint32_t crc32c(std::string_view bytes);

}  // namespace tutti
