// Log files: TensorBoard event files, and callbacks that write event files, CSV and JSON.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/core/clock.h"
#include "tutti/model/callback.h"

namespace tutti {

/// Appends scalars and histograms to "<directory>/events.out.tfevents.<seconds>.<host>.<process>",
/// which TensorBoard reads. The file is flushed after each record. Inside run(), only replica 0 of
/// the whole job writes, and values from other replicas are ignored, so a step may log values as
/// with tf.summary. Throws kUnavailable, naming the path, if the file cannot be written. Not
/// thread-safe, except for calls by replicas inside run().
class EventFileWriter {
 public:
  explicit EventFileWriter(const std::string& directory);

  void scalar(std::string_view tag, std::int64_t step, double value);
  /// Writes a histogram with TensorFlow's buckets, each of whose limits is 10 % larger than the
  /// previous one. Throws kInvalidArgument, naming the tag, if a value is not finite.
  void histogram(std::string_view tag, std::int64_t step, std::span<const double> values);
  const std::string& path() const { return path_; }

 private:
  void write_summary(std::string_view value, std::int64_t step);
  void write_record(std::string_view event);

  std::string path_;
  std::ofstream file_;
};

// Writes the log values of each epoch as CSV.

/// Handling of an existing file.
enum class CsvMode { kReplace, kAppend };

/// Options of CsvLogger.
struct CsvLoggerOptions {
  std::string separator = ",";
  /// kAppend appends to an existing file, without a second header line.
  CsvMode mode = CsvMode::kReplace;
};

/// Writes a line per epoch: the epoch, then the values in alphabetical order of their names. Writes
/// "NA" for a value that an epoch lacks, e.g. without validation. The columns are the values of the
/// first epoch and of validation or, with kAppend, the columns of an existing file; other values
/// cause a warning. Numbers can be read back exactly. Throws kUnavailable, naming the path, if the
/// file cannot be written. Corresponds to Keras's CSVLogger.
class CsvLogger : public Callback {
 public:
  explicit CsvLogger(std::string path, CsvLoggerOptions options = {});
  void on_train_begin() override;
  void on_epoch_end(std::int64_t epoch, const Logs& logs) override;
  /// The state includes the length of the file; restoring removes lines that were written later.
  Json save_state() const override;
  void restore_state(const Json& state) override;

 private:
  void write_line(const std::string& line, std::ios::openmode mode);

  std::string path_;
  CsvLoggerOptions options_;
  std::vector<std::string> names_;  // columns of the header line
  bool wrote_head_ = false;
};

// Writes training metrics for TensorBoard and as JSON lines.

struct TensorBoardOptions {
  /// Number of batches between "batch_<name>" values; if 0, only epoch values are written.
  std::int64_t update_every_batches = 0;
};

/// Callback that writes each epoch's values as scalars "epoch_<name>" to <log_dir>/train; values
/// with the prefix "val_" are written to <log_dir>/validation without the prefix, as in Keras.
class TensorBoard : public Callback {
 public:
  explicit TensorBoard(std::string log_dir, TensorBoardOptions options = {});
  void on_train_batch_end(std::int64_t batch, const Logs& logs) override;
  void on_epoch_end(std::int64_t epoch, const Logs& logs) override;
  Json save_state() const override { return Json(batches_); }
  void restore_state(const Json& state) override { batches_ = state.as_int(); }

 private:
  void write(std::optional<EventFileWriter>& writer, const char* folder, const std::string& tag,
             std::int64_t step, double value);

  std::string log_dir_;
  TensorBoardOptions options_;
  std::int64_t batches_ = 0;
  std::optional<EventFileWriter> train_;       // opened when the first value is written
  std::optional<EventFileWriter> validation_;  // opened when the first value is written
};

/// Appends a line per epoch to <log_dir>/log.jsonl: {"epoch": 0, "step": 938, "seconds": 12.3,
/// "loss": 0.41, ...}. "step" counts updates; "seconds" is the time since training began.
class JsonLog : public Callback {
 public:
  explicit JsonLog(std::string log_dir) : log_dir_(std::move(log_dir)) {}
  void on_train_begin() override;
  void on_epoch_end(std::int64_t epoch, const Logs& logs) override;
  /// The state is the length of the file; restoring removes lines that were written later.
  Json save_state() const override;
  void restore_state(const Json& state) override;

 private:
  std::string path() const { return log_dir_ + "/log.jsonl"; }

  std::string log_dir_;
  TimePoint begin_;
};

}  // namespace tutti
