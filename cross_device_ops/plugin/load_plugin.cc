// Plugins: opening shared libraries, checking their tables, and calling them through the C
// interface.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/plugin/load_plugin.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "core/names.h"
#include "tutti/core/json.h"
#include "tutti/core/logging.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/registry.h"

namespace tutti::internal {
namespace {

using Table = tutti_cross_device_ops_v1;

constexpr std::size_t kLongestName = 63;
// The first version has the members up to all_reduce.
constexpr std::size_t kSmallest = offsetof(Table, determinism);
// Upper limit for a plausible size: larger than any future version needs.
constexpr std::size_t kLargest = 4096;

template <class... Parts>
[[noreturn]] void refuse(const std::string& path, const Parts&... parts) {
  fail(ErrorCode::kInvalidArgument, "plugin '", path, "': ", parts...);
}

std::string checked_name(const char* name, const std::string& path) {
  if (!name) refuse(path, "its table has no name; expected 1 to ", kLongestName, " characters");
  const std::size_t length = ::strnlen(name, kLongestName + 1);
  const std::string_view text(name, length);
  if (length == 0 || length > kLongestName || !has_only_alphanumerics_and("_-.", text)) {
    refuse(path, "the name in its table is invalid; expected 1 to ", kLongestName,
           " letters, digits, '_', '-' or '.', got ", length > kLongestName ? "more" : "'",
           length > kLongestName ? "" : text, length > kLongestName ? "" : "'");
  }
  return std::string(text);
}

}  // namespace

PluginTable checked_plugin_table(const Table* table, const std::string& path) {
  if (!table) refuse(path, TUTTI_PLUGIN_SYMBOL, "() returned NULL; expected a table");
  const std::size_t size = table->struct_size;
  if (size < kSmallest || size > kLargest || size % alignof(Table) != 0) {
    refuse(path, "the struct_size of its table is ", size, "; expected sizeof(",
           "tutti_cross_device_ops_v1), which is ", sizeof(Table), ", or at least ", kSmallest,
           " for another version");
  }
  PluginTable checked;
  checked.path = path;
  // Members beyond the size of the plugin's table stay NULL; members that tutti does not know are
  // ignored.
  Table& known = checked.calls;
  std::memcpy(&known, table, std::min(size, sizeof(Table)));
  checked.name = checked_name(known.name, path);
  const std::pair<bool, const char*> needed[] = {{known.create != nullptr, "create"},
                                                 {known.destroy != nullptr, "destroy"},
                                                 {known.supports != nullptr, "supports"},
                                                 {known.all_reduce != nullptr, "all_reduce"}};
  for (const auto& [is_there, member] : needed) {
    if (is_there) continue;
    refuse(path, "operation '", checked.name, "': the member '", member,
           "' of its table is NULL; expected a function");
  }
  if (known.reserved != 0) {
    refuse(path, "operation '", checked.name, "': the member 'reserved' of its table is ",
           known.reserved, "; expected 0");
  }
  return checked;
}

namespace {

static_assert(TUTTI_LOG_ERROR == static_cast<int>(LogLevel::kError));

void write_log(std::int32_t level, const char* text) {
  if (!text || level < TUTTI_LOG_DEBUG || level > TUTTI_LOG_ERROR) return;
  log(static_cast<LogLevel>(level), text);
}

std::int32_t report(tutti_error_v1* error, ErrorCode code, std::string_view text) {
  if (error) {
    const std::size_t length = std::min(text.size(), sizeof(error->message) - 1);
    error->code = static_cast<std::int32_t>(code);
    std::memcpy(error->message, text.data(), length);
    error->message[length] = '\0';
  }
  return static_cast<std::int32_t>(code);
}

template <class Body>
std::int32_t guarded(tutti_error_v1* error, const Body& body) {
  try {
    return body();
  } catch (const Error& thrown) {
    return report(error, thrown.code(), thrown.message());
  } catch (const std::exception& thrown) {
    return report(error, ErrorCode::kInternal, thrown.what());
  }
}

std::int32_t set_value(void* store, const char* key, const void* value, std::uint64_t size,
                       tutti_error_v1* error) {
  return guarded(error, [&] {
    require(store && key && (value || size == 0),
            "set: expected the group's store, a key and a value, got a null pointer");
    const std::string_view text(static_cast<const char*>(value), size);
    static_cast<const StorePart*>(store)->set(key, text);
    return std::int32_t{TUTTI_OK};
  });
}

std::string value_of(const StorePart& store, const char* key, std::int64_t timeout_ms) {
  if (timeout_ms == 0) {
    if (std::optional<std::string> value = store.get(key)) return *std::move(value);
    fail(ErrorCode::kNotFound, "get: the key '", key, "' is not set yet");
  }
  constexpr std::int64_t kLongest = std::int64_t{1} << 40;  // fits into 64 bits even in nanoseconds
  const Duration wait = timeout_ms < 0
                            ? kDefaultTimeout
                            : Duration(std::chrono::milliseconds(std::min(timeout_ms, kLongest)));
  return store.wait(key, deadline_after(Clock::system().now(), wait));
}

std::int32_t get_value(void* store, const char* key, void* value, std::uint64_t capacity,
                       std::uint64_t* size, std::int64_t timeout_ms, tutti_error_v1* error) {
  return guarded(error, [&] {
    require(store && key && size && (value || capacity == 0),
            "get: expected the group's store, a key and a buffer, got a null pointer");
    const std::string found = value_of(*static_cast<const StorePart*>(store), key, timeout_ms);
    *size = found.size();
    if (found.size() > capacity) {
      fail(ErrorCode::kOutOfRange, "get: the value of '", key, "': expected a buffer of ",
           found.size(), " bytes, got ", capacity);
    }
    if (!found.empty()) std::memcpy(value, found.data(), found.size());
    return std::int32_t{TUTTI_OK};
  });
}

template <class Enum>
std::int32_t number(Enum value) {
  return static_cast<std::int32_t>(value);
}

tutti_device_v1 abi_device(const Device& device) { return {number(device.type), device.index}; }

// Both sides of the interface use the same numbering.
static_assert(TUTTI_SUM == static_cast<int>(ReduceOp::kSum));
static_assert(TUTTI_MIN == static_cast<int>(ReduceOp::kMin));
static_assert(TUTTI_MAX == static_cast<int>(ReduceOp::kMax));
static_assert(TUTTI_PRODUCT == static_cast<int>(ReduceOp::kProduct));
static_assert(TUTTI_FLOAT32 == static_cast<int>(DType::kFloat32));
static_assert(TUTTI_FLOAT64 == static_cast<int>(DType::kFloat64));
static_assert(TUTTI_INT32 == static_cast<int>(DType::kInt32));
static_assert(TUTTI_INT64 == static_cast<int>(DType::kInt64));
static_assert(TUTTI_UINT8 == static_cast<int>(DType::kUInt8));
static_assert(TUTTI_BOOL == static_cast<int>(DType::kBool));
static_assert(TUTTI_BFLOAT16 == static_cast<int>(DType::kBFloat16));
static_assert(TUTTI_FLOAT16 == static_cast<int>(DType::kFloat16));
static_assert(TUTTI_CPU == static_cast<int>(DeviceType::kCpu));
static_assert(TUTTI_GPU == static_cast<int>(DeviceType::kGpu));
static_assert(TUTTI_DEADLINE_EXCEEDED == static_cast<int>(ErrorCode::kDeadlineExceeded));
static_assert(TUTTI_UNIMPLEMENTED == static_cast<int>(ErrorCode::kUnimplemented));
static_assert(TUTTI_DATA_LOSS == static_cast<int>(ErrorCode::kDataLoss));
static_assert(TUTTI_GRADE_CANONICAL == static_cast<int>(Determinism::kCanonical));
static_assert(TUTTI_ABORTED == static_cast<int>(ErrorCode::kAborted));

std::string options_text(const CommunicationOptions& options, std::int64_t timeout_ms,
                         const Json& own_options) {
  Json all = Json::Object{{"bytes_per_pack", options.bytes_per_pack},
                          {"timeout_ms", timeout_ms},
                          {"strict", options.strict}};
  if (!own_options.as_object().empty()) all.set("options", own_options);
  return all.dump();
}

bool is_error_code(std::int32_t code) {
  return code > TUTTI_OK && code <= TUTTI_DATA_LOSS && code != 2 && code != 7;
}

std::vector<tutti_buffer_v1> abi_buffers(std::span<const ReplicaBuffer> buffers) {
  std::vector<tutti_buffer_v1> result;
  for (const ReplicaBuffer& buffer : buffers) {
    result.push_back(
        {buffer.data, buffer.count, number(buffer.dtype), abi_device(buffer.device), 0, nullptr});
  }
  return result;
}

std::uint32_t size_of_list(std::span<const ReplicaBuffer> buffers) {
  return static_cast<std::uint32_t>(buffers.size());
}

std::vector<std::uint64_t> abi_counts(std::span<const std::size_t> counts) {
  return {counts.begin(), counts.end()};
}

/// Adapter from a plugin to CrossDeviceOps. Converts the plugin's error codes to Errors "plugin
/// '<name>' (<path>): <function> failed: <message>".
class AbiCrossDeviceOps final : public CrossDeviceOps {
 public:
  /// Throws create()'s error, kInternal for an invalid grade, code or error bound, and
  /// kUnimplemented for a group of several processes if the plugin cannot span processes.
  AbiCrossDeviceOps(std::shared_ptr<const PluginTable> table, const Group& group,
                    const CommunicationOptions& options, const Json& own_options)
      : table_(std::move(table)),
        store_(group.store),
        timeout_ms_(options.timeout ? options.timeout->count() : -1) {
    check_group(group);
    for (const Device& device : group.local_devices) devices_.push_back(abi_device(device));
    group_ = {.struct_size = sizeof(tutti_group_v1),
              .world_size = group.world_size,
              .first_rank = group.first_rank,
              .local_count = static_cast<std::uint32_t>(devices_.size()),
              .devices = devices_.data(),
              .log = write_log,
              .store = store_ ? &store_ : nullptr,
              .set = store_ ? set_value : nullptr,
              .get = store_ ? get_value : nullptr};
    tutti_error_v1 error{};
    const std::string text = options_text(options, timeout_ms_, own_options);
    self_ = calls().create(&group_, text.c_str(), &error);
    if (!self_) fail_with("create", error.code, error);
    try {
      determinism_ = read_determinism();
      sliceable_ = calls().sliceable && calls().sliceable(self_) != 0;
      max_relative_error_ = read_max_relative_error();
    } catch (...) {
      calls().destroy(self_);
      throw;
    }
  }
  ~AbiCrossDeviceOps() override { calls().destroy(self_); }
  AbiCrossDeviceOps(const AbiCrossDeviceOps&) = delete;
  AbiCrossDeviceOps& operator=(const AbiCrossDeviceOps&) = delete;

