// Results recorded from TensorFlow by tests/parity/record.py, and comparison with them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/file.h"
#include "tests/layers/layer_checks.h"
#include "tutti/checkpoint/safetensors.h"
#include "tutti/model/layers/layer.h"

namespace tutti::testing {

/// File in records/, whose tensors are named "<case>/<name>".
class Record {
 public:
  explicit Record(const std::string& name) {
    const std::string path = std::string(TUTTI_PARITY_RECORDS) + "/" + name + ".safetensors";
    SafetensorsFile file = parse_safetensors(read_file(path), path);
    for (NamedTensor& each : file.tensors) tensors_.emplace(each.name, each.value);
  }
  const Tensor& at(const std::string& name) const {
    const auto found = tensors_.find(name);
    if (found == tensors_.end())
      fail(ErrorCode::kNotFound, "the record has no tensor ", name, "; run record.py");
    return found->second;
  }
  bool has(const std::string& name) const { return tensors_.contains(name); }
  /// Returns the tensors "<prefix>0", "<prefix>1", ..., until a number is missing.
  std::vector<Tensor> list(const std::string& prefix) const {
    std::vector<Tensor> found;
    while (has(concat(prefix, found.size()))) found.push_back(at(concat(prefix, found.size())));
    return found;
  }
  std::set<std::string> cases() const {
    std::set<std::string> names;
    for (const auto& [name, tensor] : tensors_) {
      if (name.find('/') != std::string::npos) names.insert(name.substr(0, name.find('/')));
    }
    return names;
  }

 private:
  std::map<std::string, Tensor> tensors_;
};

/// Returns the record with this name. Each file is read only once.
inline const Record& record_of(const std::string& name) {
  static std::map<std::string, Record> records;
  return records.try_emplace(name, name).first->second;
}

template <class Table>
std::set<std::string> names_of(const Table& table) {
  std::set<std::string> names;
  for (const auto& [name, unused] : table) names.insert(name);
  return names;
}

/// Instantiates a suite with the names in `table`, and tests that `record` has exactly these cases.
#define TUTTI_PARITY_CASES(Suite, table, record)                         \
  INSTANTIATE_TEST_SUITE_P(All, Suite, ValuesIn(names_of(table)),        \
                           [](const auto& info) { return info.param; }); \
  TEST(Suite##Table, HasAllCasesOfRecord) {                              \
    EXPECT_EQ(names_of(table), record_of(record).cases());               \
  }                                                                      \
  static_assert(true)  // consumes the semicolon

/// Expects each element's error to be at most `relative` times the larger of the expected value and
/// a thousandth of the largest expected value.
inline void expect_close(const Tensor& actual, const Tensor& expected, double relative,
                         const std::string& what) {
  ASSERT_EQ(actual.shape(), expected.shape()) << what;
  const std::vector<double> a = actual.to_doubles();
  const std::vector<double> b = expected.to_doubles();
  double largest = 1e-3;  // minimum, so that the tolerance is not 0 if all values are tiny
  for (const double value : b) largest = std::max(largest, std::abs(value));
  double worst = 0.0;
  std::size_t where = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double error = std::abs(a[i] - b[i]) / std::max(std::abs(b[i]), 1e-3 * largest);
    if (error <= worst) continue;
    worst = error;
    where = i;
    if (std::isnan(error)) break;
  }
  EXPECT_LE(worst, relative) << what << ": element " << where << " is " << a[where]
                             << ", but TensorFlow's is " << b[where];
}

using Float64 = ExactLayers;

}  // namespace tutti::testing
