// What is tested: how groups of an operation are made, and the groups that are kept between cases.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/testing/cross_device_ops/subject.h"

#include <algorithm>
#include <exception>

#include "tutti/core/error.h"

namespace tutti::conformance {
namespace {

constexpr Duration kCallTimeout = std::chrono::seconds(60);

void rethrow_first(const std::vector<std::exception_ptr>& errors) {
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace

Subject::Subject(std::string name, SubjectFactories factories)
    : name_(std::move(name)), factories_(std::move(factories)) {}

Subject::~Subject() { forget(); }

void Subject::use_devices(std::vector<Device> devices) {
  devices_ = std::move(devices);
  if (devices_.empty() || devices_.front().type == DeviceType::kCpu) return;
  factories_.spread = nullptr;
  factories_.threads = nullptr;
}

std::vector<Device> Subject::devices(int world) const {
  const auto num_replicas = static_cast<std::size_t>(world);
  const std::size_t num_used = std::min(devices_.size(), num_replicas);
  std::vector<Device> of_replicas;
  for (std::size_t r = 0; r < num_replicas; ++r) {
    of_replicas.push_back(devices_.empty() ? Device{DeviceType::kCpu, static_cast<int>(r)}
                                           : devices_[r * num_used / num_replicas]);
  }
  return of_replicas;
}

std::unique_ptr<CrossDeviceOps> Subject::new_local(int world) const {
  if (!factories_.local) fail(ErrorCode::kUnimplemented, name_, " has no local groups");
  return factories_.local(world);
}

Communicators Subject::new_ranks(GroupShape shape, int world, Duration timeout) {
  const auto& factory = shape == GroupShape::kSpread ? factories_.spread : factories_.threads;
  if (!factory)
    fail(ErrorCode::kUnimplemented, name_, " has no groups of the shape ", to_string(shape));
  const RankFactory make = factory(world, timeout);
  Communicators made(static_cast<std::size_t>(world));
  std::vector<std::exception_ptr> errors(made.size());
  RankThreads& makers = threads(world);
  makers.start([&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    try {
      made[r] = make(rank);
    } catch (...) {
      errors[r] = std::current_exception();
    }
  });
  makers.wait(Duration::max());
  rethrow_first(errors);
  return made;
}

CrossDeviceOps* Subject::kept_local(int world) {
  if (local_ && local_world_ == world) return local_.get();
  local_.reset();
  try {
    local_ = new_local(world);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnimplemented) throw;
    why_not_ = error.message();
    return nullptr;
  }
  local_world_ = world;
  return local_.get();
}

Communicators* Subject::kept_ranks(GroupShape shape, int world) {
  if (ranks_.size() == static_cast<std::size_t>(world) && ranks_shape_ == shape) return &ranks_;
  ranks_.clear();
  if (const auto known = unavailable_.find(shape); known != unavailable_.end()) {
    why_not_ = known->second;
    return nullptr;
  }
  try {
    ranks_ = new_ranks(shape, world, kCallTimeout);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnimplemented) throw;
    why_not_ = unavailable_[shape] = error.message();
    return nullptr;
  }
  ranks_shape_ = shape;
  return &ranks_;
}

void Subject::forget() {
  local_.reset();
  ranks_.clear();
}

RankThreads& Subject::threads(int size) {
  std::unique_ptr<RankThreads>& kept = threads_[size];
  if (!kept) kept = std::make_unique<RankThreads>(size);
  return *kept;
}

}  // namespace tutti::conformance