  std::string_view name() const override { return table_->name; }
  /// Returns false on GPUs, because version 1 of the interface has no streams.
  bool supports(ReduceOp op, DType dtype, DeviceType device) const override {
    return device == DeviceType::kCpu &&
           calls().supports(self_, number(op), number(dtype), number(device)) != 0;
  }
  Determinism determinism() const override { return determinism_; }
  bool sliceable() const override { return sliceable_; }
  double max_relative_error() const override { return max_relative_error_; }
  bool spans_processes() const override {
    return calls().spans_processes && calls().spans_processes() != 0;
  }
  bool provides(Collective collective) const override {
    const bool provided[] = {true,
                             calls().reduce != nullptr,
                             calls().broadcast != nullptr,
                             calls().all_gather != nullptr,
                             calls().reduce_scatter != nullptr,
                             calls().all_to_all != nullptr,
                             false};
    return provided[number(collective)];
  }
  void abort(const Error& reason) noexcept override {
    {
      MutexLock lock(mutex_);
      if (aborted_) return;
      aborted_ = Error(ErrorCode::kAborted, reason.message());
    }
    if (calls().abort) calls().abort(self_, number(reason.code()), reason.message().c_str());
  }

 protected:
  void require_buffers(std::span<const ReplicaBuffer> inputs,
                       std::span<const ReplicaBuffer> outputs) const override {
    const Device device = outputs.front().device;
    if (device.type != DeviceType::kCpu) {
      fail(ErrorCode::kUnimplemented, "plugin '", table_->name,
           "': version 1 of plugin_abi.h supports only ",
           "host memory; expected replicas on CPUs, got a replica on ", device,
           "; try a built-in operation, such as canonical");
    }
    const std::size_t num_buffers = (inputs.empty() ? outputs : inputs).size();
    require(num_buffers == devices_.size(), "plugin '", table_->name, "': was made for ",
            devices_.size(), " replicas; expected one buffer for each, got ", num_buffers,
            "; call build_cross_device_ops() for a group of ", num_buffers);
  }
  void all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> buffers) override {
    if (!calls().all_reduce_named) {
      return call("all_reduce", calls().all_reduce, number(op), abi_buffers(buffers).data(),
                  size_of_list(buffers));
    }
    const ReplicaBuffer& first = buffers.front();
    call("all_reduce_named", calls().all_reduce_named, first.id, std::string(first.name).c_str(),
         number(op), abi_buffers(buffers).data(), size_of_list(buffers));
  }
  void reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> inputs,
                      const ReplicaBuffer* output, int root) override {
    if (!calls().reduce) return CrossDeviceOps::reduce_buffers(op, inputs, output, root);
    std::vector<tutti_buffer_v1> result;
    if (output) result = abi_buffers(std::span(output, 1));
    call("reduce", calls().reduce, number(op), abi_buffers(inputs).data(), size_of_list(inputs),
         output ? result.data() : nullptr, root);
  }
  void broadcast_buffers(std::span<const ReplicaBuffer> buffers, int root) override {
    if (!calls().broadcast) return CrossDeviceOps::broadcast_buffers(buffers, root);
    call("broadcast", calls().broadcast, abi_buffers(buffers).data(), size_of_list(buffers), root);
  }
  void all_gather_buffers(std::span<const ReplicaBuffer> inputs,
                          std::span<const ReplicaBuffer> outputs,
                          std::span<const std::size_t> counts) override {
    if (!calls().all_gather) return CrossDeviceOps::all_gather_buffers(inputs, outputs, counts);
    call("all_gather", calls().all_gather, abi_buffers(inputs).data(), abi_buffers(outputs).data(),
         size_of_list(inputs), abi_counts(counts).data());
  }
  void reduce_scatter_buffers(ReduceOp op, std::span<const ReplicaBuffer> inputs,
                              std::span<const ReplicaBuffer> outputs,
                              std::span<const std::size_t> counts) override {
    if (!calls().reduce_scatter) {
      return CrossDeviceOps::reduce_scatter_buffers(op, inputs, outputs, counts);
    }
    call("reduce_scatter", calls().reduce_scatter, number(op), abi_buffers(inputs).data(),
         abi_buffers(outputs).data(), size_of_list(inputs), abi_counts(counts).data());
  }
  void all_to_all_buffers(std::span<const ReplicaBuffer> inputs,
                          std::span<const ReplicaBuffer> outputs,
                          std::span<const std::size_t> counts) override {
    if (!calls().all_to_all) return CrossDeviceOps::all_to_all_buffers(inputs, outputs, counts);
    call("all_to_all", calls().all_to_all, abi_buffers(inputs).data(), abi_buffers(outputs).data(),
         size_of_list(inputs), abi_counts(counts).data());
  }

