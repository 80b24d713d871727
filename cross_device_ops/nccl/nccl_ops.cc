// The operation "nccl".
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/nccl/nccl_ops.h"

#include <algorithm>

#include "cross_device_ops/buffer_call.h"
#include "cross_device_ops/gpu_placement.h"
#include "cross_device_ops/nccl/nccl_group.h"
#include "tensor/gpu/gpu_device.h"

namespace tutti::internal {
namespace {

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return ncclFloat32;
    case DType::kFloat64:
      return ncclFloat64;
    case DType::kInt32:
      return ncclInt32;
    case DType::kInt64:
      return ncclInt64;
    case DType::kUInt8:
    case DType::kBool:  // bytes of 0 or 1
      return ncclUint8;
    case DType::kBFloat16:
      return ncclBfloat16;
    case DType::kFloat16:
      return ncclFloat16;
  }
  fail(ErrorCode::kInternal, "nccl: no such type: ", static_cast<int>(dtype));
}

ncclRedOp_t op_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return ncclSum;
    case ReduceOp::kProduct:
      return ncclProd;
    case ReduceOp::kMin:
      return ncclMin;
    case ReduceOp::kMax:
      return ncclMax;
    case ReduceOp::kMean:
      break;
  }
  fail(ErrorCode::kInternal, "nccl: MEAN is SUM and a division; the caller divides");
}

bool are_equal(std::span<const std::size_t> counts) {
  return std::ranges::count(counts, counts.front()) == static_cast<std::ptrdiff_t>(counts.size());
}

std::string describe(Collective collective, const ReplicaBuffer& first) {
  return concat(tutti::to_string(collective), " of ", first.count, " x ", first.dtype);
}

class NcclOps final : public CrossDeviceOps {
 public:
  NcclOps(const Group& group, const CommunicationOptions& options, const NcclFunctions& functions)
      : nccl_(functions),
        devices_(group.local_devices),
        first_rank_(static_cast<std::size_t>(group.first_rank)),
        world_(static_cast<std::size_t>(group.world_size)),
        group_(std::make_shared<NcclGroup>(functions, group,
                                           options.timeout.value_or(kDefaultTimeout))) {
    for (const Device& device : devices_) GpuDevice::of(device).watch(group_);
  }

  std::string_view name() const override { return "nccl"; }
  /// Not MIN and MAX of floating numbers: NCCL's lose NaNs, which elsewhere win. Not 16-bit numbers
  /// of more than two ranks: NCCL rounds at each.
  bool supports(ReduceOp op, DType dtype, DeviceType device) const override {
    if (device != DeviceType::kGpu || op == ReduceOp::kMean) return false;
    if (is_half(dtype) && world_ > 2) return false;
    const bool picks = op == ReduceOp::kMin || op == ReduceOp::kMax;
    return is_floating(dtype) ? !picks : dtype != DType::kBool || picks;
  }
  bool spans_processes() const override { return world_ != devices_.size(); }
  bool provides(Collective collective) const override { return collective != Collective::kBarrier; }
  void abort(const Error& reason) noexcept override { group_->abort(reason); }
  bool check_pending() override {
    group_->check();
    return group_->is_pending();
  }

 protected:
  void require_buffers(std::span<const ReplicaBuffer> inputs,
                       std::span<const ReplicaBuffer> outputs) const override;
  void all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> buffers) override;
  void reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> inputs,
                      const ReplicaBuffer* output, int root) override;
  void broadcast_buffers(std::span<const ReplicaBuffer> buffers, int root) override;
  void all_gather_buffers(std::span<const ReplicaBuffer> inputs,
                          std::span<const ReplicaBuffer> outputs,
                          std::span<const std::size_t> counts) override;
  void reduce_scatter_buffers(ReduceOp op, std::span<const ReplicaBuffer> inputs,
                              std::span<const ReplicaBuffer> outputs,
                              std::span<const std::size_t> counts) override;
  void all_to_all_buffers(std::span<const ReplicaBuffer> inputs,
                          std::span<const ReplicaBuffer> outputs,
                          std::span<const std::size_t> counts) override;

 private:
  std::size_t rank_of(std::size_t local) const { return first_rank_ + local; }
  ncclResult_t exchange(const ReplicaBuffer& input, const ReplicaBuffer& output, std::size_t rank,
                        std::span<const std::size_t> counts, ncclComm_t comm,
                        cudaStream_t stream) const;

  const NcclFunctions nccl_;
  const std::vector<Device> devices_;
  const std::size_t first_rank_;
  const std::size_t world_;
  const std::shared_ptr<NcclGroup> group_;
};

