// Operations that move elements, implemented as loops over strides.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <numeric>

#include "core/names.h"
#include "tensor/cpu/registration.h"
#include "tensor/cpu/strided_loop.h"

namespace tutti::internal {
namespace {

/// Copies all elements of `shape`; both pointers point to the first element.
template <class T>
void copy_strided(const Shape& shape, const T* from, const Strides& from_strides, T* to,
                  const Strides& to_strides) {
  if (shape.num_elements() == 0) return;
  const StridedLoop<2> loop(shape, {from_strides, to_strides});
  const std::int64_t count = loop.run_length();
  const std::int64_t from_stride = loop.run_stride(0);
  const std::int64_t to_stride = loop.run_stride(1);
  loop.for_each_run([&](const std::array<std::int64_t, 2>& offsets) {
    const T* source = from + offsets[0];
    T* target = to + offsets[1];
    if (from_stride == 1 && to_stride == 1) {
      std::copy_n(source, count, target);
    } else {
      for (std::int64_t i = 0; i < count; ++i) target[i * to_stride] = source[i * from_stride];
    }
  });
}

/// Returns the offset of the element at `begin`.
std::int64_t offset_of(const std::array<std::int64_t, Shape::kMaxRank>& begin,
                       const Strides& strides) {
  return std::inner_product(begin.begin(), begin.end(), strides.begin(), std::int64_t{0});
}

void copy(const KernelArgs& args) {
  std::memcpy(args.outputs[0].data(), args.inputs[0].bytes().data(), args.inputs[0].num_bytes());
}

template <class T>
void transpose(const KernelArgs& args) {
  const auto& permutation = args.attributes_as<TransposeAttributes>().permutation;
  const Shape& shape = args.outputs[0].shape();
  const Strides dense = dense_strides(args.inputs[0].shape());
  Strides strides{};
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(shape.rank()); ++axis) {
    strides[axis] = dense[static_cast<std::size_t>(permutation[axis])];
  }
  copy_strided(shape, args.in<T>(0).data(), strides, args.out<T>(0).data(), dense_strides(shape));
}

template <class T>
void slice(const KernelArgs& args) {
  const Strides strides = dense_strides(args.inputs[0].shape());
  const Shape& shape = args.outputs[0].shape();
  const std::int64_t start = offset_of(args.attributes_as<SliceAttributes>().begin, strides);
  copy_strided(shape, args.in<T>(0).data() + start, strides, args.out<T>(0).data(),
               dense_strides(shape));
}

template <class T>
void pad(const KernelArgs& args) {
  const auto& attributes = args.attributes_as<PadAttributes>();
  const std::span<T> y = args.out<T>(0);
  std::ranges::fill(y, static_cast<T>(attributes.value));
  if (args.inputs[0].num_elements() == 0) return;
  const Strides strides = dense_strides(args.outputs[0].shape());
  const Shape& shape = args.inputs[0].shape();
  copy_strided(shape, args.in<T>(0).data(), dense_strides(shape),
               y.data() + offset_of(attributes.before, strides), strides);
}

template <class T>
void concat(const KernelArgs& args) {
  const int axis = args.attributes_as<AxisAttributes>().axis;
  const Strides strides = dense_strides(args.outputs[0].shape());
  T* y = args.out<T>(0).data();
  for (std::size_t i = 0; i < args.inputs.size(); ++i) {
    const Shape& shape = args.inputs[i].shape();
    copy_strided(shape, args.in<T>(i).data(), dense_strides(shape), y, strides);
    y += shape.dim(axis) * strides[static_cast<std::size_t>(axis)];
  }
}

template <class T>
void broadcast_to(const KernelArgs& args) {
  const Shape& shape = args.outputs[0].shape();
  copy_strided(shape, args.in<T>(0).data(), broadcast_strides(args.inputs[0].shape(), shape),
               args.out<T>(0).data(), dense_strides(shape));
}

template <class Index>
void one_hot(const KernelArgs& args) {
  const auto& attributes = args.attributes_as<OneHotAttributes>();
  const std::span<const Index> indices = args.in<Index>(0);
  const std::int64_t depth = args.outputs[0].shape().dim(-1);
  visit_dtype(args.outputs[0].dtype(), [&]<class T>() {
    const std::span<T> y = args.out<T>(0);
    std::ranges::fill(y, static_cast<T>(attributes.off));
    for (std::size_t i = 0; i < indices.size(); ++i) {
      const std::int64_t index = indices[i];
      if (index < 0 || index >= depth) continue;
      y[i * static_cast<std::size_t>(depth) + static_cast<std::size_t>(index)] =
          static_cast<T>(attributes.on);
    }
  });
}

/// Calls body(position, row) for each index. Throws if a row is not within 0 .. num_rows - 1.
template <class Body>
void for_each_row(const Tensor& indices, std::int64_t num_rows, const Body& body) {
  const auto visit = [&]<class Index>() {
    const std::span<const Index> rows = indices.host_span<Index>();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      internal::require(rows[i] >= 0 && rows[i] < num_rows, "index out of range; expected 0 .. ",
                        num_rows - 1, ", got ", rows[i], " at position ", i);
      body(i, static_cast<std::size_t>(rows[i]));
    }
  };
  if (indices.dtype() == DType::kInt32) {
    visit.template operator()<std::int32_t>();
  } else {
    visit.template operator()<std::int64_t>();
  }
}

