// CSV files: rows as elements of datasets, or whole files as a table.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/data/dataset.h"
#include "tutti/data/input_limits.h"

namespace tutti {

/// Description of a column; members that are not set are inferred from the file.
struct CsvColumn {
  std::string name;
  /// Default: int64 if all fields are whole numbers, float32 if all are numbers, otherwise
  /// categorical; read_csv() warns if most fields are numbers. kBool accepts true, false, 1 and 0.
  std::optional<DType> dtype = {};
  /// Value for missing fields (CsvOptions::na_values). Default: a missing field is an error.
  std::optional<double> default_value = {};
  /// True for a categorical column: its fields are strings, even if they look like numbers, and are
  /// replaced by their indices in `vocabulary` (int64). A column with a vocabulary is always
  /// categorical.
  bool categorical = false;
  std::vector<std::string> vocabulary = {};
  /// Value for fields that are not in the vocabulary. Default: such a field is an error.
  std::optional<std::int64_t> unknown_value = {};
};

/// Format of CSV files: names, types, quotes, missing values. csv_dataset() throws kInvalidArgument
/// for invalid options.
struct CsvOptions {
  /// True if the first record of each file contains the column names, which must be the same in all
  /// files.
  bool header = true;
  /// Names that replace those in the header. Default without a header: "column_0", "column_1", ...
  std::vector<std::string> column_names = {};
  /// Columns to read, in this order, by name or by index (not both). Default: all.
  std::vector<std::string> select_columns = {};
  std::vector<std::int64_t> select_indices = {};
  /// Descriptions of columns, by name, in any order.
  std::vector<CsvColumn> columns = {};
  /// Name of the label column. Labels come after the features, even if this column is not selected.
  std::string label_column = {};
  /// If true, elements are {features float32 [columns without the label], labels []} instead of one
  /// component per column, named after the column. Categorical columns are packed if they are
  /// declared (CsvColumn::categorical or vocabulary), otherwise rejected.
  bool pack_features = false;
  char delimiter = ',';
  /// True if fields may be quoted as in RFC 4180: a quoted field may contain any character, and two
  /// consecutive quotes in it represent one quote.
  bool quotes = true;
  /// True to ignore spaces after a delimiter.
  bool skip_initial_space = false;
  /// Strings that mark a missing value.
  std::vector<std::string> na_values = {""};
  /// Number of records of the first file from which csv_dataset() infers types.
  std::int64_t num_rows_for_inference = 100;
  /// Maximum size of a record (a line, unless a quoted field contains a line end), in bytes. A
  /// longer record, and everything after it, is rejected with kResourceExhausted.
  std::int64_t max_line_bytes = std::int64_t{1} << 21;
  /// Limits for .gz files.
  InputLimits limits = {};
};

/// Returns the records of the files, one file after the other, read on demand (a .gz file is
/// unpacked in memory when it is reached). Each column is a component [] with the column's name;
/// the label is the last one. Like tf.data.experimental.make_csv_dataset, without shuffling or
/// batching. Lines end in LF, CR LF or CR; empty lines and a byte order mark are skipped. The
/// locale does not affect how numbers are parsed.
///
/// Immediately throws kNotFound or kInvalidArgument for files, columns and types that are missing
/// or unsuitable, such as a text column without a vocabulary. While reading, throws an error that
/// names the path, line and column: kDataLoss for files of another kind, malformed records and a
/// wrong number of fields; kInvalidArgument for a field that does not match its column;
/// kResourceExhausted if max_line_bytes or limits are exceeded. After a rejected field or record,
/// the pass can continue.
Dataset csv_dataset(std::vector<std::string> paths, CsvOptions options = {});

/// Contents of whole CSV files, in memory.
struct CsvTable {
  /// The element that batch(rows) of csv_dataset() would yield: a component [rows] per column, or
  /// features [rows, columns] and labels [rows].
  Element rows;
  /// The columns of `rows`, with inferred types and vocabularies. Pass them as CsvOptions::columns
  /// to make csv_dataset() read other files in the same way.
  std::vector<CsvColumn> columns;

  /// Returns the rows as elements.
  Dataset dataset() const;
};

/// Reads all records and infers types from all of them. A categorical column without a vocabulary
/// gets one: its values, sorted bytewise. Throws as csv_dataset() does.
CsvTable read_csv(const std::vector<std::string>& paths, CsvOptions options = {});

}  // namespace tutti
