// TensorBoard event files: scalars and histograms over steps.
// SPDX-License-Identifier: Apache-2.0
//
// A TFRecord file. Each record is a protocol buffer tensorflow.Event: 1 wall_time (double), 2 step
// (varint), 3 file_version (string), 5 summary; a summary holds values (1), a value holds 1 tag
// (string) and 2 simple_value (float) or 5 histo. That holds, all double, 1 min, 2 max, 3 num, 4
// sum, 5 sum_squares, and packed 6 the buckets' limits and 7 their counts.
#include "tutti/model/event_file.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <vector>

#include "core/file.h"
#include "data/format_bytes.h"
#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/strategy/replica_context.h"

namespace tutti {
namespace {

using internal::put_bytes;
using internal::put_tag;
using internal::WireType;

void put_double(std::string& bytes, double value) {
  internal::put_little_endian(bytes, std::bit_cast<std::uint64_t>(value));
}

std::string new_event() {
  std::string event;
  put_tag(event, 1, WireType::kFixed64);
  put_double(event, wall_time_seconds());
  return event;
}

/// In a replica: whether it is the one that writes.
bool writes_here() {
  const ReplicaContext* const replica = get_replica_context();
  return !replica || replica->replica_id() == 0;
}

std::string event_path(const std::string& directory) {
  char host[256] = "localhost";
  gethostname(host, sizeof host - 1);
  return concat(directory, "/events.out.tfevents.", static_cast<std::int64_t>(wall_time_seconds()),
                ".", host, ".", getpid());
}

/// TensorFlow's: 0, 1e-12 times powers of 1.1 up to 1e20 and their negatives, the largest double.
const std::vector<double>& bucket_limits() {
  static const std::vector<double> limits = [] {
    std::vector<double> all = {0.0};
    for (double limit = 1e-12; limit < 1e20; limit *= 1.1) {
      all.push_back(limit);
      all.push_back(-limit);
    }
    all.push_back(std::numeric_limits<double>::max());
    all.push_back(-std::numeric_limits<double>::max());
    std::ranges::sort(all);
    return all;
  }();
  return limits;
}

struct Buckets {
  std::string limits, counts;
};

/// Value v belongs to the first limit above it. Of empty buckets in a row the last one stays.
Buckets fill_buckets(std::span<const double> values) {
  const std::vector<double>& limits = bucket_limits();
  std::vector<double> counts(limits.size(), 0.0);
  for (const double value : values) {
    const auto above = std::ranges::upper_bound(limits, value);
    ++counts[std::min(static_cast<std::size_t>(above - limits.begin()), limits.size() - 1)];
  }
  std::size_t end = counts.size();
  while (end > 0 && counts[end - 1] == 0.0) --end;
  Buckets buckets;
  for (std::size_t i = 0; i < end; ++i) {
    if (counts[i] == 0.0 && counts[i + 1] == 0.0) continue;
    put_double(buckets.limits, limits[i]);
    put_double(buckets.counts, counts[i]);
  }
  return buckets;
}

}  // namespace

EventFileWriter::EventFileWriter(const std::string& directory) : path_(event_path(directory)) {
  std::error_code ignored;  // opening the file says what is wrong
  std::filesystem::create_directories(directory, ignored);
  file_.open(path_, std::ios::binary | std::ios::app);
  std::string event = new_event();
  put_bytes(event, 3, "brain.Event:2");
  write_record(event);
}

void EventFileWriter::scalar(std::string_view tag, std::int64_t step, double value) {
  if (!writes_here()) return;
  std::string scalar_value;
  put_bytes(scalar_value, 1, tag);
  put_tag(scalar_value, 2, WireType::kFixed32);
  internal::put_little_endian(scalar_value,
                              std::bit_cast<std::uint32_t>(static_cast<float>(value)));
  write_summary(scalar_value, step);
}

void EventFileWriter::histogram(std::string_view tag, std::int64_t step,
                                std::span<const double> values) {
  if (!writes_here()) return;
  double sum = 0.0, sum_squares = 0.0;
  for (const double value : values) {
    if (!std::isfinite(value)) {
      fail(ErrorCode::kInvalidArgument, "EventFileWriter: histogram '", tag, "' of step ", step,
           ": expected finite values, got ", value);
    }
    sum += value;
    sum_squares += value * value;
  }
  const auto [lowest, highest] = std::ranges::minmax_element(values);
  std::string histogram;
  unsigned field = 0;
  for (const double number : {values.empty() ? 0.0 : *lowest, values.empty() ? 0.0 : *highest,
                              static_cast<double>(values.size()), sum, sum_squares}) {
    put_tag(histogram, ++field, WireType::kFixed64);
    put_double(histogram, number);
  }
  const Buckets buckets = fill_buckets(values);
  put_bytes(histogram, 6, buckets.limits);
  put_bytes(histogram, 7, buckets.counts);
  std::string value;
  put_bytes(value, 1, tag);
  put_bytes(value, 5, histogram);
  write_summary(value, step);
}

void EventFileWriter::write_summary(std::string_view value, std::int64_t step) {
  std::string summary;
  put_bytes(summary, 1, value);
  std::string event = new_event();
  put_tag(event, 2, WireType::kVarint);
  internal::put_varint(event, static_cast<std::uint64_t>(step));
  put_bytes(event, 5, summary);
  write_record(event);
}

void EventFileWriter::write_record(std::string_view event) {
  std::string record;
  internal::put_record(record, event);
  const FileSizeLimitScope error_instead_of_signal;
  file_.write(record.data(), static_cast<std::streamsize>(record.size()));
  file_.flush();
  if (!file_) {
    const int reason = errno;
    file_.close();  // which tries once more
    fail(ErrorCode::kUnavailable, "EventFileWriter: cannot write ", path_, ": ",
         std::strerror(reason), "; is the folder writable and the disk not full?");
  }
}

}  // namespace tutti
