// The PJRT plugin of this process: found and opened; its devices, buffers, programs and launches.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/xla/pjrt_client.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "core/file.h"
#include "core/hash.h"
#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/core/text.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

/// Within a folder of Python packages, TPUs first.
constexpr const char* kKnownPlugins[] = {
    "libtpu/libtpu.so",
    "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so",
    "fastatomstruct_xla_cpu/libpjrt_cpu.so",
    "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so",
};

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

/// PREFIX/lib/python3*/site-packages and dist-packages.
void add_package_folders(const fs::path& prefix, std::vector<fs::path>& folders) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(prefix / "lib", error)) {
    if (!entry.path().filename().string().starts_with("python3")) continue;
    for (const char* name : {"site-packages", "dist-packages"}) {
      if (fs::is_directory(entry.path() / name, error)) folders.push_back(entry.path() / name);
    }
  }
}

std::vector<fs::path> package_folders() {
  std::vector<fs::path> folders;
  const std::string python_path = environment("PYTHONPATH");
  for (std::size_t begin = 0; begin < python_path.size();) {
    const std::size_t end = std::min(python_path.find(':', begin), python_path.size());
    if (end > begin) folders.emplace_back(python_path.substr(begin, end - begin));
    begin = end + 1;
  }
  if (const std::string venv = environment("VIRTUAL_ENV"); !venv.empty())
    add_package_folders(venv, folders);
  if (const std::string home = environment("HOME"); !home.empty())
    add_package_folders(fs::path(home) / ".local", folders);
  add_package_folders("/usr/local", folders);
  add_package_folders("/usr", folders);
  return folders;
}

}  // namespace

std::vector<std::string> pjrt_plugin_candidates() {
  if (const std::string named = environment("TUTTI_PJRT_PLUGIN"); !named.empty()) return {named};
  std::vector<std::string> candidates;
  if (const std::string tpu = environment("TPU_LIBRARY_PATH"); !tpu.empty())
    candidates.push_back(tpu);
  for (const fs::path& folder : package_folders()) {
    for (const char* plugin : kKnownPlugins) candidates.push_back((folder / plugin).string());
  }
  return candidates;
}

}  // namespace tutti

namespace tutti::internal {

// The plugin: its table, and errors of its functions.

namespace {

constexpr std::size_t kTableBegin = sizeof(PjrtApi);

/// absl's codes are ours, but for four that we have no use for.
ErrorCode code_of(std::int64_t code) {
  switch (static_cast<int>(code)) {  // the upper half is padding
    case 2:
      return ErrorCode::kInternal;
    case 7:
    case 16:
      return ErrorCode::kFailedPrecondition;
    default:
      return static_cast<ErrorCode>(static_cast<int>(code));
  }
}

/// Errors may carry the stack of the plugin: the first line says what it is.
std::string_view first_line(std::string_view text) { return text.substr(0, text.find('\n')); }

}  // namespace

PjrtPlugin::PjrtPlugin(const std::string& path) : path_(path) {
  // RTLD_LOCAL keeps the plugin's LLVM and protobuf to itself.
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    fail(ErrorCode::kUnavailable, "PJRT plugin ", path, " does not open: ", dlerror(),
         "; try another file in TUTTI_PJRT_PLUGIN");
  }
  const auto get = reinterpret_cast<const PjrtApi* (*)()>(dlsym(library, "GetPjrtApi"));
  if (!get) {
    fail(ErrorCode::kUnavailable, path,
         " is no PJRT plugin: it has no symbol GetPjrtApi; try another file in TUTTI_PJRT_PLUGIN");
  }
  api_ = get();
  constexpr auto kLast = static_cast<std::size_t>(PjrtFunction::kBufferToHostBuffer);
  const std::size_t needed = kTableBegin + sizeof(void*) * (kLast + 1);
  if (!api_ || api_->struct_size < needed || api_->major_version != 0) {
    fail(ErrorCode::kUnavailable, "PJRT plugin ", path, ": expected version 0.x with a table of ",
         needed, " bytes or more, got ",
         api_ ? concat(version(), " with ", api_->struct_size) : std::string("none"),
         "; try another version of the package");
  }
  PjrtArguments<PjrtNoFields> arguments;
  call(PjrtFunction::kPluginInitialize, arguments, "PJRT plugin: initialization");
}

