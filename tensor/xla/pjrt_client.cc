// The PJRT plugin of this process, its devices, buffers, programs and launches.
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

#include "core/byte_codec.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/names.h"
#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/core/text.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

/// Paths of plugins within a folder of Python packages; the plugin for TPUs comes first.
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

/// Appends PREFIX/lib/python3*/site-packages and dist-packages.
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
  for (const std::string& folder : split_text(environment("PYTHONPATH"), ':')) {
    if (!folder.empty()) folders.emplace_back(folder);
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

// The plugin: its function table, and the errors that its functions return.

namespace {

constexpr std::size_t kTableBegin = sizeof(PjrtApi);

/// Converts an absl status code. The codes equal tutti's, except for three that tutti lacks.
ErrorCode code_of(std::int64_t code) {
  switch (static_cast<int>(code)) {  // the upper 32 bits are padding
    case 2:
      return ErrorCode::kInternal;
    case 7:
    case 16:
      return ErrorCode::kFailedPrecondition;
    default:
      return static_cast<ErrorCode>(static_cast<int>(code));
  }
}

/// Returns the first line of an error, which may be followed by a stack trace of the plugin.
std::string_view first_line(std::string_view text) { return text.substr(0, text.find('\n')); }

}  // namespace

PjrtPlugin::PjrtPlugin(const std::string& path) : path_(path) {
  // RTLD_LOCAL keeps the plugin's LLVM and protobuf private to it.
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    fail(ErrorCode::kUnavailable, "PJRT plugin ", path, " cannot be opened: ", dlerror(),
         "; set TUTTI_PJRT_PLUGIN to another file");
  }
  const auto get = reinterpret_cast<const PjrtApi* (*)()>(dlsym(library, "GetPjrtApi"));
  if (!get) {
    fail(ErrorCode::kUnavailable, path,
         " is not a PJRT plugin: it has no symbol GetPjrtApi; set TUTTI_PJRT_PLUGIN to a plugin");
  }
  api_ = get();
  constexpr auto kLast = static_cast<std::size_t>(PjrtFunction::kBufferToHostBuffer);
  const std::size_t needed = kTableBegin + sizeof(void*) * (kLast + 1);
  if (!api_ || api_->struct_size < needed || api_->major_version != 0) {
    fail(ErrorCode::kUnavailable, "PJRT plugin ", path, ": expected version 0.x with a table of ",
         needed, " bytes or more, got ",
         api_ ? concat(version(), " with ", api_->struct_size, " bytes") : std::string("none"),
         "; try another version of the package");
  }
  call(PjrtFunction::kPluginInitialize, PjrtNoFields(), "PJRT plugin: initialization");
}

std::string PjrtPlugin::version() const {
  return concat(api_->major_version, ".", api_->minor_version);
}

const std::string& PjrtPlugin::file_hash() const {
  MutexLock lock(hash_mutex_);
  if (file_hash_.empty()) {
    std::ifstream file(path_, std::ios::binary);
    if (!file) fail(ErrorCode::kUnavailable, "PJRT plugin: cannot read ", path_);
    Hasher hasher;  // updated block by block, because a plugin takes hundreds of megabytes
    std::vector<char> block(std::size_t{1} << 20);
    while (file.read(block.data(), std::ssize(block)) || file.gcount() > 0) {
      hasher.update(std::string_view(block.data(), static_cast<std::size_t>(file.gcount())));
    }
    file_hash_ = hasher.hex_digest();
  }
  return file_hash_;  // constant once it is set
}

void* PjrtPlugin::find(PjrtFunction function) const noexcept {
  const std::size_t at = kTableBegin + sizeof(void*) * static_cast<std::size_t>(function);
  if (at + sizeof(void*) > api_->struct_size) return nullptr;
  return *reinterpret_cast<void* const*>(reinterpret_cast<const std::byte*>(api_) + at);
}

void PjrtPlugin::fail_missing(PjrtFunction function) const {
  fail(ErrorCode::kUnimplemented, "PJRT plugin ", path_, " of version ", version(),
       " has no function ", static_cast<std::size_t>(function),
       "; try a newer version of the package");
}

void PjrtPlugin::check(PjrtError* error, const char* who) const {
  if (!error) return;
  PjrtArguments<PjrtErrorMessageFields> message{.fields = {error}};
  reinterpret_cast<void (*)(PjrtArguments<PjrtErrorMessageFields>*)>(
      find(PjrtFunction::kErrorMessage))(&message);
  PjrtArguments<PjrtErrorCodeFields> code{.fields = {error}};
  destroy(reinterpret_cast<PjrtError* (*)(PjrtArguments<PjrtErrorCodeFields>*)>(
      find(PjrtFunction::kErrorGetCode))(&code));
  const std::string text(first_line({message.fields.message, message.fields.size}));
  destroy(error);
  fail(code_of(code.fields.code), who, ": the PJRT plugin reports: ", text);
}

