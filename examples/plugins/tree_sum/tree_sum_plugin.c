// Cross-device operation in C, as a shared library: sums the float32 values of CPU replicas in a
// tree.
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tutti/cross_device_ops/plugin_abi.h"

typedef struct {
  uint64_t calls;
} state;

static void* create(const tutti_group_v1* group, const char* options_json, tutti_error_v1* error) {
  (void)group;
  (void)options_json;
  state* self = calloc(1, sizeof *self);
  if (!self) snprintf(error->message, sizeof error->message, "out of memory");
  if (!self) error->code = TUTTI_RESOURCE_EXHAUSTED;
  return self;
}

static void destroy(void* self) { free(self); }

static int32_t supports(void* self, int32_t op, int32_t dtype, int32_t device_type) {
  (void)self;
  return op == TUTTI_SUM && dtype == TUTTI_FLOAT32 && device_type == TUTTI_CPU;
}

static void add(float* sum, const float* addend, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) sum[i] += addend[i];
}

static int32_t all_reduce(void* self, int32_t op, const tutti_buffer_v1* replicas, uint32_t n,
                          int64_t timeout_ms, tutti_error_v1* error) {
  (void)op;
  (void)timeout_ms;
  (void)error;
  const uint64_t count = replicas[0].count;
  for (uint32_t stride = 1; stride < n; stride *= 2) {
    for (uint32_t i = 0; i + stride < n; i += 2 * stride)
      add(replicas[i].data, replicas[i + stride].data, count);
  }
  for (uint32_t r = 1; r < n; ++r)
    memcpy(replicas[r].data, replicas[0].data, count * sizeof(float));
  ((state*)self)->calls += 1;
  return TUTTI_OK;
}

static int32_t determinism(void* self) {
  (void)self;
  return TUTTI_GRADE_CANONICAL;
}

const tutti_cross_device_ops_v1* tutti_cross_device_ops_plugin_v1(void) {
  static const tutti_cross_device_ops_v1 table = {.struct_size = sizeof table,
                                                  .name = "tree_sum",
                                                  .create = create,
                                                  .destroy = destroy,
                                                  .supports = supports,
                                                  .all_reduce = all_reduce,
                                                  .determinism = determinism};
  return &table;
}