 private:
  const Table& calls() const { return table_->calls; }
  void check_group(const Group& group) const {
    const auto local = static_cast<int>(group.local_devices.size());
    if (group.world_size == local) return;
    const std::string who = concat("plugin '", table_->name, "' (", table_->path, ")");
    if (!spans_processes()) {
      fail(ErrorCode::kUnimplemented, who, ": works only within one process; expected ",
           "a world size of ", local, " (its local replicas), got ", group.world_size,
           "; try a plugin whose spans_processes() returns 1");
    }
    require(static_cast<bool>(group.store), who,
            ": needs the group's key-value store to find the other ",
            "processes; expected Group::store, got none");
  }
  Determinism read_determinism() const {
    if (!calls().determinism) return Determinism::kNone;
    const std::int32_t grade = calls().determinism(self_);
    if (grade >= TUTTI_GRADE_NONE && grade <= TUTTI_GRADE_CANONICAL) {
      return static_cast<Determinism>(grade);
    }
    fail(ErrorCode::kInternal, "plugin '", table_->name, "': determinism() returned ", grade,
         "; expected a TUTTI_GRADE_... from ", TUTTI_GRADE_NONE, " to ", TUTTI_GRADE_CANONICAL);
  }
  double read_max_relative_error() const {
    if (!calls().max_relative_error) return 0.0;
    const double bound = calls().max_relative_error(self_);
    if (bound >= 0.0) return bound;
    fail(ErrorCode::kInternal, "plugin '", table_->name, "': max_relative_error() returned ", bound,
         "; expected >= 0, or INFINITY");
  }
  void throw_if_aborted() {
    MutexLock lock(mutex_);
    if (aborted_) throw *aborted_;
  }
  template <class Function, class... Arguments>
  void call(const char* name, Function function, const Arguments&... arguments) {
    throw_if_aborted();
    tutti_error_v1 error{};
    const std::int32_t code = function(self_, arguments..., timeout_ms_, &error);
    if (code == TUTTI_OK) return;
    throw_if_aborted();  // the abort's reason is more detailed than the plugin's error
    fail_with(name, code, error);
  }
  [[noreturn]] void fail_with(const char* function, std::int32_t code,
                              const tutti_error_v1& error) const {
    const std::string text(error.message, ::strnlen(error.message, sizeof(error.message)));
    const std::string who = concat("plugin '", table_->name, "' (", table_->path, "): ", function);
    if (!is_error_code(code)) {
      fail(ErrorCode::kInternal, who, " failed with code ", code,
           "; expected a code from plugin_abi.h; its message: ", text.empty() ? "none" : text);
    }
    fail(static_cast<ErrorCode>(code), who, " failed: ", text.empty() ? "no reason given" : text);
  }

