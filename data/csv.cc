// CSV files as datasets and tables.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/csv.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <memory>
#include <utility>

#include "core/names.h"
#include "data/csv_schema.h"
#include "data/input_file.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

using internal::CsvField;
using internal::CsvReader;
using internal::CsvRecord;
using internal::CsvSchema;

constexpr std::int64_t kAllRows = INT64_MAX;

/// Layout of an element's components: one per field, or features and label.
struct Components {
  std::vector<std::string> names;
  std::vector<DType> dtypes;
  std::vector<std::size_t> component_of;  // component of each field
  std::vector<std::int64_t> widths;       // values per row; 0: a scalar
};

Components components_of(const CsvSchema& schema) {
  Components components;
  const std::size_t count = schema.fields.size();
  const bool labelled = !schema.options.label_column.empty();
  if (schema.options.pack_features) {
    const std::size_t num_features = count - (labelled ? 1 : 0);
    components = {{"features"}, {DType::kFloat32}, {}, {static_cast<std::int64_t>(num_features)}};
    components.component_of.assign(num_features, 0);
    if (!labelled) return components;
  }
  for (std::size_t i = components.component_of.size(); i < count; ++i) {
    const bool packed = schema.options.pack_features;
    components.component_of.push_back(components.names.size());
    components.names.push_back(packed ? "labels" : schema.fields[i].column.name);
    components.dtypes.push_back(schema.fields[i].stored);
    components.widths.push_back(0);
  }
  return components;
}

/// Builder that creates an element from the bytes of rows.
class RowBuffer {
 public:
  explicit RowBuffer(const CsvSchema& schema)
      : schema_(schema), components_(components_of(schema)), bytes_(components_.names.size()) {
    std::vector<Tensor> tensors(components_.names.size(), Tensor::zeros({}));
    names_ = Element(std::move(tensors), components_.names);
  }

  /// Adds a record. If it throws, part of the record may have been added, and clear() must be
  /// called.
  void add(const CsvRecord& record, const std::string& source) {
    for (std::size_t i = 0; i < schema_.fields.size(); ++i) {
      append_value(schema_, schema_.fields[i], record, source, bytes_[components_.component_of[i]]);
    }
  }

  /// Returns one element that contains all added rows; `rows` is their number. If `rows` is
  /// nullopt, returns the only row, without a batch axis.
  Element element(std::optional<std::int64_t> rows) const {
    std::vector<Tensor> tensors;
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      const std::int64_t width = components_.widths[i];
      Shape shape = width == 0 ? Shape{} : Shape{width};
      if (rows) shape = shape.with_front(*rows);
      tensors.push_back(
          Tensor::from_bytes(shape, components_.dtypes[i], std::as_bytes(std::span(bytes_[i]))));
    }
    return names_.with_tensors(std::move(tensors));
  }

  void clear() {
    for (std::string& bytes : bytes_) bytes.clear();
  }

 private:
  const CsvSchema& schema_;
  Components components_;
  std::vector<std::string> bytes_;  // bytes of each component
  Element names_;                   // component names, which all elements share
};

class CsvElements : public internal::FileElements {
 public:
  CsvElements(std::shared_ptr<const CsvSchema> schema, const std::string& path)
      : schema_(std::move(schema)), reader_(open_csv(*schema_, path)), row_(*schema_) {}

  std::optional<Element> next() override {
    if (!next_record(*schema_, reader_, record_)) return std::nullopt;
    row_.clear();
    row_.add(record_, reader_.source());
    return row_.element(std::nullopt);
  }

  std::int64_t skip(std::int64_t count) override {
    std::int64_t skipped = 0;
    while (skipped < count && next_record(*schema_, reader_, record_)) ++skipped;
    return skipped;
  }

 private:
  std::shared_ptr<const CsvSchema> schema_;
  CsvReader reader_;
  CsvRecord record_;
  RowBuffer row_;
};

}  // namespace

Dataset csv_dataset(std::vector<std::string> paths, CsvOptions options) {
  internal::require(options.num_rows_for_inference >= 1,
                    "csv_dataset: expected num_rows_for_inference >= 1, got ",
                    options.num_rows_for_inference);
  auto schema = internal::naming("csv_dataset", [&] {
    auto found =
        std::make_shared<CsvSchema>(internal::select_columns(std::move(paths), std::move(options)));
    infer_types(*found, 1, found->options.num_rows_for_inference);
    return found;
  });
  complete_schema(*schema);
  return internal::dataset_of_files(
      schema->paths,
      [schema](const std::string& path) { return std::make_unique<CsvElements>(schema, path); },
      "csv_dataset");
}

CsvTable read_csv(const std::vector<std::string>& paths, CsvOptions options) {
  CsvSchema schema = internal::naming("read_csv", [&] {
    CsvSchema found = internal::select_columns(paths, std::move(options));
    infer_types(found, paths.size(), kAllRows);
    require_asked_categories(found);
    find_vocabularies(found);
    return found;
  });
  complete_schema(schema);
  RowBuffer rows(schema);
  std::int64_t count = 0;
  for (const std::string& path : paths) {
    internal::name_when_out_of_memory(path, [&] {
      CsvReader reader = open_csv(schema, path);
      for (CsvRecord record; next_record(schema, reader, record); ++count) {
        rows.add(record, path);
      }
    });
  }
  CsvTable table{
      internal::name_when_out_of_memory(paths.back(), [&] { return rows.element(count); }), {}};
  for (CsvField& field : schema.fields) table.columns.push_back(std::move(field.column));
  return table;
}

