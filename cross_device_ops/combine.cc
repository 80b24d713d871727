// Combines two runs of elements.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/combine.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "tutti/cross_device_ops/cross_device_ops.h"
#include "tutti/cross_device_ops/element_arithmetic.h"

namespace tutti::internal {
namespace {

constexpr std::size_t kBlockBytes = 8 * 1024;

template <ReduceOp op, class T>
void combine_aligned(const T* left, const T* right, T* out, std::size_t count) {
  if (out == left) return combine_into_left<op>(out, right, count);
  if (out == right) return combine_into_right<op>(left, out, count);
  combine_to<op>(out, left, right, count);
}

// Through blocks that are aligned.
template <ReduceOp op, class T>
void combine_copies(const std::byte* left, const std::byte* right, std::byte* out,
                    std::size_t count) {
  constexpr std::size_t kBlock = kBlockBytes / sizeof(T);
  std::array<T, kBlock> a;
  std::array<T, kBlock> b;
  for (std::size_t first = 0; first < count; first += kBlock) {
    const std::size_t place = first * sizeof(T);
    const std::size_t n = std::min(kBlock, count - first);
    std::memcpy(a.data(), left + place, n * sizeof(T));
    std::memcpy(b.data(), right + place, n * sizeof(T));
    combine_into_left<op>(a.data(), b.data(), n);
    std::memcpy(out + place, a.data(), n * sizeof(T));
  }
}

template <ReduceOp op, class T>
void combine_typed(const std::byte* left, const std::byte* right, std::byte* out,
                   std::size_t count) {
  if (!is_aligned<T>(left) || !is_aligned<T>(right) || !is_aligned<T>(out)) {
    return combine_copies<op, T>(left, right, out, count);
  }
  combine_aligned<op>(reinterpret_cast<const T*>(left), reinterpret_cast<const T*>(right),
                      reinterpret_cast<T*>(out), count);
}

template <class T>
void combine_with(ReduceOp op, const std::byte* left, const std::byte* right, std::byte* out,
                  std::size_t count) {
  switch (op) {
    case ReduceOp::kSum:
      return combine_typed<ReduceOp::kSum, T>(left, right, out, count);
    case ReduceOp::kMin:
      return combine_typed<ReduceOp::kMin, T>(left, right, out, count);
    case ReduceOp::kMax:
      return combine_typed<ReduceOp::kMax, T>(left, right, out, count);
    case ReduceOp::kProduct:
      return combine_typed<ReduceOp::kProduct, T>(left, right, out, count);
    case ReduceOp::kMean:
      break;
  }
  fail(ErrorCode::kInternal, "combine: MEAN is SUM and a division; the caller divides");
}

}  // namespace

void combine(ReduceOp op, DType dtype, const std::byte* left, const std::byte* right,
             std::byte* out, std::size_t count) {
  if (count == 0) return;
  visit_dtype(dtype, [&]<class T>() {
    if constexpr (std::is_same_v<T, bool> || Half<T>) {
      // Bytes that may be no bool, and numbers that are widened: the tree knows how.
      const std::byte* const inputs[] = {left, right};
      reduce_along_tree(op, dtype, inputs, out, count);
    } else {
      combine_with<T>(op, left, right, out, count);
    }
  });
}

}  // namespace tutti::internal
