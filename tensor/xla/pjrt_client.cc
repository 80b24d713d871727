// Devices, buffers and launches of the PJRT plugin.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/xla/pjrt_client.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "tutti/core/text.h"

namespace tutti {
namespace internal {
namespace {

constexpr std::int64_t kCpuDevices = 8;
constexpr int kMaxCpuDevices = 32;

/// How many devices a CPU plugin shall make of the machine: TUTTI_XLA_CPU_DEVICES, or 8.
std::int64_t num_cpu_devices() {
  const char* const text = std::getenv("TUTTI_XLA_CPU_DEVICES");
  if (!text || !*text) return kCpuDevices;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (*end != '\0' || value < 1 || value > kMaxCpuDevices) {
    fail(ErrorCode::kInvalidArgument, "TUTTI_XLA_CPU_DEVICES: expected a number from 1 to ",
         kMaxCpuDevices, ", got '", text, "'");
  }
  return value;
}

/// Only CPU plugins know the option that says how many devices; others refuse it.
bool is_cpu_plugin(const std::string& path) {
  return std::filesystem::path(path).filename().string().find("cpu") != std::string::npos;
}

PjrtClientHandle* create_client(const PjrtPlugin& plugin) {
  constexpr std::string_view kName = "cpu_device_count";
  PjrtNamedValue count;
  PjrtArguments<PjrtClientCreateFields> arguments;
  if (is_cpu_plugin(plugin.path())) {
    count.name = kName.data();
    count.name_size = kName.size();
    count.type = 1;
    count.value.number = num_cpu_devices();
    count.value_size = 1;
    arguments.fields.options = &count;
    arguments.fields.num_options = 1;
  }
  plugin.call(PjrtFunction::kClientCreate, arguments, "XLA's devices");
  return arguments.fields.client;
}

/// Protocol buffers as far as compile options need them: numbers, and bytes of other messages.
struct WireMessage {
  std::string bytes;

  void add_varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
    bytes += static_cast<char>(value);
  }
  void add_number(std::uint64_t field, std::uint64_t value) {
    add_varint(field << 3);
    add_varint(value);
  }
  void add_bytes(std::uint64_t field, std::string_view value) {
    add_varint(field << 3 | 2);
    add_varint(value.size());
    bytes += value;
  }
};

/// xla.CompileOptionsProto. A plugin aborts the process unless both numbers are there.
std::string compile_options(int num_replicas, bool on_cpu) {
  WireMessage build;  // ExecutableBuildOptionsProto
  build.add_number(4, static_cast<std::uint64_t>(num_replicas));
  build.add_number(5, 1);  // partitions
  WireMessage options;
  options.add_bytes(3, build.bytes);
  if (!on_cpu) return options.bytes;
  WireMessage no, entry;  // XLA's CPU compiler otherwise loses NaN in maxima and minima
  no.add_number(2, 0);
  entry.add_bytes(1, "xla_cpu_enable_fast_min_max");
  entry.add_bytes(2, no.bytes);
  options.add_bytes(7, entry.bytes);
  return options.bytes;
}

}  // namespace

int pjrt_type(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return 1;
    case DType::kInt32:
      return 4;
    case DType::kInt64:
      return 5;
    case DType::kUInt8:
      return 6;
    case DType::kFloat16:
      return 10;
    case DType::kFloat32:
      return 11;
    case DType::kFloat64:
      return 12;
    case DType::kBFloat16:
      return 13;
  }
  fail(ErrorCode::kInternal, "pjrt_type: no such dtype: ", static_cast<int>(dtype));
}

PjrtBuffer::~PjrtBuffer() {
  PjrtArguments<PjrtBufferFields> arguments;
  arguments.fields.buffer = handle_;
  client_.plugin().call_quietly(PjrtFunction::kBufferDestroy, arguments);
}

