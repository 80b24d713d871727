// Calls across the C interface.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/plugin/abi_cross_device_ops.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/core/json.h"
#include "tutti/core/logging.h"

namespace tutti::internal {

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
    if (!store || !key || (!value && size > 0)) {
      fail(ErrorCode::kInvalidArgument, "set: expected the group's store, a key and a value");
    }
    const std::string_view text(static_cast<const char*>(value), size);
    static_cast<KeyValueStore*>(store)->set(key, text);
    return std::int32_t{TUTTI_OK};
  });
}

std::string value_of(KeyValueStore& store, const char* key, std::int64_t timeout_ms) {
  if (timeout_ms == 0) {
    if (std::optional<std::string> value = store.get(key)) return *std::move(value);
    fail(ErrorCode::kNotFound, "get: nobody has set the key '", key, "' yet");
  }
  constexpr std::int64_t kLongest = std::int64_t{1} << 40;  // in nanoseconds it still is a number
  const Duration wait = timeout_ms < 0
                            ? kDefaultTimeout
                            : Duration(std::chrono::milliseconds(std::min(timeout_ms, kLongest)));
  return store.wait(key, deadline_after(Clock::system().now(), wait));
}

std::int32_t get_value(void* store, const char* key, void* value, std::uint64_t capacity,
                       std::uint64_t* size, std::int64_t timeout_ms, tutti_error_v1* error) {
  return guarded(error, [&] {
    if (!store || !key || !size || (!value && capacity > 0)) {
      fail(ErrorCode::kInvalidArgument, "get: expected the group's store, a key and room");
    }
    const std::string found = value_of(*static_cast<KeyValueStore*>(store), key, timeout_ms);
    *size = found.size();
    if (found.size() > capacity) {
      fail(ErrorCode::kOutOfRange, "get: the value of '", key, "'; expected room for ",
           found.size(), " bytes, got ", capacity);
    }
    if (!found.empty()) std::memcpy(value, found.data(), found.size());
    return std::int32_t{TUTTI_OK};
  });
}

}  // namespace

tutti_device_v1 abi_device(const Device& device) {
  return {static_cast<std::int32_t>(device.type), device.index};
}

AbiGroup::AbiGroup(const Group& group) : store_(group.store) {
  for (const Device& device : group.local_devices) devices_.push_back(abi_device(device));
  group_.struct_size = sizeof(tutti_group_v1);
  group_.world_size = group.world_size;
  group_.first_rank = group.first_rank;
  group_.local_count = static_cast<std::uint32_t>(devices_.size());
  group_.devices = devices_.data();
  group_.log = write_log;
  if (!store_) return;
  group_.store = store_.get();
  group_.set = set_value;
  group_.get = get_value;
}

namespace {

// One numbering on both sides of the border.
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
    result.push_back({buffer.data, buffer.count, static_cast<std::int32_t>(buffer.dtype),
                      abi_device(buffer.device), 0, nullptr});
  }
  return result;
}

std::uint32_t size_of_list(std::span<const ReplicaBuffer> buffers) {
  return static_cast<std::uint32_t>(buffers.size());
}

std::vector<std::uint64_t> abi_counts(std::span<const std::size_t> counts) {
  return {counts.begin(), counts.end()};
}

}  // namespace

AbiCrossDeviceOps::AbiCrossDeviceOps(std::shared_ptr<const PluginTable> table, const Group& group,
                                     const CommunicationOptions& options, const Json& own_options)
    : table_(std::move(table)),
      group_(group),
      timeout_ms_(options.timeout ? options.timeout->count() : -1) {
  check_group(group);
  tutti_error_v1 error{};
  const std::string text = options_text(options, timeout_ms_, own_options);
  self_ = table_->calls.create(&group_.get(), text.c_str(), &error);
  if (!self_) fail_with("create", error.code, error);
  try {
    determinism_ = read_determinism();
    sliceable_ = table_->calls.sliceable && table_->calls.sliceable(self_) != 0;
    max_relative_error_ = read_max_relative_error();
  } catch (...) {
    table_->calls.destroy(self_);
    throw;
  }
}

