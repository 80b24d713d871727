// CSV files: rows as elements of datasets, or whole as a table.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/data/dataset.h"
#include "tutti/data/input_limits.h"

namespace tutti {

/// What is known about a column; the rest is found by reading.
struct CsvColumn {
  std::string name;
  /// Nothing: int64 where all fields are whole numbers, float32 where all are numbers, else a
  /// category, with a warning where most fields are numbers. kBool takes true, false, 1 and 0.
  std::optional<DType> dtype = {};
  /// For missing fields (CsvOptions::na_values); nothing: a missing field is refused.
  std::optional<double> default_value = {};
  /// A category: texts, which become their places in `vocabulary` (int64), also where they look
  /// like numbers. A vocabulary makes a category of its column.
  bool categorical = false;
  std::vector<std::string> vocabulary = {};
  /// For texts that are not in the vocabulary; nothing: they are refused.
  std::optional<std::int64_t> unknown_value = {};
};

/// What the fields of a file mean: names, types, quotes, missing values. Checked by csv_dataset()
/// (kInvalidArgument).
struct CsvOptions {
  /// The first record of each file holds the names of the columns; all files must have the same.
  bool header = true;
  /// Instead of the names in the header. Default without header: "column_0", "column_1", ...
  std::vector<std::string> column_names = {};
  /// The columns that are read, in this order, by name or by index (not both). Default: all.
  std::vector<std::string> select_columns = {};
  std::vector<std::int64_t> select_indices = {};
  /// Columns about which something is known, by name, in any order.
  std::vector<CsvColumn> columns = {};
  /// Comes last, behind the features; read even where it is not selected.
  std::string label_column = {};
  /// Elements {features float32 [columns but the label], labels []} instead of one component per
  /// column, which has the column's name. Categories among the features are packed where they are
  /// asked for (CsvColumn::categorical or vocabulary), else refused.
  bool pack_features = false;
  char delimiter = ',';
  /// RFC 4180: "a field", with any character in it and "" for a quote. Else quotes are characters.
  bool quotes = true;
  /// Spaces behind a delimiter are no part of a field.
  bool skip_initial_space = false;
  /// Fields that say that a value is missing.
  std::vector<std::string> na_values = {""};
  /// csv_dataset() finds types in so many records of the first file.
  std::int64_t num_rows_for_inference = 100;
  /// Bytes of a record (a line, where no quoted field holds the end of one). A longer one is
  /// refused with kResourceExhausted, and so is all that stands behind it.
  std::int64_t max_line_bytes = std::int64_t{1} << 21;
  /// For .gz files.
  InputLimits limits = {};
};

/// The records of the files, one file after the other, read as they are asked for (a .gz file is
/// unpacked in memory when it is reached). Each column is a component [], under its name; the label
/// comes last. tf.data.experimental.make_csv_dataset, without shuffling and batching. Lines end in
/// LF, CR LF or CR; empty lines are left out, as is a byte order mark. Numbers are read the same in
/// every locale.
///
/// Throws here kNotFound and kInvalidArgument for files, columns and types that do not fit, such as
/// a column of texts without vocabulary; while reading, naming path, line and column: kDataLoss for
/// files of another kind, records that are no CSV or have another number of fields,
/// kInvalidArgument for a field that is not what its column should be. The pass can go on behind
/// such a record. kResourceExhausted for files beyond max_line_bytes and limits.
Dataset csv_dataset(std::vector<std::string> paths, CsvOptions options = {});

/// Whole CSV files in memory.
struct CsvTable {
  /// What batch(rows) of csv_dataset() would yield: a component [rows] per column, or features
  /// [rows, columns] and labels [rows].
  Element rows;
  /// The columns of `rows`, with what was found: as CsvOptions::columns they make csv_dataset()
  /// read other files in the same way.
  std::vector<CsvColumn> columns;

  /// Its rows as elements.
  Dataset dataset() const;
};

/// Reads all records. Types are found by looking at all of them; a category without vocabulary
/// gets its texts in ascending order of their bytes. Errors as csv_dataset().
CsvTable read_csv(const std::vector<std::string>& paths, CsvOptions options = {});

}  // namespace tutti
