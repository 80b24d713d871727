// Updates to many variables with the formulas in ../cpu/update_rules.h: one launch, or three for
// rules that use the norms of whole variables.
// SPDX-License-Identifier: Apache-2.0
//
// nvcc may contract a * b + c here, so GPU results may not be bit-identical to CPU results. All
// elements of a variable are updated by the same code.
//
// For rules that use norms, the first launch sums squares per block, the second adds the block sums
// of each variable, and the third changes the weights. Directions are computed twice instead of
// being stored.
#include "tensor/cpu/update_rules.h"
#include "tensor/cuda/batches.h"
#include "tensor/cuda/kernels.h"
#include "tensor/cuda/team.h"

namespace tutti::cuda {

using namespace internal;  // the formulas

namespace {

constexpr int kItems = 56;  // 56 bytes each, so that all parameters fit into 4 KB
using Batched = Batch<DeviceUpdateItem, kItems>;

/// Number of elements per thread block: four packs per thread.
template <class T>
constexpr std::int64_t kPerBlock = std::int64_t{kThreads} * (16 / sizeof(T)) * 4;
constexpr auto kPerSum = static_cast<std::int64_t>(DeviceUpdateItem::kElementsPerSum);

/// Constants and options of a rule, in the type of the weights.
template <class T>
struct RuleConstants {
  constexpr T operator[](int i) const { return values[i]; }
  constexpr bool has(unsigned option) const { return (options & option) != 0; }
  T values[DeviceRule::kNumConstants];
  unsigned options;
};

/// Constants of a rule, passed to kernels as a parameter.
struct GivenConstants {
  explicit GivenConstants(const DeviceRule& rule) {
    for (std::size_t i = 0; i < DeviceRule::kNumConstants; ++i) values[i] = rule.constants[i];
  }
  double values[DeviceRule::kNumConstants];
};

template <class Rule, class T>
__device__ __forceinline__ RuleConstants<T> constants_of(const double* values, int num_slots) {
  RuleConstants<T> constants;
  for (std::size_t i = 0; i < DeviceRule::kNumConstants; ++i) {
    constants.values[i] = static_cast<T>(values[i]);
  }
  constants.options = Rule::options(values, num_slots);
  return constants;
}

/// Consecutive elements of a variable.
template <class Rule, class T, int kWidth>
struct Piece {
  using Elements = Pack<T, kWidth>;
  static constexpr int kCount = kWidth;

  __device__ Piece(const DeviceUpdateItem& item, int num_slots, std::int64_t first)
      : item_(item), num_slots_(num_slots), first_(first) {
    weights = *at(item.weights);
    if (item.gradient) gradient = *at(const_cast<void*>(item.gradient));
    for (int s = 0; s < Rule::kSlots; ++s) {
      if (s < num_slots) slots[s] = *at(item.slots[s]);
    }
  }
  __device__ Weight<T> weight(const RuleConstants<T>& constants, int i) const {
    Weight<T> e;
    e.w = weights.elements[i];
    e.g = gradient.elements[i] * constants[1];
    for (int s = 0; s < Rule::kSlots; ++s) e.slots[s] = slots[s].elements[i];
    return e;
  }
  __device__ void keep(const Weight<T>& e, int i) {
    weights.elements[i] = e.w;
    for (int s = 0; s < Rule::kSlots; ++s) slots[s].elements[i] = e.slots[s];
  }
  __device__ void write_weights() const { *at(item_.weights) = weights; }
  __device__ void write_slots() const {
    for (int s = 0; s < Rule::kSlots; ++s) {
      if (s < num_slots_) *at(item_.slots[s]) = slots[s];
    }
  }

  Elements weights, gradient{}, slots[DeviceUpdateItem::kMaxSlots];