Dataset CsvTable::dataset() const {
  return Dataset::from_tensor_slices(rows.tensors()).map([rows = rows](const Element& row) {
    return rows.with_tensors(row.tensors());
  });
}

}  // namespace tutti

namespace tutti::internal {

// Records of CSV files, and parsing of their fields: numbers, categories and missing values.

std::vector<std::string> CsvRecord::fields() const {
  std::vector<std::string> fields;
  for (std::size_t i = 0; i < size(); ++i) fields.emplace_back((*this)[i]);
  return fields;
}

CsvReader::CsvReader(InputFile file, CsvDialect dialect)
    : file_(std::move(file)),
      dialect_(dialect),
      delimiter_(static_cast<unsigned char>(dialect.delimiter)) {
  // Skip a byte order mark, which spreadsheet programs write.
  if (file_.peek() != 0xef) return;
  std::string mark;
  file_.read(mark, 3);
  if (mark != "\xef\xbb\xbf") {
    fail(ErrorCode::kDataLoss, source(), ":1: expected UTF-8, got ",
         "byte 239, which does not begin a byte order mark; convert the file");
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

// Throws for a record that is too long. Does not search for the record's end, because there may be
// none.
void CsvReader::require_short(const CsvRecord& record) {
  if (too_long_ == 0) {
    if (record.text_.size() + record.ends_.size() < dialect_.max_line_bytes) return;
    too_long_ = record.line_;
  }
  fail(ErrorCode::kResourceExhausted, source(), ":", too_long_, ": expected a record of at most ",
       dialect_.max_line_bytes,
       " bytes, got a longer one; is this a CSV file? If it is, raise "
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
             ": expected a quote only at the start of a field, got one inside a field; write "
             "the field as \"...\" with \"\" for the quote, or set CsvOptions::quotes = false");
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
           ": expected a closing quote, got the end of the file");
    }
    if (byte == '"' && file_.peek() != '"') break;
    if (byte == '"') file_.get();
    // A line end within a field is kept as it is; CR LF counts as one line end.
    if (byte == '\n' || (byte == '\r' && file_.peek() != '\n')) ++line_;
    require_short(record);
    record.text_.push_back(static_cast<char>(byte));
  }
  if (!is_stop(file_.peek())) {
    refuse("field ", record.size() + 1,
           ": expected a delimiter or the end of the line after a quoted field, got byte ",
           file_.peek());
  }
  return stop_at(file_.get());
}

// Values.

namespace {

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t";
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

bool parse_bool(std::string_view text, bool& value) {
  const std::string lower = lower_case(text);
  value = lower == "true" || lower == "1";
  return value || lower == "false" || lower == "0";
}

/// Parses a number of type T; returns true if `text`, apart from spaces around it, is one number.
/// Floats may underflow.
template <class T>
bool parse(std::string_view text, T& value) {
  text = trimmed(text);
  if constexpr (std::is_same_v<T, bool>) {
    return parse_bool(text, value);
  } else if constexpr (Half<T>) {
    double wide = 0;
    if (!parse(text, wide)) return false;
    value = T(wide);
    return std::isfinite(static_cast<float>(value)) || !std::isfinite(wide);
  } else {
    if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
    const char* end = text.data() + text.size();
    const auto result = std::from_chars(text.data(), end, value);
    if (result.ptr != end || text.empty()) return false;
    if constexpr (std::is_same_v<T, float>) {
      double wide = 0;
      if (result.ec == std::errc::result_out_of_range && parse(text, wide) && std::abs(wide) < 1) {
        value = static_cast<float>(wide);
        return true;
      }
    }
    return result.ec == std::errc();
  }
}

template <class T>
void append_as(T value, DType stored, std::string& bytes) {
  visit_dtype(stored, [&]<class S>() {
    S converted{};
    if constexpr (Half<T>) {
      converted = static_cast<S>(static_cast<float>(value));
    } else {
      converted = static_cast<S>(value);
    }
    bytes.append(reinterpret_cast<const char*>(&converted), sizeof(converted));
  });
}

// Returns a field in quotes for a message, truncated if it is long.
std::string shown(std::string_view text) {
  constexpr std::size_t kLongest = 60;
  if (text.size() <= kLongest) return concat("'", text, "'");
  return concat("'", text.substr(0, kLongest), "...'");
}

[[noreturn]] void fail_missing(const CsvField& field, const CsvRecord& record,
                               const std::string& source) {
  fail(ErrorCode::kInvalidArgument, source, ":", record.line(), ": column '", field.column.name,
       "': the value is missing; expected ", field.stored, ", got ", shown(record[field.index]),
       "; use CsvColumn::default_value");
}

std::int64_t category_of(const CsvField& field, const CsvRecord& record,
                         const std::string& source) {
  const auto found = field.places.find(std::string(record[field.index]));
  if (found != field.places.end()) return found->second;
  if (field.column.unknown_value) return *field.column.unknown_value;
  fail(ErrorCode::kInvalidArgument, source, ":", record.line(), ": column '", field.column.name,
       "': expected one of the ", field.places.size(), " values in its vocabulary, got ",
       shown(record[field.index]), "; use CsvColumn::unknown_value");
}

}  // namespace

