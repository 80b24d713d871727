// The records of a CSV file.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/csv_reader.h"

#include "tutti/core/error.h"

namespace tutti::internal {

std::vector<std::string> CsvRecord::fields() const {
  std::vector<std::string> fields;
  for (std::size_t i = 0; i < size(); ++i) fields.emplace_back((*this)[i]);
  return fields;
}

CsvReader::CsvReader(InputFile file, CsvDialect dialect)
    : file_(std::move(file)),
      dialect_(dialect),
      delimiter_(static_cast<unsigned char>(dialect.delimiter)) {
  // A byte order mark, which programs of spreadsheets write.
  if (file_.peek() != 0xef) return;
  std::string mark;
  file_.read(mark, 3);
  if (mark != "\xef\xbb\xbf") {
    fail(ErrorCode::kDataLoss, source(), ":1: expected UTF-8, got ",
         "a byte 239 that begins no byte order mark; try to convert the file");
  }
}

template <class... Parts>
void CsvReader::refuse(const Parts&... parts) {
  const std::int64_t line = line_;
  int byte = 0;
  do {
    byte = file_.get();
  } while (byte >= 0 && byte != '\n' && byte != '\r');
  if (byte >= 0) stop_at(byte);
  fail(ErrorCode::kDataLoss, source(), ":", line, ": ", parts...);
}

// What is taken as a record has no end, perhaps: its rest is not looked for.
void CsvReader::require_short(const CsvRecord& record) {
  if (too_long_ == 0) {
    if (record.text_.size() + record.ends_.size() < dialect_.max_line_bytes) return;
    too_long_ = record.line_;
  }
  fail(ErrorCode::kResourceExhausted, source(), ":", too_long_, ": expected a record of at most ",
       dialect_.max_line_bytes,
       " bytes, got a longer one; is this a CSV file? If it is, try "
       "CsvOptions::max_line_bytes");
}

CsvReader::Stop CsvReader::stop_at(int byte) {
  if (byte < 0) return Stop::kEnd;
  if (byte == delimiter_) return Stop::kDelimiter;
  if (byte == '\r' && file_.peek() == '\n') file_.get();
  ++line_;
  return Stop::kLine;
}

void CsvReader::skip_empty_lines() {
  while (file_.peek() == '\n' || file_.peek() == '\r') stop_at(file_.get());
}

bool CsvReader::next(CsvRecord& record) {
  if (too_long_ != 0) require_short(record);
  skip_empty_lines();
  record.text_.clear();
  record.ends_.clear();
  record.line_ = line_;
  if (file_.peek() < 0) return false;
  while (read_field(record) == Stop::kDelimiter) {
  }
  return true;
}

CsvReader::Stop CsvReader::read_field(CsvRecord& record) {
  while (dialect_.skip_initial_space && file_.peek() == ' ') file_.get();
  const Stop stop =
      dialect_.quotes && file_.peek() == '"' ? read_quoted(record) : read_plain(record);
  require_short(record);
  record.ends_.push_back(record.text_.size());
  return stop;
}

CsvReader::Stop CsvReader::read_plain(CsvRecord& record) {
  for (;;) {
    const int byte = file_.get();
    if (is_stop(byte)) return stop_at(byte);
    if (byte == '"' && dialect_.quotes) {
      refuse("field ", record.size() + 1,
             ": expected a quote at the begin of a field only, got one within; try to write the "
             "field as \"...\" with \"\" for the quote, or CsvOptions::quotes = false");
    }
    require_short(record);
    record.text_.push_back(static_cast<char>(byte));
  }
}

CsvReader::Stop CsvReader::read_quoted(CsvRecord& record) {
  const std::int64_t first_line = line_;
  file_.get();
  for (;;) {
    const int byte = file_.get();
    if (byte < 0) {
      fail(ErrorCode::kDataLoss, source(), ":", first_line, ": field ", record.size() + 1,
           ": expected a quote that ends the field, got the end of the file");
    }
    if (byte == '"' && file_.peek() != '"') break;
    if (byte == '"') file_.get();
    // A line end within a field stays as it is; CR LF counts once.
    if (byte == '\n' || (byte == '\r' && file_.peek() != '\n')) ++line_;
    require_short(record);
    record.text_.push_back(static_cast<char>(byte));
  }
  if (!is_stop(file_.peek())) {
    refuse("field ", record.size() + 1,
           ": expected a delimiter or the end of the line behind a quoted field, got byte ",
           file_.peek());
  }
  return stop_at(file_.get());
}

}  // namespace tutti::internal
