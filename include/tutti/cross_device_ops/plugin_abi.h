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

// Levels of log lines.
enum { TUTTI_LOG_DEBUG = 0, TUTTI_LOG_INFO = 1, TUTTI_LOG_WARNING = 2, TUTTI_LOG_ERROR = 3 };

// A device: TUTTI_CPU or TUTTI_GPU, and its number.
typedef struct tutti_device_v1 {
  int32_t type;
  int32_t index;
} tutti_device_v1;

// The contiguous buffer of one replica; its address is a multiple of the element's size. What a
// function gets as input stays as it is.
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

// The group. One process: world_size == local_count, first_rank == 0. The members of the
// group are numbered over all processes: this one has first_rank to first_rank + local_count - 1.
typedef struct tutti_group_v1 {
  uint32_t struct_size;
  int32_t world_size;
  int32_t first_rank;
  uint32_t local_count;
  const tutti_device_v1* devices;  // of the local replicas
  // Writes a line into tutti's log. Any thread.
  void (*log)(int32_t level, const char* text);
  // Small values that all processes of the group share, under keys of the group's own (1 to 150
  // characters: letters, digits, '_', '-', '.' and '/'): how they find each other. All three are
  // NULL where the group has none. Until destroy() returned; any thread.
  void* store;
  // `size` bytes, 1 MiB at most; replaces an earlier value.
  int32_t (*set)(void* store, const char* key, const void* value, uint64_t size,
                 tutti_error_v1* error);
  // Waits until the key is there; timeout_ms 0: looks once (TUTTI_NOT_FOUND), -1: 2 minutes. Then
  // sets *size to the value's; copies it if `capacity` suffices, else TUTTI_OUT_OF_RANGE.
  int32_t (*get)(void* store, const char* key, void* value, uint64_t capacity, uint64_t* size,
                 int64_t timeout_ms, tutti_error_v1* error);
} tutti_group_v1;

// The table of an operation: what a plugin exports. `self` is what create() returned.
typedef struct tutti_cross_device_ops_v1 {
  uint32_t struct_size;  // sizeof(tutti_cross_device_ops_v1)
  uint32_t reserved;     // 0
  // 1 to 63 characters: letters, digits, '_', '-' and '.'.
  const char* name;
  // Makes an operation for `group`: what the other functions get as `self`. `options_json` is an
  // object: "bytes_per_pack", "timeout_ms" (-1: the library's default), "strict" and, where the
  // user gives some of option_names, "options": an object of these. Returns NULL with `error`
  // filled in when that fails. Required.
  void* (*create)(const tutti_group_v1* group, const char* options_json, tutti_error_v1* error);
  // Required.
  void (*destroy)(void* self);
  // Whether its reductions can do this; 0 or 1. Where it says 0, tutti reduces otherwise (and
  // bfloat16 and float16 arrive as float32). Any thread. Required.
  int32_t (*supports)(void* self, int32_t op, int32_t dtype, int32_t device_type);
  // Combines the buffers of the local replicas (of one count above 0 and one type; two or more,
  // but for groups of several processes) element by element, with those of the other processes;
  // afterwards each holds the result. One call at a time per `self`, from any thread. `timeout_ms`
  // as in create. Required.
  int32_t (*all_reduce)(void* self, int32_t op, const tutti_buffer_v1* replicas,
                        uint32_t num_replicas, int64_t timeout_ms, tutti_error_v1* error);
  // A TUTTI_GRADE_... of this object. Default: TUTTI_GRADE_NONE.
  int32_t (*determinism)(void* self);

  // 1: works in groups of several processes, which then call it in the same order with their own
  // replicas' buffers. Default: 0, and tutti refuses such groups before create.
  int32_t (*spans_processes)(void);

  // The following are as all_reduce. Default of each: made of all_reduce and of copies, or, between
  // processes, of tutti's messages. `root` and `counts` are those of the whole group;
  // `num_replicas` is local_count; input and output of one replica may be the same memory where
  // that is said, else they do not overlap. What combines nothing (broadcast, all_gather,
  // all_to_all) gets buffers of every type, whatever supports() says.

  // Into *output, which may be the root's input; NULL where the root is in another process.
  int32_t (*reduce)(void* self, int32_t op, const tutti_buffer_v1* inputs, uint32_t num_replicas,
                    const tutti_buffer_v1* output, int32_t root, int64_t timeout_ms,
                    tutti_error_v1* error);
  // Copies the root's buffer into all others.
  int32_t (*broadcast)(void* self, const tutti_buffer_v1* buffers, uint32_t num_replicas,
                       int32_t root, int64_t timeout_ms, tutti_error_v1* error);
  // Each output gets all inputs in the order of the members; counts[r], 0 or more, is the length of
  // member r's. An input may be its own part of its replica's output.
  int32_t (*all_gather)(void* self, const tutti_buffer_v1* inputs, const tutti_buffer_v1* outputs,
                        uint32_t num_replicas, const uint64_t* counts, int64_t timeout_ms,
                        tutti_error_v1* error);
  // Combines the inputs; member r's output gets part r, counts[r] long, which may be its own part
  // of its replica's input.
  int32_t (*reduce_scatter)(void* self, int32_t op, const tutti_buffer_v1* inputs,
                            const tutti_buffer_v1* outputs, uint32_t num_replicas,
                            const uint64_t* counts, int64_t timeout_ms, tutti_error_v1* error);
  // counts[r * world_size + s]: elements that member r sends to s: in the order of s in r's input,
  // of r in s's output.
  int32_t (*all_to_all)(void* self, const tutti_buffer_v1* inputs, const tutti_buffer_v1* outputs,
                        uint32_t num_replicas, const uint64_t* counts, int64_t timeout_ms,
                        tutti_error_v1* error);
  // Makes the running call, on another thread, return TUTTI_ABORTED soon. `code` and `message` say
  // why. Any thread. tutti makes no calls but destroy afterwards. Default: a running call ends by
  // itself.
  void (*abort)(void* self, int32_t code, const char* message);

  // 1: all_reduce may be called by several threads at once on disjoint ranges of the same buffers.
  // An operation that says so and is TUTTI_GRADE_CANONICAL may not be asked at all where tutti has
  // the values in reach: the bits are the same. Default: 0.
  int32_t (*sliceable)(void* self);

  // Names of the plugin's own options, with ',' between them. Others are refused before create.
  // Default: it has none.
  const char* option_names;
  // As all_reduce, and called in its place, for a plugin that keeps state of a buffer between
  // calls: `id` and `name` (ended by a 0) are the same for the same buffer in every call, such as a
  // bucket of gradients in every step, and `id` differs between buffers; 0 and "" where calls are
  // not known to repeat. Default: all_reduce.
  int32_t (*all_reduce_named)(void* self, uint64_t id, const char* name, int32_t op,
                              const tutti_buffer_v1* replicas, uint32_t num_replicas,
                              int64_t timeout_ms, tutti_error_v1* error);
  // Upper bound of the error of a TUTTI_SUM of floating types, in units of the sum over replicas of
  // a replica's largest magnitude in the buffer. 0: additions are rounded, and nothing else;
  // INFINITY: lossy, without a bound. TUTTI_GRADE_CANONICAL implies 0. Default: 0.
  double (*max_relative_error)(void* self);
} tutti_cross_device_ops_v1;

// The one function that a plugin exports: returns its table, which must stay as it is for ever.
typedef const tutti_cross_device_ops_v1* (*tutti_plugin_entry_v1)(void);
// Its name.
#define TUTTI_PLUGIN_SYMBOL "tutti_cross_device_ops_plugin_v1"

#ifdef __cplusplus
}
#endif
