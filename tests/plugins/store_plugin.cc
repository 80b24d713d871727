// Simple but slow plugin that spans processes: members exchange values through the group's
// key-value store. Requires one buffer for each local replica of the group.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tutti/cross_device_ops/plugin_abi.h"

namespace {

using Bytes = std::vector<char>;

struct Failure {
  std::int32_t code;
};

struct State {
  tutti_group_v1 group{};
  int calls = 0;
  std::atomic<bool> aborted{false};
};

std::size_t bytes_of(std::int32_t dtype) {
  constexpr std::size_t kBytes[] = {4, 8, 4, 8, 1, 1, 2, 2};
  return kBytes[dtype];
}

// One collective call: sends and receives buffers through the key-value store within a timeout.
class Call {
 public:
  Call(void* self, std::uint32_t num_replicas, std::int64_t timeout_ms, tutti_error_v1* error)
      : state_(*static_cast<State*>(self)),
        left_ms_(timeout_ms < 0 ? 20000 : timeout_ms),
        error_(error) {
    ++state_.calls;
    if (num_replicas == state_.group.local_count) return;
    char text[64];
    std::snprintf(text, sizeof(text), "expected %u buffers, got %u", state_.group.local_count,
                  num_replicas);
    fail(TUTTI_OUT_OF_RANGE, text);
  }
  int world() const { return state_.group.world_size; }
  int first() const { return state_.group.first_rank; }

  void say(int member, const tutti_buffer_v1& buffer) {
    const tutti_group_v1& group = state_.group;
    const std::int32_t code = group.set(group.store, key(member).c_str(), buffer.data,
                                        buffer.count * bytes_of(buffer.dtype), error_);
    if (code != TUTTI_OK) throw Failure{code};
  }

  Bytes hear(int member) {
    constexpr std::int64_t kSliceMs = 5;
    const tutti_group_v1& group = state_.group;
    std::uint64_t size = 0;
    Bytes value(1 << 20);
    for (;; left_ms_ -= kSliceMs) {
      if (state_.aborted) fail(TUTTI_ABORTED, "aborted");
      const std::int32_t code =
          group.get(group.store, key(member).c_str(), value.data(), value.size(), &size,
                    std::min(kSliceMs, left_ms_), error_);
      if (code == TUTTI_OK) break;
      if (code != TUTTI_DEADLINE_EXCEEDED) throw Failure{code};
      if (left_ms_ > kSliceMs) continue;
      fail(TUTTI_DEADLINE_EXCEEDED, ("member " + std::to_string(member) + " is silent").c_str());
    }
    value.resize(size);
    return value;
  }

  [[noreturn]] void fail(std::int32_t code, const char* text) {
    error_->code = code;
    std::snprintf(error_->message, sizeof(error_->message), "%s", text);
    throw Failure{code};
  }

 private:
  std::string key(int member) const {
    return "call/" + std::to_string(state_.calls) + "/" + std::to_string(member);
  }

