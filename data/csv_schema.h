// What the columns of CSV files become.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "tutti/data/csv.h"
#include "tutti/data/csv_reader.h"

namespace tutti::internal {

/// A column that is read. Immutable once its type is known.
struct CsvField {
  CsvColumn column;
  std::size_t index = 0;           // of the field in a record
  DType stored = DType::kFloat32;  // of its component
  bool inferred = false;           // its type was found by looking at records
  std::unordered_map<std::string, std::int64_t> places = {};  // of the vocabulary's texts

  bool is_category() const { return column.categorical || !column.vocabulary.empty(); }
  bool is_known() const { return is_category() || column.dtype.has_value(); }
};

/// Everything that turns records into elements.
struct CsvSchema {
  CsvOptions options;
  std::vector<std::string> paths;
  std::vector<std::string> header;  // of the first file; empty: files have none
  std::size_t num_fields = 0;
  std::vector<CsvField> fields;  // in the order of the components, the label last
};

/// Opens `path` and reads its header. Throws kInvalidArgument where it is not the schema's.
CsvReader open_csv(const CsvSchema& schema, const std::string& path);
/// The next record; false at the end. Throws kDataLoss for another number of fields.
bool next_record(const CsvSchema& schema, CsvReader& reader, CsvRecord& record);

/// The columns that `options` selects in the first file. Types may be missing.
CsvSchema select_columns(std::vector<std::string> paths, CsvOptions options);
/// Looks at up to `max_rows` records of each of the first `num_files` files for the types that are
/// missing.
void infer_types(CsvSchema& schema, std::size_t num_files, std::int64_t max_rows);
/// Looks at all records for the vocabularies that are missing.
void find_vocabularies(CsvSchema& schema);
/// Ends with every type known. Throws kInvalidArgument for a category without vocabulary and for
/// defaults that do not fit.
void complete_schema(CsvSchema& schema);

/// Whether the field says that its value is missing.
bool is_missing(const CsvOptions& options, std::string_view text);
/// Whether `text`, with spaces around it, is a number of type `dtype`.
bool is_number(std::string_view text, DType dtype);
/// Appends the value's bytes, of type field.stored. Throws kInvalidArgument naming source, line and
/// column.
void append_value(const CsvSchema& schema, const CsvField& field, const CsvRecord& record,
                  const std::string& source, std::string& bytes);

}  // namespace tutti::internal
