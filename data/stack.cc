// Rows into a batch: one copy per row and component.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/stack.h"

#include <cstring>
#include <utility>

namespace tutti::internal {
namespace {

void require_same_components(const Element& first, const Element& other, std::size_t index,
                             std::string_view who) {
  if (&other.names() == &first.names() || other.names() == first.names()) return;
  fail(ErrorCode::kInvalidArgument, who, ": elements have different components; expected [",
       join(first.names()), "] as in the first element of the batch, got [", join(other.names()),
       "] in element ", index, " of the batch");
}

template <class Value>
[[noreturn]] void fail_different(std::string_view who, const char* what, const std::string& name,
                                 const Value& expected, const Value& got, std::size_t index) {
  fail(ErrorCode::kInvalidArgument, who, ": elements have different ", what, "s in component '",
       name, "'; expected ", what, " ", expected, " as in the first element of the batch, got ",
       what, " ", got, " in element ", index, " of the batch; try map() to make them equal");
}

void require_same_kind(const Tensor& first, const Tensor& other, const std::string& name,
                       std::size_t index, std::string_view who) {
  if (!(other.shape() == first.shape())) {
    fail_different(who, "shape", name, first.shape(), other.shape(), index);
  }
  if (other.dtype() != first.dtype()) {
    fail_different(who, "dtype", name, first.dtype(), other.dtype(), index);
  }
  if (other.device() != first.device()) {
    fail_different(who, "device", name, first.device(), other.device(), index);
  }
}

Tensor stack_component(std::span<const Element> elements, std::size_t component,
                       std::string_view who) {
  const Tensor& first = elements[0][component];
  const std::string& name = elements[0].names()[component];
  if (first.rank() == Shape::kMaxRank) {
    fail(ErrorCode::kInvalidArgument, who, ": component '", name, "' of shape ", first.shape(),
         " cannot get one more dimension; expected fewer than ", Shape::kMaxRank);
  }
  MutableTensor batch(first.shape().with_front(static_cast<std::int64_t>(elements.size())),
                      first.dtype(), first.device());
  const std::size_t row_bytes = first.num_bytes();
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const Tensor& row = elements[i][component];
    require_same_kind(first, row, name, i, who);
    if (row_bytes > 0) std::memcpy(batch.data() + i * row_bytes, row.bytes().data(), row_bytes);
  }
  return batch.freeze();
}

}  // namespace

Element stack_elements(std::span<const Element> elements, std::string_view who) {
  TUTTI_CHECK(!elements.empty(), "stack_elements: no elements");
  for (std::size_t i = 1; i < elements.size(); ++i) {
    require_same_components(elements[0], elements[i], i, who);
  }
  std::vector<Tensor> tensors;
  tensors.reserve(elements[0].size());
  for (std::size_t component = 0; component < elements[0].size(); ++component) {
    tensors.push_back(stack_component(elements, component, who));
  }
  return Element(std::move(tensors), elements[0].names());
}

}  // namespace tutti::internal