  State& state_;
  std::int64_t left_ms_;
  tutti_error_v1* error_;
};

template <class T>
void add(Bytes& sum, const Bytes& addend) {
  auto* const values = reinterpret_cast<T*>(sum.data());
  const auto* const more = reinterpret_cast<const T*>(addend.data());
  for (std::size_t i = 0; i < sum.size() / sizeof(T); ++i) values[i] += more[i];
}

Bytes sum_of_all(Call& call, const tutti_buffer_v1* inputs, std::uint32_t num_replicas) {
  for (std::uint32_t i = 0; i < num_replicas; ++i) {
    call.say(call.first() + static_cast<int>(i), inputs[i]);
  }
  Bytes sum = call.hear(0);
  for (int member = 1; member < call.world(); ++member) {
    const Bytes addend = call.hear(member);
    if (addend.size() != sum.size())
      call.fail(TUTTI_INVALID_ARGUMENT, "buffers have different lengths");
    inputs->dtype == TUTTI_FLOAT32 ? add<float>(sum, addend) : add<std::int32_t>(sum, addend);
  }
  return sum;
}

void write(const tutti_buffer_v1& buffer, const Bytes& bytes, std::size_t from = 0) {
  if (buffer.count == 0) return;
  std::memcpy(buffer.data, bytes.data() + from, buffer.count * bytes_of(buffer.dtype));
}

template <class Body>
std::int32_t run(void* self, std::uint32_t num_replicas, std::int64_t timeout_ms,
                 tutti_error_v1* error, const Body& body) {
  try {
    Call call(self, num_replicas, timeout_ms, error);
    body(call);
    return TUTTI_OK;
  } catch (const Failure& failure) {
    return failure.code;
  }
}

void* create(const tutti_group_v1* group, const char*, tutti_error_v1* error) {
  if (!group->store || !group->set || !group->get) {
    error->code = TUTTI_FAILED_PRECONDITION;
    std::snprintf(error->message, sizeof(error->message), "the group has no store");
    return nullptr;
  }
  auto state = std::make_unique<State>();
  state->group = *group;
  return state.release();
}
void destroy(void* self) {
  const std::unique_ptr<State> state(static_cast<State*>(self));
  char line[96];
  std::snprintf(line, sizeof(line), "%s: %d calls of %u of %d members", PLUGIN_NAME, state->calls,
                state->group.local_count, state->group.world_size);
  state->group.log(TUTTI_LOG_INFO, line);
}
std::int32_t supports(void*, std::int32_t op, std::int32_t dtype, std::int32_t device_type) {
  return op == TUTTI_SUM && (dtype == TUTTI_FLOAT32 || dtype == TUTTI_INT32) &&
         device_type == TUTTI_CPU;
}
std::int32_t determinism(void*) { return TUTTI_GRADE_RUN_TO_RUN; }
std::int32_t spans_processes() { return 1; }

std::int32_t all_reduce(void* self, std::int32_t, const tutti_buffer_v1* replicas,
                        std::uint32_t num_replicas, std::int64_t timeout_ms,
                        tutti_error_v1* error) {
  return run(self, num_replicas, timeout_ms, error, [&](Call& call) {
    const Bytes sum = sum_of_all(call, replicas, num_replicas);
    for (std::uint32_t i = 0; i < num_replicas; ++i) write(replicas[i], sum);
  });
}

#if defined(PLUGIN_STORE)
std::int32_t reduce(void* self, std::int32_t, const tutti_buffer_v1* inputs,
                    std::uint32_t num_replicas, const tutti_buffer_v1* output, std::int32_t,
                    std::int64_t timeout_ms, tutti_error_v1* error) {
  return run(self, num_replicas, timeout_ms, error, [&](Call& call) {
    const Bytes sum = sum_of_all(call, inputs, num_replicas);
    if (output) write(*output, sum);
  });
}

std::int32_t broadcast(void* self, const tutti_buffer_v1* buffers, std::uint32_t num_replicas,
                       std::int32_t root, std::int64_t timeout_ms, tutti_error_v1* error) {
  return run(self, num_replicas, timeout_ms, error, [&](Call& call) {
    const int local = root - call.first();
    if (local >= 0 && local < static_cast<int>(num_replicas)) call.say(root, buffers[local]);
    const Bytes value = call.hear(root);
    for (std::uint32_t i = 0; i < num_replicas; ++i) write(buffers[i], value);
  });
}

std::int32_t all_gather(void* self, const tutti_buffer_v1* inputs, const tutti_buffer_v1* outputs,
                        std::uint32_t num_replicas, const std::uint64_t* counts,
                        std::int64_t timeout_ms, tutti_error_v1* error) {
  return run(self, num_replicas, timeout_ms, error, [&](Call& call) {
    for (std::uint32_t i = 0; i < num_replicas; ++i) {
      call.say(call.first() + static_cast<int>(i), inputs[i]);
    }
    Bytes all;
    for (int member = 0; member < call.world(); ++member) {
      const Bytes part = call.hear(member);
      if (part.size() != counts[member] * bytes_of(inputs->dtype)) {
        call.fail(TUTTI_INVALID_ARGUMENT, "a received buffer has an unexpected length");
      }
      all.insert(all.end(), part.begin(), part.end());
    }
    for (std::uint32_t i = 0; i < num_replicas; ++i) write(outputs[i], all);
  });
}

std::int32_t reduce_scatter(void* self, std::int32_t, const tutti_buffer_v1* inputs,
                            const tutti_buffer_v1* outputs, std::uint32_t num_replicas,
                            const std::uint64_t* counts, std::int64_t timeout_ms,
                            tutti_error_v1* error) {
  return run(self, num_replicas, timeout_ms, error, [&](Call& call) {
    const Bytes sum = sum_of_all(call, inputs, num_replicas);
    std::size_t from = 0;
    for (int member = 0; member < call.world(); ++member) {
      const int local = member - call.first();
      if (local >= 0 && local < static_cast<int>(num_replicas)) write(outputs[local], sum, from);
      from += counts[member] * bytes_of(inputs->dtype);
    }
  });
}

std::int32_t all_to_all(void* self, const tutti_buffer_v1* inputs, const tutti_buffer_v1* outputs,
                        std::uint32_t num_replicas, const std::uint64_t* counts,
                        std::int64_t timeout_ms, tutti_error_v1* error) {
  return run(self, num_replicas, timeout_ms, error, [&](Call& call) {
    const auto world = static_cast<std::size_t>(call.world());
    const std::size_t size = bytes_of(inputs->dtype);
    for (std::uint32_t i = 0; i < num_replicas; ++i) {
      call.say(call.first() + static_cast<int>(i), inputs[i]);
    }
    for (std::uint32_t i = 0; i < num_replicas; ++i) {
      const std::size_t mine = static_cast<std::size_t>(call.first()) + i;
      char* place = static_cast<char*>(outputs[i].data);
      for (std::size_t r = 0; r < world; ++r) {
        const Bytes all = call.hear(static_cast<int>(r));
        std::size_t from = 0;
        for (std::size_t s = 0; s < mine; ++s) from += counts[r * world + s] * size;
        const std::size_t length = counts[r * world + mine] * size;
        std::memcpy(place, all.data() + from, length);
        place += length;
      }
    }
  });
}

void abort_call(void* self, std::int32_t, const char*) {
  static_cast<State*>(self)->aborted = true;
}
#endif

}  // namespace

extern "C" const tutti_cross_device_ops_v1* tutti_cross_device_ops_plugin_v1() {
  static tutti_cross_device_ops_v1 table{};
  table.struct_size = sizeof(tutti_cross_device_ops_v1);
  table.name = PLUGIN_NAME;
  table.create = create;
  table.destroy = destroy;
  table.supports = supports;
  table.all_reduce = all_reduce;
  table.determinism = determinism;
  table.spans_processes = spans_processes;
#if defined(PLUGIN_STORE)
  table.reduce = reduce;
  table.broadcast = broadcast;
  table.all_gather = all_gather;
  table.reduce_scatter = reduce_scatter;
  table.all_to_all = all_to_all;
  table.abort = abort_call;
#endif
  return &table;
}
