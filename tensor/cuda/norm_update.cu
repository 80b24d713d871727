// Updates by rules that use the norms of whole variables: three launches for many variables.
// SPDX-License-Identifier: Apache-2.0
//
// The first adds squares block by block, the second the blocks of each variable, the third changes
// the weights. The direction of a step is calculated twice instead of being kept.
#include "tensor/cuda/batches.h"
#include "tensor/cuda/kernels.h"
#include "tensor/cuda/team.h"
#include "tensor/cuda/update_rules.h"

namespace tutti::cuda {
namespace {

constexpr int kItems = 56;
constexpr auto kPerBlock = static_cast<std::int64_t>(DeviceUpdateItem::kElementsPerSum);
using Batched = Batch<DeviceUpdateItem, kItems>;

/// Of weights and of directions, block by block; those of the variable stand first in the end.
__device__ __forceinline__ double* sums_of(const DeviceUpdateItem& item) {
  return static_cast<double*>(item.slots[DeviceUpdateItem::kMaxSlots - 1]);
}

/// Some elements of a variable.
template <class Rule, class T, int kWidth>
struct Piece {
  using Elements = Pack<T, kWidth>;
  static constexpr int kCount = kWidth;

  __device__ Piece(const DeviceUpdateItem& item, std::int64_t first) : item_(item), first_(first) {
    weights = *at(item.weights);
    gradient = *at(const_cast<void*>(item.gradient));
    for (int s = 0; s < Rule::kSlots; ++s) slots[s] = *at(item.slots[s]);
  }
  __device__ Weight<T> weight(const RuleConstants<T>& constants, int i) const {
    Weight<T> e;
    e.w = weights.elements[i];
    e.g = gradient.elements[i] * constants[1];
    e.present = (1u << Rule::kSlots) - 1u;
    for (int s = 0; s < Rule::kSlots; ++s) e.slots[s] = slots[s].elements[i];
    return e;
  }
  __device__ void keep(const Weight<T>& e, int i) {
    weights.elements[i] = e.w;
    for (int s = 0; s < Rule::kSlots; ++s) slots[s].elements[i] = e.slots[s];
  }
  __device__ void write_weights() const { *at(item_.weights) = weights; }
  __device__ void write_slots() const {
    for (int s = 0; s < Rule::kSlots; ++s) *at(item_.slots[s]) = slots[s];
  }

  Elements weights, gradient, slots[Rule::kSlots];

