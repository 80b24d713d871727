// Combines the values of several replicas along the canonical tree (docs/determinism.md).
// SPDX-License-Identifier: Apache-2.0
//
// Results are bit-identical to those of reduce_along_tree() on the CPU, because the functions
// contain no multiply-add that a compiler could contract, and CPUs and GPUs both round division
// correctly.
#include <array>

#include "tensor/cpu/elementwise_functions.h"
#include "tensor/cuda/elements.h"
#include "tensor/cuda/kernels.h"
#include "tensor/cuda/launch.h"

namespace tutti::cuda {
namespace {

constexpr int kMaxInputs = 64, kLevels = 7;

struct Inputs {
  const void* data[kMaxInputs];
  int count;
};

struct Mean {};  // adds, then divides

template <class F>
using Step = std::conditional_t<std::is_same_v<F, Mean>, internal::Add, F>;

/// Computes the tree as a binary counter: level i holds the result of 2^i adjacent inputs. Input n
/// is combined with levels 0, 1, ... up to the lowest zero bit of n, whose level stores the result.
/// Finally, the levels in use are combined, lowest first. Unrolled, to keep levels in registers.
template <class F, class T, int kWidth>
__device__ __forceinline__ void combine_pack(const Inputs& inputs, std::int64_t first, T* output) {
  using N = Number<T>;
  const Step<F> f{};
  N levels[kLevels][kWidth];
  N value[kWidth];
  for (int n = 0; n < inputs.count; ++n) {
    const T* const input = static_cast<const T*>(inputs.data[n]) + first;
    const auto pack = *reinterpret_cast<const Pack<T, kWidth>*>(input);
    for (int i = 0; i < kWidth; ++i) value[i] = number(pack.elements[i]);
    bool carries = true;
#pragma unroll
    for (int level = 0; level < kLevels; ++level) {
      const bool is_set = (n >> level & 1) != 0;
      for (int i = 0; i < kWidth; ++i) {
        if (carries && is_set) value[i] = f(levels[level][i], value[i]);
        if (carries && !is_set) levels[level][i] = value[i];
      }
      carries = carries && is_set;
    }
  }
  bool has_value = false;
#pragma unroll
  for (int level = 0; level < kLevels; ++level) {
    if ((inputs.count >> level & 1) == 0) continue;
    for (int i = 0; i < kWidth; ++i) {
      value[i] = has_value ? f(levels[level][i], value[i]) : levels[level][i];
    }
    has_value = true;
  }
  Pack<T, kWidth> result;
  for (int i = 0; i < kWidth; ++i) {
    if constexpr (std::is_same_v<F, Mean>) value[i] = value[i] / static_cast<N>(inputs.count);
    result.elements[i] = element<T>(value[i]);
  }
  *reinterpret_cast<Pack<T, kWidth>*>(output + first) = result;
}

template <class F, class T>
__global__ void __launch_bounds__(kThreads)
    combine_kernel(const __grid_constant__ Inputs inputs, T* output, std::int64_t count,
                   bool is_wide) {
  constexpr int kWidth = sizeof(T) >= 4 ? 16 / sizeof(T) : 4;
  for (std::int64_t pack = thread_number(); pack * kWidth < count; pack += num_threads()) {
    const std::int64_t first = pack * kWidth;
    if (is_wide && first + kWidth <= count) {
      combine_pack<F, T, kWidth>(inputs, first, output);
      continue;
    }
    for (std::int64_t i = first; i < first + kWidth && i < count; ++i) {
      combine_pack<F, T, 1>(inputs, i, output);
    }
  }
}

template <class F, class T>
void combine_by(const DeviceCombine& combine, cudaStream_t stream) {
  constexpr int kWidth = sizeof(T) >= 4 ? 16 / sizeof(T) : 4;
  Inputs inputs{{}, static_cast<int>(combine.inputs.size())};
  bool is_wide = is_aligned(combine.output, sizeof(T) * kWidth);
  for (std::size_t n = 0; n < combine.inputs.size(); ++n) {
    inputs.data[n] = combine.inputs[n];
    is_wide = is_wide && is_aligned(combine.inputs[n], sizeof(T) * kWidth);
  }
  launch(combine_kernel<F, T>, blocks_for(combine.count, kWidth), kThreads, stream, inputs,
         static_cast<T*>(combine.output), static_cast<std::int64_t>(combine.count), is_wide);
}

template <class T>
void combine_typed(const DeviceCombine& combine, cudaStream_t stream) {
  switch (combine.op) {
    case ReduceOp::kSum:
      return combine_by<internal::Add, T>(combine, stream);
    case ReduceOp::kMin:
      return combine_by<internal::Minimum, T>(combine, stream);
    case ReduceOp::kMax:
      return combine_by<internal::Maximum, T>(combine, stream);
    case ReduceOp::kProduct:
      return combine_by<internal::Multiply, T>(combine, stream);
    case ReduceOp::kMean:
      if constexpr (!std::is_integral_v<T>) return combine_by<Mean, T>(combine, stream);
      break;
  }
  fail(ErrorCode::kInvalidArgument,
       "combine: expected SUM, PRODUCT, MIN or MAX for integers, got MEAN; use SUM, then divide()");
}

}  // namespace

void combine(const DeviceCombine& combine, cudaStream_t stream) {
  if (combine.inputs.empty() || combine.inputs.size() > kMaxInputs) {
    fail(ErrorCode::kInvalidArgument, "combine: expected 1 .. ", kMaxInputs, " inputs, got ",
         combine.inputs.size());
  }
  if (combine.count == 0) return;
  visit_dtype(combine.dtype, [&]<class T>() {
    if constexpr (std::is_same_v<T, bool>) {
      if (combine.op != ReduceOp::kMin && combine.op != ReduceOp::kMax) {
        fail(ErrorCode::kInvalidArgument, "combine: expected MIN or MAX for bool, got ", combine.op,
             "; call cast() first");
      }
      combine_typed<std::uint8_t>(combine, stream);  // a bool is stored as a byte, 0 or 1
    } else {
      combine_typed<T>(combine, stream);
    }
  });
}

}  // namespace tutti::cuda
