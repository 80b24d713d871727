// The PJRT plugin of this process: found and opened; its devices, buffers, programs and launches.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/xla/pjrt_api.h"
#include "tutti/core/error.h"
#include "tutti/core/sync.h"
#include "tutti/tensor/dtype.h"
#include "tutti/tensor/shape.h"
#include "tutti/tensor/xla/xla_devices.h"

namespace tutti {

/// Where a plugin may be: what TUTTI_PJRT_PLUGIN names, alone when it is set; else what
/// TPU_LIBRARY_PATH names; then the known packages in the folders in which Python looks for
/// packages.
std::vector<std::string> pjrt_plugin_candidates();

namespace internal {

/// An opened plugin, which stays open as long as the process: plugins do not survive dlclose().
/// Any thread.
class PjrtPlugin {
 public:
  /// Throws kUnavailable naming the path and what is wrong with the library: no plugin, another
  /// major version, a table that is too short.
  explicit PjrtPlugin(const std::string& path);

  const std::string& path() const { return path_; }
  /// "0.115".
  std::string version() const;
  /// Of the library's bytes, read once: what its compiled programs are for. Throws as read_file().
  const std::string& file_hash() const;

  /// Returns the fields as the function has filled them in. Throws what the plugin answers, `who`
  /// in front; kUnimplemented when it has no such function.
  template <class Fields>
  Fields call(PjrtFunction function, const Fields& fields, const char* who) const {
    PjrtArguments<Fields> arguments{.fields = fields};
    check(begin(function, arguments), who);
    return arguments.fields;
  }
  /// Destroys what the handle stands for. Nothing can be done about an error.
  template <class Handle>
  void destroy(PjrtFunction function, Handle* handle) const noexcept {
    if (find(function) == nullptr) return;
    PjrtArguments<PjrtHandleFields<Handle>> arguments{.fields = {handle}};
    destroy(begin(function, arguments));
  }
  /// Waits for the event and gives it back. Throws as call().
  void await(PjrtEvent* event, const char* who) const;

 private:
  void* find(PjrtFunction function) const noexcept;
  template <class Fields>
  PjrtError* begin(PjrtFunction function, PjrtArguments<Fields>& arguments) const {
    void* const found = find(function);
    if (!found) fail_missing(function);
    return reinterpret_cast<PjrtError* (*)(PjrtArguments<Fields>*)>(found)(&arguments);
  }
  [[noreturn]] void fail_missing(PjrtFunction function) const;
  void check(PjrtError* error, const char* who) const;
  void destroy(PjrtError* error) const noexcept;

  const std::string path_;
  const PjrtApi* api_ = nullptr;
  mutable Mutex hash_mutex_;
  mutable std::string file_hash_ TUTTI_GUARDED_BY(hash_mutex_);
};

class PjrtClient;

/// Elements on one device, row-major as the program sees them. Any thread.
class PjrtBuffer {
 public:
  PjrtBuffer(const PjrtClient& client, PjrtBufferHandle* handle)
      : client_(client), handle_(handle) {}
  ~PjrtBuffer();
  PjrtBuffer& operator=(PjrtBuffer&&) = delete;

  PjrtBufferHandle* handle() const { return handle_; }
  /// Throws kInternal naming `who` and both unless the plugin has these elements.
  void check(const Shape& shape, DType dtype, const char* who) const;
  /// Waits for the elements.
  void to_host(void* to, std::size_t bytes) const;

 private:
  const PjrtClient& client_;
  PjrtBufferHandle* handle_;
};

/// A program that was compiled for `num_replicas` devices. Any thread.
class PjrtExecutable {
 public:
  PjrtExecutable(const PjrtClient& client, PjrtLoadedExecutable* loaded, std::size_t num_replicas);
  ~PjrtExecutable();
  PjrtExecutable& operator=(PjrtExecutable&&) = delete;

  using Buffers = std::vector<std::shared_ptr<PjrtBuffer>>;
  /// Runs it on all its devices and waits until all are done: a plugin aborts the process when too
  /// many launches with collectives wait. `arguments`[replica][argument]; throws kInternal unless
  /// there are as many for each replica, for one that is never launched aborts the process, too.
  /// Donated arguments are of no use afterwards. Returns [replica][output].
  std::vector<Buffers> run(const std::vector<Buffers>& arguments) const;
  /// For PjrtClient::load() of another process with the same plugin. Throws kUnimplemented where
  /// the plugin offers none.
  std::string serialize() const;

 private:
  const PjrtClient& client_;
  PjrtLoadedExecutable* loaded_;
  const std::size_t num_replicas_;
  PjrtExecutableHandle* executable_ = nullptr;
  std::size_t num_outputs_ = 0;
};

/// The one client of this process. Lives as long as it. Any thread.
class PjrtClient {
 public:
  /// The same at each call. Throws kUnavailable with XlaDevices::why_none.
  static PjrtClient& get();

  explicit PjrtClient(const std::string& path);
  PjrtClient& operator=(PjrtClient&&) = delete;

  const PjrtPlugin& plugin() const { return plugin_; }
  /// Held while a program runs: two with collectives, launched at once, wait for each other.
  Mutex& launching() const { return launching_; }
  int num_devices() const { return static_cast<int>(devices_.size()); }
  /// "cpu", "tpu", "cuda".
  std::string platform() const;
  /// What a program for these devices is compiled with: xla.CompileOptionsProto.
  std::string compile_options(const std::vector<int>& devices) const;

  /// A copy of host memory on device `device`; the memory may change once this has returned.
  std::shared_ptr<PjrtBuffer> upload(const void* data, const Shape& shape, DType dtype,
                                     int device) const;
  /// A module of StableHLO, as text, whose replica r runs on device devices[r]. Throws kInternal
  /// for devices that are not there or stand twice, kInvalidArgument with the compiler's words.
  std::unique_ptr<PjrtExecutable> compile(std::string_view text,
                                          const std::vector<int>& devices) const;
  /// What serialize() gave for as many devices. A plugin believes its bytes: they must be those of
  /// this plugin, on such a processor.
  std::unique_ptr<PjrtExecutable> load(std::string_view bytes, std::size_t num_replicas) const;

 private:
  std::int64_t id_of(int device) const;

  const PjrtPlugin plugin_;
  PjrtClientHandle* client_ = nullptr;
  std::vector<PjrtDevice*> devices_;
  mutable Mutex launching_;
};

/// The number by which plugins know an element type.
int pjrt_type(DType dtype);

/// xla.CompileOptionsProto of a program whose replica r runs on the device of number ids[r], which
/// are at least one: a plugin ends the process where there is none. `on_cpu`: NaN stays NaN in
/// maxima.
std::string compile_options(const std::vector<std::int64_t>& ids, bool on_cpu);

}  // namespace internal

}  // namespace tutti
