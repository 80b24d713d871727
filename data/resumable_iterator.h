// Passes over a dataset, one after the other, from a position that can be saved and restored.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

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

}  // namespace tutti
