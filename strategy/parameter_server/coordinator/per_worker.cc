// Iterators as steps use them.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/coordinator/per_worker.h"

#include "tutti/core/error.h"

namespace tutti {

std::optional<Batch> DatasetIterator::try_next() {
  std::optional<Element> element = elements_->next();
  if (!element) return std::nullopt;
  return Batch(std::move(*element));
}

Batch DatasetIterator::next() {
  if (std::optional<Batch> batch = try_next()) return std::move(*batch);
  fail(ErrorCode::kOutOfRange,
       "DatasetIterator::next: the dataset of this worker has ended; try repeat(), or try_next()");
}

std::optional<PerReplica<Batch>> DistributedIterator::try_next() {
  if (!place_) {
    place_ = dataset_.begin();
  } else if (*place_ != dataset_.end()) {
    ++*place_;
  }
  if (*place_ == dataset_.end()) return std::nullopt;
  return **place_;
}

PerReplica<Batch> DistributedIterator::next() {
  if (auto batches = try_next()) return std::move(*batches);
  fail(ErrorCode::kOutOfRange,
       "DistributedIterator::next: the dataset of this worker has ended; try repeat(), or "
       "try_next()");
}

}  // namespace tutti
