// Log files: TensorBoard's events, and callbacks that write them, CSV and JSON.
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

// Writes the values of epochs as a table.

/// Whether a file that is there is begun anew.
enum class CsvMode { kReplace, kAppend };

/// Of CsvLogger.
struct CsvLoggerOptions {
  std::string separator = ",";
  /// kAppend: goes on with a file that is there, without a second head line.
  CsvMode mode = CsvMode::kReplace;
};

/// A line per epoch: "epoch", then the values by name in alphabetical order; "NA" where an epoch
/// lacks one (validation that did not take place). The columns are those of the first epoch and of
/// validation, or (kAppend) of the file: a value without a column is warned of. Numbers read back
/// exactly. Throws kUnavailable naming the path when it cannot be written. Keras's CSVLogger.
class CsvLogger : public Callback {
 public:
  explicit CsvLogger(std::string path, CsvLoggerOptions options = {});
  void on_train_begin() override;
  void on_epoch_end(std::int64_t epoch, const Logs& logs) override;
  /// The file's state: lines that were written later are written again.
  Json save_state() const override;
  void restore_state(const Json& state) override;

 private:
  void write_line(const std::string& line, std::ios::openmode mode);

  std::string path_;
  CsvLoggerOptions options_;
  std::vector<std::string> names_;  // of the head line
  bool wrote_head_ = false;
};

// Writes the values of training for TensorBoard and as lines of JSON.

struct TensorBoardOptions {
  /// Also "batch_<name>" every so many batches; 0: epochs alone.
  std::int64_t update_every_batches = 0;
};

/// Scalars "epoch_<name>" by epoch under <log_dir>/train and <log_dir>/validation (there without
/// "val_"), as Keras lays them out.
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
  std::optional<EventFileWriter> train_;       // opened with the first value
  std::optional<EventFileWriter> validation_;  // likewise
};

/// Appends a line per epoch to <log_dir>/log.jsonl: {"epoch": 0, "step": 938, "seconds": 12.3,
/// "loss": 0.41, ...}. "step" counts updates, "seconds" those since training began.
class JsonLog : public Callback {
 public:
  explicit JsonLog(std::string log_dir) : log_dir_(std::move(log_dir)) {}
  void on_train_begin() override;
  void on_epoch_end(std::int64_t epoch, const Logs& logs) override;
  /// The length of the file: lines that were written later are written again.
  Json save_state() const override;
  void restore_state(const Json& state) override;

 private:
  std::string path() const { return log_dir_ + "/log.jsonl"; }

  std::string log_dir_;
  TimePoint begin_;
};

}  // namespace tutti
