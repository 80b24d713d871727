// Helpers for tests of datasets: the numbers in a pass, positions that can be saved, and files in
// tests/fuzz/seeds (PNG images written by Python's zlib, JPEG images written by Pillow, and
// arrays).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/file.h"
#include "tests/support/test_folder.h"
#include "tests/support/thrown.h"
#include "tutti/core/error.h"
#include "tutti/core/json.h"
#include "tutti/data/dataset.h"
#include "tutti/data/npy.h"
#include "tutti/tensor/tensor.h"

namespace tutti::testing {

/// Numbers in the first component of each element.
using Rows = std::vector<std::vector<std::int64_t>>;

inline std::vector<std::int64_t> numbers_of(const Tensor& tensor) {
  std::vector<std::int64_t> numbers;
  for (double value : tensor.to_doubles()) numbers.push_back(static_cast<std::int64_t>(value));
  return numbers;
}

inline Rows drain(ElementIterator& elements) {
  Rows rows;
  while (auto element = elements.next()) rows.push_back(numbers_of((*element)[0]));
  return rows;
}

inline Rows rows_of(const Dataset& dataset, std::uint64_t epoch = 0) {
  return drain(*dataset.iterate(epoch));
}

/// Same as rows_of(), but for elements that hold one number each.
inline std::vector<std::int64_t> scalars_of(const Dataset& dataset, std::uint64_t epoch = 0) {
  std::vector<std::int64_t> numbers;
  for (const auto& row : rows_of(dataset, epoch)) {
    EXPECT_EQ(row.size(), 1u);
    numbers.push_back(row.at(0));
  }
  return numbers;
}

inline std::vector<std::int64_t> first_numbers(std::int64_t count) {
  std::vector<std::int64_t> numbers;
  for (std::int64_t i = 0; i < count; ++i) numbers.push_back(i);
  return numbers;
}

inline Tensor number(std::int64_t value) { return Tensor::from<std::int64_t>({}, {value}); }

inline std::int64_t number_in(const Element& element) { return element[0].item_int(); }

inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<long>(bytes.size()));
}

/// Position in a pass: `elements` elements of epoch `epoch` were returned. Stored in checkpoints.
struct DatasetPosition {
  std::uint64_t epoch = 0;
  std::int64_t elements = 0;

  Json to_json() const { return Json::object().set("epoch", epoch).set("elements", elements); }
  /// Throws kInvalidArgument, naming the member, if a member is missing, negative or not a number.
  static DatasetPosition from_json(const Json& json) {
    return {static_cast<std::uint64_t>(count_at(json, "epoch")), count_at(json, "elements")};
  }
  static std::int64_t count_at(const Json& json, const char* name) {
    const std::int64_t count = json.at(name).as_int();
    if (count >= 0) return count;
    fail(ErrorCode::kInvalidArgument, "DatasetPosition: expected '", name, "' >= 0, got ", count);
  }
  bool operator==(const DatasetPosition&) const = default;
};

/// Iterates a dataset over epochs 0, 1, 2, ... Not thread-safe.
class ResumableIterator {
 public:
  explicit ResumableIterator(Dataset dataset) : dataset_(std::move(dataset)) {}

  /// Returns the next element of the current epoch, or nullopt at its end. After nullopt,
  /// position() is the start of the next epoch, and the next call begins there. An exception leaves
  /// position() unchanged.
  std::optional<Element> next() {
    if (!elements_) {
      elements_ = dataset_.iterate(position_.epoch);
      elements_->skip(position_.elements);
    }
    std::optional<Element> element = elements_->next();
    if (element) {
      ++position_.elements;
    } else {
      next_epoch();
    }
    return element;
  }

  /// Skips the rest of the current epoch, or the whole epoch if none of it has been read.
  void next_epoch() {
    elements_.reset();
    position_ = {position_.epoch + 1, 0};
  }

  DatasetPosition position() const { return position_; }

  /// Resumes at `position`, which may be one past the last element of an epoch. The next call to
  /// next() calls ElementIterator::skip() to get there. Throws kOutOfRange if the dataset is known
  /// to be shorter.
  void restore(const DatasetPosition& position) {
    const std::int64_t length = dataset_.cardinality().value_or(kInfinite);
    if (position.elements < 0 || (length != kInfinite && position.elements > length)) {
      fail(ErrorCode::kOutOfRange, "ResumableIterator::restore: position ", position.elements,
           " of epoch ", position.epoch, " is outside the dataset; expected 0 .. ", length);
    }
    elements_.reset();
    position_ = position;
  }

 private:
  Dataset dataset_;
  DatasetPosition position_;
  std::unique_ptr<ElementIterator> elements_;  // null until the epoch's first element is requested
};

inline std::string seed_bytes(const std::string& name) {
  return read_file(std::string(TUTTI_FUZZ_SEEDS) + "/image/" + name);
}

/// Function that returns the channels of pixel (x, y). All PNG seeds
/// are 5 pixels wide and 4 pixels high.
using Pixel = std::function<std::vector<int>(int x, int y)>;
inline int red(int x, int) { return 50 * x; }
inline int green(int, int y) { return 60 * y; }
inline int blue(int x, int y) { return 10 * x + 20 * y; }
inline int alpha(int x, int) { return 255 - 30 * x; }

inline Tensor picture_of(const Pixel& pixel, int width = 5, int height = 4) {
  std::vector<std::uint8_t> values;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int value : pixel(x, y)) values.push_back(static_cast<std::uint8_t>(value));
    }
  }
  const auto channels = static_cast<std::int64_t>(pixel(0, 0).size());
  return Tensor::from<std::uint8_t>({height, width, channels}, values);
}

/// Returns the values of one pixel.
inline std::vector<int> pixel_at(const Tensor& image, std::int64_t x, std::int64_t y) {
  const Shape& shape = image.shape();
  const auto values = image.host_span<std::uint8_t>();
  std::vector<int> pixel;
  for (std::int64_t c = 0; c < shape[2]; ++c) {
    pixel.push_back(values[static_cast<std::size_t>((y * shape[1] + x) * shape[2] + c)]);
  }
  return pixel;
}

/// Expects that the .npz file `name` holds [1 .. 6] as "a" and a second array in Fortran order.
inline void expect_arrays_of_python(const std::string& name) {
  const NamedTensors read = read_npz(std::string(TUTTI_FUZZ_SEEDS) + "/npy/" + name);
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[0].first, "a");
  EXPECT_THAT(read[0].second.to_doubles(), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(read[1].second.shape(), (Shape{2, 2}));
  EXPECT_THAT(read[1].second.to_doubles(), ElementsAre(1, 3, 2, 4));  // in Fortran order
}

}  // namespace tutti::testing
