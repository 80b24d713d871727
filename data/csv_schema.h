// Records of CSV files, and the schema that converts them to elements.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "data/input_file.h"
#include "tutti/data/csv.h"

namespace tutti::internal {

/// Fields of one record, without quotes. Reused for all records of a file.
class CsvRecord {
 public:
  std::size_t size() const { return ends_.size(); }
  std::string_view operator[](std::size_t index) const {
    const std::size_t begin = index == 0 ? 0 : ends_[index - 1];
    return std::string_view(text_).substr(begin, ends_[index] - begin);
  }
  std::vector<std::string> fields() const;
  /// Returns the line of the file where the record begins, counted from 1.
  std::int64_t line() const { return line_; }

 private:
  friend class CsvReader;
  std::string text_;               // all fields
  std::vector<std::size_t> ends_;  // end offset of each field in text_
  std::int64_t line_ = 0;
};

struct CsvDialect {
  char delimiter = ',';
  bool quotes = true;
  bool skip_initial_space = false;
  std::uint64_t max_line_bytes = UINT64_MAX;
};

/// Reads records as defined by RFC 4180 (see csv_dataset()). Not thread-safe.
class CsvReader {
 public:
  explicit CsvReader(InputFile file, CsvDialect dialect = {});

  const std::string& source() const { return file_.source(); }
  /// Reads the next record; returns false at the end. Throws kDataLoss, naming the source and the
  /// line, for misplaced quotes; the next call continues with the next line. Throws
  /// kResourceExhausted for a record longer than max_line_bytes, and in every later call.
  bool next(CsvRecord& record);

 private:
  /// Separator that ends a field.
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
  std::int64_t too_long_ = 0;  // line of the record that was too long; 0: none
};

/// A column to read. Immutable once its type is known.
struct CsvField {
  CsvColumn column;
  std::size_t index = 0;           // index of the field in a record
  DType stored = DType::kFloat32;  // type of its component
  bool inferred = false;           // true if the type was inferred from records
  std::string text = "";           // a sample field and its line: "'six' in line 4"
  std::string text_form = "";   // number format of that field, if it is a number: "a decimal comma"
  bool mostly_numbers = false;  // true if most fields are numbers, but some are not
  std::unordered_map<std::string, std::int64_t> places = {};  // index of each vocabulary entry

  bool is_category() const { return column.categorical || !column.vocabulary.empty(); }
  bool is_known() const { return is_category() || column.dtype.has_value(); }
};

/// Everything needed to convert records to elements.
struct CsvSchema {
  CsvOptions options;
  std::vector<std::string> paths;
  std::vector<std::string> header;  // header of the first file; empty if files have none
  std::size_t num_fields = 0;
  std::vector<CsvField> fields;  // in component order, with the label last
};

/// Opens `path` and reads its header. Throws kInvalidArgument if the header differs from the
/// schema's.
CsvReader open_csv(const CsvSchema& schema, const std::string& path);
/// Reads the next record; returns false at the end. Throws kDataLoss for a wrong number of fields.
bool next_record(const CsvSchema& schema, CsvReader& reader, CsvRecord& record);

/// Returns the columns that `options` selects in the first file. Types may be missing.
CsvSchema select_columns(std::vector<std::string> paths, CsvOptions options);
/// Infers missing types from up to `max_rows` records of each of the first `num_files` files.
void infer_types(CsvSchema& schema, std::size_t num_files, std::int64_t max_rows);
/// Warns about columns that become categorical although most of their fields are numbers. Throws
/// kInvalidArgument for inferred categorical columns that would be packed into features.
void require_asked_categories(const CsvSchema& schema);
/// Collects missing vocabularies from all records.
void find_vocabularies(CsvSchema& schema);
/// Completes the schema, so that every type is known. Throws kInvalidArgument for a categorical
/// column without a vocabulary, and for defaults of the wrong type.
void complete_schema(CsvSchema& schema);

/// Returns true if the field marks a missing value.
bool is_missing(const CsvOptions& options, std::string_view text);
/// Returns true if `text`, apart from spaces around it, is a number of type `dtype`.
bool is_number(std::string_view text, DType dtype);
/// Returns why a string that looks like a number cannot be parsed: "a decimal comma", "thousands
/// separators", "a currency or percent sign"; "" for other strings.
std::string_view foreign_number_form(std::string_view text);
/// Returns the likely delimiter of a record that was read as the single field `text`, or nullopt.
std::optional<char> other_delimiter(const CsvOptions& options, std::string_view text);
/// Appends the bytes of the field's value, converted to type field.stored. Throws kInvalidArgument
/// naming the source, line and column.
void append_value(const CsvSchema& schema, const CsvField& field, const CsvRecord& record,
                  const std::string& source, std::string& bytes);

}  // namespace tutti::internal
