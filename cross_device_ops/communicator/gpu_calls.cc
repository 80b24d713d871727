// Collectives on GPU memory: checks, the choice between NCCL and the hosts, and monitoring of NCCL.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/communicator/gpu_calls.h"

#include <numeric>
#include <vector>

#include "core/names.h"
#include "cross_device_ops/buffer_call.h"
#include "cross_device_ops/communicator/communicator_state.h"
#include "cross_device_ops/device_work.h"
#include "cross_device_ops/gpu_ranks.h"
#include "tensor/gpu/pinned_memory.h"
#include "tensor/gpu_device.h"
#include "tutti/core/logging.h"
#include "tutti/cross_device_ops/rank_durations.h"
#include "tutti/tensor/gpu/gpus.h"

namespace tutti::internal {

namespace {

void require_memory_of(const GpuDevice& gpu, const std::byte* data, std::size_t count,
                       std::string_view what) {
  if (count == 0) return;
  const int found = gpu.backend().gpu_of(data);
  if (found == gpu.description().ordinal) return;
  fail(ErrorCode::kInvalidArgument, "expected memory of ", gpu.device(), " (CUDA device ",
       gpu.description().ordinal, ") as ", what, ", got ",
       found < 0 ? "host memory" : concat("memory of CUDA device ", found),
       "; use one GPU for all buffers of a call, or CallOptions without gpu for host memory");
}

}  // namespace

GpuCalls::GpuCalls(CommunicatorState& state) : state_(state), engine_(state.engine()) {}

GpuCalls::~GpuCalls() {
  {
    MutexLock lock(mutex_);
    ops_.reset();
  }
  try {
    const TimePoint end = deadline_after(Clock::system().now(), durations::kLinger);
    while (staged_ && !staged_->is_done()) {
      if (Clock::system().now() > end) {  // pending copies may still use the memory
        static_cast<void>(std::make_unique<BufferRef>(std::move(staging_)).release());
        log_warning(
            "communicator: timed out waiting for the GPU; the communicator's pinned memory is not "
            "freed");
        return;
      }
      Clock::system().sleep_for(durations::kTryAgain);
    }
  } catch (const std::exception& error) {  // a failed GPU makes no further copies
    log(LogLevel::kError, concat("communicator: the GPU failed: ", error.what()));
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
  Begun begun;
  if (DeviceBackend* const backend = gpu_backend()) begun.selection = backend->keep_selection();
  GpuDevice& gpu = gpu_of(request);
  require(gpu_.value_or(where.gpu) == where.gpu, "expected gpu:", gpu_.value_or(where.gpu),
          " as in earlier calls to this communicator, got gpu:", where.gpu,
          "; use one communicator per GPU");
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
}

void GpuCalls::execute(const CallRequest& request, const DeviceEvent& begin) {
  const Duration timeout = request.options.timeout.value_or(state_.options().timeout);
  const TimePoint deadline = deadline_after(Clock::system().now(), timeout);
  if (engine_.size() == 1) return copy_alone(request, begin, deadline);
  if (!is_connected_) connect(request);
  if (!uses_nccl(request)) return execute_by_host(request, begin, deadline);
  state_.compare_requests(
      request);  // NCCL would wait indefinitely for a rank that makes a different call
  execute_by_nccl(request, begin);
}

void GpuCalls::connect(const CallRequest& request) {
  state_.compare_requests(request);
  try {
    std::vector<int> all(static_cast<std::size_t>(engine_.size()));
    std::iota(all.begin(), all.end(), 0);
    Communicator aside(engine_.subgroup(all, state_.next_group()), state_.options());
    agree(request.options.gpu->gpu, aside);
  } catch (const Error& error) {
    engine_.abort(error);
    throw;
  }
}

void GpuCalls::agree(int gpu, Communicator& aside) {
  const std::vector<Device> own = {{DeviceType::kGpu, gpu}};
  const auto gather = [&](std::string_view text, std::string_view name) {
    return gather_texts(aside, text, name);
  };
  GpusOfRank told = gpus_for_nccl(own);
  if (state_.options().gpu_calls == GpuCallsBy::kHosts)
    told.reason = "sets GpuCallsBy::kHosts in its options";
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
          state_.options().timeout, gather);
    } catch (const Error& error) {
      reason = error.message();
      aside.barrier();  // throws if a rank has exited
    }
  }
  if (aside.rank() == 0) {
    log_info(concat("calls on the GPUs of ", aside.size(), " ranks use ",
                    ops ? "nccl, because each rank has its own GPU" : "host memory, because ",
                    ops ? "" : reason));
  }
  MutexLock lock(mutex_);
  ops_ = std::move(ops);
  is_connected_ = true;
}

