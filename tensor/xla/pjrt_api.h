// The C table of a PJRT plugin, as far as it is used here: own declarations.
// SPDX-License-Identifier: Apache-2.0
//
// Facts that hold for all plugins of major version 0:
//  * function i stands at byte 40 + 8 i of the table; later versions append;
//  * a plugin refuses an argument struct that is smaller than its own and accepts a larger one, so
//    each struct here ends in zeros, which are what later versions' fields mean when they are left
//    out. Structs that stand in arrays have their exact size instead.
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

/// The table up to its functions.
struct PjrtApi {
  std::size_t struct_size;
  void* extension_start;
  std::size_t version_struct_size;
  void* version_extension_start;
  int major_version, minor_version;
};
static_assert(sizeof(PjrtApi) == 40);

/// Numbers of the functions.
enum class PjrtFunction : std::size_t {
  kErrorDestroy = 0,
  kErrorMessage = 1,
  kErrorGetCode = 2,
  kPluginInitialize = 3,
  kEventDestroy = 5,
  kEventAwait = 8,
  kClientCreate = 10,
  kClientDestroy = 11,
  kClientPlatformName = 12,
  kClientPlatformVersion = 14,
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
  kLoadedExecutableAddressableDevices = 52,
  kLoadedExecutableExecute = 55,
  kExecutableDeserializeAndLoad = 56,
  kBufferDestroy = 58,
  kBufferElementType = 59,
  kBufferDimensions = 60,
  kBufferToHostBuffer = 70,
};

/// Arguments of a function: these fields between what all structs begin with and room for fields
/// that later versions append.
template <class Fields>
struct PjrtArguments {
  std::size_t struct_size = sizeof(PjrtArguments);
  void* extension_start = nullptr;
  Fields fields = {};
  std::byte later_fields[64] = {};
};

struct PjrtErrorFields {
  const PjrtError* error;
};
struct PjrtErrorMessageFields {
  const PjrtError* error;
  const char* message;
  std::size_t size;
};
struct PjrtErrorCodeFields {
  const PjrtError* error;
  std::int64_t code;  // a 32-bit enum, and the padding behind it
};
struct PjrtNoFields {
  std::int64_t unused;
};
struct PjrtEventFields {
  PjrtEvent* event;
};
/// An option; stands in arrays. `type`: 0 text, 1 number.
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
  const PjrtNamedValue* options;
  std::size_t num_options;
  void* key_value_callbacks[4];
  PjrtClientHandle* client;
  void* more_callbacks[2];
};
static_assert(offsetof(PjrtClientCreateFields, client) == 64 - 16);
struct PjrtClientFields {
  PjrtClientHandle* client;
};
struct PjrtClientTextFields {
  PjrtClientHandle* client;
  const char* text;
  std::size_t size;
};
struct PjrtClientDevicesFields {
  PjrtClientHandle* client;
  PjrtDevice* const* devices;
  std::size_t num_devices;
};
struct PjrtDeviceDescriptionFields {
  PjrtDevice* device;
  PjrtDeviceDescription* description;
};
struct PjrtDeviceIdFields {
  PjrtDeviceDescription* description;
  std::int64_t id;  // a 32-bit number, and the padding behind it
};
struct PjrtProgramFields {
  const char* code;
  std::size_t code_size;
  const char* format;
  std::size_t format_size;
};
using PjrtProgram = PjrtArguments<PjrtProgramFields>;
struct PjrtCompileFields {
  PjrtClientHandle* client;
  const PjrtProgram* program;
  const char* options;
  std::size_t options_size;
  PjrtLoadedExecutable* executable;
};
static_assert(offsetof(PjrtCompileFields, executable) == 48 - 16);
struct PjrtFromHostFields {
  PjrtClientHandle* client;
  const void* data;
  std::int64_t type;  // a 32-bit enum, and the padding behind it
  const std::int64_t* dims;
  std::size_t num_dims;
  const std::int64_t* byte_strides;
  std::size_t num_byte_strides;
  std::int64_t semantics;  // 0: `data` is copied during the call
  PjrtDevice* device;
  void* memory;
  void* layout;
  PjrtEvent* done_with_host_buffer;
  PjrtBufferHandle* buffer;
};
static_assert(offsetof(PjrtFromHostFields, device) == 80 - 16);
static_assert(offsetof(PjrtFromHostFields, buffer) == 112 - 16);
struct PjrtGetExecutableFields {
  PjrtLoadedExecutable* loaded;
  PjrtExecutableHandle* executable;
};
struct PjrtLoadedExecutableFields {
  PjrtLoadedExecutable* loaded;
};
struct PjrtExecutableFields {
  PjrtExecutableHandle* executable;
};
struct PjrtExecutableSizeFields {
  PjrtExecutableHandle* executable;
  std::size_t size;
};
/// `bytes` are those of `owner`, which `destroy_owner` destroys.
struct PjrtSerializeFields {
  const PjrtExecutableHandle* executable;
  const char* bytes;
  std::size_t size;
  void* owner;
  void (*destroy_owner)(void* owner);
};
struct PjrtDeserializeFields {
  PjrtClientHandle* client;
  const char* bytes;
  std::size_t size;
  PjrtLoadedExecutable* executable;
};
struct PjrtExecutableDevicesFields {
  PjrtLoadedExecutable* loaded;
  PjrtDevice* const* devices;
  std::size_t num_devices;
};
struct PjrtExecuteOptionsFields {
  void* send_callbacks;
  void* receive_callbacks;
  std::size_t num_send;
  std::size_t num_receive;
  std::int64_t launch_id;  // 32 bits, and the padding behind it
  const std::int64_t* non_donatable;
  std::size_t num_non_donatable;
  void* context;
  const char* call_location;
  std::size_t num_tasks;
  int* task_ids;
  std::int64_t* incarnation_ids;
};
using PjrtExecuteOptions = PjrtArguments<PjrtExecuteOptionsFields>;
static_assert(offsetof(PjrtExecuteOptions, later_fields) == 112);
struct PjrtExecuteFields {
  PjrtLoadedExecutable* loaded;
  PjrtExecuteOptions* options;
  PjrtBufferHandle* const* const* argument_lists;
  std::size_t num_devices;
  std::size_t num_arguments;
  PjrtBufferHandle** const* output_lists;
  PjrtEvent** device_complete_events;
  PjrtDevice* execute_device;
};
static_assert(offsetof(PjrtExecuteFields, execute_device) == 72 - 16);
struct PjrtBufferFields {
  PjrtBufferHandle* buffer;
};
struct PjrtBufferTypeFields {
  PjrtBufferHandle* buffer;
  std::int64_t type;  // a 32-bit enum, and the padding behind it
};
struct PjrtBufferDimensionsFields {
  PjrtBufferHandle* buffer;
  const std::int64_t* dims;
  std::size_t num_dims;
};
struct PjrtToHostFields {
  PjrtBufferHandle* buffer;
  void* layout;
  void* to;
  std::size_t size;
  PjrtEvent* done;
};

}  // namespace tutti::internal
