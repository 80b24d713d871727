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

}  // namespace tutti
