// Schemas of CSV files: selection of columns, types and vocabularies.
// SPDX-License-Identifier: Apache-2.0
#include "data/csv_schema.h"

#include <algorithm>
#include <limits>
#include <set>

#include "core/file_kind.h"
#include "core/names.h"
#include "tutti/core/logging.h"

namespace tutti::internal {
namespace {

constexpr const char* kWho = "csv_dataset";

template <class... Parts>
[[noreturn]] void fail_options(const Parts&... parts) {
  fail(ErrorCode::kInvalidArgument, kWho, ": ", parts...);
}

CsvReader open_reader(const CsvOptions& options, const std::string& path) {
  InputFile file(path, options.limits);
  const std::string kind = kind_of_file(file.bytes_ahead());
  // Files that are empty or contain only white space have no records; the caller decides whether
  // that is an error.
  if (!file.bytes_ahead().empty() && !kind.empty() && kind != kOnlyWhiteSpace) {
    fail(ErrorCode::kDataLoss, path, ":1: expected a CSV file, got ", kind);
  }
  return CsvReader(std::move(file), {options.delimiter, options.quotes, options.skip_initial_space,
                                     static_cast<std::uint64_t>(options.max_line_bytes)});
}

std::vector<std::string> read_first(CsvReader& reader, const char* what) {
  CsvRecord record;
  if (!reader.next(record)) {
    fail(ErrorCode::kDataLoss, reader.source(), ":1: expected ", what, ", got an empty file");
  }
  return record.fields();
}

// Returns the delimiter as a C++ character literal.
std::string shown_delimiter(char delimiter) {
  return delimiter == '\t' ? "'\\t'" : concat("'", delimiter, "'");
}

void require_different(const std::vector<std::string>& names, const std::string& source,
                       const char* remedy = "") {
  std::set<std::string> seen;
  for (const std::string& name : names) {
    if (seen.insert(name).second) continue;
    fail_options(source, ": expected different names, got '", name, "' twice", remedy);
  }
}

// Returns the names of all columns, from the options or the first file.
std::vector<std::string> find_names(CsvSchema& schema) {
  const std::string& path = schema.paths[0];
  const CsvOptions& options = schema.options;
  if (!options.header && !options.column_names.empty()) {
    schema.num_fields = options.column_names.size();
    require_different(options.column_names, "column_names");
    return options.column_names;
  }
  CsvReader reader = open_reader(options, path);
  std::vector<std::string> names = read_first(reader, options.header ? "a header" : "a record");
  schema.num_fields = names.size();
  const auto other = names.size() == 1 ? other_delimiter(options, names[0]) : std::nullopt;
  if (other && options.column_names.empty()) {
    fail_options(path, ":1: expected fields with the delimiter ",
                 shown_delimiter(options.delimiter), ", got one field '", one_line(names[0]),
                 "'; is the delimiter ", shown_delimiter(*other),
                 "? Try CsvOptions::delimiter, or column_names for a file of one column");
  }
  if (options.header) {
    schema.header = names;
  } else {
    for (std::size_t i = 0; i < names.size(); ++i) names[i] = concat("column_", i);
  }
  if (!options.column_names.empty()) {
    names = options.column_names;
    if (names.size() != schema.num_fields) {
      fail_options(path, ":1: expected ", names.size(), " columns for the column_names, got ",
                   schema.num_fields);
    }
  }
  require_different(names, path, "; use CsvOptions::column_names");
  return names;
}

std::size_t index_of(const std::vector<std::string>& names, const std::string& name,
                     const char* option) {
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) {
    fail_options("no column is called '", name, "', which ", option, " names; expected one of [",
                 join(names), "]");
  }
  return static_cast<std::size_t>(found - names.begin());
}

// Returns the indices of the selected columns in output order, with the label column last.
std::vector<std::size_t> find_selection(const CsvOptions& options,
                                        const std::vector<std::string>& names) {
  if (!options.select_columns.empty() && !options.select_indices.empty()) {
    fail_options("expected select_columns or select_indices, got both");
  }
  std::vector<std::size_t> indices;
  for (const std::string& name : options.select_columns) {
    indices.push_back(index_of(names, name, "select_columns"));
  }
  for (std::int64_t index : options.select_indices) {
    if (index < 0 || index >= static_cast<std::int64_t>(names.size())) {
      fail_options("expected select_indices from 0 to ", names.size() - 1, ", got ", index);
    }
    indices.push_back(static_cast<std::size_t>(index));
  }
  if (indices.empty()) {
    for (std::size_t i = 0; i < names.size(); ++i) indices.push_back(i);
  }
  if (std::set(indices.begin(), indices.end()).size() != indices.size()) {
    fail_options("expected each column once, got one that is selected twice");
  }
  if (!options.label_column.empty()) {
    const std::size_t label = index_of(names, options.label_column, "label_column");
    std::erase(indices, label);
    indices.push_back(label);
  }
  return indices;
}

void require_default(const CsvField& field) {
  const CsvColumn& column = field.column;
  if (!column.default_value) return;
  const DType dtype = field.is_category() ? DType::kInt64 : *column.dtype;
  visit_dtype(dtype, [&]<class T>() {
    if constexpr (std::is_integral_v<T>) {
      const double value = *column.default_value;
      const auto limit = static_cast<double>(std::numeric_limits<T>::max());
      if (value >= static_cast<double>(std::numeric_limits<T>::min()) && value <= limit &&
          static_cast<double>(static_cast<std::int64_t>(value)) == value && value < 0x1p63) {
        return;
      }
      fail_options("column '", column.name, "': expected a default_value of type ", dtype, ", got ",
                   value);
    }
  });
}

}  // namespace

