// Our own declarations of the part of PJRT's C API that is used here.
// SPDX-License-Identifier: Apache-2.0
//
// In all plugins of major version 0:
// * function i is at byte 40 + 8 i of the table; later versions append functions;
// * a plugin refuses an argument struct that is smaller than its own and accepts a larger one, so
//   each struct here ends in zeros, which mean that later versions' fields are not set. Structs
//   that are stored in arrays have their exact size instead.
// The offsets were compared with pjrt_c_api.h 0.81, 0.90 and 0.114.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti::internal {

struct PjrtError;
struct PjrtEvent;
struct PjrtClientHandle;
struct PjrtDevice;
struct PjrtDeviceDescription;
struct PjrtExecutableHandle;
struct PjrtLoadedExecutable;
struct PjrtBufferHandle;

/// Fields of the table that precede its functions.
struct PjrtApi {
  std::size_t struct_size;
  void* extension_start;
  std::size_t version_struct_size;
  void* version_extension_start;
  int major_version, minor_version;
};
static_assert(sizeof(PjrtApi) == 40);

/// Indices of the functions in the table.
enum class PjrtFunction : std::size_t {
  kErrorDestroy = 0,
  kErrorMessage = 1,
  kErrorGetCode = 2,
  kPluginInitialize = 3,
  kEventDestroy = 5,
  kEventAwait = 8,
  kClientCreate = 10,
  kClientPlatformName = 12,
  kClientAddressableDevices = 16,
  kClientCompile = 20,
  kClientBufferFromHostBuffer = 22,
  kDeviceDescriptionId = 23,
  kDeviceGetDescription = 29,
  kExecutableDestroy = 40,
  kExecutableNumOutputs = 44,
  kExecutableSerialize = 49,
  kLoadedExecutableDestroy = 50,
  kLoadedExecutableGetExecutable = 51,
  kLoadedExecutableExecute = 55,
  kExecutableDeserializeAndLoad = 56,
  kBufferDestroy = 58,
  kBufferElementType = 59,
  kBufferDimensions = 60,
  kBufferToHostBuffer = 70,
};

/// Arguments of a function: the leading members that all such structs share, `fields`, and room for
/// fields that later versions append.
template <class Fields>
struct PjrtArguments {
  std::size_t struct_size = sizeof(PjrtArguments);
  void* extension_start = nullptr;
  Fields fields = {};
  std::byte later_fields[64] = {};
};