bool is_missing(const CsvOptions& options, std::string_view text) {
  return std::ranges::find(options.na_values, text) != options.na_values.end();
}

bool is_number(std::string_view text, DType dtype) {
  return visit_dtype(dtype, [&]<class T>() {
    T value{};
    return parse(text, value);
  });
}

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Removes a currency or percent sign from either end of `text`; returns true if there was one.
bool remove_sign(std::string_view& text) {
  for (const std::string_view sign : {"$", "%", "\xe2\x82\xac", "\xc2\xa3", "\xc2\xa5"}) {
    if (text.starts_with(sign))
      text.remove_prefix(sign.size());
    else if (text.ends_with(sign))
      text.remove_suffix(sign.size());
    else
      continue;
    text = trimmed(text);
    return true;
  }
  return false;
}

/// Returns true for numbers such as 1,234,567.5: groups of three digits with the same separator.
bool has_thousands(std::string_view text) {
  constexpr std::string_view kNoBreakSpace = "\xc2\xa0";
  for (const std::string_view separator :
       {std::string_view(","), std::string_view("."), std::string_view("'"), std::string_view(" "),
        std::string_view("_"), kNoBreakSpace}) {
    std::string_view rest = text;
    std::size_t digits = 0, groups = 0;
    while (!rest.empty() && is_digit(rest[0]) && digits < 3) {
      rest.remove_prefix(1);
      ++digits;
    }
    const auto group_follows = [&] {
      const std::string_view group = rest.substr(std::min(separator.size(), rest.size()));
      return rest.starts_with(separator) && group.size() >= 3 &&
             std::all_of(group.begin(), group.begin() + 3, is_digit) &&
             (group.size() == 3 || !is_digit(group[3]));
    };
    for (; digits > 0 && group_follows(); ++groups) rest.remove_prefix(separator.size() + 3);
    if (groups == 0) continue;
    const bool has_fraction =
        !rest.empty() && (rest[0] == '.' || rest[0] == ',') && rest.substr(0, 1) != separator;
    if (has_fraction) rest.remove_prefix(1);
    if (std::all_of(rest.begin(), rest.end(), is_digit) && (rest.empty() || has_fraction)) {
      return true;
    }
  }
  return false;
}

bool has_decimal_comma(std::string_view text) {
  const std::size_t comma = text.find(',');
  if (comma == std::string_view::npos || comma + 1 == text.size()) return false;
  std::string with_point(text);
  with_point[comma] = '.';
  double value = 0;
  return parse(with_point, value);
}

}  // namespace

std::string_view foreign_number_form(std::string_view text) {
  text = trimmed(text);
  const bool has_sign = remove_sign(text);
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  const bool has_inner_sign = remove_sign(text);
  if (text.empty() || std::none_of(text.begin(), text.end(), is_digit)) return "";
  const bool groups = has_thousands(text), comma = has_decimal_comma(text);
  if (groups && comma) return "thousands separators or a decimal comma";
  if (groups) return "thousands separators";
  if (comma) return "a decimal comma";
  double value = 0;
  return (has_sign || has_inner_sign) && parse(text, value) ? "a currency or percent sign" : "";
}

std::optional<char> other_delimiter(const CsvOptions& options, std::string_view text) {
  for (const char candidate : {';', '\t', '|', ','}) {
    if (candidate != options.delimiter && text.find(candidate) != std::string_view::npos) {
      return candidate;
    }
  }
  return std::nullopt;
}

namespace {

std::string form_note(std::string_view text) {
  const std::string_view form = foreign_number_form(text);
  return form.empty() ? "" : concat(", a number with ", form);
}

}  // namespace

void append_value(const CsvSchema& schema, const CsvField& field, const CsvRecord& record,
                  const std::string& source, std::string& bytes) {
  const std::string_view text = record[field.index];
  const bool missing = is_missing(schema.options, text);
  if (missing && field.column.default_value) {
    return append_as(*field.column.default_value, field.stored, bytes);
  }
  if (field.is_category()) {
    return append_as(category_of(field, record, source), field.stored, bytes);
  }
  if (missing) fail_missing(field, record, source);
  visit_dtype(*field.column.dtype, [&]<class T>() {
    T value{};
    if (!parse(text, value)) {
      fail(ErrorCode::kInvalidArgument, source, ":", record.line(), ": column '", field.column.name,
           "': expected ", *field.column.dtype, ", got ", shown(text), form_note(text),
           field.inferred ? "; the type was inferred from the first records; set CsvColumn::dtype"
                          : "");
    }
    append_as(value, field.stored, bytes);
  });
}

}  // namespace tutti::internal