std::size_t row_size(const Shape& shape) {
  std::int64_t size = 1;
  for (int axis = 1; axis < shape.rank(); ++axis) size *= shape.begin()[axis];
  return static_cast<std::size_t>(size);
}

template <class T>
void gather(const KernelArgs& args) {
  const Shape& shape = args.inputs[0].shape();
  const std::size_t size = row_size(shape);
  const T* params = args.in<T>(0).data();
  T* y = args.out<T>(0).data();
  for_each_row(args.inputs[1], shape.dim(0), [&](std::size_t i, std::size_t row) {
    std::copy_n(params + row * size, size, y + i * size);
  });
}

template <class T>
void scatter_rows(const KernelArgs& args) {
  const Shape& shape = args.outputs[0].shape();
  const std::size_t size = row_size(shape);
  const T* values = args.in<T>(0).data();
  const std::span<T> y = args.out<T>(0);
  std::ranges::fill(y, T{0});
  for_each_row(args.inputs[1], shape.dim(0), [&](std::size_t i, std::size_t row) {
    for (std::size_t k = 0; k < size; ++k) {
      T& sum = y[row * size + k];
      sum = static_cast<T>(sum + values[i * size + k]);
    }
  });
}

template <class... Ts>
void set_moves(KernelTable& table) {
  (table.set(OpId::kTranspose, dtype_of<Ts>(), transpose<Ts>), ...);
  (table.set(OpId::kSlice, dtype_of<Ts>(), slice<Ts>), ...);
  (table.set(OpId::kPad, dtype_of<Ts>(), pad<Ts>), ...);
  (table.set(OpId::kConcat, dtype_of<Ts>(), concat<Ts>), ...);
  (table.set(OpId::kBroadcastTo, dtype_of<Ts>(), broadcast_to<Ts>), ...);
  (table.set(OpId::kGather, dtype_of<Ts>(), gather<Ts>), ...);
}

template <class... Ts>
void set_scatter(KernelTable& table) {
  (table.set(OpId::kScatterRows, dtype_of<Ts>(), scatter_rows<Ts>), ...);
}

}  // namespace

void register_shape_kernels(KernelTable& table) {
  set_moves<float, double, std::int32_t, std::int64_t, std::uint8_t, bool, BFloat16, Float16>(
      table);
  set_scatter<float, double, std::int32_t, std::int64_t, std::uint8_t>(table);
  // dispatch() computes reshape and stop_gradient as views, without a kernel, but tests that
  // compare two tables need one.
  table.set(OpId::kReshape, kAllDTypes, copy);
  table.set(OpId::kStopGradient, kAllDTypes, copy);
  table.set(OpId::kOneHot, DType::kInt32, one_hot<std::int32_t>);
  table.set(OpId::kOneHot, DType::kInt64, one_hot<std::int64_t>);
}

}  // namespace tutti::internal
