// Passes over a dataset, one after the other, from a position that can be saved and restored: what
// resumes by ElementIterator::skip().
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "tutti/core/error.h"
#include "tutti/core/json.h"
#include "tutti/data/dataset.h"

namespace tutti {

/// A place between two elements: `elements` elements of epoch `epoch` were handed out. What a
/// checkpoint keeps.
struct DatasetPosition {
  std::uint64_t epoch = 0;
  std::int64_t elements = 0;

  /// {"epoch": 2, "elements": 17}.
  Json to_json() const;
  /// Throws kInvalidArgument naming the member that is missing, no number or negative.
  static DatasetPosition from_json(const Json& json);
  static std::int64_t count_at(const Json& json, const char* name);
  bool operator==(const DatasetPosition&) const = default;
};

/// Iterates a dataset over epochs 0, 1, 2, ... Used by one thread.
class ResumableIterator {
 public:
  explicit ResumableIterator(Dataset dataset);

  /// The next element of the current epoch. Nothing once at its end: position() is then the start
  /// of the next epoch, with which the following call begins. After an exception position() is as
  /// before the call.
  std::optional<Element> next();

  /// Leaves out the rest of the current epoch. At the start of an epoch it leaves out all of that.
  void next_epoch();

  DatasetPosition position() const { return position_; }

  /// Goes on from `position`, which may be one past the last element of an epoch. Elements are left
  /// out by ElementIterator::skip(), before the next element is read. Throws kOutOfRange when the
  /// dataset is known to be shorter.
  void restore(const DatasetPosition& position);

  const Dataset& dataset() const { return dataset_; }

 private:
  Dataset dataset_;
  DatasetPosition position_;
  std::unique_ptr<ElementIterator> elements_;  // null until the epoch's first element is asked for
};

inline std::int64_t DatasetPosition::count_at(const Json& json, const char* name) {
  const std::int64_t count = json.at(name).as_int();
  if (count < 0) {
    fail(ErrorCode::kInvalidArgument, "DatasetPosition: expected '", name, "' of at least 0, got ",
         count);
  }
  return count;
}

inline Json DatasetPosition::to_json() const {
  Json json = Json::object();
  json.set("epoch", epoch);
  json.set("elements", elements);
  return json;
}

inline DatasetPosition DatasetPosition::from_json(const Json& json) {
  DatasetPosition position;
  position.epoch = static_cast<std::uint64_t>(count_at(json, "epoch"));
  position.elements = count_at(json, "elements");
  return position;
}

inline ResumableIterator::ResumableIterator(Dataset dataset) : dataset_(std::move(dataset)) {}

inline std::optional<Element> ResumableIterator::next() {
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

inline void ResumableIterator::next_epoch() {
  elements_.reset();
  position_ = {position_.epoch + 1, 0};
}

inline void ResumableIterator::restore(const DatasetPosition& position) {
  const std::optional<std::int64_t> length = dataset_.cardinality();
  if (position.elements < 0 || (length && *length != kInfinite && position.elements > *length)) {
    fail(ErrorCode::kOutOfRange, "ResumableIterator::restore: position ", position.elements,
         " of epoch ", position.epoch, " is outside the dataset; expected 0 .. ",
         length && *length != kInfinite ? concat(*length) : std::string("infinity"),
         "; try the dataset and batch size with which the position was saved");
  }
  elements_.reset();
  position_ = position;
}

}  // namespace tutti
