// Operations whose results have shapes that depend on values: they read these on the host.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <type_traits>
#include <unordered_map>

#include "tensor/op_checks.h"
#include "tutti/tensor/ops/creation.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {

using namespace internal;

Tensor boolean_mask(const Operand& x, const Operand& mask) {
  const Shape& shape = defined(OpId::kGather, x).shape();
  require_dtype(OpId::kGather, mask, DType::kBool);
  const Shape& lines = mask.shape();
  if (lines.rank() < 1 || lines.rank() > shape.rank() ||
      !std::equal(lines.begin(), lines.end(), shape.begin())) {
    fail(ErrorCode::kInvalidArgument, who("boolean_mask", x.where),
         ": expected a mask whose shape ", "is that of the first axes of ", shape, ", got ", lines);
  }
  const Tensor here = mask.tensor.to(Device{});
  std::vector<std::int64_t> rows;
  for (std::int64_t row = 0; const bool is_kept : here.host_span<bool>()) {
    if (is_kept) rows.push_back(row);
    ++row;
  }
  std::vector<std::int64_t> flat{lines.num_elements()};
  flat.insert(flat.end(), shape.begin() + lines.rank(), shape.end());
  const Tensor indices = Tensor::from(Shape{std::ssize(rows)}, rows, Device{});
  return gather(Operand(reshape(x, Shape(flat)), x.where),
                Operand(indices.to(x.tensor.device()), mask.where));
}

Tensor nonzero(const Operand& x) {
  const Tensor& tensor = defined(OpId::kNotEqual, x);
  const Shape& shape = tensor.shape();
  const Tensor mask =
      tensor.dtype() == DType::kBool ? tensor : not_equal(x, Operand(zeros_like(x), x.where));
  const Tensor here = mask.to(Device{});
  std::vector<std::int64_t> coordinates;
  std::vector<std::int64_t> at(static_cast<std::size_t>(shape.rank()), 0);
  for (const bool is_set : here.host_span<bool>()) {
    if (is_set) coordinates.insert(coordinates.end(), at.begin(), at.end());
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
      std::int64_t& place = at[static_cast<std::size_t>(axis)];
      if (++place < shape.dim(axis)) break;
      place = 0;
    }
  }
  const std::int64_t rank = shape.rank();
  const auto set = std::ranges::count(here.host_span<bool>(), true);
  return Tensor::from(Shape{set, rank}, coordinates, Device{}).to(tensor.device());
}

UniqueResult unique(const Operand& x) {
  const Tensor& tensor = defined(OpId::kGather, x);
  if (tensor.rank() != 1) {
    fail(ErrorCode::kInvalidArgument, who("unique", x.where), ": expected shape [n], got ",
         tensor.shape(), "; try x.reshape({-1})");
  }
  const Tensor here = tensor.to(Device{});
  std::vector<std::int64_t> firsts, indices;
  visit_dtype(tensor.dtype(), [&]<class T>() {
    using Key = std::conditional_t<sizeof(T) == 2, float, T>;  // the 16-bit types
    std::unordered_map<Key, std::int64_t> places;
    for (std::int64_t row = 0; const T& element : here.host_span<T>()) {
      const auto [place, is_new] =
          places.try_emplace(static_cast<Key>(element), std::ssize(firsts));
      if (is_new) firsts.push_back(row);
      indices.push_back(place->second);
      ++row;
    }
  });
  const Tensor rows = Tensor::from(Shape{std::ssize(firsts)}, firsts, Device{});
  const Tensor places = Tensor::from(Shape{std::ssize(indices)}, indices, Device{});
  return {gather(Operand(tensor.detached_reshape(tensor.shape()), x.where),
                 Operand(rows.to(tensor.device()))),
          places.to(tensor.device())};
}

}  // namespace tutti
