// CSV files as datasets and tables.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/csv.h"

#include <memory>
#include <utility>

#include "data/csv_schema.h"
#include "data/file_sequence.h"

namespace tutti {
namespace {

using internal::CsvField;
using internal::CsvReader;
using internal::CsvRecord;
using internal::CsvSchema;

constexpr std::int64_t kAllRows = INT64_MAX;

/// The components of elements: one per field, or features and label.
struct Components {
  std::vector<std::string> names;
  std::vector<DType> dtypes;
  std::vector<std::size_t> component_of;  // each field's
  std::vector<std::int64_t> widths;       // values per row; 0: one, without dimension
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

/// Collects the bytes of rows and makes an element of them.
class RowBuffer {
 public:
  explicit RowBuffer(const CsvSchema& schema)
      : schema_(schema), components_(components_of(schema)), bytes_(components_.names.size()) {
    std::vector<Tensor> tensors(components_.names.size(), Tensor::zeros({}));
    names_ = Element(std::move(tensors), components_.names);
  }

  /// Adds all of a record or, when it throws, an unknown part: clear() must follow.
  void add(const CsvRecord& record, const std::string& source) {
    for (std::size_t i = 0; i < schema_.fields.size(); ++i) {
      append_value(schema_, schema_.fields[i], record, source, bytes_[components_.component_of[i]]);
    }
  }

  /// Of all rows added, or of the only one.
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
  std::vector<std::string> bytes_;  // of each component
  Element names_;                   // carries the names, which all elements share
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
  if (options.num_rows_for_inference < 1) {
    fail(ErrorCode::kInvalidArgument,
         "csv_dataset: expected num_rows_for_inference of at least 1, got ",
         options.num_rows_for_inference);
  }
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