  const std::shared_ptr<const PluginTable> table_;
  StorePart store_;
  const std::int64_t timeout_ms_;
  std::vector<tutti_device_v1> devices_;
  tutti_group_v1 group_{};  // the plugin may keep a pointer to it
  void* self_ = nullptr;
  Determinism determinism_ = Determinism::kNone;
  bool sliceable_ = false;
  double max_relative_error_ = 0.0;
  Mutex mutex_;
  std::optional<Error> aborted_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace
}  // namespace tutti::internal

namespace tutti {
namespace {

// Registry of loaded plugins. They are never unloaded, because their code may run until the last
// strategy is destroyed.
struct LoadedPlugins {
  Mutex mutex;
  std::map<void*, std::string> names TUTTI_GUARDED_BY(mutex);  // keyed by dlopen() handle
};

LoadedPlugins& loaded_plugins() {
  static LoadedPlugins plugins;
  return plugins;
}

struct Close {
  void operator()(void* library) const { ::dlclose(library); }
};
using Library = std::unique_ptr<void, Close>;

Library open_library(const std::string& path) {
  std::error_code ignored;
  if (path.find('/') != std::string::npos && !std::filesystem::exists(path, ignored)) {
    fail(ErrorCode::kNotFound, "plugin '", path, "': there is no such file");
  }
  Library library(::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL));
  if (library) return library;
  const char* const reason = ::dlerror();
  fail(ErrorCode::kInvalidArgument, "plugin '", path,
       "': cannot be loaded; expected a shared library; the loader reports: ",
       reason ? reason : "no details",
       path.find('/') == std::string::npos ? "; try a path with '/', such as ./lib.so" : "");
}

tutti_plugin_entry_v1 find_entry(void* library, const std::string& path) {
  if (void* const symbol = ::dlsym(library, TUTTI_PLUGIN_SYMBOL)) {
    return reinterpret_cast<tutti_plugin_entry_v1>(symbol);
  }
  for (int version = 2; version < 10; ++version) {
    const std::string other = concat("tutti_cross_device_ops_plugin_v", version);
    if (!::dlsym(library, other.c_str())) continue;
    fail(ErrorCode::kInvalidArgument, "plugin '", path, "': was built for version ", version,
         " of plugin_abi.h; expected version 1 (", TUTTI_PLUGIN_SYMBOL,
         "); rebuild the plugin with this tutti's header");
  }
  fail(ErrorCode::kInvalidArgument, "plugin '", path,
       "' is not a plugin; expected a library that exports ", TUTTI_PLUGIN_SYMBOL,
       "(), got one that does not");
}

}  // namespace

std::string load_cross_device_ops_plugin(const std::string& path) {
  LoadedPlugins& plugins = loaded_plugins();
  MutexLock lock(plugins.mutex);
  Library library = open_library(path);
  if (const auto known = plugins.names.find(library.get()); known != plugins.names.end()) {
    return known->second;
  }
  const auto table = std::make_shared<const internal::PluginTable>(
      internal::checked_plugin_table(find_entry(library.get(), path)(), path));
  try {
    const char* const names = table->calls.option_names;
    register_cross_device_ops(
        table->name,
        [table](const Group& group, const CommunicationOptions& options, const Json& own) {
          return std::make_unique<internal::AbiCrossDeviceOps>(table, group, options, own);
        },
        names ? split_text(names) : std::vector<std::string>());
  } catch (const Error& error) {
    throw error.with_context(concat("plugin '", path, "'"));
  }
  plugins.names.emplace(library.release(), table->name);
  return table->name;
}

}  // namespace tutti
