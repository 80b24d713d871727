// Cross-device operation as a shared library. It sums only a fraction k of each replica's float32
// values: those with the largest magnitudes. The remaining values are added to the same bucket of
// gradients in the next step.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <new>
#include <vector>

#include "tutti/cross_device_ops/plugin_abi.h"

namespace {

using Floats = std::vector<float>;

struct TopK {
  double k = 0.01;
  // values not summed yet, keyed by buffer id, with one entry per replica
  std::map<std::uint64_t, std::vector<Floats>> kept_back;
};

/// Returns k from {"bytes_per_pack":0, ..., "options":{"k":0.05}}, or `otherwise` if it is missing.
double k_of(const char* options_json, double otherwise) {
  const char* const options = std::strstr(options_json, "\"options\":");
  const char* const value = options ? std::strstr(options, "\"k\":") : nullptr;
  return value ? std::strtod(value + std::strlen("\"k\":"), nullptr) : otherwise;
}

/// Returns the magnitude, or infinity for NaN, so that NaN ranks among the largest values and is
/// always summed.
float magnitude(float value) {
  return std::isfinite(value) ? std::abs(value) : std::numeric_limits<float>::infinity();
}

/// Returns the magnitude below which elements are left out of the sum.
float threshold_of(const Floats& values, double k) {
  Floats magnitudes(values.size());
  std::transform(values.begin(), values.end(), magnitudes.begin(), magnitude);
  const double wanted = std::ceil(k * static_cast<double>(values.size()));
  const auto place = magnitudes.begin() + static_cast<std::ptrdiff_t>(std::max(wanted, 1.0)) - 1;
  std::nth_element(magnitudes.begin(), place, magnitudes.end(), std::greater<>());
  return *place;
}

void add_up(TopK& self, std::uint64_t id, const tutti_buffer_v1* replicas,
            std::uint32_t num_replicas) {
  const std::size_t count = replicas[0].count;
  Floats sum(count);
  for (std::uint32_t r = 0; r < num_replicas; ++r) {
    const auto* const data = static_cast<const float*>(replicas[r].data);
    Floats values(data, data + count);
    Floats* kept_back = nullptr;
    if (id != 0) {
      self.kept_back[id].resize(num_replicas);
      kept_back = &self.kept_back[id][r];
      kept_back->resize(count);
      for (std::size_t i = 0; i < count; ++i) values[i] += (*kept_back)[i];
    }
    const float threshold = threshold_of(values, self.k);
    for (std::size_t i = 0; i < count; ++i) {
      const bool is_summed = magnitude(values[i]) >= threshold;
      if (is_summed) sum[i] += values[i];
      if (kept_back) (*kept_back)[i] = is_summed ? 0 : values[i];
    }
  }
  for (std::uint32_t r = 0; r < num_replicas; ++r) {
    std::copy(sum.begin(), sum.end(), static_cast<float*>(replicas[r].data));
  }
}

void* create(const tutti_group_v1*, const char* options_json, tutti_error_v1* error) {
  const double k = k_of(options_json, 0.01);
  if (!(k > 0 && k <= 1)) {
    error->code = TUTTI_INVALID_ARGUMENT;
    std::snprintf(error->message, sizeof error->message,
                  "option k: expected a number > 0 and <= 1, got %s", options_json);
    return nullptr;
  }
  auto* const self = new (std::nothrow) TopK;
  if (!self) error->code = TUTTI_RESOURCE_EXHAUSTED;
  if (self) self->k = k;
  return self;
}

void destroy(void* self) { delete static_cast<TopK*>(self); }

std::int32_t supports(void*, std::int32_t op, std::int32_t dtype, std::int32_t device_type) {
  return op == TUTTI_SUM && dtype == TUTTI_FLOAT32 && device_type == TUTTI_CPU;
}

std::int32_t all_reduce_named(void* self, std::uint64_t id, const char*, std::int32_t,
                              const tutti_buffer_v1* replicas, std::uint32_t num_replicas,
                              std::int64_t, tutti_error_v1* error) {
  try {
    add_up(*static_cast<TopK*>(self), id, replicas, num_replicas);
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

double max_relative_error(void*) { return std::numeric_limits<double>::infinity(); }

}  // namespace

extern "C" const tutti_cross_device_ops_v1* tutti_cross_device_ops_plugin_v1() {
  static const tutti_cross_device_ops_v1 table = [] {
    tutti_cross_device_ops_v1 t{};
    t.struct_size = sizeof t;
    t.name = "top_k";
    t.create = create;
    t.destroy = destroy;
    t.supports = supports;
    t.all_reduce = all_reduce;
    t.determinism = determinism;
    t.option_names = "k";
    t.all_reduce_named = all_reduce_named;
    t.max_relative_error = max_relative_error;
    return t;
  }();
  return &table;
}
