// Helpers for tests of datasets: the numbers that a pass yields.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/test_folder.h"
#include "tests/support/thrown.h"
#include "tutti/data/dataset.h"

namespace tutti::data_test {

using thrown::empty_folder;
using thrown::expect_error;

/// One list of numbers per element, from its first component.
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

/// Same as rows_of(), but for elements of one number each.
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

}  // namespace tutti::data_test
