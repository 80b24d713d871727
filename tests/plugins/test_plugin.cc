// Plugin that sums float32 buffers on CPUs. Macros select variants with various errors (see
// CMakeLists.txt).
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tutti/cross_device_ops/plugin_abi.h"

namespace {

[[maybe_unused]] void say(tutti_error_v1* error, int32_t code, const char* text) {
  error->code = code;
  std::snprintf(error->message, sizeof(error->message), "%s", text);
}

void* create(const tutti_group_v1* group, const char* options_json, tutti_error_v1* error) {
#if defined(PLUGIN_CREATE_FAILS)
  say(error, TUTTI_RESOURCE_EXHAUSTED, "no fabric");
  (void)group, (void)options_json;
  return nullptr;
#elif defined(PLUGIN_CREATE_IS_SILENT)
  (void)group, (void)options_json, (void)error;
  return nullptr;
#else
  (void)error;
  if (group->struct_size < sizeof(tutti_group_v1)) return nullptr;
  char line[320];
  std::snprintf(line, sizeof(line), "%s: %d of %d, first %d, %s", PLUGIN_NAME,
                static_cast<int>(group->local_count), group->world_size, group->first_rank,
                options_json);
  group->log(TUTTI_LOG_INFO, line);
  static int self;
  return &self;
#endif
}

void destroy(void*) {}

int32_t supports(void*, int32_t op, int32_t dtype, int32_t device_type) {
  return op == TUTTI_SUM && dtype == TUTTI_FLOAT32 && device_type == TUTTI_CPU;
}

int32_t all_reduce(void*, int32_t op, const tutti_buffer_v1* replicas, uint32_t num_replicas,
                   int64_t timeout_ms, tutti_error_v1* error) {
#if defined(PLUGIN_REDUCE_FAILS) || defined(PLUGIN_CANONICAL)
  (void)op, (void)replicas, (void)num_replicas;
  char text[64];
  std::snprintf(text, sizeof(text), "peer 3 is silent for %d ms", static_cast<int>(timeout_ms));
  say(error, TUTTI_DEADLINE_EXCEEDED, text);
  return TUTTI_DEADLINE_EXCEEDED;
#elif defined(PLUGIN_REDUCE_CRASHES)
  (void)op, (void)replicas, (void)num_replicas, (void)timeout_ms, (void)error;
  std::abort();
#elif defined(PLUGIN_REDUCE_HANGS)
  (void)op, (void)replicas, (void)num_replicas, (void)timeout_ms, (void)error;
  for (;;) ::pause();
#elif defined(PLUGIN_ODD_CODE)
  (void)op, (void)replicas, (void)num_replicas, (void)timeout_ms;
  std::memset(error->message, 'x', sizeof(error->message));  // without a terminating 0
  return 99;
#else
  (void)op, (void)timeout_ms, (void)error;
  auto* const sum = static_cast<float*>(replicas[0].data);
  const std::size_t count = replicas[0].count;
  for (uint32_t r = 1; r < num_replicas; ++r) {
    const auto* const addend = static_cast<const float*>(replicas[r].data);
    for (std::size_t i = 0; i < count; ++i) sum[i] += addend[i];
  }
  for (uint32_t r = 1; r < num_replicas; ++r) {
    std::memcpy(replicas[r].data, sum, count * sizeof(float));
  }
  return TUTTI_OK;
#endif
}

int32_t determinism(void*) {
#if defined(PLUGIN_ODD_GRADE)
  return 7;
#elif defined(PLUGIN_CANONICAL)
  return TUTTI_GRADE_CANONICAL;
#else
  return TUTTI_GRADE_RUN_TO_RUN;
#endif
}

[[maybe_unused]] int32_t sliceable(void*) { return 1; }

[[maybe_unused]] double max_relative_error(void*) { return -1.0; }

// Table of a later ABI version, with a member that this version does not know.
struct NewerTable {
  tutti_cross_device_ops_v1 known;
  void (*later)(void*);
};

const tutti_cross_device_ops_v1* table() {
  static NewerTable table{};
  tutti_cross_device_ops_v1& t = table.known;
  t = tutti_cross_device_ops_v1{};
  t.struct_size = sizeof(tutti_cross_device_ops_v1);
  t.name = PLUGIN_NAME;
  t.create = create;
  t.destroy = destroy;
  t.supports = supports;
  t.all_reduce = all_reduce;
  t.determinism = determinism;
#if defined(PLUGIN_OLDER)
  t.struct_size = offsetof(tutti_cross_device_ops_v1, determinism);
#elif defined(PLUGIN_ONE_PROCESS)
  t.struct_size = offsetof(tutti_cross_device_ops_v1, spans_processes);
#elif defined(PLUGIN_CANONICAL)
  t.sliceable = sliceable;
#elif defined(PLUGIN_NEWER)
  t.struct_size = sizeof(NewerTable);
#elif defined(PLUGIN_WITHOUT_OPTIONS)  // like a plugin compiled before options existed
  t.struct_size = offsetof(tutti_cross_device_ops_v1, option_names);
  t.option_names = "k";
  t.max_relative_error = max_relative_error;
#elif defined(PLUGIN_ODD_ERROR)
  t.max_relative_error = max_relative_error;
#elif defined(PLUGIN_TINY)
  t.struct_size = 8;
#elif defined(PLUGIN_HUGE)
  t.struct_size = 0xdeadbee0u;
#elif defined(PLUGIN_NO_NAME)
  t.name = nullptr;
#elif defined(PLUGIN_EMPTY_NAME)
  t.name = "";
#elif defined(PLUGIN_BAD_NAME)
  t.name = "two words";
#elif defined(PLUGIN_LONG_NAME)
  t.name = "a23456789_b23456789_c23456789_d23456789_e23456789_f23456789_g23456789";
#elif defined(PLUGIN_NO_CREATE)
  t.create = nullptr;
#elif defined(PLUGIN_NO_DESTROY)
  t.destroy = nullptr;
#elif defined(PLUGIN_NO_SUPPORTS)
  t.supports = nullptr;
#elif defined(PLUGIN_NO_ALL_REDUCE)
  t.all_reduce = nullptr;
#elif defined(PLUGIN_RESERVED)
  t.reserved = 1;
#elif defined(PLUGIN_TAKEN)
  t.name = "ring";
#elif defined(PLUGIN_NULL_TABLE)
  return nullptr;
#endif
  return &t;
}

}  // namespace

#if defined(PLUGIN_NO_SYMBOL)
extern "C" const void* some_other_symbol() { return table(); }
#elif defined(PLUGIN_VERSION_2)
extern "C" const void* tutti_cross_device_ops_plugin_v2() { return table(); }
#else
extern "C" const tutti_cross_device_ops_v1* tutti_cross_device_ops_plugin_v1() { return table(); }
#endif
