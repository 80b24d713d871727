// Iteration over a dataset's epochs from a position that can be saved and restored with
// ElementIterator::skip().
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

/// Position between two elements, as stored in a checkpoint: `elements` elements of epoch `epoch`
/// were returned.
struct DatasetPosition {
  std::uint64_t epoch = 0;
  std::int64_t elements = 0;

  Json to_json() const { return Json::object().set("epoch", epoch).set("elements", elements); }
  /// Throws kInvalidArgument naming the member that is missing, not a number or negative.
  static DatasetPosition from_json(const Json& json) {
    return {static_cast<std::uint64_t>(count_at(json, "epoch")), count_at(json, "elements")};
  }
  static std::int64_t count_at(const Json& json, const char* name) {
    const std::int64_t count = json.at(name).as_int();
    if (count >= 0) return count;
    fail(ErrorCode::kInvalidArgument, "DatasetPosition: expected '", name, "' of at least 0, got ",
         count);
  }
  bool operator==(const DatasetPosition&) const = default;
};

/// Iterates a dataset over epochs 0, 1, 2, ... Not thread-safe.
class ResumableIterator {
 public:
  explicit ResumableIterator(Dataset dataset) : dataset_(std::move(dataset)) {}

  /// Returns the next element of the current epoch, or nullopt at its end. Then position() is the
  /// start of the next epoch, with which the following call begins. An exception leaves position()
  /// unchanged.
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

  /// Skips the rest of the current epoch; at the start of an epoch, all of it.
  void next_epoch() {
    elements_.reset();
    position_ = {position_.epoch + 1, 0};
  }

  DatasetPosition position() const { return position_; }

  /// Resumes at `position`, which may be one past the last element of an epoch. Elements are
  /// skipped by ElementIterator::skip() before the next element is read. Throws kOutOfRange if the
  /// dataset is known to be shorter.
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

}  // namespace tutti