void PjrtBuffer::check(const Shape& shape, DType dtype, const char* who) const {
  PjrtArguments<PjrtBufferTypeFields> type;
  type.fields.buffer = handle_;
  client_.plugin().call(PjrtFunction::kBufferElementType, type, who);
  PjrtArguments<PjrtBufferDimensionsFields> dimensions;
  dimensions.fields.buffer = handle_;
  client_.plugin().call(PjrtFunction::kBufferDimensions, dimensions, who);
  const std::span<const std::int64_t> dims(dimensions.fields.dims, dimensions.fields.num_dims);
  const int number = static_cast<int>(type.fields.type);  // the upper half is padding
  if (number == pjrt_type(dtype) && std::ranges::equal(dims, shape.dims())) return;
  fail(ErrorCode::kInternal, who, ": expected ", dtype, " of shape ", shape,
       ", got a buffer of type ", number, " of shape [", join(dims), "]");
}

void PjrtBuffer::to_host(void* to, std::size_t bytes) const {
  constexpr const char* kWho = "a copy from XLA's device";
  if (bytes == 0) return;
  PjrtArguments<PjrtToHostFields> arguments;
  arguments.fields.buffer = handle_;
  arguments.fields.to = to;
  arguments.fields.size = bytes;
  client_.plugin().call(PjrtFunction::kBufferToHostBuffer, arguments, kWho);
  client_.plugin().await(arguments.fields.done, kWho);
}

PjrtExecutable::PjrtExecutable(const PjrtClient& client, PjrtLoadedExecutable* loaded)
    : client_(client), loaded_(loaded) {
  constexpr const char* kWho = "a program of XLA";
  PjrtArguments<PjrtGetExecutableFields> get;
  get.fields.loaded = loaded;
  client_.plugin().call(PjrtFunction::kLoadedExecutableGetExecutable, get, kWho);
  executable_ = get.fields.executable;
  PjrtArguments<PjrtExecutableSizeFields> size;
  size.fields.executable = executable_;
  client_.plugin().call(PjrtFunction::kExecutableNumOutputs, size, kWho);
  num_outputs_ = size.fields.size;
}

PjrtExecutable::~PjrtExecutable() {
  PjrtArguments<PjrtExecutableFields> executable;
  executable.fields.executable = executable_;
  client_.plugin().call_quietly(PjrtFunction::kExecutableDestroy, executable);
  PjrtArguments<PjrtLoadedExecutableFields> loaded;
  loaded.fields.loaded = loaded_;
  client_.plugin().call_quietly(PjrtFunction::kLoadedExecutableDestroy, loaded);
}

std::vector<PjrtExecutable::Buffers> PjrtExecutable::run(
    const std::vector<Buffers>& arguments) const {
  constexpr const char* kWho = "a step on XLA's devices";
  const std::size_t num_replicas = arguments.size();
  std::vector<std::vector<PjrtBufferHandle*>> inputs(num_replicas), outputs(num_replicas);
  std::vector<PjrtBufferHandle* const*> input_lists;
  std::vector<PjrtBufferHandle**> output_lists;
  for (std::size_t r = 0; r < num_replicas; ++r) {
    for (const auto& buffer : arguments[r]) inputs[r].push_back(buffer->handle());
    outputs[r].resize(num_outputs_);
    input_lists.push_back(inputs[r].data());
    output_lists.push_back(outputs[r].data());
  }
  std::vector<PjrtEvent*> done(num_replicas);
  MutexLock lock(client_.launching());
  PjrtExecuteOptions options;
  PjrtArguments<PjrtExecuteFields> execute;
  execute.fields.loaded = loaded_;
  execute.fields.options = &options;
  execute.fields.argument_lists = input_lists.data();
  execute.fields.num_devices = num_replicas;
  execute.fields.num_arguments = inputs.front().size();
  execute.fields.output_lists = output_lists.data();
  execute.fields.device_complete_events = done.data();
  client_.plugin().call(PjrtFunction::kLoadedExecutableExecute, execute, kWho);
  std::vector<Buffers> results(num_replicas);
  for (std::size_t r = 0; r < num_replicas; ++r) {
    for (PjrtBufferHandle* handle : outputs[r])
      results[r].push_back(std::make_shared<PjrtBuffer>(client_, handle));
  }
  std::optional<Error> failure;  // all events are waited for, whatever one says
  for (PjrtEvent* event : done) {
    try {
      client_.plugin().await(event, kWho);
    } catch (const Error& error) {
      if (!failure) failure = error;
    }
  }
  if (failure) throw *failure;
  return results;
}