CsvReader open_csv(const CsvSchema& schema, const std::string& path) {
  CsvReader reader = open_reader(schema.options, path);
  if (!schema.options.header) return reader;
  const std::vector<std::string> names = read_first(reader, "a header");
  const bool renamed = !schema.options.column_names.empty();
  if (renamed ? names.size() != schema.num_fields : names != schema.header) {
    fail_options(path, ":1: expected the columns [", join(schema.header), "] as in ",
                 schema.paths[0], ", got [", join(names), "]");
  }
  return reader;
}

bool next_record(const CsvSchema& schema, CsvReader& reader, CsvRecord& record) {
  if (!reader.next(record)) return false;
  if (record.size() != schema.num_fields) {
    const auto other =
        record.size() == 1 ? other_delimiter(schema.options, record[0]) : std::nullopt;
    fail(ErrorCode::kDataLoss, reader.source(), ":", record.line(), ": expected ",
         schema.num_fields, " fields, got ", record.size(),
         other
             ? concat("; is the delimiter ", shown_delimiter(*other), "? Try CsvOptions::delimiter")
             : "");
  }
  return true;
}

CsvSchema select_columns(std::vector<std::string> paths, CsvOptions options) {
  if (paths.empty()) fail_options("expected at least one path, got none");
  const std::string_view reserved = "\"\r\n";
  if (reserved.find(options.delimiter) != std::string_view::npos) {
    fail_options("expected a delimiter such as ',', got a quote or the end of a line");
  }
  if (options.max_line_bytes < 1) {
    fail_options("expected max_line_bytes >= 1, got ", options.max_line_bytes);
  }
  CsvSchema schema{std::move(options), std::move(paths), {}, 0, {}};
  const std::vector<std::string> names =
      name_when_out_of_memory(schema.paths[0], [&] { return find_names(schema); });
  for (std::size_t index : find_selection(schema.options, names)) {
    CsvField field;
    field.column.name = names[index];
    field.index = index;
    schema.fields.push_back(std::move(field));
  }
  std::vector<std::string> known;
  for (const CsvColumn& column : schema.options.columns) {
    index_of(names, column.name, "columns");
    known.push_back(column.name);
    for (CsvField& field : schema.fields) {
      if (field.column.name == column.name) field.column = column;
    }
  }
  require_different(known, "columns");
  return schema;
}

namespace {

// Returns the advice for an error about text in a numeric column.
std::string remark_on_numbers(const CsvField& field) {
  if (!field.text_form.empty()) {
    return concat(" (a number with ", field.text_form,
                  "; expected at most a decimal point, and no other separators or symbols: convert "
                  "the file)");
  }
  if (!field.mostly_numbers) return "";
  return " (most fields are numbers; if this text marks a missing value, use CsvOptions::na_values "
         "and CsvColumn::default_value)";
}

}  // namespace

void require_asked_categories(const CsvSchema& schema) {
  const bool labelled = !schema.options.label_column.empty();
  for (const CsvField& field : schema.fields) {
    if (!field.inferred || !field.is_category()) continue;
    const std::string what = concat("column '", field.column.name, "' of '", schema.paths[0],
                                    "' holds text, such as ", field.text, remark_on_numbers(field));
    const bool is_label = labelled && &field == &schema.fields.back();
    if (schema.options.pack_features && !is_label) {
      fail(ErrorCode::kInvalidArgument, "read_csv: ", what,
           "; expected only numbers with pack_features; use CsvColumn::categorical, which packs "
           "each value's index in the vocabulary");
    }
    if (field.mostly_numbers) {
      log_warning(concat("read_csv: ", what,
                         "; the column becomes categorical; if that is intended, set "
                         "CsvColumn::categorical"));
    }
  }
}