bool GpuCalls::uses_nccl(const CallRequest& request) const {
  // all_to_all does not use NCCL, because a rank knows only its own counts, which NCCL does not
  // compare.
  const std::shared_ptr<CrossDeviceOps> ops = nccl();
  if (!ops || request.collective == Collective::kBarrier ||
      request.collective == Collective::kAllToAll) {
    return false;
  }
  const bool gathers = request.collective == Collective::kAllGather;
  if ((gathers ? request.outputs[0].count : request.count) == 0) return false;
  if (!combines(request.collective)) return true;
  const ReduceOp op = request.op == ReduceOp::kMean ? ReduceOp::kSum : request.op;
  const DType dtype = is_half(request.dtype) ? DType::kFloat32 : request.dtype;
  return ops->supports(op, dtype, DeviceType::kGpu);
}

void GpuCalls::poll() {
  const std::shared_ptr<CrossDeviceOps> ops = nccl();
  if (!ops || has_failed_) return;
  try {
    if (!ops->check_pending() && !is_launching_) return failed_since_.reset();
    const std::optional<Error> failure = engine_.failure_of_peer();
    if (!failure) return failed_since_.reset();
    // A rank that exited may have finished its part, so this rank's work may still finish, too.
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

namespace {

constexpr StreamId kCalls = StreamId::kCompute;

/// Returns a buffer's size in pinned memory, rounded up to whole cache lines.
std::size_t staged_bytes(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

template <class AnyElements>
ReplicaBuffer on_gpu(const AnyElements& elements, Device device) {
  ReplicaBuffer buffer = buffer_of(elements);
  buffer.device = device;
  return buffer;
}

void begin_after(GpuDevice& gpu, const DeviceEvent& event) {
  gpu.with_context([&](DeviceContext& context) { context.wait(kCalls, event); });
}

/// Makes later work of the caller's stream wait for the call. Returns the event at the call's end.
std::shared_ptr<DeviceEvent> end(GpuDevice& gpu, const CallRequest& request) {
  return gpu.with_context([&](DeviceContext& context) {
    std::shared_ptr<DeviceEvent> done = context.record(kCalls);
    context.wait_foreign(request.options.gpu->stream, *done);
    return done;
  });
}

ReplicaBuffer bytes_on_gpu(const ReplicaBuffer& buffer) {
  return {buffer.data, buffer.num_bytes(), DType::kUInt8, buffer.device};
}

/// Performs an in-place all_reduce with run(all). `all` is the call's only buffer, or a buffer into
/// which the call's buffers are packed, because each NCCL call costs as much as a kernel launch.
template <class Run>
void reduce_as_one(const CallRequest& request, Device device, const Run& run) {
  if (request.outputs.size() == 1) {
    const ReplicaBuffer output = on_gpu(request.outputs[0], device);
    copy_buffer(on_gpu(request.inputs[0], device), output);
    return run(output);
  }
  const MutableTensor memory(Shape{static_cast<std::int64_t>(request.count)}, request.dtype,
                             device);
  const ReplicaBuffer all = buffer_of(memory);
  std::vector<DeviceCopy> in, out;
  std::byte* place = all.data;
  for (std::size_t i = 0; i < request.outputs.size(); ++i) {
    const std::size_t bytes = request.inputs[i].num_bytes();
    if (bytes == 0) continue;
    in.push_back({place, request.inputs[i].data, bytes});
    out.push_back({request.outputs[i].data, place, bytes});
    place += bytes;
  }
  copy_many_on_gpu(device, in);
  run(all);
  copy_many_on_gpu(device, out);
}

}  // namespace

template <class Body>
void GpuCalls::for_all(const CallRequest& request, const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    const Error named = error.with_context(request.context(engine_.rank()));
    engine_.abort(named);
    throw named;
  }
}

void GpuCalls::execute_by_nccl(const CallRequest& request, const DeviceEvent& begin) {
  for_all(request, [&] {
    GpuDevice& gpu = gpu_of(request);
    const Device device = gpu.device();
    begin_after(gpu, begin);
    const std::shared_ptr<CrossDeviceOps> ops = nccl();
    BufferCall call{request.collective, request.op, request.root, {}, {}, {}};
    call.group_size = static_cast<std::size_t>(engine_.size());
    is_launching_ = true;  // stays true after an error
    if (request.collective == Collective::kAllReduce) {
      reduce_as_one(request, device, [&](const ReplicaBuffer& all) {
        call.outputs = {&all, 1};
        carry_out(*ops, call, {}, nullptr);
      });
    } else {
      ReplicaBuffer input, output;
      if (!request.inputs.empty()) input = on_gpu(request.inputs[0], device);
      if (request.has_result(engine_.rank())) output = on_gpu(request.outputs[0], device);
      std::vector<std::size_t> counts(request.counts.begin(), request.counts.end());
      if (!call.reduces()) {  // copied bytes need no alignment
        input = bytes_on_gpu(input);
        output = bytes_on_gpu(output);
        for (std::size_t& count : counts) count *= size_of(request.dtype);
      }
      if (!request.inputs.empty()) call.inputs = {&input, 1};
      if (request.has_result(engine_.rank())) call.outputs = {&output, 1};
      call.counts = counts;
      carry_out(*ops, call, {}, nullptr);
    }
    is_launching_ = false;
    end(gpu, request);
  });
}

void GpuCalls::wait(GpuDevice& gpu, const DeviceEvent& event, TimePoint deadline) {
  if (gpu.peers().wait_until(event, deadline)) return;
  fail(ErrorCode::kDeadlineExceeded, "the stream of ", gpu.device(),
       " did not reach this call before the deadline; expected its earlier work to finish in time; "
       "try a longer timeout, or find a kernel that does not end");
}

void GpuCalls::execute_by_host(const CallRequest& request, const DeviceEvent& begin,
                               TimePoint deadline) {
  GpuDevice& gpu = gpu_of(request);
  const bool gives = request.collective == Collective::kBroadcast && request.root == engine_.rank();
  const bool in_place =
      request.collective == Collective::kAllReduce || request.collective == Collective::kReduce;
  std::vector<ConstElements> inputs(request.inputs.begin(), request.inputs.end());
  std::vector<Elements> outputs(request.outputs.begin(), request.outputs.end());
  for_all(request, [&] {
    std::size_t num_bytes = 0;
    for (const ConstElements& input : inputs) num_bytes += staged_bytes(input.num_bytes());
    for (const Elements& output : outputs) {
      if (!in_place) num_bytes += staged_bytes(output.num_bytes());
    }
    if (num_bytes > (staging_ ? staging_->size() : 0)) {
      if (staged_) wait(gpu, *staged_, deadline);  // copies must end before the old memory is freed
      staging_ = allocate_pinned(num_bytes);
    }
    std::byte* place = staging_ ? staging_->data() : nullptr;
    // The previous call's copies, which may still be reading this memory, are queued on the same
    // stream.
    staged_ = gpu.with_context([&](DeviceContext& context) {
      context.wait(kCalls, begin);
      const auto stage = [&](auto& elements, bool is_read) {
        if (is_read) context.copy_to_host(place, elements.data, elements.num_bytes(), kCalls);
        elements.data = place;
        place += staged_bytes(elements.num_bytes());
      };
      for (ConstElements& input : inputs) stage(input, true);
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        if (!in_place) stage(outputs[i], gives);
        if (in_place) outputs[i].data = const_cast<std::byte*>(inputs[i].data);
      }
      return context.record(kCalls);
    });
    wait(gpu, *staged_, deadline);
  });
  CallRequest on_host = request;
  on_host.inputs = inputs;
  on_host.outputs = outputs;
  state_.execute_on_host(on_host);
  if (gives || !request.has_result(engine_.rank())) return;
  for_all(request, [&] {
    gpu.with_context([&](DeviceContext& context) {
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        context.copy_to_device(request.outputs[i].data, outputs[i].data, outputs[i].num_bytes(),
                               kCalls);
      }
    });
    staged_ = end(gpu, request);
  });
}

void GpuCalls::copy_alone(const CallRequest& request, const DeviceEvent& begin,
                          TimePoint deadline) {
  for_all(request, [&] {
    GpuDevice& gpu = gpu_of(request);
    if (request.collective == Collective::kBarrier) return wait(gpu, begin, deadline);
    begin_after(gpu, begin);
    for (std::size_t i = 0; i < request.inputs.size(); ++i) {
      copy_buffer(on_gpu(request.inputs[i], gpu.device()),
                  on_gpu(request.outputs[i], gpu.device()));
    }
    end(gpu, request);
  });
}

}  // namespace tutti::internal
