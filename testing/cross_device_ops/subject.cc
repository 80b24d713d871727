// What is tested: how groups of an operation are made, and the groups that are kept between cases.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/testing/cross_device_ops/subject.h"

#include <algorithm>
#include <exception>

#include "cross_device_ops/in_process/in_process_transport.h"
#include "tutti/core/error.h"
#include "tutti/cross_device_ops/key_value_store.h"
#include "tutti/cross_device_ops/registry.h"

namespace tutti::conformance {
namespace {

constexpr Duration kCallTimeout = std::chrono::seconds(60);

void rethrow_first(const std::vector<std::exception_ptr>& errors) {
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

std::unique_ptr<CrossDeviceOps> make_local(const CrossDeviceOpsSpec& spec,
                                           const std::vector<Device>& devices) {
  try {
    return build_cross_device_ops(spec, {static_cast<int>(devices.size()), 0, devices});
  } catch (const Error& error) {
    // Some want GPUs, and one for each replica.
    if (spec.name != "nccl" || error.code() != ErrorCode::kInvalidArgument) throw;
    throw Error(ErrorCode::kUnimplemented, error.message());
  }
}

RankFactory make_spread(const std::string& name, int world, Duration timeout) {
  const auto transports = in_process_transports(world);
  const auto store = std::make_shared<InProcessStore>();
  const CommunicatorOptions options{.algorithm = name, .timeout = timeout};
  return [=](int rank) {
    const Group group{
        world, rank, {{DeviceType::kCpu, 0}}, store, transports[static_cast<std::size_t>(rank)]};
    return make_communicator(group, options);
  };
}

RankFactory make_threads(const std::string& name, int world, Duration timeout) {
  // Other names send messages between threads: that is SPREAD.
  if (name != "canonical") {
    fail(ErrorCode::kUnimplemented, "threads that read each other's memory: '", name,
         "' sends messages instead; its cases between threads are those of shape spread");
  }
  auto made = std::make_shared<Communicators>(
      in_process_communicators(world, {.algorithm = name, .timeout = timeout}));
  return [made](int rank) { return std::move((*made)[static_cast<std::size_t>(rank)]); };
}

}  // namespace

Subject::Subject(const std::string& registered_name)
    : Subject(registered_name, SubjectFactories{}) {
  const CrossDeviceOpsSpec spec = make_cross_device_ops(registered_name);
  factories_.local = [this, spec](int world) { return make_local(spec, devices(world)); };
  factories_.spread = [registered_name](int world, Duration timeout) {
    return make_spread(registered_name, world, timeout);
  };
  factories_.threads = [registered_name](int world, Duration timeout) {
    return make_threads(registered_name, world, timeout);
  };
}

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

RankThreads::RankThreads(int size) : RankThreads() {  // so that the destructor ends some, too
  for (int rank = 0; rank < size; ++rank) {
    threads_.push_back(
        Executor::system().start(concat("conform-", rank), [this, rank] { work(rank); }));
  }
}

RankThreads::~RankThreads() {
  {
    MutexLock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  threads_.clear();
}

void RankThreads::start(std::function<void(int rank)> body) {
  {
    MutexLock lock(mutex_);
    body_ = std::move(body);
    ++round_;
    running_ = size();
  }
  changed_.notify_all();
}

bool RankThreads::wait(Duration limit) {
  MutexLock lock(mutex_);
  return changed_.wait_for(mutex_, limit,
                           [this]() TUTTI_REQUIRES(mutex_) { return running_ == 0; });
}

void RankThreads::work(int rank) {
  std::uint64_t done = 0;
  while (true) {
    std::function<void(int)> body;
    {
      MutexLock lock(mutex_);
      changed_.wait_until(mutex_, TimePoint::max(),
                          [&]() TUTTI_REQUIRES(mutex_) { return ending_ || round_ != done; });
      if (ending_) return;
      done = round_;
      body = body_;
    }
    body(rank);
    bool last = false;
    {
      MutexLock lock(mutex_);
      last = --running_ == 0;
    }
    if (last) changed_.notify_all();
  }
}

}  // namespace tutti::conformance
