// Elements: component lists with names, and the rows of batches.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/element.h"

#include <algorithm>
#include <array>
#include <set>

#include "core/names.h"

namespace tutti {
namespace {

using Names = std::vector<std::string>;

std::shared_ptr<const Names> make_default_names(std::size_t count) {
  static constexpr std::array kFirst = {"features", "labels", "sample_weight"};
  Names names;
  for (std::size_t i = 0; i < count; ++i) {
    names.push_back(i < kFirst.size() ? std::string(kFirst[i]) : concat("component_", i));
  }
  return std::make_shared<const Names>(std::move(names));
}

// Elements are made by the million and nearly all have default names: the usual lists are made once
// and shared.
std::shared_ptr<const Names> default_names(std::size_t count) {
  static const std::array kUsual = {make_default_names(0), make_default_names(1),
                                    make_default_names(2), make_default_names(3)};
  return count < kUsual.size() ? kUsual[count] : make_default_names(count);
}

void require_defined(const std::vector<Tensor>& tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    internal::require(tensors[i].defined(), "Element: component ", i, " is an undefined tensor");
  }
}

}  // namespace

Element::Element() : names_(default_names(0)) {}

Element::Element(std::vector<Tensor> tensors)
    : tensors_(std::move(tensors)), names_(default_names(tensors_.size())) {
  require_defined(tensors_);
}

Element::Element(std::vector<Tensor> tensors, std::vector<std::string> names)
    : tensors_(std::move(tensors)) {
  require_defined(tensors_);
  internal::require(names.size() == tensors_.size(),
                    "Element: expected one name per component, got ", names.size(), " names for ",
                    tensors_.size(), " components");
  std::set<std::string> seen;
  for (const std::string& name : names) {
    if (!seen.insert(name).second) {
      fail(ErrorCode::kInvalidArgument, "Element: the name '", name, "' occurs twice in [",
           join(names), "]");
    }
  }
  names_ = std::make_shared<const Names>(std::move(names));
}

Element Element::with_tensors(std::vector<Tensor> tensors) const {
  TUTTI_CHECK(tensors.size() == tensors_.size(), "Element: ", tensors.size(), " components for ",
              tensors_.size());
  Element element = *this;
  element.tensors_ = std::move(tensors);
  return element;
}

const Tensor& Element::operator[](std::size_t index) const {
  if (index >= tensors_.size()) {
    fail(ErrorCode::kOutOfRange, "Element: there is no component ", index, "; expected one of the ",
         tensors_.size(), " components [", join(*names_), "]");
  }
  return tensors_[index];
}

const Tensor& Element::at(const std::string& name) const {
  auto found = std::find(names_->begin(), names_->end(), name);
  if (found == names_->end()) {
    fail(ErrorCode::kNotFound, "Element: no component is called '", name, "'; expected one of [",
         join(*names_), "]");
  }
  return tensors_[static_cast<std::size_t>(found - names_->begin())];
}

bool Element::has(const std::string& name) const {
  return std::find(names_->begin(), names_->end(), name) != names_->end();
}

std::int64_t Element::rows() const {
  std::int64_t rows = -1;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const Shape& shape = tensors_[i].shape();
    if (shape.rank() == 0) {
      fail(ErrorCode::kFailedPrecondition, "Element::rows: not batched: component '", (*names_)[i],
           "' is a scalar; expected a first dimension; try batch()");
    }
    if (rows >= 0 && shape[0] != rows) {
      fail(ErrorCode::kFailedPrecondition, "Element::rows: not batched: component '", (*names_)[i],
           "' has shape ", shape, "; expected ", rows, " rows as in '", (*names_)[0],
           "'; try batch()");
    }
    rows = shape[0];
  }
  if (rows < 0) fail(ErrorCode::kFailedPrecondition, "Element::rows: there are no components");
  return rows;
}

Element Element::slice_rows(std::int64_t first, std::int64_t count) const {
  const std::int64_t available = rows();
  internal::require(first >= 0 && count >= 0 && first <= available && count <= available - first,
                    "Element::slice_rows: expected rows within 0 .. ", available, ", got first ",
                    first, ", count ", count);
  std::vector<Tensor> tensors;
  tensors.reserve(tensors_.size());
  for (const Tensor& tensor : tensors_) tensors.push_back(tensor.detached_rows(first, count));
  Element slice = with_tensors(std::move(tensors));
  slice.global_rows_ = global_rows_ >= 0 ? global_rows_ : available;
  slice.first_row_ = first_row_ + first;
  return slice;
}

Element Element::to(Device device) const {
  std::vector<Tensor> tensors;
  tensors.reserve(tensors_.size());
  for (const Tensor& tensor : tensors_) tensors.push_back(tensor.to(device));
  return with_tensors(std::move(tensors));
}

const Tensor& Batch::labels() const {
  if (!has_labels()) {
    fail(ErrorCode::kNotFound, "Batch::labels: the dataset yields no second component; got [",
         join(element_.names()), "]");
  }
  return element_[1];
}

Tensor Batch::sample_weight() const {
  return element_.has("sample_weight") ? element_.at("sample_weight") : Tensor();
}

}  // namespace tutti
