// What all datasets share: iteration. Sources and decorators stand in files of their own.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/dataset.h"

#include <utility>

#include "tutti/tensor/device_scope.h"

namespace tutti {

void ElementIterator::skip(std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    if (!next()) return;
  }
}

SourcePtr DatasetSource::with_inputs(std::vector<SourcePtr>) const {
  fail(ErrorCode::kUnimplemented,
       "DatasetSource::with_inputs: this source has no inputs that could be exchanged; expected a "
       "source that overrides inputs() and with_inputs() together");
}

Dataset::Iterator::Iterator(std::shared_ptr<ElementIterator> elements)
    : elements_(std::move(elements)) {
  ++*this;
}

Dataset::Iterator& Dataset::Iterator::operator++() {
  const NoDeviceScope elements_are_on_the_host;
  current_ = elements_->next();
  return *this;
}

Dataset::Iterator Dataset::begin() const { return Iterator(iterate()); }

}  // namespace tutti
