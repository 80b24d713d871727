// The functions that a plugin may call: none of them lets an exception through.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/plugin/abi_cross_device_ops.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <string_view>

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

}  // namespace tutti::internal
