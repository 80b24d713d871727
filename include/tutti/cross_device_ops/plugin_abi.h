// C interface between tutti and cross-device operations in shared libraries.
// SPDX-License-Identifier: Apache-2.0
//
// A plugin includes only this file and exports one function, TUTTI_PLUGIN_SYMBOL, which returns its
// table. docs/adding_a_cross_device_op.md walks through an example.
//
// In version 1, the values of the constants, the structs tutti_device_v1, tutti_buffer_v1 and
// tutti_error_v1, and the members declared here never change. New members are added at the end of
// tutti_group_v1 and tutti_cross_device_ops_v1; the first member of each is the size of the struct
// as compiled. A member that is missing or NULL has the behaviour described at 'Default'. No
// exception may cross the interface. Memory belongs to the side that allocated it; arguments are
// valid until the call returns.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Reductions, element types, kinds of devices. MEAN is never passed, because tutti sums and then
// divides.
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

// Return codes. If a function returns a code other than TUTTI_OK, it fills in the tutti_error_v1.
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

// An operation's guarantee for the order of additions: none; bit-identical sums from run to run;
// the order of tutti's canonical tree (docs/determinism.md).
enum { TUTTI_GRADE_NONE = 0, TUTTI_GRADE_RUN_TO_RUN = 1, TUTTI_GRADE_CANONICAL = 2 };

// Levels of log lines.
enum { TUTTI_LOG_DEBUG = 0, TUTTI_LOG_INFO = 1, TUTTI_LOG_WARNING = 2, TUTTI_LOG_ERROR = 3 };

// A device: TUTTI_CPU or TUTTI_GPU, and its number.
typedef struct tutti_device_v1 {
  int32_t type;
  int32_t index;
} tutti_device_v1;

// Contiguous buffer of one replica; its address is a multiple of the element's size. A function
// must not change its inputs.
typedef struct tutti_buffer_v1 {
  void* data;
  uint64_t count;  // elements
  int32_t dtype;
  tutti_device_v1 device;
  int32_t reserved;
  void* stream;  // the native handle of a GPU's stream; NULL on CPUs
} tutti_buffer_v1;

// Error of a call. `message` is null-terminated, without the plugin's name, and truncated if it is
// too long.
typedef struct tutti_error_v1 {
  int32_t code;
  char message[508];
} tutti_error_v1;

// The group. Members are numbered across all processes: this process has first_rank to first_rank +
// local_count - 1. With one process, world_size == local_count and first_rank == 0.
typedef struct tutti_group_v1 {
  uint32_t struct_size;
  int32_t world_size;
  int32_t first_rank;
  uint32_t local_count;
  const tutti_device_v1* devices;  // devices of the local replicas
  // Writes a line to tutti's log. Thread-safe.
  void (*log)(int32_t level, const char* text);
  // Store of small values that all processes of the group share in order to find each other.
  // Keys belong to the group: 1 to 150 characters (letters, digits, '_', '-', '.' and '/').
  // `store`, `set` and `get` are NULL if the group has no store. Usable until destroy() has
  // returned. Thread-safe.
  void* store;
  // Sets a value of `size` bytes, at most 1 MiB; replaces an earlier value.
  int32_t (*set)(void* store, const char* key, const void* value, uint64_t size,
                 tutti_error_v1* error);
  // Waits until the key exists, for at most timeout_ms (-1: 2 minutes). With timeout_ms 0, does not
  // wait and fails with TUTTI_NOT_FOUND if there is no such key. Sets *size and copies the value;
  // fails with TUTTI_OUT_OF_RANGE if the value exceeds `capacity`.
  int32_t (*get)(void* store, const char* key, void* value, uint64_t capacity, uint64_t* size,
                 int64_t timeout_ms, tutti_error_v1* error);
} tutti_group_v1;

