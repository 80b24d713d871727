// Algorithms of algorithms/ on the buffers of one process.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/algorithms/scheduled_ops.h"

#include "tutti/cross_device_ops/algorithms/lockstep.h"
#include "tutti/cross_device_ops/gpu/gpu_steps.h"

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
  if (!on_gpus) return internal::run_in_lockstep(schedules, memory);
  internal::GpuSteps steps(buffers);
  internal::run_in_lockstep(schedules, memory, steps);
  buffers.front().work->meet();
}

}  // namespace tutti
