// Positions of datasets.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/resumable_iterator.h"

#include <utility>

namespace tutti {
namespace {

std::int64_t count_at(const Json& json, const char* name) {
  const std::int64_t count = json.at(name).as_int();
  if (count < 0) {
    fail(ErrorCode::kInvalidArgument, "DatasetPosition: expected '", name, "' of at least 0, got ",
         count);
  }
  return count;
}

}  // namespace

Json DatasetPosition::to_json() const {
  Json json = Json::object();
  json.set("epoch", epoch);
  json.set("elements", elements);
  return json;
}

DatasetPosition DatasetPosition::from_json(const Json& json) {
  DatasetPosition position;
  position.epoch = static_cast<std::uint64_t>(count_at(json, "epoch"));
  position.elements = count_at(json, "elements");
  return position;
}

ResumableIterator::ResumableIterator(Dataset dataset) : dataset_(std::move(dataset)) {}

std::optional<Element> ResumableIterator::next() {
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

void ResumableIterator::next_epoch() {
  elements_.reset();
  position_ = {position_.epoch + 1, 0};
}

void ResumableIterator::restore(const DatasetPosition& position) {
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