// Function table of an operation, exported by a plugin. `self` is the result of create().
typedef struct tutti_cross_device_ops_v1 {
  uint32_t struct_size;  // sizeof(tutti_cross_device_ops_v1)
  uint32_t reserved;     // 0
  // 1 to 63 characters: letters, digits, '_', '-' and '.'.
  const char* name;
  // Creates an operation for `group`; the result is passed to the other functions as `self`.
  // `options_json` is an object with "bytes_per_pack", "timeout_ms" (-1: the library's default),
  // "strict" and, if the user sets any of option_names, an object "options" with their values.
  // Returns NULL and fills in `error` on failure. Required.
  void* (*create)(const tutti_group_v1* group, const char* options_json, tutti_error_v1* error);
  // Required.
  void (*destroy)(void* self);
  // Returns 1 if the plugin's reductions support this combination, else 0. If 0, tutti passes
  // bfloat16 and float16 as float32, and reduces other types without the plugin. Thread-safe.
  // Required.
  int32_t (*supports)(void* self, int32_t op, int32_t dtype, int32_t device_type);
  // Combines the buffers of all replicas, local and in other processes, element by element;
  // afterwards each buffer holds the result. All buffers have the same type and the same count,
  // which is above 0. There are at least two buffers, except in groups of several processes. tutti
  // makes one call at a time per `self`, from any thread. `timeout_ms` has the same meaning as in
  // create. Required.
  int32_t (*all_reduce)(void* self, int32_t op, const tutti_buffer_v1* replicas,
                        uint32_t num_replicas, int64_t timeout_ms, tutti_error_v1* error);
  // Returns the TUTTI_GRADE_... of this object. Default: TUTTI_GRADE_NONE.
  int32_t (*determinism)(void* self);

  // Returns 1 if the operation works in groups of several processes, which all make the same calls
  // in the same order, each with its own replicas' buffers. Default: 0; tutti then refuses groups
  // of several processes before it calls create.
  int32_t (*spans_processes)(void);

  // The following functions follow the conventions of all_reduce. By default, tutti implements them
  // on top of all_reduce and copies; between processes, it uses its own messages. `root` and
  // `counts` refer to the whole group; `num_replicas` is local_count. A replica's input and output
  // must not overlap unless stated otherwise. Collectives that do not combine values (broadcast,
  // all_gather, all_to_all) receive buffers of every type, regardless of supports().

  // Combines the inputs into *output, which may be the root's input. `output` is NULL if the root
  // is in another process.
  int32_t (*reduce)(void* self, int32_t op, const tutti_buffer_v1* inputs, uint32_t num_replicas,
                    const tutti_buffer_v1* output, int32_t root, int64_t timeout_ms,
                    tutti_error_v1* error);
  // Copies the root's buffer into all other buffers.
  int32_t (*broadcast)(void* self, const tutti_buffer_v1* buffers, uint32_t num_replicas,
                       int32_t root, int64_t timeout_ms, tutti_error_v1* error);
  // Concatenates all inputs in member order into each output; counts[r] >= 0 is the length of
  // member r's input. Member r's input may already be at its final position in member r's output.
  int32_t (*all_gather)(void* self, const tutti_buffer_v1* inputs, const tutti_buffer_v1* outputs,
                        uint32_t num_replicas, const uint64_t* counts, int64_t timeout_ms,
                        tutti_error_v1* error);
  // Combines the inputs; member r's output receives part r, which has counts[r] elements. This
  // output may be stored in part r of member r's input.
  int32_t (*reduce_scatter)(void* self, int32_t op, const tutti_buffer_v1* inputs,
                            const tutti_buffer_v1* outputs, uint32_t num_replicas,
                            const uint64_t* counts, int64_t timeout_ms, tutti_error_v1* error);
  // Exchanges parts. counts[r * world_size + s]: elements that member r sends to s, ordered by s in
  // r's input and by r in s's output.
  int32_t (*all_to_all)(void* self, const tutti_buffer_v1* inputs, const tutti_buffer_v1* outputs,
                        uint32_t num_replicas, const uint64_t* counts, int64_t timeout_ms,
                        tutti_error_v1* error);
  // Aborts the call that another thread is running; that call must soon return TUTTI_ABORTED.
  // `code` and `message` are the reason. Thread-safe. Afterwards tutti calls only destroy().
  // Default: the running call continues to its end.
  void (*abort)(void* self, int32_t code, const char* message);

  // Returns 1 if several threads may call all_reduce concurrently on disjoint ranges of the same
  // buffers. tutti may bypass such an operation if it is also TUTTI_GRADE_CANONICAL and the values
  // are accessible, because the results are bit-identical. Default: 0.
  int32_t (*sliceable)(void* self);

  // Names of the plugin's own options, separated by ','. Other names are rejected before create is
  // called. Default: no options.
  const char* option_names;
  // Same as all_reduce, and called instead of it, for a plugin that keeps state per buffer between
  // calls. `id` and `name` (null-terminated) identify the buffer, such as a bucket of gradients:
  // they are the same in every call, and no two buffers have the same `id`. They are 0 and "" if
  // calls are not known to repeat. Default: all_reduce.
  int32_t (*all_reduce_named)(void* self, uint64_t id, const char* name, int32_t op,
                              const tutti_buffer_v1* replicas, uint32_t num_replicas,
                              int64_t timeout_ms, tutti_error_v1* error);
  // Upper bound on the error of a TUTTI_SUM of floating-point types, in units of each replica's
  // largest magnitude in the buffer, summed over the replicas. 0 means that only additions round;
  // INFINITY means that there is no bound. It is 0 with TUTTI_GRADE_CANONICAL. Default: 0.
  double (*max_relative_error)(void* self);
} tutti_cross_device_ops_v1;

// The one function that a plugin exports. Returns the plugin's table, which must never change.
typedef const tutti_cross_device_ops_v1* (*tutti_plugin_entry_v1)(void);
// Name of the function that a plugin exports.
#define TUTTI_PLUGIN_SYMBOL "tutti_cross_device_ops_plugin_v1"

#ifdef __cplusplus
}
#endif
