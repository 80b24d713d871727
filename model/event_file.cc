// TensorBoard event files: scalars and histograms over steps.
// SPDX-License-Identifier: Apache-2.0
//
// A *record* (TFRecord's format) is the length (8 bytes), its masked CRC-32C (4), the bytes and
// their masked CRC-32C (4), all little-endian. The bytes are a protocol buffer tensorflow.Event: 1
// wall_time (double), 2 step (varint), 3 file_version (string), 5 summary; a summary holds values
// (1), a value holds 1 tag (string) and 2 simple_value (float) or 5 histo. That holds, all double,
// 1 min, 2 max, 3 num, 4 sum, 5 sum_squares, and packed 6 the buckets' limits and 7 their counts.
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

#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/data/format_bytes.h"

namespace tutti {
namespace {

static_assert(std::endian::native == std::endian::little);

template <class T>
void append_raw(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

void append_varint(std::string& out, std::uint64_t value) {
  while (value >= 0x80) {
    out.push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out.push_back(static_cast<char>(value));
}

enum WireType : unsigned { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };
void append_tag(std::string& out, unsigned field, WireType type) {
  append_varint(out, field << 3 | type);
}
void append_bytes(std::string& out, unsigned field, std::string_view bytes) {
  append_tag(out, field, kBytes);
  append_varint(out, bytes.size());
  out.append(bytes);
}

std::string new_event() {
  std::string event;
  append_tag(event, 1, kFixed64);
  append_raw(event, wall_time_seconds());
  return event;
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
    append_raw(buckets.limits, limits[i]);
    append_raw(buckets.counts, counts[i]);
  }
  return buckets;
}

}  // namespace

EventFileWriter::EventFileWriter(const std::string& directory) : path_(event_path(directory)) {
  std::error_code ignored;  // opening the file says what is wrong
  std::filesystem::create_directories(directory, ignored);
  file_.open(path_, std::ios::binary | std::ios::app);
  std::string event = new_event();
  append_bytes(event, 3, "brain.Event:2");
  write_record(event);
}

void EventFileWriter::scalar(std::string_view tag, std::int64_t step, double value) {
  std::string scalar_value;
  append_bytes(scalar_value, 1, tag);
  append_tag(scalar_value, 2, kFixed32);
  append_raw(scalar_value, static_cast<float>(value));
  write_summary(scalar_value, step);
}

void EventFileWriter::histogram(std::string_view tag, std::int64_t step,
                                std::span<const double> values) {
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
    append_tag(histogram, ++field, kFixed64);
    append_raw(histogram, number);
  }
  const Buckets buckets = fill_buckets(values);
  append_bytes(histogram, 6, buckets.limits);
  append_bytes(histogram, 7, buckets.counts);
  std::string value;
  append_bytes(value, 1, tag);
  append_bytes(value, 5, histogram);
  write_summary(value, step);
}

void EventFileWriter::write_summary(std::string_view value, std::int64_t step) {
  std::string summary;
  append_bytes(summary, 1, value);
  std::string event = new_event();
  append_tag(event, 2, kVarint);
  append_varint(event, static_cast<std::uint64_t>(step));
  append_bytes(event, 5, summary);
  write_record(event);
}

void EventFileWriter::write_record(std::string_view event) {
  std::string record;
  append_raw(record, static_cast<std::uint64_t>(event.size()));
  append_raw(record, internal::masked_crc32c(record));
  record.append(event);
  append_raw(record, internal::masked_crc32c(event));
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