AbiCrossDeviceOps::~AbiCrossDeviceOps() { table_->calls.destroy(self_); }

void AbiCrossDeviceOps::check_group(const Group& group) const {
  const auto local = static_cast<int>(group.local_devices.size());
  if (group.world_size == local) return;
  const std::string who = concat("plugin '", table_->name, "' (", table_->path, ")");
  if (!spans_processes()) {
    fail(ErrorCode::kUnimplemented, who, ": works within one process alone; expected ",
         "a world size of ", local, " (its local replicas), got ", group.world_size,
         "; try a plugin whose spans_processes() says 1");
  }
  if (!group.store) {
    fail(ErrorCode::kInvalidArgument, who, ": needs the group's key-value store to find the other ",
         "processes; expected Group::store, got none");
  }
}

Determinism AbiCrossDeviceOps::read_determinism() const {
  if (!table_->calls.determinism) return Determinism::kNone;
  const std::int32_t grade = table_->calls.determinism(self_);
  if (grade >= TUTTI_GRADE_NONE && grade <= TUTTI_GRADE_CANONICAL) {
    return static_cast<Determinism>(grade);
  }
  fail(ErrorCode::kInternal, "plugin '", table_->name, "': determinism() returned ", grade,
       "; expected a TUTTI_GRADE_... from ", TUTTI_GRADE_NONE, " to ", TUTTI_GRADE_CANONICAL);
}

double AbiCrossDeviceOps::read_max_relative_error() const {
  if (!table_->calls.max_relative_error) return 0.0;
  const double bound = table_->calls.max_relative_error(self_);
  if (bound >= 0.0) return bound;
  fail(ErrorCode::kInternal, "plugin '", table_->name, "': max_relative_error() returned ", bound,
       "; expected 0 or more, or INFINITY");
}

void AbiCrossDeviceOps::require_buffers(std::span<const ReplicaBuffer>,
                                        std::span<const ReplicaBuffer> outputs) const {
  const Device device = outputs.front().device;
  if (device.type == DeviceType::kCpu) return;
  fail(ErrorCode::kUnimplemented, "plugin '", table_->name, "': version 1 of plugin_abi.h is for ",
       "host memory; expected replicas on CPUs, got one on ", device,
       "; try an operation of tutti's own, such as canonical");
}

bool AbiCrossDeviceOps::supports(ReduceOp op, DType dtype, DeviceType device) const {
  if (device != DeviceType::kCpu) return false;
  return table_->calls.supports(self_, static_cast<std::int32_t>(op),
                                static_cast<std::int32_t>(dtype),
                                static_cast<std::int32_t>(device)) != 0;
}

bool AbiCrossDeviceOps::spans_processes() const {
  return table_->calls.spans_processes && table_->calls.spans_processes() != 0;
}

bool AbiCrossDeviceOps::provides(Collective collective) const {
  switch (collective) {
    case Collective::kAllReduce:
      return true;
    case Collective::kReduce:
      return table_->calls.reduce != nullptr;
    case Collective::kBroadcast:
      return table_->calls.broadcast != nullptr;
    case Collective::kAllGather:
      return table_->calls.all_gather != nullptr;
    case Collective::kReduceScatter:
      return table_->calls.reduce_scatter != nullptr;
    case Collective::kAllToAll:
      return table_->calls.all_to_all != nullptr;
    case Collective::kBarrier:
      return false;
  }
  return false;
}

void AbiCrossDeviceOps::abort(const Error& reason) noexcept {
  {
    MutexLock lock(mutex_);
    if (aborted_) return;
    aborted_ = Error(ErrorCode::kAborted, reason.message());
  }
  if (!table_->calls.abort) return;
  table_->calls.abort(self_, static_cast<std::int32_t>(reason.code()), reason.message().c_str());
}

std::optional<Error> AbiCrossDeviceOps::abort_reason() const {
  MutexLock lock(mutex_);
  return aborted_;
}

