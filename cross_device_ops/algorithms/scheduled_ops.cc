// Algorithms of algorithms/ on the buffers of one process, and "auto".
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/algorithms/scheduled_ops.h"

#include "cross_device_ops/algorithms/gpu_steps.h"
#include "cross_device_ops/algorithms/lockstep.h"
#include "cross_device_ops/gpu_reductions.h"
#include "cross_device_ops/local/local_ops.h"

namespace tutti {
namespace {

// A segment is a launch or a copy: large ones, for those cost more than on the CPU.
constexpr std::size_t kGpuSegmentBytes = std::size_t{4} << 20;

const internal::Algorithm& named(std::string_view name) {
  const internal::Algorithm* const found = internal::find_algorithm(name);
  if (found == nullptr) fail(ErrorCode::kNotFound, "ScheduledOps: no algorithm '", name, "'");
  return *found;
}

}  // namespace

ScheduledOps::ScheduledOps(std::string_view algorithm) : algorithm_(named(algorithm)) {}

bool ScheduledOps::supports(ReduceOp op, DType dtype, DeviceType) const {
  if (is_half(dtype) && !algorithm_.combines_once) return false;
  return internal::can_combine(op, dtype);
}

void ScheduledOps::all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> buffers) {
  internal::CallShape shape{.size = static_cast<int>(buffers.size()),
                            .count = buffers.front().count,
                            .element_bytes = size_of(buffers.front().dtype)};
  const bool on_gpus = buffers.front().work != nullptr;
  if (on_gpus) shape.segment_bytes = kGpuSegmentBytes;
  std::vector<internal::Schedule> schedules;
  std::vector<internal::RankMemory> memory;
  for (const ReplicaBuffer& buffer : buffers) {
    schedules.push_back(internal::make_schedule(algorithm_, shape));
    memory.push_back(
        {.input = buffer.data, .output = buffer.data, .op = op, .dtype = buffer.dtype});
    ++shape.rank;
  }
  if (!on_gpus) {
    internal::StepWorker worker;
    return internal::run_in_lockstep(schedules, memory, worker);
  }
  internal::GpuSteps steps(buffers);
  internal::run_in_lockstep(schedules, memory, steps);
  buffers.front().work->meet();
}

bool AutoOps::supports(ReduceOp op, DType dtype, DeviceType) const {
  return internal::can_combine(op, dtype);
}

void AutoOps::all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> buffers) {
  const ReplicaBuffer& first = buffers.front();
  // The table was measured on CPUs; on GPUs canonical moves as few bytes as any.
  if (first.work) return internal::canonical_on_gpus(op, buffers);
  const AlgorithmQuery query{.size = static_cast<int>(buffers.size()),
                             .bytes = first.count * size_of(first.dtype),
                             .dtype = first.dtype,
                             .medium = Medium::kLocal};
  const std::string_view chosen = internal::chosen_name(query);
  log_.note(query, chosen);
  auto& operation = operations_[std::string(chosen)];
  if (!operation && chosen == "canonical") operation = std::make_unique<Canonical>();
  if (!operation) operation = std::make_unique<ScheduledOps>(chosen);
  operation->all_reduce_in_place(op, buffers);
}

}  // namespace tutti
