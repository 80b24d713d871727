// Cross-device operation as a shared library. It sums float32 values rounded to 8 bits, with error
// feedback: the rounding error of a replica's bucket of gradients is added to the bucket in the
// next step.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <limits>
#include <map>
#include <new>
#include <vector>

#include "tutti/cross_device_ops/plugin_abi.h"

namespace {

using Floats = std::vector<float>;

constexpr float kLargestCode = 127;
constexpr std::int8_t kNotFinite = -128;

struct Int8Feedback {
  // rounding errors, keyed by buffer id, with one entry per replica
  std::map<std::uint64_t, std::vector<Floats>> lost;
};

/// A replica's values in the form in which they would be sent.
struct Message {
  float step = 0;
  std::vector<std::int8_t> codes;

  float value(std::size_t i) const {
    if (codes[i] == kNotFinite) return std::numeric_limits<float>::quiet_NaN();
    return step * static_cast<float>(codes[i]);
  }
};

Message rounded(const Floats& values) {
  float largest = 0;
  for (const float value : values) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  Message message{largest / kLargestCode, std::vector<std::int8_t>(values.size(), 0)};
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) {
      message.codes[i] = kNotFinite;
    } else if (message.step > 0) {
      message.codes[i] = static_cast<std::int8_t>(std::lround(values[i] / message.step));
    }
  }
  return message;
}

void add_up(Int8Feedback& self, std::uint64_t id, const tutti_buffer_v1* replicas,
            std::uint32_t num_replicas) {
  const std::size_t count = replicas[0].count;
  Floats sum(count);
  for (std::uint32_t r = 0; r < num_replicas; ++r) {
    const auto* const data = static_cast<const float*>(replicas[r].data);
    Floats values(data, data + count);
    Floats* lost = nullptr;
    if (id != 0) {
      self.lost[id].resize(num_replicas);
      lost = &self.lost[id][r];
      lost->resize(count);
      for (std::size_t i = 0; i < count; ++i) values[i] += (*lost)[i];
    }
    const Message message = rounded(values);
    for (std::size_t i = 0; i < count; ++i) {
      sum[i] += message.value(i);
      if (lost) (*lost)[i] = std::isfinite(values[i]) ? values[i] - message.value(i) : 0;
    }
  }
  for (std::uint32_t r = 0; r < num_replicas; ++r) {
    std::copy(sum.begin(), sum.end(), static_cast<float*>(replicas[r].data));
  }
}

void* create(const tutti_group_v1*, const char*, tutti_error_v1* error) {
  auto* const self = new (std::nothrow) Int8Feedback;
  if (!self) error->code = TUTTI_RESOURCE_EXHAUSTED;
  return self;
}

void destroy(void* self) { delete static_cast<Int8Feedback*>(self); }

std::int32_t supports(void*, std::int32_t op, std::int32_t dtype, std::int32_t device_type) {
  return op == TUTTI_SUM && dtype == TUTTI_FLOAT32 && device_type == TUTTI_CPU;
}

std::int32_t all_reduce_named(void* self, std::uint64_t id, const char*, std::int32_t,
                              const tutti_buffer_v1* replicas, std::uint32_t num_replicas,
                              std::int64_t, tutti_error_v1* error) {
  try {
    add_up(*static_cast<Int8Feedback*>(self), id, replicas, num_replicas);
    return TUTTI_OK;
  } catch (const std::exception& thrown) {
    error->code = TUTTI_RESOURCE_EXHAUSTED;
    std::snprintf(error->message, sizeof error->message, "%s", thrown.what());
    return error->code;
  }
}

std::int32_t all_reduce(void* self, std::int32_t op, const tutti_buffer_v1* replicas,
                        std::uint32_t num_replicas, std::int64_t timeout_ms,
                        tutti_error_v1* error) {
  return all_reduce_named(self, 0, "", op, replicas, num_replicas, timeout_ms, error);
}

std::int32_t determinism(void*) { return TUTTI_GRADE_RUN_TO_RUN; }

/// Returns half a rounding step per replica, relative to the replica's largest magnitude.
double max_relative_error(void*) { return 0.5 / static_cast<double>(kLargestCode); }

}  // namespace

extern "C" const tutti_cross_device_ops_v1* tutti_cross_device_ops_plugin_v1() {
  static const tutti_cross_device_ops_v1 table = [] {
    tutti_cross_device_ops_v1 t{};
    t.struct_size = sizeof t;
    t.name = "int8_feedback";
    t.create = create;
    t.destroy = destroy;
    t.supports = supports;
    t.all_reduce = all_reduce;
    t.determinism = determinism;
    t.all_reduce_named = all_reduce_named;
    t.max_relative_error = max_relative_error;
    return t;
  }();
  return &table;
}