template <class Function, class... Arguments>
void AbiCrossDeviceOps::call(const char* name, Function function, const Arguments&... arguments) {
  if (const auto reason = abort_reason()) throw *reason;
  tutti_error_v1 error{};
  const std::int32_t code = function(self_, arguments..., timeout_ms_, &error);
  if (code == TUTTI_OK) return;
  // The abort's reason says more than the plugin does.
  if (const auto reason = abort_reason()) throw *reason;
  fail_with(name, code, error);
}

void AbiCrossDeviceOps::all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> buffers) {
  if (table_->calls.all_reduce_named) {
    const ReplicaBuffer& first = buffers.front();
    return call("all_reduce_named", table_->calls.all_reduce_named, first.id,
                std::string(first.name).c_str(), static_cast<std::int32_t>(op),
                abi_buffers(buffers).data(), size_of_list(buffers));
  }
  call("all_reduce", table_->calls.all_reduce, static_cast<std::int32_t>(op),
       abi_buffers(buffers).data(), size_of_list(buffers));
}

void AbiCrossDeviceOps::reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> inputs,
                                       const ReplicaBuffer* output, int root) {
  if (!table_->calls.reduce) return CrossDeviceOps::reduce_buffers(op, inputs, output, root);
  std::vector<tutti_buffer_v1> result;
  if (output) result = abi_buffers(std::span(output, 1));
  call("reduce", table_->calls.reduce, static_cast<std::int32_t>(op), abi_buffers(inputs).data(),
       size_of_list(inputs), output ? result.data() : nullptr, root);
}

void AbiCrossDeviceOps::broadcast_buffers(std::span<const ReplicaBuffer> buffers, int root) {
  if (!table_->calls.broadcast) return CrossDeviceOps::broadcast_buffers(buffers, root);
  call("broadcast", table_->calls.broadcast, abi_buffers(buffers).data(), size_of_list(buffers),
       root);
}

void AbiCrossDeviceOps::all_gather_buffers(std::span<const ReplicaBuffer> inputs,
                                           std::span<const ReplicaBuffer> outputs,
                                           std::span<const std::size_t> counts) {
  if (!table_->calls.all_gather) return CrossDeviceOps::all_gather_buffers(inputs, outputs, counts);
  call("all_gather", table_->calls.all_gather, abi_buffers(inputs).data(),
       abi_buffers(outputs).data(), size_of_list(inputs), abi_counts(counts).data());
}

void AbiCrossDeviceOps::reduce_scatter_buffers(ReduceOp op, std::span<const ReplicaBuffer> inputs,
                                               std::span<const ReplicaBuffer> outputs,
                                               std::span<const std::size_t> counts) {
  if (!table_->calls.reduce_scatter) {
    return CrossDeviceOps::reduce_scatter_buffers(op, inputs, outputs, counts);
  }
  call("reduce_scatter", table_->calls.reduce_scatter, static_cast<std::int32_t>(op),
       abi_buffers(inputs).data(), abi_buffers(outputs).data(), size_of_list(inputs),
       abi_counts(counts).data());
}

void AbiCrossDeviceOps::all_to_all_buffers(std::span<const ReplicaBuffer> inputs,
                                           std::span<const ReplicaBuffer> outputs,
                                           std::span<const std::size_t> counts) {
  if (!table_->calls.all_to_all) return CrossDeviceOps::all_to_all_buffers(inputs, outputs, counts);
  call("all_to_all", table_->calls.all_to_all, abi_buffers(inputs).data(),
       abi_buffers(outputs).data(), size_of_list(inputs), abi_counts(counts).data());
}

void AbiCrossDeviceOps::fail_with(const char* function, std::int32_t code,
                                  const tutti_error_v1& error) const {
  const std::string text(error.message, ::strnlen(error.message, sizeof(error.message)));
  const std::string who = concat("plugin '", table_->name, "' (", table_->path, "): ", function);
  if (!is_error_code(code)) {
    fail(ErrorCode::kInternal, who, " failed with code ", code,
         "; expected one of plugin_abi.h; it says: ", text.empty() ? "nothing" : text);
  }
  fail(static_cast<ErrorCode>(code), who, " failed: ", text.empty() ? "it does not say why" : text);
}

}  // namespace tutti::internal
