// The records of a CSV file.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/data/input_file.h"

namespace tutti::internal {

/// One record: its fields, without quotes. Made once and filled again and again.
class CsvRecord {
 public:
  std::size_t size() const { return ends_.size(); }
  std::string_view operator[](std::size_t index) const {
    const std::size_t begin = index == 0 ? 0 : ends_[index - 1];
    return std::string_view(text_).substr(begin, ends_[index] - begin);
  }
  std::vector<std::string> fields() const;
  /// Line of the file on which the record begins, from 1.
  std::int64_t line() const { return line_; }

 private:
  friend class CsvReader;
  std::string text_;               // of all fields
  std::vector<std::size_t> ends_;  // of each field in text_
  std::int64_t line_ = 0;
};

struct CsvDialect {
  char delimiter = ',';
  bool quotes = true;
  bool skip_initial_space = false;
  std::uint64_t max_line_bytes = UINT64_MAX;
};

/// Reads records by RFC 4180 (see csv_dataset()). Used by one thread.
class CsvReader {
 public:
  explicit CsvReader(InputFile file, CsvDialect dialect = {});

  const std::string& source() const { return file_.source(); }
  /// False at the end. Throws kDataLoss naming source and line for misplaced quotes; the next call
  /// goes on with the next line. kResourceExhausted for a record beyond max_line_bytes, and again
  /// in each call that follows.
  bool next(CsvRecord& record);

 private:
  /// What came behind a field.
  enum class Stop { kDelimiter, kLine, kEnd };
  void skip_empty_lines();
  Stop read_field(CsvRecord& record);
  Stop read_plain(CsvRecord& record);
  Stop read_quoted(CsvRecord& record);
  Stop stop_at(int byte);
  bool is_stop(int byte) const {
    return byte < 0 || byte == '\n' || byte == '\r' || byte == delimiter_;
  }
  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts);
  void require_short(const CsvRecord& record);

  InputFile file_;
  CsvDialect dialect_;
  int delimiter_;
  std::int64_t line_ = 1;
  std::int64_t too_long_ = 0;  // the line that was
};

}  // namespace tutti::internal