/// Fields of functions whose only argument is a handle.
template <class Handle>
struct PjrtHandleFields {
  Handle* handle = nullptr;
};
struct PjrtErrorMessageFields {
  const PjrtError* error = nullptr;
  const char* message = nullptr;
  std::size_t size = 0;
};
struct PjrtErrorCodeFields {
  const PjrtError* error = nullptr;
  std::int64_t code = 0;  // a 32-bit enum, and the padding after it
};
struct PjrtNoFields {
  std::int64_t unused = 0;
};
/// Named option, an element of an array. `type`: 0 string, 1 integer.
struct PjrtNamedValue {
  std::size_t struct_size = 56;
  void* extension_start = nullptr;
  const char* name = nullptr;
  std::size_t name_size = 0;
  std::int64_t type = 0;
  union {
    const char* text;
    std::int64_t number;
  } value = {nullptr};
  std::size_t value_size = 0;
};
static_assert(sizeof(PjrtNamedValue) == 56);
struct PjrtClientCreateFields {
  const PjrtNamedValue* options = nullptr;
  std::size_t num_options = 0;
  void* key_value_callbacks[4] = {};
  PjrtClientHandle* client = nullptr;
  void* more_callbacks[2] = {};
};
static_assert(offsetof(PjrtClientCreateFields, client) == 64 - 16);
struct PjrtClientTextFields {
  PjrtClientHandle* client = nullptr;
  const char* text = nullptr;
  std::size_t size = 0;
};
struct PjrtClientDevicesFields {
  PjrtClientHandle* client = nullptr;
  PjrtDevice* const* devices = nullptr;
  std::size_t num_devices = 0;
};
struct PjrtDeviceDescriptionFields {
  PjrtDevice* device = nullptr;
  PjrtDeviceDescription* description = nullptr;
};
struct PjrtDeviceIdFields {
  PjrtDeviceDescription* description = nullptr;
  std::int64_t id = 0;  // a 32-bit number, and the padding after it
};
struct PjrtProgramFields {
  const char* code = nullptr;
  std::size_t code_size = 0;
  const char* format = nullptr;
  std::size_t format_size = 0;
};
using PjrtProgram = PjrtArguments<PjrtProgramFields>;
struct PjrtCompileFields {
  PjrtClientHandle* client = nullptr;
  const PjrtProgram* program = nullptr;
  const char* options = nullptr;
  std::size_t options_size = 0;
  PjrtLoadedExecutable* executable = nullptr;
};
static_assert(offsetof(PjrtCompileFields, executable) == 48 - 16);
struct PjrtFromHostFields {
  PjrtClientHandle* client = nullptr;
  const void* data = nullptr;
  std::int64_t type = 0;  // a 32-bit enum, and the padding after it
  const std::int64_t* dims = nullptr;
  std::size_t num_dims = 0;
  const std::int64_t* byte_strides = nullptr;
  std::size_t num_byte_strides = 0;
  std::int64_t semantics = 0;  // 0: `data` is copied during the call
  PjrtDevice* device = nullptr;
  void* memory = nullptr;
  void* layout = nullptr;
  PjrtEvent* done_with_host_buffer = nullptr;
  PjrtBufferHandle* buffer = nullptr;
};
static_assert(offsetof(PjrtFromHostFields, device) == 80 - 16);
static_assert(offsetof(PjrtFromHostFields, buffer) == 112 - 16);
struct PjrtGetExecutableFields {
  PjrtLoadedExecutable* loaded = nullptr;
  PjrtExecutableHandle* executable = nullptr;
};
struct PjrtExecutableSizeFields {
  PjrtExecutableHandle* executable = nullptr;
  std::size_t size = 0;
};
/// A serialized executable. `owner` owns `bytes`; `destroy_owner` destroys `owner`.
struct PjrtSerializeFields {
  const PjrtExecutableHandle* executable = nullptr;
  const char* bytes = nullptr;
  std::size_t size = 0;
  void* owner = nullptr;
  void (*destroy_owner)(void* owner) = nullptr;
};
struct PjrtDeserializeFields {
  PjrtClientHandle* client = nullptr;
  const char* bytes = nullptr;
  std::size_t size = 0;
  PjrtLoadedExecutable* executable = nullptr;
};
struct PjrtExecuteOptionsFields {
  void* send_callbacks = nullptr;
  void* receive_callbacks = nullptr;
  std::size_t num_send = 0;
  std::size_t num_receive = 0;
  std::int64_t launch_id = 0;  // a 32-bit field and its padding
  const std::int64_t* non_donatable = nullptr;
  std::size_t num_non_donatable = 0;
  void* context = nullptr;
  const char* call_location = nullptr;
  std::size_t num_tasks = 0;
  int* task_ids = nullptr;
  std::int64_t* incarnation_ids = nullptr;
};
using PjrtExecuteOptions = PjrtArguments<PjrtExecuteOptionsFields>;
static_assert(offsetof(PjrtExecuteOptions, later_fields) == 112);
struct PjrtExecuteFields {
  PjrtLoadedExecutable* loaded = nullptr;
  PjrtExecuteOptions* options = nullptr;
  PjrtBufferHandle* const* const* argument_lists = nullptr;
  std::size_t num_devices = 0;
  std::size_t num_arguments = 0;
  PjrtBufferHandle** const* output_lists = nullptr;
  PjrtEvent** device_complete_events = nullptr;
  PjrtDevice* execute_device = nullptr;
};
static_assert(offsetof(PjrtExecuteFields, execute_device) == 72 - 16);
struct PjrtBufferTypeFields {
  PjrtBufferHandle* buffer = nullptr;
  std::int64_t type = 0;  // a 32-bit enum, and the padding after it
};
struct PjrtBufferDimensionsFields {
  PjrtBufferHandle* buffer = nullptr;
  const std::int64_t* dims = nullptr;
  std::size_t num_dims = 0;
};
struct PjrtToHostFields {
  PjrtBufferHandle* buffer = nullptr;
  void* layout = nullptr;
  void* to = nullptr;
  std::size_t size = 0;
  PjrtEvent* done = nullptr;
};

}  // namespace tutti::internal
