// TensorBoard event files, and callbacks that write event files, CSV and JSON.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/log_files.h"

#include <unistd.h>
#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string>
#include <system_error>
#include <vector>

#include "core/file.h"
#include "core/names.h"
#include "data/input_file.h"
#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/core/json.h"
#include "tutti/core/logging.h"
#include "tutti/model/model.h"
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

/// Returns true outside replicas and on replica 0.
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

/// Returns TensorFlow's bucket limits: 0, +-1e-12 times powers of 1.1 up to 1e20, and +- the
/// largest double.
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

/// Counts each value in the bucket of the first limit above it. For adjacent empty buckets, stores
/// only the last one.
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
  std::error_code ignored;  // opening the file reports the error
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
    internal::require(std::isfinite(value), "EventFileWriter: histogram '", tag, "' at step ", step,
                      ": expected finite values, got ", value);
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
    file_.close();  // may change errno
    fail(ErrorCode::kUnavailable, "EventFileWriter: cannot write ", path_, ": ",
         std::strerror(reason), "; check that the folder is writable and the disk is not full");
  }
}

// Removal of lines appended after the checkpoint from which training resumes.

namespace {

/// Returns a file's length in bytes; 0 for a missing file, null if another process writes the file.
Json length_of_file(const std::string& path, bool is_writer) {
  if (!is_writer) return {};
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  return Json(error ? std::int64_t{0} : static_cast<std::int64_t>(size));
}

/// Truncates a file to `length` (from length_of_file()). If `length` is null, keeps the whole file:
/// a line may then occur twice, but no line is lost.
void cut_file(const std::string& path, const Json& length, bool is_writer) {
  if (!is_writer || length.is_null()) return;
  if (length_of_file(path, true).as_int() <= length.as_int()) return;
  std::error_code ignored;  // a later write to the file reports the error
  std::filesystem::resize_file(path, static_cast<std::uintmax_t>(length.as_int()), ignored);
}

/// Writes a line to the file; creates missing folders.
void write_to_file(const char* who, const std::string& path, const std::string& line,
                   std::ios::openmode mode) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code ignored;  // opening the file reports the error
  if (!folder.empty()) std::filesystem::create_directories(folder, ignored);
  const FileSizeLimitScope error_instead_of_signal;
  std::ofstream file(path, mode);
  file << line << '\n';
  file.flush();
  if (!file) fail(ErrorCode::kUnavailable, who, ": cannot write ", path);
}

// CSV.

/// Returns the shortest text that parses to exactly this number.
std::string exact_text(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return std::string(text, end);
}

std::vector<std::string> names_of_head(const std::string& line, const std::string& separator) {
  std::vector<std::string> names;
  std::size_t begin = 0;
  for (std::size_t end; (end = line.find(separator, begin)) != std::string::npos;
       begin = end + separator.size())
    names.push_back(line.substr(begin, end - begin));
  names.push_back(line.substr(begin));
  names.erase(names.begin());  // "epoch"
  return names;
}

}  // namespace

CsvLogger::CsvLogger(std::string path, CsvLoggerOptions options)
    : path_(std::move(path)), options_(std::move(options)) {
  if (options_.separator.empty())
    fail(ErrorCode::kInvalidArgument, "CsvLogger: expected a separator, got an empty string");
}

void CsvLogger::on_train_begin() {
  names_.clear();
  wrote_head_ = false;
  if (options_.mode == CsvMode::kReplace || !std::filesystem::exists(path_)) return;
  const std::string text = read_file(path_);
  if (text.empty()) return;
  names_ = names_of_head(text.substr(0, text.find('\n')), options_.separator);
  wrote_head_ = true;
}

void CsvLogger::write_line(const std::string& line, std::ios::openmode mode) {
  if (!is_chief()) return;  // other workers only keep the state, in case they have to take over
  write_to_file("CsvLogger", path_, line, mode);
}

void CsvLogger::on_epoch_end(std::int64_t epoch, const Logs& logs) {
  if (!wrote_head_) {
    names_ = validation_names();  // adds the columns even if the first epochs have no validation
    for (const auto& [name, value] : logs) names_.push_back(name);
    std::ranges::sort(names_);
    names_.erase(std::unique(names_.begin(), names_.end()), names_.end());
    std::string head = "epoch";
    for (const std::string& name : names_) head += options_.separator + name;
    write_line(head, options_.mode == CsvMode::kReplace ? std::ios::trunc : std::ios::app);
    wrote_head_ = true;
  }
  for (const auto& [name, value] : logs) {
    if (std::ranges::find(names_, name) != names_.end()) continue;
    log_warning_once(concat("CsvLogger: ", path_, " has no column '", name,
                            "', so values with this name are not written; expected one of ",
                            join(names_), "; use another file, or CsvMode::kReplace"));
  }
  std::string line = concat(epoch);
  for (const std::string& name : names_)
    line += options_.separator + (logs.has(name) ? exact_text(logs.at(name)) : "NA");
  write_line(line, std::ios::app);
}

Json CsvLogger::save_state() const {
  Json state = Json::object();
  state.set("names", json_of(names_)).set("wrote_head", wrote_head_);
  state.set("length", length_of_file(path_, is_chief()));
  return state;
}

void CsvLogger::restore_state(const Json& state) {
  names_ = value_of<std::vector<std::string>>(state.at("names"));
  wrote_head_ = state.at("wrote_head").as_bool();
  cut_file(path_, state.at("length"), is_chief());
}

// TensorBoard and JSON lines.

namespace {

constexpr std::string_view kValidationPrefix = "val_";

}  // namespace

TensorBoard::TensorBoard(std::string log_dir, TensorBoardOptions options)
    : log_dir_(std::move(log_dir)), options_(options) {}

void TensorBoard::write(std::optional<EventFileWriter>& writer, const char* folder,
                        const std::string& tag, std::int64_t step, double value) {
  if (!is_chief()) return;
  if (!writer) writer.emplace(concat(log_dir_, '/', folder));
  writer->scalar(tag, step, value);
}

void TensorBoard::on_train_batch_end(std::int64_t, const Logs& logs) {
  const std::int64_t batch = batches_++;
  if (options_.update_every_batches <= 0 || batch % options_.update_every_batches != 0) return;
  for (const auto& [name, value] : logs) write(train_, "train", "batch_" + name, batch, value);
}

void TensorBoard::on_epoch_end(std::int64_t epoch, const Logs& logs) {
  for (const auto& [name, value] : logs) {
    if (name.starts_with(kValidationPrefix)) {
      write(validation_, "validation", "epoch_" + name.substr(kValidationPrefix.size()), epoch,
            value);
    } else {
      write(train_, "train", "epoch_" + name, epoch, value);
    }
  }
}

void JsonLog::on_train_begin() { begin_ = Clock::system().now(); }

void JsonLog::on_epoch_end(std::int64_t epoch, const Logs& logs) {
  if (!is_chief()) return;
  Json line = Json::object();
  line.set("epoch", epoch);
  line.set("step", model().optimizer().iterations().value().item_int());
  line.set("seconds", seconds_between(begin_, Clock::system().now()));
  for (const auto& [name, value] : logs) line.set(name, value);
  write_to_file("JsonLog", path(), line.dump(), std::ios::app);
}

Json JsonLog::save_state() const { return length_of_file(path(), is_chief()); }

void JsonLog::restore_state(const Json& state) { cut_file(path(), state, is_chief()); }

}  // namespace tutti