PjrtClient::PjrtClient(const std::string& path) : plugin_(path), client_(create_client(plugin_)) {
  PjrtArguments<PjrtClientDevicesFields> devices;
  devices.fields.client = client_;
  plugin_.call(PjrtFunction::kClientAddressableDevices, devices, "XLA's devices");
  devices_.assign(devices.fields.devices, devices.fields.devices + devices.fields.num_devices);
}

std::string PjrtClient::platform() const {
  PjrtArguments<PjrtClientTextFields> name;
  name.fields.client = client_;
  plugin_.call(PjrtFunction::kClientPlatformName, name, "XLA's devices");
  return {name.fields.text, name.fields.size};
}

std::shared_ptr<PjrtBuffer> PjrtClient::upload(const void* data, const Shape& shape, DType dtype,
                                               int device) const {
  constexpr const char* kWho = "a copy to XLA's device";
  PjrtArguments<PjrtFromHostFields> arguments;
  arguments.fields.client = client_;
  arguments.fields.data = data;
  arguments.fields.type = pjrt_type(dtype);
  arguments.fields.dims = shape.begin();
  arguments.fields.num_dims = static_cast<std::size_t>(shape.rank());
  arguments.fields.device = devices_.at(static_cast<std::size_t>(device));
  plugin_.call(PjrtFunction::kClientBufferFromHostBuffer, arguments, kWho);
  auto buffer = std::make_shared<PjrtBuffer>(*this, arguments.fields.buffer);
  plugin_.await(arguments.fields.done_with_host_buffer, kWho);
  return buffer;
}

std::unique_ptr<PjrtExecutable> PjrtClient::compile(std::string_view text, int num_replicas) const {
  TUTTI_CHECK(num_replicas >= 1 && num_replicas <= num_devices(),
              "PjrtClient::compile: ", num_replicas, " replicas on ", num_devices(), " devices");
  constexpr std::string_view kFormat = "mlir";
  PjrtProgram program;
  program.fields = {text.data(), text.size(), kFormat.data(), kFormat.size()};
  const std::string options = compile_options(num_replicas, platform() == "cpu");
  PjrtArguments<PjrtCompileFields> arguments;
  arguments.fields.client = client_;
  arguments.fields.program = &program;
  arguments.fields.options = options.data();
  arguments.fields.options_size = options.size();
  plugin_.call(PjrtFunction::kClientCompile, arguments, "compiling a step for XLA");
  return std::make_unique<PjrtExecutable>(*this, arguments.fields.executable);
}

namespace {

struct OpenedXla {
  std::unique_ptr<PjrtClient> client;
  XlaDevices description;
};

std::string why_no_plugin(std::size_t num_candidates) {
  return concat("no PJRT plugin at ", num_candidates,
                " known places; pip install --no-deps lammps-jax-pjrt-cpu==0.11.2 (XLA on the "
                "CPU), or libtpu (TPUs), or set TUTTI_PJRT_PLUGIN to a plugin's path");
}

void open_first(OpenedXla& opened) {
  const std::vector<std::string> candidates = pjrt_plugin_candidates();
  const bool is_named = candidates.size() == 1;
  for (const std::string& candidate : candidates) {
    std::error_code error;
    if (!is_named && !std::filesystem::exists(candidate, error)) continue;
    opened.client = std::make_unique<PjrtClient>(candidate);
    opened.description = {opened.client->platform(), opened.client->num_devices(), candidate,
                          opened.client->plugin().version(), ""};
    return;
  }
  opened.description.why_none = why_no_plugin(candidates.size());
}

OpenedXla& opened_xla() {
  // Never destroyed: a plugin's threads may outlive static objects.
  static OpenedXla& opened = [&]() -> OpenedXla& {
    auto& made = *std::make_unique<OpenedXla>().release();
    try {
      open_first(made);
    } catch (const Error& error) {
      made.description.why_none = error.message();
    }
    return made;
  }();
  return opened;
}

}  // namespace

PjrtClient& PjrtClient::get() {
  OpenedXla& opened = opened_xla();
  if (!opened.client) {
    fail(ErrorCode::kUnavailable, "XLA has no devices here: ", opened.description.why_none);
  }
  return *opened.client;
}

}  // namespace internal

const XlaDevices& xla_devices() { return internal::opened_xla().description; }

}  // namespace tutti