 private:
  __device__ Elements* at(void* data) const {
    return reinterpret_cast<Elements*>(static_cast<T*>(data) + first_);
  }
  const DeviceUpdateItem& item_;
  const int num_slots_;
  const std::int64_t first_;
};

/// Calls body(piece) for each of this thread's pieces of the block, which has `kCount` elements.
template <class Rule, class T, std::int64_t kCount, class Body>
__device__ __forceinline__ void for_each_piece(const DeviceUpdateItem& item, int num_slots,
                                               std::int64_t begin, const Body& body) {
  constexpr int kWidth = 16 / sizeof(T);
  bool is_wide = starts_at(item.weights, 16) && starts_at(item.gradient, 16);
  for (int s = 0; s < Rule::kSlots; ++s) is_wide = is_wide && starts_at(item.slots[s], 16);
  const auto count = static_cast<std::int64_t>(item.count);
  for (std::int64_t place = threadIdx.x * kWidth; place < kCount; place += kThreads * kWidth) {
    const std::int64_t first = begin + place;
    if (is_wide && first + kWidth <= count) {
      Piece<Rule, T, kWidth> piece(item, num_slots, first);
      body(piece);
      continue;
    }
    for (std::int64_t i = first; i < first + kWidth && i < count; ++i) {
      Piece<Rule, T, 1> piece(item, num_slots, i);
      body(piece);
    }
  }
}

template <class Rule, class T>
__global__ void __launch_bounds__(kThreads)
    update_kernel(const __grid_constant__ Batched batch,
                  const __grid_constant__ GivenConstants given, const double* live) {
  const auto share = batch.share(kPerBlock<T>);
  const DeviceUpdateItem& item = batch.items[share.item];
  int num_slots = 0;
  for (int s = 0; s < Rule::kSlots; ++s) {
    if (item.slots[s] != nullptr) num_slots = s + 1;
  }
  const auto constants = constants_of<Rule, T>(live != nullptr ? live : given.values, num_slots);
  for_each_piece<Rule, T, kPerBlock<T>>(item, num_slots, share.first, [&](auto& piece) {
    for (int i = 0; i < piece.kCount; ++i) {
      Weight<T> e = piece.weight(constants, i);
      if (constants[DeviceRule::kWeightDecay] != T{0}) decay_weight(constants, e);
      Rule::apply(constants, e);
      piece.keep(e, i);
    }
    piece.write_weights();
    piece.write_slots();
  });
}

// Rules that use norms.

/// Returns the partial sums of squares: a pair (weights, directions) per thread block. add_norms()
/// later overwrites the first pair with the sums over the whole variable.
__device__ __forceinline__ double* sums_of(const DeviceUpdateItem& item) {
  return static_cast<double*>(item.slots[DeviceUpdateItem::kMaxSlots - 1]);
}

template <class Rule, class T>
__global__ void __launch_bounds__(kThreads)
    direct_kernel(const __grid_constant__ Batched batch,
                  const __grid_constant__ GivenConstants given, const double* live) {
  __shared__ double shared[kWarpsOfBlock];
  const auto share = batch.share(kPerSum);
  const DeviceUpdateItem& item = batch.items[share.item];
  const auto constants = constants_of<Rule, T>(live != nullptr ? live : given.values, Rule::kSlots);
  double of_weights = 0.0, of_directions = 0.0;
  for_each_piece<Rule, T, kPerSum>(item, Rule::kSlots, share.first, [&](auto& piece) {
    for (int i = 0; i < piece.kCount; ++i) {
      Weight<T> e = piece.weight(constants, i);
      Rule::prepare(constants, e);
      const auto w = static_cast<double>(e.w);
      const auto direction = static_cast<double>(Rule::direction(constants, e));
      of_weights += w * w;
      of_directions += direction * direction;
      piece.keep(e, i);
    }
    if constexpr (!Rule::kStepChangesSlots) piece.write_slots();
  });
  const Teams block(static_cast<int>(kThreads));
  of_weights = block.combine(of_weights, AddNumbers{}, shared);
  of_directions = block.combine(of_directions, AddNumbers{}, shared);
  if (threadIdx.x > 0) return;
  double* const sums = sums_of(item) + 2 * (share.first / kPerSum);
  sums[0] = of_weights;
  sums[1] = of_directions;
}

/// Adds up the partial sums of every item, with one block of threads per item.
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
    step_kernel(const __grid_constant__ Batched batch, const __grid_constant__ GivenConstants given,
                const double* live) {
  const auto share = batch.share(kPerSum);
  const DeviceUpdateItem& item = batch.items[share.item];
  const double* const wide = live != nullptr ? live : given.values;
  const auto constants = constants_of<Rule, T>(wide, Rule::kSlots);
  const double of_weights = std::sqrt(sums_of(item)[0]),
               of_directions = std::sqrt(sums_of(item)[1]);
  const T rate = static_cast<T>(trusted_rate<Rule>(wide, of_weights, of_directions));
  for_each_piece<Rule, T, kPerSum>(item, Rule::kSlots, share.first, [&](auto& piece) {
    for (int i = 0; i < piece.kCount; ++i) {
      Weight<T> e = piece.weight(constants, i);
      Rule::step(constants, rate, Rule::direction(constants, e), e);
      piece.keep(e, i);
    }
    piece.write_weights();
    if constexpr (Rule::kStepChangesSlots) piece.write_slots();
  });
}

}  // namespace

void update(const DeviceUpdate& update, cudaStream_t stream) {
  const GivenConstants given(update.rule);
  const auto count_of = [](const DeviceUpdateItem& item) {
    return static_cast<std::int64_t>(item.count);
  };
  visit_update_formula(update.rule.id, [&]<class Rule>() {
    visit_arithmetic_floating(update.dtype, "update", [&]<class T>() {
      if constexpr (Rule::kUsesNorms) {
        for_each_batch<kItems>(update.items, kPerSum, count_of, [&](const Batched& batch) {
          launch_cooperative(direct_kernel<Rule, T>, batch.num_blocks, kThreads, stream, batch,
                             given, update.step_values);
          launch_cooperative(add_norms, static_cast<unsigned>(batch.count), kThreads, stream,
                             batch);
          launch(step_kernel<Rule, T>, batch.num_blocks, kThreads, stream, batch, given,
                 update.step_values);
        });
      } else {
        for_each_batch<kItems>(update.items, kPerBlock<T>, count_of, [&](const Batched& batch) {
          launch(update_kernel<Rule, T>, batch.num_blocks, kThreads, stream, batch, given,
                 update.step_values);
        });
      }
    });
  });
}

}  // namespace tutti::cuda