void PjrtPlugin::destroy(PjrtError* error) const noexcept {
  if (!error) return;
  using Arguments = PjrtArguments<PjrtHandleFields<PjrtError>>;
  Arguments arguments{.fields = {error}};
  reinterpret_cast<void (*)(Arguments*)>(find(PjrtFunction::kErrorDestroy))(&arguments);
}

void PjrtPlugin::await(PjrtEvent* event, const char* who) const {
  if (!event) return;
  PjrtArguments<PjrtHandleFields<PjrtEvent>> waiting{.fields = {event}};
  PjrtError* const error = begin(PjrtFunction::kEventAwait, waiting);
  destroy(PjrtFunction::kEventDestroy, event);
  check(error, who);
}

// XLA's compile options as a serialized protocol buffer.

namespace {

void put_number(std::string& message, std::uint32_t field, std::uint64_t value) {
  put_tag(message, field, WireType::kVarint);
  put_varint(message, value);
}

/// Returns a DeviceAssignmentProto: which device runs which replica.
std::string device_assignment(const std::vector<std::int64_t>& ids) {
  std::string numbers, computation, assignment;
  for (const std::int64_t id : ids) put_varint(numbers, static_cast<std::uint64_t>(id));
  put_bytes(computation, 1, numbers);
  put_number(assignment, 1, ids.size());
  put_number(assignment, 2, 1);  // partitions
  put_bytes(assignment, 3, computation);
  return assignment;
}

}  // namespace

std::string compile_options(const std::vector<std::int64_t>& ids, bool on_cpu) {
  std::string build;  // ExecutableBuildOptionsProto; plugins abort if it lacks either number
  put_number(build, 4, ids.size());
  put_number(build, 5, 1);  // partitions
  put_bytes(build, 9, device_assignment(ids));
  std::string options;
  put_bytes(options, 3, build);
  if (!on_cpu) return options;
  std::string no, entry;  // turns off a mode in which maxima and minima drop NaNs
  put_number(no, 2, 0);
  put_bytes(entry, 1, "xla_cpu_enable_fast_min_max");
  put_bytes(entry, 2, no);
  put_bytes(options, 7, entry);
  return options;
}

// If XLA_FLAGS is set, a CPU client is first created in a child process, because invalid flags
// terminate the process that creates the client.

namespace {

constexpr std::chrono::seconds kPatience{30};

/// Runs in the child process: creates a client and exits. The plugin writes errors to `report`.
[[noreturn]] void create_and_exit(const std::function<void()>& create, int report) {
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  signal(SIGABRT, SIG_DFL);
  dup2(report, STDERR_FILENO);
  try {
    create();
  } catch (const std::exception&) {  // the parent will get the same error
  }
  _exit(0);
}

/// Returns the text that the child writes until it ends or takes too long.
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

/// Returns the reason in a log such as "F0000 00:00:1.2 7 parse_flags_from_env.cc:234] Unknown
/// flag": the text after the bracket in the first line of an error (E) or a fatal error (F).
std::string reason_in(const std::string& log) {
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t begin = line.find("] ");
    const bool is_error = line.starts_with("E0") || line.starts_with("F0");
    if (is_error && begin != line.npos) return line.substr(begin + 2);
  }
  return "no reason was logged";
}

/// If XLA_FLAGS is set, calls `create` in a child process, where the plugin then reads the flags.
/// Throws kInvalidArgument with the plugin's message if the flags end the child. A child that takes
/// longer than 30 s is killed, without an error.
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
  kill(child, SIGKILL);  // no effect if the child has exited
  int status = 0;
  (void)uninterrupted([&] { return waitpid(child, &status, 0); });
  const bool took_too_long = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  if (status == 0 || took_too_long) return;
  fail(ErrorCode::kInvalidArgument,
       "XLA_FLAGS: the PJRT plugin would terminate the process: ", reason_in(log),
       "; expected known flags, got '", flags, "'; correct XLA_FLAGS or unset it");
}

}  // namespace

// The client, its buffers and its programs.

