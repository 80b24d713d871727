// What CSV files say about their columns: types and vocabularies.
// SPDX-License-Identifier: Apache-2.0
#include <set>

#include "tutti/data/csv_schema.h"

namespace tutti::internal {
namespace {

/// The narrowest kind that all fields of a column fit.
struct Kind {
  bool is_integer = true;
  bool is_float = true;
  bool has_value = false;

  void add(std::string_view text) {
    has_value = true;
    is_integer = is_integer && is_number(text, DType::kInt64);
    is_float = is_float && (is_integer || is_number(text, DType::kFloat32));
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
      if (!is_missing(schema.options, text)) kinds[i].add(text);
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
