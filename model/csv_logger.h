// Writes the values of epochs as a table.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fstream>
#include <string>
#include <vector>

#include "tutti/model/callback.h"

namespace tutti {

enum class CsvMode { kReplace, kAppend };

struct CsvLoggerOptions {
  std::string separator = ",";
  /// kAppend: goes on with a file that is there, without a second head line.
  CsvMode mode = CsvMode::kReplace;
};

/// A line per epoch: "epoch", then the values by name in alphabetical order; "NA" where an epoch
/// lacks one (validation that did not take place). Numbers read back exactly. Throws kUnavailable
/// naming the path when it cannot be written. Keras's CSVLogger.
class CsvLogger : public Callback {
 public:
  explicit CsvLogger(std::string path, CsvLoggerOptions options = {});
  void on_train_begin() override;
  void on_epoch_end(std::int64_t epoch, const Logs& logs) override;
  /// Of the file: lines that were written later are written again.
  Json save_state() const override;
  void restore_state(const Json& state) override;

 private:
  void write_line(const std::string& line, std::ios::openmode mode);

  std::string path_;
  CsvLoggerOptions options_;
  std::vector<std::string> names_;  // of the head line
  bool wrote_head_ = false;
};

}  // namespace tutti
