// Collectives on memory of a GPU: what is checked where they are called, who carries them out, and
// an eye on NCCL.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/communicator/gpu_calls.h"

#include <vector>

#include "cross_device_ops/gpu_ranks.h"
#include "tensor/gpu/gpu_device.h"
#include "tutti/core/logging.h"
#include "tutti/cross_device_ops/rank_durations.h"

namespace tutti::internal {
namespace {

void require_memory_of(const GpuDevice& gpu, const std::byte* data, std::size_t count,
                       std::string_view what) {
  if (count == 0) return;
  const int found = gpu.backend().gpu_of(data);
  if (found == gpu.description().ordinal) return;
  fail(ErrorCode::kInvalidArgument, "expected memory of ", gpu.device(), " (CUDA's device ",
       gpu.description().ordinal, ") as ", what, ", got ",
       found < 0 ? "host memory" : concat("memory of CUDA's device ", found),
       "; try one GPU for all buffers of a call, or CallOptions without gpu for host memory");
}

}  // namespace

GpuCalls::GpuCalls(CollectiveEngine& engine, const CommunicatorOptions& options)
    : engine_(engine), options_(options) {}

GpuCalls::~GpuCalls() {
  {
    MutexLock lock(mutex_);
    ops_.reset();
  }
  try {
    const TimePoint end = deadline_after(Clock::system().now(), durations::kLinger);
    while (staged_ && !staged_->is_done()) {
      if (Clock::system().now() > end) {  // copies may still come one day
        static_cast<void>(std::make_unique<BufferRef>(std::move(staging_)).release());
        log_warning("calls on a GPU: its stream does not end; pinned memory is not given back");
        return;
      }
      Clock::system().sleep_for(durations::kTryAgain);
    }
  } catch (const std::exception& error) {  // a GPU that has failed copies nothing more
    log(LogLevel::kError, concat("calls on a GPU: ", error.what()));
  }
}

std::shared_ptr<CrossDeviceOps> GpuCalls::nccl() const {
  MutexLock lock(mutex_);
  return ops_;
}

GpuDevice& GpuCalls::gpu_of(const CallRequest& request) {
  return GpuDevice::of({DeviceType::kGpu, request.options.gpu->gpu});
}

GpuCalls::Begun GpuCalls::begin(const CallRequest& request) {
  const GpuStream& where = *request.options.gpu;
  try {
    Begun begun;
    if (DeviceBackend* const backend = gpu_backend()) begun.selection = backend->keep_selection();
    GpuDevice& gpu = gpu_of(request);
    if (gpu_ && *gpu_ != where.gpu) {
      fail(ErrorCode::kInvalidArgument, "expected gpu:", *gpu_,
           " as in earlier calls of this communicator, got gpu:", where.gpu,
           "; try a communicator for each GPU");
    }
    for (const ConstElements& input : request.inputs) {
      require_memory_of(gpu, input.data, input.count, "input");
    }
    for (const Elements& output : request.outputs) {
      if (!request.has_result(engine_.rank())) break;
      require_memory_of(gpu, output.data, output.count, "output");
    }
    begun.event = gpu.with_context(
        [&](DeviceContext& context) { return context.record_foreign(where.stream); });
    gpu_ = where.gpu;
    return begun;
  } catch (const Error& error) {
    throw Error(error.code(),
                concat(beginning_of_refusal(request, engine_.rank()), error.message()));
  }
}

void GpuCalls::connect(int gpu, Communicator& aside) {
  const std::vector<Device> own = {{DeviceType::kGpu, gpu}};
  const auto gather = [&](std::string_view text, std::string_view name) {
    return gather_texts(aside, text, name);
  };
  GpusOfRank told = gpus_for_nccl(own);
  if (options_.gpu_calls == GpuCallsBy::kHosts) told.reason = "asks for the hosts";
  std::vector<GpusOfRank> ranks;
  for (const std::string& text : gather(told.to_text(), "GPUs of the ranks")) {
    ranks.push_back(GpusOfRank::from_text(text));
  }
  std::string reason = why_not_all("rank", ranks);
  std::shared_ptr<CrossDeviceOps> ops;
  if (reason.empty()) {
    try {
      ops = connect_by_nccl(
          "rank", {.world_size = aside.size(), .first_rank = aside.rank(), .local_devices = own},
          options_.timeout, gather);
    } catch (const Error& error) {
      reason = error.message();
      aside.barrier();  // throws where it was not NCCL, but that a rank is gone
    }
  }
  if (aside.rank() == 0) {
    log_info(concat("calls on GPUs of ", aside.size(), " ranks: ", ops ? "nccl" : "by the hosts",
                    ", because ", ops ? "each rank has a GPU of its own" : reason));
  }
  MutexLock lock(mutex_);
  ops_ = std::move(ops);
  is_connected_ = true;
}

bool GpuCalls::goes_by_nccl(const CallRequest& request) const {
  // Of all_to_all a rank knows its own counts alone: the hosts compare them.
  const std::shared_ptr<CrossDeviceOps> ops = nccl();
  if (!ops || request.options.compression || request.collective == Collective::kBarrier ||
      request.collective == Collective::kAllToAll) {
    return false;
  }
  const bool gathers = request.collective == Collective::kAllGather;
  if ((gathers ? request.outputs[0].count : request.count()) == 0) return false;
  if (!combines(request.collective)) return true;
  const ReduceOp op = request.op == ReduceOp::kMean ? ReduceOp::kSum : request.op;
  const DType dtype = is_half(request.dtype()) ? DType::kFloat32 : request.dtype();
  return ops->supports(op, dtype, DeviceType::kGpu);
}

void GpuCalls::tend() {
  const std::shared_ptr<CrossDeviceOps> ops = nccl();
  if (!ops || has_failed_) return;
  try {
    if (!ops->check_pending() && !is_launching_) return failed_since_.reset();
    const std::optional<Error> failure = engine_.failure_of_peer();
    if (!failure) return failed_since_.reset();
    // A rank that has left may have finished, as this one's work will do now.
    const TimePoint now = Clock::system().now();
    if (!failed_since_) failed_since_ = now;
    if (failure->code() != ErrorCode::kAborted && now - *failed_since_ < durations::kLinger) return;
    has_failed_ = true;
    ops->abort(*failure);
    engine_.abort(*failure);
  } catch (const Error& error) {
    has_failed_ = true;
    engine_.abort(error);
  }
}

}  // namespace tutti::internal
