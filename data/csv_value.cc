// The values of CSV fields: numbers, categories, missing ones.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "tutti/data/csv_schema.h"

namespace tutti::internal {
namespace {

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t";
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

bool parse_bool(std::string_view text, bool& value) {
  std::string lower(text);
  for (char& letter : lower) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  value = lower == "true" || lower == "1";
  return value || lower == "false" || lower == "0";
}

/// The whole text must be a number of type T; floats may be closer to 0 than T can tell.
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

// Long fields are no help in a message.
std::string shown(std::string_view text) {
  constexpr std::size_t kLongest = 60;
  if (text.size() <= kLongest) return concat("'", text, "'");
  return concat("'", text.substr(0, kLongest), "...'");
}

[[noreturn]] void fail_missing(const CsvField& field, const CsvRecord& record,
                               const std::string& source) {
  fail(ErrorCode::kInvalidArgument, source, ":", record.line(), ": column '", field.column.name,
       "': the value is missing; expected ", field.stored, ", got ", shown(record[field.index]),
       "; try CsvColumn::default_value");
}

std::int64_t category_of(const CsvField& field, const CsvRecord& record,
                         const std::string& source) {
  const auto found = field.places.find(std::string(record[field.index]));
  if (found != field.places.end()) return found->second;
  if (field.column.unknown_value) return *field.column.unknown_value;
  fail(ErrorCode::kInvalidArgument, source, ":", record.line(), ": column '", field.column.name,
       "': expected one of the ", field.places.size(), " texts of its vocabulary, got ",
       shown(record[field.index]), "; try CsvColumn::unknown_value");
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
           "': expected ", *field.column.dtype, ", got ", shown(text),
           field.inferred ? "; the type was found in the first records: try CsvColumn::dtype" : "");
    }
    append_as(value, field.stored, bytes);
  });
}

}  // namespace tutti::internal
