// Calls across the C interface.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/plugin/abi_cross_device_ops.h"

#include <cstring>
#include <string>
#include <vector>

#include "tutti/core/json.h"
#include "tutti/core/logging.h"

namespace tutti::internal {
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
static_assert(TUTTI_LOG_ERROR == static_cast<int>(LogLevel::kError));

void write_log(std::int32_t level, const char* text) {
  if (!text || level < TUTTI_LOG_DEBUG || level > TUTTI_LOG_ERROR) return;
  log(static_cast<LogLevel>(level), text);
}

std::string options_text(const CommunicationOptions& options, std::int64_t timeout_ms) {
  return Json(Json::Object{{"bytes_per_pack", options.bytes_per_pack},
                           {"timeout_ms", timeout_ms},
                           {"strict", options.strict}})
      .dump();
}

tutti_device_v1 device_of(const Device& device) {
  return {static_cast<std::int32_t>(device.type), device.index};
}

bool is_error_code(std::int32_t code) {
  return code > TUTTI_OK && code <= TUTTI_DATA_LOSS && code != 2 && code != 7;
}

}  // namespace

AbiCrossDeviceOps::AbiCrossDeviceOps(std::shared_ptr<const PluginTable> table, const Group& group,
                                     const CommunicationOptions& options)
    : table_(std::move(table)), timeout_ms_(options.timeout ? options.timeout->count() : -1) {
  std::vector<tutti_device_v1> devices;
  for (const Device& device : group.local_devices) devices.push_back(device_of(device));
  const tutti_group_v1 abi_group{sizeof(tutti_group_v1), group.world_size,
                                 group.first_rank,       static_cast<std::uint32_t>(devices.size()),
                                 devices.data(),         write_log};
  tutti_error_v1 error{};
  self_ = table_->create(&abi_group, options_text(options, timeout_ms_).c_str(), &error);
  if (!self_) fail_with("create", error.code, error);
  try {
    determinism_ = read_determinism();
  } catch (...) {
    table_->destroy(self_);
    throw;
  }
}

AbiCrossDeviceOps::~AbiCrossDeviceOps() { table_->destroy(self_); }

Determinism AbiCrossDeviceOps::read_determinism() const {
  if (!table_->determinism) return Determinism::kNone;
  const std::int32_t grade = table_->determinism(self_);
  if (grade >= TUTTI_GRADE_NONE && grade <= TUTTI_GRADE_CANONICAL) {
    return static_cast<Determinism>(grade);
  }
  fail(ErrorCode::kInternal, "plugin '", table_->name, "': determinism() returned ", grade,
       "; expected a TUTTI_GRADE_... from ", TUTTI_GRADE_NONE, " to ", TUTTI_GRADE_CANONICAL);
}

bool AbiCrossDeviceOps::supports(ReduceOp op, DType dtype, DeviceType device) const {
  return table_->supports(self_, static_cast<std::int32_t>(op), static_cast<std::int32_t>(dtype),
                          static_cast<std::int32_t>(device)) != 0;
}

void AbiCrossDeviceOps::all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> buffers) {
  std::vector<tutti_buffer_v1> replicas;
  for (const ReplicaBuffer& buffer : buffers) {
    replicas.push_back({buffer.data, buffer.count, static_cast<std::int32_t>(buffer.dtype),
                        device_of(buffer.device), 0, nullptr});
  }
  tutti_error_v1 error{};
  const std::int32_t code =
      table_->all_reduce(self_, static_cast<std::int32_t>(op), replicas.data(),
                         static_cast<std::uint32_t>(replicas.size()), timeout_ms_, &error);
  if (code != TUTTI_OK) fail_with("all_reduce", code, error);
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