std::string PjrtPlugin::version() const {
  return concat(api_->major_version, ".", api_->minor_version);
}

const std::string& PjrtPlugin::file_hash() const {
  MutexLock lock(hash_mutex_);
  if (file_hash_.empty()) {
    std::ifstream file(path_, std::ios::binary);
    if (!file) fail(ErrorCode::kUnavailable, "PJRT plugin: cannot read ", path_);
    Hasher hasher;  // block by block: a plugin has hundreds of megabytes
    std::vector<char> block(std::size_t{1} << 20);
    while (file.read(block.data(), std::ssize(block)) || file.gcount() > 0) {
      hasher.update(std::string_view(block.data(), static_cast<std::size_t>(file.gcount())));
    }
    file_hash_ = hasher.hex_digest();
  }
  return file_hash_;  // stays as it is once it is there
}

void* PjrtPlugin::find(PjrtFunction function) const noexcept {
  const std::size_t at = kTableBegin + sizeof(void*) * static_cast<std::size_t>(function);
  if (at + sizeof(void*) > api_->struct_size) return nullptr;
  return *reinterpret_cast<void* const*>(reinterpret_cast<const std::byte*>(api_) + at);
}

void PjrtPlugin::fail_missing(PjrtFunction function) const {
  fail(ErrorCode::kUnimplemented, "PJRT plugin ", path_, " of version ", version(),
       " has no function ", static_cast<std::size_t>(function), "; try a newer package");
}

void PjrtPlugin::check(PjrtError* error, const char* who) const {
  if (!error) return;
  PjrtArguments<PjrtErrorMessageFields> message;
  message.fields.error = error;
  reinterpret_cast<void (*)(PjrtArguments<PjrtErrorMessageFields>*)>(
      find(PjrtFunction::kErrorMessage))(&message);
  PjrtArguments<PjrtErrorCodeFields> code;
  code.fields.error = error;
  destroy(reinterpret_cast<PjrtError* (*)(PjrtArguments<PjrtErrorCodeFields>*)>(
      find(PjrtFunction::kErrorGetCode))(&code));
  const std::string text(first_line({message.fields.message, message.fields.size}));
  destroy(error);
  fail(code_of(code.fields.code), who, ": the PJRT plugin says: ", text);
}

void PjrtPlugin::destroy(PjrtError* error) const noexcept {
  if (!error) return;
  PjrtArguments<PjrtErrorFields> arguments;
  arguments.fields.error = error;
  reinterpret_cast<void (*)(PjrtArguments<PjrtErrorFields>*)>(find(PjrtFunction::kErrorDestroy))(
      &arguments);
}

void PjrtPlugin::await(PjrtEvent* event, const char* who) const {
  if (!event) return;
  PjrtArguments<PjrtEventFields> waiting, done;
  waiting.fields.event = done.fields.event = event;
  PjrtError* const error = begin(PjrtFunction::kEventAwait, waiting);
  call_quietly(PjrtFunction::kEventDestroy, done);
  check(error, who);
}

// Compile options of XLA as bytes of their protocol buffer.

namespace {

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

/// DeviceAssignmentProto: which device runs which replica.
WireMessage device_assignment(const std::vector<std::int64_t>& ids) {
  WireMessage numbers, computation, assignment;
  for (const std::int64_t id : ids) numbers.add_varint(static_cast<std::uint64_t>(id));
  computation.add_bytes(1, numbers.bytes);
  assignment.add_number(1, ids.size());
  assignment.add_number(2, 1);  // partitions
  assignment.add_bytes(3, computation.bytes);
  return assignment;
}

}  // namespace

