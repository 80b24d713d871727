// TensorBoard event files: scalars and histograms over steps.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

namespace tutti {

/// Appends scalars and histograms to "<directory>/events.out.tfevents.<seconds>.<host>.<process>",
/// which TensorBoard reads. The file is flushed after each record. Inside run() replica 0 alone
/// writes (of several workers one), and what the others give is left out, so a step may write
/// its own values: tf.summary. Throws kUnavailable naming the path when it cannot be written. Used
/// by one thread, and in run() by all replicas.
class EventFileWriter {
 public:
  explicit EventFileWriter(const std::string& directory);

  void scalar(std::string_view tag, std::int64_t step, double value);
  /// How often which values occur, in TensorFlow's buckets (limits grow by a tenth each). Values
  /// that are not finite throw kInvalidArgument naming the tag.
  void histogram(std::string_view tag, std::int64_t step, std::span<const double> values);
  const std::string& path() const { return path_; }

 private:
  void write_summary(std::string_view value, std::int64_t step);
  void write_record(std::string_view event);

  std::string path_;
  std::ofstream file_;
};

}  // namespace tutti