namespace {

constexpr std::int64_t kCpuDevices = 8;
constexpr int kMaxCpuDevices = 32;

/// Returns the number of devices that a CPU plugin creates: TUTTI_XLA_CPU_DEVICES, or 8.
std::int64_t num_cpu_devices() {
  const char* const text = std::getenv("TUTTI_XLA_CPU_DEVICES");
  if (!text || !*text) return kCpuDevices;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  internal::require(*end == '\0' && value >= 1 && value <= kMaxCpuDevices,
                    "TUTTI_XLA_CPU_DEVICES: expected a number from 1 to ", kMaxCpuDevices,
                    ", got '", text, "'");
  return value;
}

/// Returns true for CPU plugins. Other plugins reject the option that sets the number of devices.
bool is_cpu_plugin(const std::string& path) {
  return std::filesystem::path(path).filename().string().find("cpu") != std::string::npos;
}

PjrtClientHandle* create_client(const PjrtPlugin& plugin) {
  constexpr std::string_view kName = "cpu_device_count";
  PjrtNamedValue count;
  PjrtClientCreateFields fields;
  const bool is_cpu = is_cpu_plugin(plugin.path());
  if (is_cpu) {
    count.name = kName.data();
    count.name_size = kName.size();
    count.type = 1;
    count.value.number = num_cpu_devices();
    count.value_size = 1;
    fields = {.options = &count, .num_options = 1};
  }
  const auto create = [&] {
    return plugin.call(PjrtFunction::kClientCreate, fields, "creating an XLA client").client;
  };
  if (is_cpu) check_xla_flags(create);  // not for a TPU, which only one process can open
  return create();
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
  fail(ErrorCode::kInternal, "pjrt_type: expected a known dtype, got ", static_cast<int>(dtype));
}

PjrtBuffer::~PjrtBuffer() { client_.plugin().destroy(PjrtFunction::kBufferDestroy, handle_); }

void PjrtBuffer::check(const Shape& shape, DType dtype, const char* who) const {
  const PjrtPlugin& plugin = client_.plugin();
  const auto type =
      plugin.call(PjrtFunction::kBufferElementType, PjrtBufferTypeFields{handle_}, who).type;
  const auto found =
      plugin.call(PjrtFunction::kBufferDimensions, PjrtBufferDimensionsFields{handle_}, who);
  const std::span<const std::int64_t> dims(found.dims, found.num_dims);
  const int number = static_cast<int>(type);  // the upper 32 bits are padding
  if (number == pjrt_type(dtype) && std::ranges::equal(dims, shape.dims())) return;
  fail(ErrorCode::kInternal, who, ": expected ", dtype, " of shape ", shape,
       ", got a buffer of type ", number, " of shape [", join(dims), "]");
}

void PjrtBuffer::to_host(void* to, std::size_t bytes) const {
  constexpr const char* kWho = "copying from an XLA device";
  if (bytes == 0) return;
  const PjrtToHostFields fields{.buffer = handle_, .to = to, .size = bytes};
  PjrtEvent* const done =
      client_.plugin().call(PjrtFunction::kBufferToHostBuffer, fields, kWho).done;
  client_.plugin().await(done, kWho);
}

PjrtExecutable::PjrtExecutable(const PjrtClient& client, PjrtLoadedExecutable* loaded,
                               std::size_t num_replicas)
    : client_(client), loaded_(loaded), num_replicas_(num_replicas) {
  constexpr const char* kWho = "inspecting an XLA program";
  const PjrtPlugin& plugin = client_.plugin();
  executable_ =
      plugin
          .call(PjrtFunction::kLoadedExecutableGetExecutable, PjrtGetExecutableFields{loaded}, kWho)
          .executable;
  num_outputs_ =
      plugin.call(PjrtFunction::kExecutableNumOutputs, PjrtExecutableSizeFields{executable_}, kWho)
          .size;
}

PjrtExecutable::~PjrtExecutable() {
  client_.plugin().destroy(PjrtFunction::kExecutableDestroy, executable_);
  client_.plugin().destroy(PjrtFunction::kLoadedExecutableDestroy, loaded_);
}

std::vector<PjrtExecutable::Buffers> PjrtExecutable::run(
    const std::vector<Buffers>& arguments) const {
  constexpr const char* kWho = "running a step on XLA devices";
  TUTTI_CHECK(arguments.size() == num_replicas_, kWho, ": expected arguments for ", num_replicas_,
              " replicas, got arguments for ", arguments.size());
  std::vector<std::vector<PjrtBufferHandle*>> inputs(num_replicas_), outputs(num_replicas_);
  std::vector<PjrtBufferHandle* const*> input_lists;
  std::vector<PjrtBufferHandle**> output_lists;
  for (std::size_t r = 0; r < num_replicas_; ++r) {
    TUTTI_CHECK(arguments[r].size() == arguments[0].size(), kWho, ": ", arguments[r].size(),
                " arguments for replica ", r, ", ", arguments[0].size(),
                " for replica 0; expected equal numbers of arguments");
    for (const auto& buffer : arguments[r]) inputs[r].push_back(buffer->handle());
    outputs[r].resize(num_outputs_);
    input_lists.push_back(inputs[r].data());
    output_lists.push_back(outputs[r].data());
  }
  std::vector<PjrtEvent*> done(num_replicas_);
  MutexLock lock(client_.launching());
  PjrtExecuteOptions options;
  client_.plugin().call(PjrtFunction::kLoadedExecutableExecute,
                        PjrtExecuteFields{.loaded = loaded_,
                                          .options = &options,
                                          .argument_lists = input_lists.data(),
                                          .num_devices = num_replicas_,
                                          .num_arguments = inputs.front().size(),
                                          .output_lists = output_lists.data(),
                                          .device_complete_events = done.data()},
                        kWho);
  std::vector<Buffers> results(num_replicas_);
  for (std::size_t r = 0; r < num_replicas_; ++r) {
    for (PjrtBufferHandle* handle : outputs[r])
      results[r].push_back(std::make_shared<PjrtBuffer>(client_, handle));
  }
  std::optional<Error> failure;  // first error; the remaining events are still awaited
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
  const auto made =
      client_.plugin().call(PjrtFunction::kExecutableSerialize, PjrtSerializeFields{executable_},
                            "serializing an XLA program");
  std::string bytes(made.bytes, made.size);
  if (made.destroy_owner) made.destroy_owner(made.owner);
  return bytes;
}

PjrtClient::PjrtClient(const std::string& path) : plugin_(path), client_(create_client(plugin_)) {
  const auto found = plugin_.call(PjrtFunction::kClientAddressableDevices,
                                  PjrtClientDevicesFields{client_}, "listing XLA devices");
  devices_.assign(found.devices, found.devices + found.num_devices);
}

std::string PjrtClient::platform() const {
  const auto name = plugin_.call(PjrtFunction::kClientPlatformName, PjrtClientTextFields{client_},
                                 "naming the XLA platform");
  return {name.text, name.size};
}

std::shared_ptr<PjrtBuffer> PjrtClient::upload(const void* data, const Shape& shape, DType dtype,
                                               int device) const {
  constexpr const char* kWho = "copying to an XLA device";
  const auto made =
      plugin_.call(PjrtFunction::kClientBufferFromHostBuffer,
                   PjrtFromHostFields{.client = client_,
                                      .data = data,
                                      .type = pjrt_type(dtype),
                                      .dims = shape.begin(),
                                      .num_dims = static_cast<std::size_t>(shape.rank()),
                                      .device = devices_.at(static_cast<std::size_t>(device))},
                   kWho);
  auto buffer = std::make_shared<PjrtBuffer>(*this, made.buffer);
  plugin_.await(made.done_with_host_buffer, kWho);
  return buffer;
}

std::int64_t PjrtClient::id_of(int device) const {
  constexpr const char* kWho = "reading the id of an XLA device";
  const PjrtDeviceDescriptionFields get{devices_[static_cast<std::size_t>(device)]};
  PjrtDeviceDescription* const description =
      plugin_.call(PjrtFunction::kDeviceGetDescription, get, kWho).description;
  const auto id =
      plugin_.call(PjrtFunction::kDeviceDescriptionId, PjrtDeviceIdFields{description}, kWho).id;
  return static_cast<std::int32_t>(id);
}

std::string PjrtClient::compile_options(const std::vector<int>& devices) const {
  std::vector<std::int64_t> ids;
  for (const int device : devices) {
    TUTTI_CHECK(device >= 0 && device < num_devices() && std::ranges::count(devices, device) == 1,
                "PjrtClient::compile: expected distinct devices in 0 .. ", num_devices() - 1,
                ", got [", join(devices), "]");
    ids.push_back(id_of(device));
  }
  TUTTI_CHECK(!ids.empty(), "PjrtClient::compile: expected at least one device, got none");
  return internal::compile_options(ids, platform() == "cpu");
}

std::unique_ptr<PjrtExecutable> PjrtClient::compile(std::string_view text,
                                                    const std::vector<int>& devices) const {
  constexpr std::string_view kFormat = "mlir";
  PjrtProgram program;
  program.fields = {text.data(), text.size(), kFormat.data(), kFormat.size()};
  const std::string options = compile_options(devices);
  const PjrtCompileFields fields{client_, &program, options.data(), options.size()};
  PjrtLoadedExecutable* const loaded =
      plugin_.call(PjrtFunction::kClientCompile, fields, "compiling a step with XLA").executable;
  return std::make_unique<PjrtExecutable>(*this, loaded, devices.size());
}

std::unique_ptr<PjrtExecutable> PjrtClient::load(std::string_view bytes,
                                                 std::size_t num_replicas) const {
  PjrtLoadedExecutable* const loaded =
      plugin_
          .call(PjrtFunction::kExecutableDeserializeAndLoad,
                PjrtDeserializeFields{client_, bytes.data(), bytes.size()},
                "loading a compiled XLA step")
          .executable;
  return std::make_unique<PjrtExecutable>(*this, loaded, num_replicas);
}

}  // namespace tutti::internal
