// Updates of many variables in one launch (constants of the rules: update_rules.h).
// SPDX-License-Identifier: Apache-2.0
//
// nvcc may contract a * b + c here: the bits of a GPU need not be those of the CPU, and all
// components of a variable are updated by the same code.
#include "tensor/cuda/batches.h"
#include "tensor/cuda/kernels.h"
#include "tensor/cuda/launch.h"
#include "tensor/cuda/update_rules.h"

namespace tutti::cuda {
namespace {

constexpr int kItems = 56;  // of 64 bytes: 4 KB of parameters with the rest
constexpr int kPacksOfThread = 4;

template <class Rule, class T, int kWidth>
__device__ __forceinline__ void update_pack(const RuleConstants<T>& constants,
                                            const DeviceUpdateItem& item, unsigned present,
                                            std::int64_t first) {
  using Elements = Pack<T, kWidth>;
  const auto pack_at = [first](void* data) {
    return reinterpret_cast<Elements*>(static_cast<T*>(data) + first);
  };
  Elements w = *pack_at(item.weights), g{}, slots[DeviceUpdateItem::kMaxSlots];
  if (item.gradient) {
    g = *reinterpret_cast<const Elements*>(static_cast<const T*>(item.gradient) + first);
  }
  for (int s = 0; s < Rule::kSlots; ++s) {
    if ((present >> s & 1u) != 0) slots[s] = *pack_at(item.slots[s]);
  }
  for (int i = 0; i < kWidth; ++i) {
    Weight<T> e;
    e.w = w.elements[i];
    e.g = g.elements[i] * constants[1];
    e.present = present;
    for (int s = 0; s < Rule::kSlots; ++s) e.slots[s] = slots[s].elements[i];
    if (constants[2] != T{0}) e.w -= e.w * constants[2] * constants.rate();
    Rule::apply(constants, e);
    w.elements[i] = e.w;
    for (int s = 0; s < Rule::kSlots; ++s) slots[s].elements[i] = e.slots[s];
  }
  *pack_at(item.weights) = w;
  for (int s = 0; s < Rule::kSlots; ++s) {
    if ((present >> s & 1u) != 0) *pack_at(item.slots[s]) = slots[s];
  }
}

template <class Rule, class T>
__global__ void __launch_bounds__(kThreads)
    update_kernel(const __grid_constant__ Batch<DeviceUpdateItem, kItems> batch,
                  const __grid_constant__ GivenConstants given, const double* live) {
  constexpr int kWidth = 16 / sizeof(T);
  constexpr std::int64_t kPerBlock = std::int64_t{kThreads} * kWidth * kPacksOfThread;
  const auto share = batch.share(kPerBlock);
  const DeviceUpdateItem& item = batch.items[share.item];
  const RuleConstants<T> constants(live != nullptr ? live : given.values);
  const auto count = static_cast<std::int64_t>(item.count);
  unsigned present = 0;
  bool is_wide = starts_at(item.weights, 16) && starts_at(item.gradient, 16);
  for (int s = 0; s < Rule::kSlots; ++s) {
    if (item.slots[s] != nullptr) present |= 1u << s;
    is_wide = is_wide && starts_at(item.slots[s], 16);
  }
  for (int p = 0; p < kPacksOfThread; ++p) {
    const std::int64_t pack = share.first / kWidth + p * kThreads + threadIdx.x;
    const std::int64_t first = pack * kWidth;
    if (is_wide && first + kWidth <= count) {
      update_pack<Rule, T, kWidth>(constants, item, present, first);
      continue;
    }
    for (std::int64_t i = first; i < first + kWidth && i < count; ++i) {
      update_pack<Rule, T, 1>(constants, item, present, i);
    }
  }
}

template <class Rule>
void update_by(const DeviceUpdate& update, cudaStream_t stream) {
  const GivenConstants constants(update.rule);
  visit_arithmetic_floating(update.dtype, "update", [&]<class T>() {
    constexpr std::int64_t kPerBlock = std::int64_t{kThreads} * (16 / sizeof(T)) * kPacksOfThread;
    for_each_batch<kItems>(
        update.items, kPerBlock,
        [](const DeviceUpdateItem& item) { return static_cast<std::int64_t>(item.count); },
        [&](const Batch<DeviceUpdateItem, kItems>& batch) {
          launch(update_kernel<Rule, T>, batch.num_blocks, kThreads, stream, batch, constants,
                 update.step_values);
        });
  });
}

}  // namespace

void update(const DeviceUpdate& update, cudaStream_t stream) {
  switch (update.rule.id) {
    case DeviceRuleId::kSgd:
      return update_by<SgdUpdate>(update, stream);
    case DeviceRuleId::kAdam:
      return update_by<AdamUpdate>(update, stream);
    case DeviceRuleId::kAdaMax:
      return update_by<AdaMaxUpdate>(update, stream);
    case DeviceRuleId::kAdagrad:
      return update_by<AdagradUpdate>(update, stream);
    case DeviceRuleId::kAdadelta:
      return update_by<AdadeltaUpdate>(update, stream);
    case DeviceRuleId::kRmsprop:
      return update_by<RmspropUpdate>(update, stream);
    case DeviceRuleId::kFtrl:
      return update_by<FtrlUpdate>(update, stream);
    case DeviceRuleId::kLion:
      return update_by<LionUpdate>(update, stream);
    case DeviceRuleId::kNadam:
      return update_by<NadamUpdate>(update, stream);
    case DeviceRuleId::kLamb:
    case DeviceRuleId::kLars:
      return update_with_norms(update, stream);
    case DeviceRuleId::kMovingAverage:
      return update_by<MovingAverageUpdate>(update, stream);
    case DeviceRuleId::kWeightDecay:
      return update_by<WeightDecayUpdate>(update, stream);
  }
  fail(ErrorCode::kInternal, "update: no such rule: ", static_cast<int>(update.rule.id));
}

}  // namespace tutti::cuda