std::string compile_options(const std::vector<std::int64_t>& ids, bool on_cpu) {
  WireMessage build;  // ExecutableBuildOptionsProto; a plugin aborts without both numbers
  build.add_number(4, ids.size());
  build.add_number(5, 1);  // partitions
  build.add_bytes(9, device_assignment(ids).bytes);
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

// A first client in a child process: wrong flags end the process that makes one.

namespace {

constexpr std::chrono::seconds kPatience{30};

/// Everything that goes wrong with the plugin is written to `report`.
[[noreturn]] void create_and_exit(const std::function<void()>& create, int report) {
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  signal(SIGABRT, SIG_DFL);
  dup2(report, STDERR_FILENO);
  try {
    create();
  } catch (const std::exception&) {  // the parent will see it, too
  }
  _exit(0);
}

/// What the child writes until it ends; less when that takes too long.
std::string read_until_end(int report) {
  const TimePoint deadline = deadline_after(Clock::system().now(), kPatience);
  std::string text;
  for (pollfd waiting{report, POLLIN, 0};;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::system().now());
    if (left.count() <= 0 || poll(&waiting, 1, static_cast<int>(left.count())) <= 0) return text;
    char part[4096];
    const ssize_t size = read(report, part, sizeof(part));
    if (size <= 0) return text;
    text.append(part, static_cast<std::size_t>(size));
  }
}

/// "F0000 00:00:1.2 7 parse_flags_from_env.cc:234] Unknown flag": what comes after the bracket in
/// the first line of an error (E) or the end (F).
std::string reason_in(const std::string& log) {
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t begin = line.find("] ");
    const bool is_error = line.starts_with("E0") || line.starts_with("F0");
    if (is_error && begin != line.npos) return line.substr(begin + 2);
  }
  return "it gives no reason";
}

/// Where XLA_FLAGS is set, a child process calls `create`, which makes the plugin read it. Throws
/// kInvalidArgument with the plugin's words when that ends the child. A child that has not ended
/// after 30 s is ended, and nothing said.
void check_xla_flags(const std::function<void()>& create) {
  const char* const flags = std::getenv("XLA_FLAGS");
  int ends[2];
  if (!flags || !*flags || pipe2(ends, O_CLOEXEC) != 0) return;
  const FileDescriptor report(ends[0]);
  FileDescriptor child_end(ends[1]);
  const pid_t child = fork();
  if (child == 0) create_and_exit(create, child_end.get());
  child_end.close();
  if (child < 0) return;
  const std::string log = read_until_end(report.get());
  kill(child, SIGKILL);  // does nothing to one that has ended
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  const bool took_too_long = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  if (status == 0 || took_too_long) return;
  fail(ErrorCode::kInvalidArgument,
       "XLA_FLAGS: the PJRT plugin would end the process: ", reason_in(log),
       "; expected flags that it knows, got '", flags, "'; try without them");
}

}  // namespace

// The client, its buffers and its programs.

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
  const bool is_cpu = is_cpu_plugin(plugin.path());
  if (is_cpu) {
    count.name = kName.data();
    count.name_size = kName.size();
    count.type = 1;
    count.value.number = num_cpu_devices();
    count.value_size = 1;
    arguments.fields.options = &count;
    arguments.fields.num_options = 1;
  }
  const auto create = [&] { plugin.call(PjrtFunction::kClientCreate, arguments, "XLA's devices"); };
  if (is_cpu) check_xla_flags(create);  // a TPU is one process's
  create();
  return arguments.fields.client;
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