void complete_schema(CsvSchema& schema) {
  const bool packed = schema.options.pack_features;
  const bool labelled = !schema.options.label_column.empty();
  if (packed && schema.fields.size() == (labelled ? 1 : 0)) {
    fail_options("expected a feature to pack, got only the label");
  }
  for (CsvField& field : schema.fields) {
    const CsvColumn& column = field.column;
    if (field.is_category() && column.dtype && *column.dtype != DType::kInt64) {
      fail_options("column '", column.name, "': expected int64 or no dtype for a category, got ",
                   *column.dtype);
    }
    if (field.is_category() && column.vocabulary.empty()) {
      const std::string text = field.text.empty() ? "" : concat(", such as ", field.text);
      fail_options("column '", column.name, "' holds text", text, remark_on_numbers(field),
                   "; expected numbers, or CsvColumn::vocabulary; call read_csv(), which adds it, "
                   "or leave the column out with select_columns");
    }
    require_different(column.vocabulary, concat("the vocabulary of '", column.name, "'"));
    require_default(field);
    for (std::size_t i = 0; i < column.vocabulary.size(); ++i) {
      field.places.emplace(column.vocabulary[i], static_cast<std::int64_t>(i));
    }
    const bool is_label = labelled && &field == &schema.fields.back();
    field.stored = field.is_category() ? DType::kInt64 : *column.dtype;
    if (packed && !is_label) field.stored = DType::kFloat32;
  }
}

// Inference of types and vocabularies.

namespace {

/// Narrowest type into which all fields of a column fit.
struct Kind {
  bool is_integer = true;
  bool is_float = true;
  bool has_value = false;
  std::int64_t num_numbers = 0;  // number of numeric fields, including those in unsupported formats
  std::int64_t num_texts = 0;
  std::string first_text = {};  // field to show in errors, with its line
  std::string text_form = {};   // format of the first number that is unsupported

  void add(std::string_view text, std::int64_t line) {
    has_value = true;
    is_integer = is_integer && is_number(text, DType::kInt64);
    if (is_integer || is_number(text, DType::kFloat32)) {
      ++num_numbers;
      return;
    }
    const std::string_view form = foreign_number_form(text);
    ++(form.empty() ? num_texts : num_numbers);
    if (is_float || (text_form.empty() && !form.empty())) {
      first_text = concat("'", one_line(text), "' in line ", line);
      text_form = form;
    }
    is_float = false;
  }
};

template <class Look>
void for_each_record(const CsvSchema& schema, std::size_t num_files, std::int64_t max_rows,
                     Look look) {
  for (std::size_t i = 0; i < num_files; ++i) {
    name_when_out_of_memory(schema.paths[i], [&] {
      CsvReader reader = open_csv(schema, schema.paths[i]);
      CsvRecord record;
      for (std::int64_t row = 0; row < max_rows && next_record(schema, reader, record); ++row) {
        look(record);
      }
    });
  }
}

std::vector<CsvField*> fields_without(CsvSchema& schema, bool (*has)(const CsvField&)) {
  std::vector<CsvField*> fields;
  for (CsvField& field : schema.fields) {
    if (!has(field)) fields.push_back(&field);
  }
  return fields;
}

}  // namespace

void infer_types(CsvSchema& schema, std::size_t num_files, std::int64_t max_rows) {
  const std::vector<CsvField*> open =
      fields_without(schema, [](const CsvField& field) { return field.is_known(); });
  if (open.empty()) return;
  std::vector<Kind> kinds(open.size());
  for_each_record(schema, num_files, max_rows, [&](const CsvRecord& record) {
    for (std::size_t i = 0; i < open.size(); ++i) {
      const std::string_view text = record[open[i]->index];
      if (!is_missing(schema.options, text)) kinds[i].add(text, record.line());
    }
  });
  for (std::size_t i = 0; i < open.size(); ++i) {
    CsvColumn& column = open[i]->column;
    open[i]->inferred = true;
    if (kinds[i].is_integer && kinds[i].has_value) {
      column.dtype = DType::kInt64;
    } else if (kinds[i].is_float) {
      column.dtype = DType::kFloat32;
    } else {
      column.categorical = true;
      open[i]->text = kinds[i].first_text;
      open[i]->mostly_numbers = kinds[i].num_numbers > kinds[i].num_texts;
      if (open[i]->mostly_numbers) open[i]->text_form = kinds[i].text_form;
    }
  }
}

void find_vocabularies(CsvSchema& schema) {
  const std::vector<CsvField*> open = fields_without(schema, [](const CsvField& field) {
    return !field.is_category() || !field.column.vocabulary.empty();
  });
  if (open.empty()) return;
  std::vector<std::set<std::string, std::less<>>> texts(open.size());
  for_each_record(schema, schema.paths.size(), INT64_MAX, [&](const CsvRecord& record) {
    for (std::size_t i = 0; i < open.size(); ++i) {
      const std::string_view text = record[open[i]->index];
      const bool replaced =
          open[i]->column.default_value.has_value() && is_missing(schema.options, text);
      if (!replaced && !texts[i].contains(text)) texts[i].emplace(text);
    }
  });
  for (std::size_t i = 0; i < open.size(); ++i) {
    open[i]->column.vocabulary.assign(texts[i].begin(), texts[i].end());
  }
}

}  // namespace tutti::internal
