// Cross-device operation between processes: calls Gloo through tutti's C interface for plugins.
// SPDX-License-Identifier: Apache-2.0
//
// A process is one Gloo rank. Its replicas are combined into the first replica's buffer, which Gloo
// reduces across the processes. The result is copied to the other replicas. A single process does
// not connect.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/broadcast.h>
#include <gloo/common/error.h>
#include <gloo/math.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <string_view>

#include "gloo_group.h"

namespace {

using gloo_ops::Failure;
using Combine = void (*)(void* result, const void* a, const void* b, std::size_t count);

struct Operation {
  std::shared_ptr<gloo::Context> context;  // nullptr if there is only one process
  int process = 0;
  int first_rank = 0;
  int num_local = 1;
  std::uint32_t calls = 0;
  std::atomic<bool> is_aborted{false};
};

// Gloo's functions ignore NaNs, but tutti's MIN and MAX must propagate them.
template <class T>
void minimum(void* result, const void* a, const void* b, std::size_t count) {
  const auto *x = static_cast<const T*>(a), *y = static_cast<const T*>(b);
  auto* const least = static_cast<T*>(result);
  for (std::size_t i = 0; i < count; ++i) least[i] = x[i] < y[i] || x[i] != x[i] ? x[i] : y[i];
}
template <class T>
void maximum(void* result, const void* a, const void* b, std::size_t count) {
  const auto *x = static_cast<const T*>(a), *y = static_cast<const T*>(b);
  auto* const most = static_cast<T*>(result);
  for (std::size_t i = 0; i < count; ++i) most[i] = x[i] > y[i] || x[i] != x[i] ? x[i] : y[i];
}

template <class T>
Combine combine_of(std::int32_t op) {
  switch (op) {
    case TUTTI_SUM:
      return gloo::sum<T>;
    case TUTTI_MIN:
      return minimum<T>;
    case TUTTI_MAX:
      return maximum<T>;
    case TUTTI_PRODUCT:
      return gloo::product<T>;
  }
  return nullptr;
}

// Returns the function that combines two buffers, or nullptr if `op` or `dtype` is not supported.
Combine combine_of(std::int32_t op, std::int32_t dtype) {
  switch (dtype) {
    case TUTTI_FLOAT32:
      return combine_of<float>(op);
    case TUTTI_FLOAT64:
      return combine_of<double>(op);
    case TUTTI_INT32:
      return combine_of<std::int32_t>(op);
    case TUTTI_INT64:
      return combine_of<std::int64_t>(op);
    case TUTTI_UINT8:
      return combine_of<std::uint8_t>(op);
  }
  return nullptr;
}

std::size_t size_of(std::int32_t dtype) {
  switch (dtype) {
    case TUTTI_FLOAT64:
    case TUTTI_INT64:
      return 8;
    case TUTTI_BFLOAT16:
    case TUTTI_FLOAT16:
      return 2;
    case TUTTI_UINT8:
    case TUTTI_BOOL:
      return 1;
  }
  return 4;
}

std::size_t bytes_of(const tutti_buffer_v1& buffer) { return buffer.count * size_of(buffer.dtype); }

void copy(const void* from, const tutti_buffer_v1& to) {
  if (to.count > 0 && from != to.data) std::memcpy(to.data, from, bytes_of(to));
}

std::chrono::milliseconds duration_of(std::int64_t timeout_ms) {
  return timeout_ms < 0 ? std::chrono::minutes(2) : std::chrono::milliseconds(timeout_ms);
}

// No exception may cross the C interface, so exceptions are converted to a code and a message.
template <class Body>
std::int32_t guarded(const Operation* self, tutti_error_v1* error, const Body& body) {
  const auto report = [error](std::int32_t code, const char* text) {
    error->code = code;
    std::snprintf(error->message, sizeof(error->message), "%s", text);
    return code;
  };
  try {
    body();
    return TUTTI_OK;
  } catch (const Failure& failure) {
    return report(failure.code, failure.what());
  } catch (const gloo::IoException& failure) {
    if (self && self->is_aborted) return report(TUTTI_ABORTED, "aborted");
    const bool is_late =
        std::string_view(failure.what()).find("imed out") != std::string_view::npos;
    return report(is_late ? TUTTI_DEADLINE_EXCEEDED : TUTTI_UNAVAILABLE, failure.what());
  } catch (const std::exception& failure) {
    return report(self && self->is_aborted ? TUTTI_ABORTED : TUTTI_INTERNAL, failure.what());
  }
}

// Returns "timeout_ms" from a JSON object that tutti wrote, or -1 if it is missing.
std::int64_t timeout_in(const char* options_json) {
  constexpr std::string_view kKey = "\"timeout_ms\":";
  const std::string_view text = options_json;
  const std::size_t at = text.find(kKey);
  return at == std::string_view::npos ? -1
                                      : std::strtoll(options_json + at + kKey.size(), nullptr, 10);
}

void* create(const tutti_group_v1* group, const char* options_json, tutti_error_v1* error) {
  auto self = std::make_unique<Operation>();
  const std::int32_t code = guarded(nullptr, error, [&] {
    self->num_local = static_cast<int>(group->local_count);
    self->first_rank = group->first_rank;
    self->process = group->first_rank / self->num_local;
    const int num_processes = group->world_size / self->num_local;
    if (num_processes * self->num_local != group->world_size) {
      throw Failure(TUTTI_INVALID_ARGUMENT, "expected the same number of replicas in each process");
    }
    if (num_processes == 1) return;
    self->context = gloo_ops::connect(*group, self->process, num_processes,
                                      duration_of(timeout_in(options_json)));
  });
  return code == TUTTI_OK ? self.release() : nullptr;
}

void destroy(void* self) { std::unique_ptr<Operation>(static_cast<Operation*>(self)); }

std::int32_t supports(void*, std::int32_t op, std::int32_t dtype, std::int32_t device_type) {
  return device_type == TUTTI_CPU && combine_of(op, dtype) != nullptr;
}

std::int32_t spans_processes() { return 1; }

std::int32_t all_reduce(void* object, std::int32_t op, const tutti_buffer_v1* replicas,
                        std::uint32_t num_replicas, std::int64_t timeout_ms,
                        tutti_error_v1* error) {
  auto& self = *static_cast<Operation*>(object);
  return guarded(&self, error, [&] {
    const tutti_buffer_v1& result = replicas[0];
    const Combine combine = combine_of(op, result.dtype);
    if (!combine)
      throw Failure(TUTTI_UNIMPLEMENTED,
                    "Gloo does not support this reduction for this element type");
    for (std::uint32_t r = 1; r < num_replicas; ++r) {
      combine(result.data, result.data, replicas[r].data, result.count);
    }
    if (self.context) {
      gloo::AllreduceOptions options(self.context);
      auto memory = self.context->createUnboundBuffer(result.data, bytes_of(result));
      if (size_of(result.dtype) == 8)
        options.setOutput<std::uint64_t>(std::move(memory));
      else if (size_of(result.dtype) == 4)
        options.setOutput<std::uint32_t>(std::move(memory));
      else
        options.setOutput<std::uint8_t>(std::move(memory));
      options.setReduceFunction(combine);
      options.setTag(self.calls++);
      options.setTimeout(duration_of(timeout_ms));
      gloo::allreduce(options);
    }
    for (std::uint32_t r = 1; r < num_replicas; ++r) copy(result.data, replicas[r]);
  });
}

std::int32_t broadcast(void* object, const tutti_buffer_v1* buffers, std::uint32_t num_replicas,
                       std::int32_t root, std::int64_t timeout_ms, tutti_error_v1* error) {
  auto& self = *static_cast<Operation*>(object);
  return guarded(&self, error, [&] {
    const int root_process = root / self.num_local;
    const bool is_local = root_process == self.process;
    const tutti_buffer_v1& source = buffers[is_local ? root - self.first_rank : 0];
    if (self.context) {
      gloo::BroadcastOptions options(self.context);
      options.setOutput(static_cast<std::uint8_t*>(source.data), bytes_of(source));
      options.setRoot(root_process);
      options.setTag(self.calls++);
      options.setTimeout(duration_of(timeout_ms));
      gloo::broadcast(options);
    }
    for (std::uint32_t r = 0; r < num_replicas; ++r) copy(source.data, buffers[r]);
  });
}

// Returns, for each process, the number of bytes that it contributes.
std::vector<std::size_t> lengths_of(const Operation& self, const tutti_buffer_v1& output,
                                    std::uint32_t num_replicas, const std::uint64_t* counts) {
  std::vector<std::size_t> lengths(static_cast<std::size_t>(self.context->size));
  for (std::size_t p = 0; p < lengths.size(); ++p) {
    const std::uint64_t* const first = counts + p * num_replicas;
    lengths[p] =
        std::accumulate(first, first + num_replicas, std::uint64_t{0}) * size_of(output.dtype);
  }
  return lengths;
}

// Gloo's allgatherv waits indefinitely for a part of length 0, so all parts are padded to the same
// length.
void gather_padded(Operation& self, std::vector<std::uint8_t> mine,
                   const std::vector<std::size_t>& lengths, std::int64_t timeout_ms,
                   std::uint8_t* result) {
  const std::size_t longest = *std::max_element(lengths.begin(), lengths.end());
  if (longest == 0) return;
  mine.resize(longest);
  std::vector<std::uint8_t> all(longest * lengths.size());
  gloo::AllgatherOptions options(self.context);
  options.setInput(mine.data(), mine.size());
  options.setOutput(all.data(), all.size());
  options.setTag(self.calls++);
  options.setTimeout(duration_of(timeout_ms));
  gloo::allgather(options);
  for (std::size_t p = 0; p < lengths.size(); ++p) {
    result = std::copy_n(all.data() + p * longest, lengths[p], result);
  }
}

std::int32_t all_gather(void* object, const tutti_buffer_v1* inputs, const tutti_buffer_v1* outputs,
                        std::uint32_t num_replicas, const std::uint64_t* counts,
                        std::int64_t timeout_ms, tutti_error_v1* error) {
  auto& self = *static_cast<Operation*>(object);
  return guarded(&self, error, [&] {
    // The parts of one process are adjacent, so they are sent as one part.
    std::vector<std::uint8_t> mine;
    for (std::uint32_t r = 0; r < num_replicas; ++r) {
      const auto* const bytes = static_cast<const std::uint8_t*>(inputs[r].data);
      mine.insert(mine.end(), bytes, bytes + bytes_of(inputs[r]));
    }
    if (self.context) {
      gather_padded(self, std::move(mine), lengths_of(self, outputs[0], num_replicas, counts),
                    timeout_ms, static_cast<std::uint8_t*>(outputs[0].data));
    } else {
      copy(mine.data(), outputs[0]);
    }
    for (std::uint32_t r = 1; r < num_replicas; ++r) copy(outputs[0].data, outputs[r]);
  });
}

void abort_call(void* object, std::int32_t, const char*) {
  auto& self = *static_cast<Operation*>(object);
  self.is_aborted = true;
  try {
    // This ends calls that wait for the connections.
    if (self.context) self.context->closeConnections();
  } catch (const std::exception&) {
  }
}

}  // namespace

extern "C" const tutti_cross_device_ops_v1* tutti_cross_device_ops_plugin_v1(void) {
  static const tutti_cross_device_ops_v1 table = [] {
    tutti_cross_device_ops_v1 members{};
    members.struct_size = sizeof(members);
    members.name = "gloo";
    members.create = create;
    members.destroy = destroy;
    members.supports = supports;
    members.all_reduce = all_reduce;
    members.spans_processes = spans_processes;
    members.broadcast = broadcast;
    members.all_gather = all_gather;
    members.abort = abort_call;
    return members;
  }();
  return &table;
}