void NcclOps::require_buffers(std::span<const ReplicaBuffer> inputs,
                              std::span<const ReplicaBuffer> outputs) const {
  for (const auto& buffers : {inputs, outputs}) {
    const bool one_each = buffers.size() == devices_.size();
    for (std::size_t r = 0; r < buffers.size(); ++r) {
      const bool fits = one_each ? buffers[r].device == devices_[r]
                                 : std::ranges::count(devices_, buffers[r].device) > 0;
      if (fits) continue;
      fail(ErrorCode::kInvalidArgument, "nccl: expected buffers on ", join(devices_),
           ", for which its communicators were made, got one on ", buffers[r].device,
           " from replica ", r, "; try Tensor::to(), or canonical for tensors on CPUs");
    }
  }
}

void NcclOps::all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> buffers) {
  group_->launch(describe(Collective::kAllReduce, buffers.front()),
                 [&](std::size_t r, ncclComm_t comm, cudaStream_t stream) {
                   const ReplicaBuffer& own = buffers[r];
                   return nccl_.all_reduce(own.data, own.data, own.count, type_of(own.dtype),
                                           op_of(op), comm, stream);
                 });
}

void NcclOps::reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> inputs,
                             const ReplicaBuffer* output, int root) {
  group_->launch(describe(Collective::kReduce, inputs.front()),
                 [&](std::size_t r, ncclComm_t comm, cudaStream_t stream) {
                   const ReplicaBuffer& own = inputs[r];
                   const bool is_root = rank_of(r) == static_cast<std::size_t>(root);
                   return nccl_.reduce(own.data, is_root ? output->data : nullptr, own.count,
                                       type_of(own.dtype), op_of(op), root, comm, stream);
                 });
}

void NcclOps::broadcast_buffers(std::span<const ReplicaBuffer> buffers, int root) {
  group_->launch(describe(Collective::kBroadcast, buffers.front()),
                 [&](std::size_t r, ncclComm_t comm, cudaStream_t stream) {
                   const ReplicaBuffer& own = buffers[r];
                   return nccl_.broadcast(own.data, own.data, own.count, type_of(own.dtype), root,
                                          comm, stream);
                 });
}

void NcclOps::all_gather_buffers(std::span<const ReplicaBuffer> inputs,
                                 std::span<const ReplicaBuffer> outputs,
                                 std::span<const std::size_t> counts) {
  const std::vector<std::size_t> offsets = offsets_of(counts);
  const bool even = are_equal(counts);
  group_->launch(describe(Collective::kAllGather, inputs.front()),
                 [&](std::size_t r, ncclComm_t comm, cudaStream_t stream) {
                   const ReplicaBuffer& in = inputs[r];
                   const ReplicaBuffer& out = outputs[r];
                   const ncclDataType_t type = type_of(in.dtype);
                   if (even) {
                     return nccl_.all_gather(in.data, out.data, in.count, type, comm, stream);
                   }
                   // Parts of several lengths: each rank tells the others its own.
                   for (std::size_t root = 0; root < world_; ++root) {
                     if (counts[root] == 0) continue;
                     std::byte* const place = out.data + offsets[root] * size_of(in.dtype);
                     const ncclResult_t result =
                         nccl_.broadcast(root == rank_of(r) ? in.data : place, place, counts[root],
                                         type, static_cast<int>(root), comm, stream);
                     if (result != ncclSuccess && result != ncclInProgress) return result;
                   }
                   return ncclSuccess;
                 });
}