 private:
  __device__ Elements* at(void* data) const {
    return reinterpret_cast<Elements*>(static_cast<T*>(data) + first_);
  }
  const DeviceUpdateItem& item_;
  const std::int64_t first_;
};

/// Calls body(piece) for what this thread has of the block's elements.
template <class Rule, class T, class Body>
__device__ __forceinline__ void for_each_piece(const DeviceUpdateItem& item, std::int64_t begin,
                                               const Body& body) {
  constexpr int kWidth = 16 / sizeof(T);
  bool is_wide = starts_at(item.weights, 16) && starts_at(item.gradient, 16);
  for (int s = 0; s < Rule::kSlots; ++s) is_wide = is_wide && starts_at(item.slots[s], 16);
  const auto count = static_cast<std::int64_t>(item.count);
  for (std::int64_t place = threadIdx.x * kWidth; place < kPerBlock; place += kThreads * kWidth) {
    const std::int64_t first = begin + place;
    if (is_wide && first + kWidth <= count) {
      Piece<Rule, T, kWidth> piece(item, first);
      body(piece);
      continue;
    }
    for (std::int64_t i = first; i < first + kWidth && i < count; ++i) {
      Piece<Rule, T, 1> piece(item, i);
      body(piece);
    }
  }
}

template <class Rule, class T>
__global__ void __launch_bounds__(kThreads)
    direct_kernel(const __grid_constant__ Batched batch,
                  const __grid_constant__ GivenConstants given, const double* live) {
  __shared__ double shared[kWarpsOfBlock];
  const auto share = batch.share(kPerBlock);
  const DeviceUpdateItem& item = batch.items[share.item];
  const RuleConstants<T> constants(live != nullptr ? live : given.values);
  double of_weights = 0.0, of_directions = 0.0;
  for_each_piece<Rule, T>(item, share.first, [&](auto& piece) {
    for (int i = 0; i < piece.kCount; ++i) {
      Weight<T> e = piece.weight(constants, i);
      const auto w = static_cast<double>(e.w);
      const auto direction = static_cast<double>(Rule::direct(constants, e));
      of_weights += w * w;
      of_directions += direction * direction;
      piece.keep(e, i);
    }
    if constexpr (Rule::kDirectWritesSlots) piece.write_slots();
  });
  const Teams block(static_cast<int>(kThreads));
  of_weights = block.combine(of_weights, AddNumbers{}, shared);
  of_directions = block.combine(of_directions, AddNumbers{}, shared);
  if (threadIdx.x > 0) return;
  double* const sums = sums_of(item) + 2 * (share.first / kPerBlock);
  sums[0] = of_weights;
  sums[1] = of_directions;
}

/// Block i adds the sums of item i's blocks.
__global__ void __launch_bounds__(kThreads) add_norms(const __grid_constant__ Batched batch) {
  __shared__ double shared[kWarpsOfBlock];
  const DeviceUpdateItem& item = batch.items[blockIdx.x];
  double* const sums = sums_of(item);
  const auto num_sums = static_cast<std::int64_t>(DeviceUpdateItem::num_sums(item.count));
  double of_weights = 0.0, of_directions = 0.0;
  for (std::int64_t i = 2 * threadIdx.x; i < num_sums; i += 2 * kThreads) {
    of_weights += sums[i];
    of_directions += sums[i + 1];
  }
  const Teams block(static_cast<int>(kThreads));
  of_weights = block.combine(of_weights, AddNumbers{}, shared);
  of_directions = block.combine(of_directions, AddNumbers{}, shared);
  if (threadIdx.x > 0) return;
  sums[0] = of_weights;
  sums[1] = of_directions;
}

template <class Rule, class T>
__global__ void __launch_bounds__(kThreads)
    apply_kernel(const __grid_constant__ Batched batch,
                 const __grid_constant__ GivenConstants given, const double* live) {
  const auto share = batch.share(kPerBlock);
  const DeviceUpdateItem& item = batch.items[share.item];
  const double* const wide = live != nullptr ? live : given.values;
  const RuleConstants<T> constants(wide);
  const double of_weights = std::sqrt(sums_of(item)[0]),
               of_directions = std::sqrt(sums_of(item)[1]);
  const bool has_norms = of_weights > 0.0 && of_directions > 0.0;
  const double trust = has_norms ? Rule::trust(wide, of_weights, of_directions) : 1.0;
  const T rate = static_cast<T>(wide[0] * trust);
  for_each_piece<Rule, T>(item, share.first, [&](auto& piece) {
    for (int i = 0; i < piece.kCount; ++i) {
      Weight<T> e = piece.weight(constants, i);
      Rule::apply(constants, rate, e);
      piece.keep(e, i);
    }
    piece.write_weights();
    if constexpr (!Rule::kDirectWritesSlots) piece.write_slots();
  });
}

template <class Rule>
void update_by(const DeviceUpdate& update, cudaStream_t stream) {
  const GivenConstants given(update.rule);
  visit_arithmetic_floating(update.dtype, "update", [&]<class T>() {
    for_each_batch<kItems>(
        update.items, kPerBlock,
        [](const DeviceUpdateItem& item) { return static_cast<std::int64_t>(item.count); },
        [&](const Batched& batch) {
          launch_cooperative(direct_kernel<Rule, T>, batch.num_blocks, kThreads, stream, batch,
                             given, update.step_values);
          launch_cooperative(add_norms, static_cast<unsigned>(batch.count), kThreads, stream,
                             batch);
          launch(apply_kernel<Rule, T>, batch.num_blocks, kThreads, stream, batch, given,
                 update.step_values);
        });
  });
}

}  // namespace

void update_with_norms(const DeviceUpdate& update, cudaStream_t stream) {
  if (update.rule.id == DeviceRuleId::kLamb) return update_by<LambUpdate>(update, stream);
  return update_by<LarsUpdate>(update, stream);
}

}  // namespace tutti::cuda
