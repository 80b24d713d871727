// Named numbers of training: the last ones, and those of all epochs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/core/json_values.h"

namespace tutti {

/// Values by name in a fixed order: {"loss", 0.31}, {"accuracy", 0.88}.
class Logs {
 public:
  using Entry = std::pair<std::string, double>;

  /// Throws kNotFound listing the names.
  double at(std::string_view name) const;
  double operator[](std::string_view name) const { return at(name); }
  bool has(std::string_view name) const;
  /// Adds or replaces.
  void set(std::string name, double value);

  /// Reads back to the same bits.
  Json to_json() const;
  static Logs from_json(const Json& json);

  const std::vector<Entry>& entries() const { return entries_; }
  bool empty() const { return entries_.empty(); }
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }

 private:
  std::vector<Entry> entries_;
};

/// What Model::fit returns: for each name one value per epoch.
class History {
 public:
  /// Throws kNotFound listing the names.
  const std::vector<double>& at(std::string_view name) const;
  const std::vector<double>& operator[](std::string_view name) const { return at(name); }
  bool has(std::string_view name) const;
  /// The numbers of the epochs that were trained, from 0.
  const std::vector<std::int64_t>& epochs() const { return epochs_; }
  std::vector<std::string> names() const;
  void append(std::int64_t epoch, const Logs& logs);
  Json to_json() const;
  static History from_json(const Json& json);

 private:
  std::vector<std::int64_t> epochs_;
  std::vector<std::pair<std::string, std::vector<double>>> values_;
};

}  // namespace tutti