void NcclOps::reduce_scatter_buffers(ReduceOp op, std::span<const ReplicaBuffer> inputs,
                                     std::span<const ReplicaBuffer> outputs,
                                     std::span<const std::size_t> counts) {
  const std::vector<std::size_t> offsets = offsets_of(counts);
  const bool even = are_equal(counts);
  group_->launch(
      describe(Collective::kReduceScatter, inputs.front()),
      [&](std::size_t r, ncclComm_t comm, cudaStream_t stream) {
        const ReplicaBuffer& in = inputs[r];
        const ReplicaBuffer& out = outputs[r];
        const ncclDataType_t type = type_of(in.dtype);
        if (even) {
          return nccl_.reduce_scatter(in.data, out.data, out.count, type, op_of(op), comm, stream);
        }
        for (std::size_t root = 0; root < world_; ++root) {
          if (counts[root] == 0) continue;
          const ncclResult_t result = nccl_.reduce(
              in.data + offsets[root] * size_of(in.dtype), root == rank_of(r) ? out.data : nullptr,
              counts[root], type, op_of(op), static_cast<int>(root), comm, stream);
          if (result != ncclSuccess && result != ncclInProgress) return result;
        }
        return ncclSuccess;
      });
}

ncclResult_t NcclOps::exchange(const ReplicaBuffer& input, const ReplicaBuffer& output,
                               std::size_t rank, std::span<const std::size_t> counts,
                               ncclComm_t comm, cudaStream_t stream) const {
  const ncclDataType_t type = type_of(input.dtype);
  const std::byte* from = input.data;
  std::byte* to = output.data;
  for (std::size_t peer = 0; peer < world_; ++peer) {
    const std::size_t sent = counts[rank * world_ + peer], received = counts[peer * world_ + rank];
    ncclResult_t result = ncclSuccess;
    if (sent > 0) {
      result = nccl_.send(from, sent, type, static_cast<int>(peer), comm, stream);
    }
    if (result != ncclSuccess && result != ncclInProgress) return result;
    if (received > 0) {
      result = nccl_.recv(to, received, type, static_cast<int>(peer), comm, stream);
    }
    if (result != ncclSuccess && result != ncclInProgress) return result;
    from += sent * size_of(input.dtype);
    to += received * size_of(input.dtype);
  }
  return ncclSuccess;
}

void NcclOps::all_to_all_buffers(std::span<const ReplicaBuffer> inputs,
                                 std::span<const ReplicaBuffer> outputs,
                                 std::span<const std::size_t> counts) {
  group_->launch(describe(Collective::kAllToAll, inputs.front()),
                 [&](std::size_t r, ncclComm_t comm, cudaStream_t stream) {
                   return exchange(inputs[r], outputs[r], rank_of(r), counts, comm, stream);
                 });
}

void require_own_gpus(const Group& group) {
  for (std::size_t r = 0; r < group.local_devices.size(); ++r) {
    if (group.local_devices[r].type == DeviceType::kGpu) continue;
    fail(ErrorCode::kInvalidArgument,
         "nccl: works on GPUs alone; expected a GPU for each replica, ", "got ",
         group.local_devices[r], " for replica ", r, "; try canonical or ring for CPUs");
  }
  if (const auto shared = find_shared_gpu(group.local_devices)) {
    fail(ErrorCode::kInvalidArgument, "nccl: replicas ", shared->first, " (",
         group.local_devices[shared->first], ") and ", shared->second, " (",
         group.local_devices[shared->second], ") are both on GPU ", shared->ordinal,
         ", which NCCL refuses; expected a GPU for each replica; try canonical or "
         "hierarchical_copy");
  }
}

}  // namespace

std::unique_ptr<CrossDeviceOps> make_nccl_ops(const Group& group,
                                              const CommunicationOptions& options,
                                              const NcclFunctions& functions) {
  require_own_gpus(group);
  require_nccl_version(functions, "the library");
  return std::make_unique<NcclOps>(group, options, functions);
}

std::unique_ptr<CrossDeviceOps> make_nccl_ops(const Group& group,
                                              const CommunicationOptions& options) {
  require_own_gpus(group);
  return std::make_unique<NcclOps>(group, options, nccl_functions());
}

std::string why_no_nccl() {
  try {
    nccl_functions();
    return {};
  } catch (const Error& error) {
    return error.message();
  }
}

}  // namespace tutti::internal