PjrtExecutable::PjrtExecutable(const PjrtClient& client, PjrtLoadedExecutable* loaded,
                               std::size_t num_replicas)
    : client_(client), loaded_(loaded), num_replicas_(num_replicas) {
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
  TUTTI_CHECK(arguments.size() == num_replicas_, kWho, ": arguments of ", arguments.size(),
              " replicas of ", num_replicas_);
  std::vector<std::vector<PjrtBufferHandle*>> inputs(num_replicas_), outputs(num_replicas_);
  std::vector<PjrtBufferHandle* const*> input_lists;
  std::vector<PjrtBufferHandle**> output_lists;
  for (std::size_t r = 0; r < num_replicas_; ++r) {
    TUTTI_CHECK(arguments[r].size() == arguments[0].size(), kWho, ": ", arguments[r].size(),
                " arguments of replica ", r, ", ", arguments[0].size(), " of replica 0");
    for (const auto& buffer : arguments[r]) inputs[r].push_back(buffer->handle());
    outputs[r].resize(num_outputs_);
    input_lists.push_back(inputs[r].data());
    output_lists.push_back(outputs[r].data());
  }
  std::vector<PjrtEvent*> done(num_replicas_);
  MutexLock lock(client_.launching());
  PjrtExecuteOptions options;
  PjrtArguments<PjrtExecuteFields> execute;
  execute.fields.loaded = loaded_;
  execute.fields.options = &options;
  execute.fields.argument_lists = input_lists.data();
  execute.fields.num_devices = num_replicas_;
  execute.fields.num_arguments = inputs.front().size();
  execute.fields.output_lists = output_lists.data();
  execute.fields.device_complete_events = done.data();
  client_.plugin().call(PjrtFunction::kLoadedExecutableExecute, execute, kWho);
  std::vector<Buffers> results(num_replicas_);
  for (std::size_t r = 0; r < num_replicas_; ++r) {
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

std::string PjrtExecutable::serialize() const {
  PjrtArguments<PjrtSerializeFields> arguments;
  arguments.fields.executable = executable_;
  client_.plugin().call(PjrtFunction::kExecutableSerialize, arguments, "a program of XLA as bytes");
  std::string bytes(arguments.fields.bytes, arguments.fields.size);
  if (arguments.fields.destroy_owner) arguments.fields.destroy_owner(arguments.fields.owner);
  return bytes;
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

std::int64_t PjrtClient::id_of(int device) const {
  constexpr const char* kWho = "the number of XLA's device";
  PjrtArguments<PjrtDeviceDescriptionFields> get;
  get.fields.device = devices_[static_cast<std::size_t>(device)];
  plugin_.call(PjrtFunction::kDeviceGetDescription, get, kWho);
  PjrtArguments<PjrtDeviceIdFields> id;
  id.fields.description = get.fields.description;
  plugin_.call(PjrtFunction::kDeviceDescriptionId, id, kWho);
  return static_cast<std::int32_t>(id.fields.id);
}

std::string PjrtClient::compile_options(const std::vector<int>& devices) const {
  std::vector<std::int64_t> ids;
  for (const int device : devices) {
    TUTTI_CHECK(device >= 0 && device < num_devices() && std::ranges::count(devices, device) == 1,
                "PjrtClient::compile: replicas on devices [", join(devices), "] of ", num_devices(),
                "; expected each once");
    ids.push_back(id_of(device));
  }
  TUTTI_CHECK(!ids.empty(), "PjrtClient::compile: no devices");
  return internal::compile_options(ids, platform() == "cpu");
}

std::unique_ptr<PjrtExecutable> PjrtClient::compile(std::string_view text,
                                                    const std::vector<int>& devices) const {
  constexpr std::string_view kFormat = "mlir";
  PjrtProgram program;
  program.fields = {text.data(), text.size(), kFormat.data(), kFormat.size()};
  const std::string options = compile_options(devices);
  PjrtArguments<PjrtCompileFields> arguments;
  arguments.fields.client = client_;
  arguments.fields.program = &program;
  arguments.fields.options = options.data();
  arguments.fields.options_size = options.size();
  plugin_.call(PjrtFunction::kClientCompile, arguments, "compiling a step for XLA");
  return std::make_unique<PjrtExecutable>(*this, arguments.fields.executable, devices.size());
}

std::unique_ptr<PjrtExecutable> PjrtClient::load(std::string_view bytes,
                                                 std::size_t num_replicas) const {
  PjrtArguments<PjrtDeserializeFields> arguments;
  arguments.fields.client = client_;
  arguments.fields.bytes = bytes.data();
  arguments.fields.size = bytes.size();
  plugin_.call(PjrtFunction::kExecutableDeserializeAndLoad, arguments,
               "loading a compiled step of XLA");
  return std::make_unique<PjrtExecutable>(*this, arguments.fields.executable, num_replicas);
}

}  // namespace tutti::internal
