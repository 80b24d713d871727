// The C interface between tutti and cross-device operations in shared libraries.
// SPDX-License-Identifier: Apache-2.0
//
// A plugin includes this file alone, and exports one function, TUTTI_PLUGIN_SYMBOL, which returns
// its table. docs/adding_a_cross_device_op.md walks through one.
//
// What never changes in version 1: the values of the constants, tutti_device_v1, tutti_buffer_v1
// and tutti_error_v1, and the members below. New members come at the end of tutti_group_v1 and
// tutti_cross_device_ops_v1, whose first member says how long they are where they were compiled: a
// member that is not there, or NULL, means "as described at 'default'". No exception may cross the
// border. Memory stays with who allocated it; what a call is given is valid until it returns.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Reductions, element types, kinds of devices. MEAN never arrives: tutti divides.
enum { TUTTI_SUM = 0, TUTTI_MIN = 2, TUTTI_MAX = 3, TUTTI_PRODUCT = 4 };
enum {
  TUTTI_FLOAT32 = 0,
  TUTTI_FLOAT64 = 1,
  TUTTI_INT32 = 2,
  TUTTI_INT64 = 3,
  TUTTI_UINT8 = 4,
  TUTTI_BOOL = 5,
  TUTTI_BFLOAT16 = 6,
  TUTTI_FLOAT16 = 7
};
enum { TUTTI_CPU = 0, TUTTI_GPU = 1 };

// What functions return. TUTTI_OK is success; with another one they fill in the tutti_error_v1.
enum {
  TUTTI_OK = 0,
  TUTTI_CANCELLED = 1,
  TUTTI_INVALID_ARGUMENT = 3,
  TUTTI_DEADLINE_EXCEEDED = 4,
  TUTTI_NOT_FOUND = 5,
  TUTTI_ALREADY_EXISTS = 6,
  TUTTI_RESOURCE_EXHAUSTED = 8,
  TUTTI_FAILED_PRECONDITION = 9,
  TUTTI_ABORTED = 10,
  TUTTI_OUT_OF_RANGE = 11,
  TUTTI_UNIMPLEMENTED = 12,
  TUTTI_INTERNAL = 13,
  TUTTI_UNAVAILABLE = 14,
  TUTTI_DATA_LOSS = 15
};

// What an operation promises about the order of additions: nothing; the same bits in each run; the
// order of tutti's canonical tree (docs/determinism.md).
enum { TUTTI_GRADE_NONE = 0, TUTTI_GRADE_RUN_TO_RUN = 1, TUTTI_GRADE_CANONICAL = 2 };

enum { TUTTI_LOG_DEBUG = 0, TUTTI_LOG_INFO = 1, TUTTI_LOG_WARNING = 2, TUTTI_LOG_ERROR = 3 };

typedef struct tutti_device_v1 {
  int32_t type;
  int32_t index;
} tutti_device_v1;

// The contiguous buffer of one replica; its address is a multiple of the element's size.
typedef struct tutti_buffer_v1 {
  void* data;
  uint64_t count;  // elements
  int32_t dtype;
  tutti_device_v1 device;
  int32_t reserved;
  void* stream;  // the native handle of a GPU's stream; NULL on CPUs
} tutti_buffer_v1;

// For the message: text without the plugin's name, ended by a 0, cut where it is longer.
typedef struct tutti_error_v1 {
  int32_t code;
  char message[508];
} tutti_error_v1;

// Who takes part. One process: world_size == local_count, first_rank == 0.
typedef struct tutti_group_v1 {
  uint32_t struct_size;
  int32_t world_size;
  int32_t first_rank;
  uint32_t local_count;
  const tutti_device_v1* devices;  // of the local replicas
  // Writes a line into tutti's log. Any thread.
  void (*log)(int32_t level, const char* text);
} tutti_group_v1;

typedef struct tutti_cross_device_ops_v1 {
  uint32_t struct_size;  // sizeof(tutti_cross_device_ops_v1)
  uint32_t reserved;     // 0
  // 1 to 63 characters: letters, digits, '_', '-' and '.'.
  const char* name;
  // Makes an operation for `group`: what the other functions get as `self`. `options_json` is an
  // object: "bytes_per_pack", "timeout_ms" (-1: the library's default) and "strict". Returns NULL
  // with `error` filled in when that fails. Required.
  void* (*create)(const tutti_group_v1* group, const char* options_json, tutti_error_v1* error);
  // Required.
  void (*destroy)(void* self);
  // Whether all_reduce can do this; 0 or 1. Where it says 0, tutti reduces otherwise (and bfloat16
  // and float16 arrive as float32). Any thread. Required.
  int32_t (*supports)(void* self, int32_t op, int32_t dtype, int32_t device_type);
  // Combines the buffers of the local replicas (two or more, of one count above 0 and one type)
  // element by element; afterwards each holds the result. One call at a time per `self`, from any
  // thread. `timeout_ms` as in create. Required.
  int32_t (*all_reduce)(void* self, int32_t op, const tutti_buffer_v1* replicas,
                        uint32_t num_replicas, int64_t timeout_ms, tutti_error_v1* error);
  // A TUTTI_GRADE_... of this object. Default: TUTTI_GRADE_NONE.
  int32_t (*determinism)(void* self);
} tutti_cross_device_ops_v1;

// The one function that a plugin exports: returns its table, which must stay as it is for ever.
typedef const tutti_cross_device_ops_v1* (*tutti_plugin_entry_v1)(void);
#define TUTTI_PLUGIN_SYMBOL "tutti_cross_device_ops_plugin_v1"

#ifdef __cplusplus
}
#endif
