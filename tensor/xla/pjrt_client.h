// The PJRT plugin of this process, its devices, buffers, programs and launches.
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

/// Returns the paths where a plugin may be: only TUTTI_PJRT_PLUGIN if it is set; otherwise
/// TPU_LIBRARY_PATH, then the known packages in the folders in which Python looks for packages.
std::vector<std::string> pjrt_plugin_candidates();

namespace internal {

/// An opened plugin. It stays open, because plugins do not survive dlclose(). Thread-safe.
class PjrtPlugin {
 public:
  /// Throws kUnavailable naming the path and the fault: not a plugin, a different major version, or
  /// a table that is too short.
  explicit PjrtPlugin(const std::string& path);

  const std::string& path() const { return path_; }
  /// Returns the version of the plugin's API, e.g. "0.115".
  std::string version() const;
  /// Returns the hash of the library file, which is read only once. Throws kUnavailable if the file
  /// cannot be read.
  const std::string& file_hash() const;

  /// Calls a function of the plugin and returns its argument fields, including its outputs. Throws
  /// the plugin's error, prefixed with `who`, and kUnimplemented if the plugin has no such
  /// function.
  template <class Fields>
  Fields call(PjrtFunction function, const Fields& fields, const char* who) const {
    PjrtArguments<Fields> arguments{.fields = fields};
    check(begin(function, arguments), who);
    return arguments.fields;
  }
  /// Destroys the object that `handle` refers to. Ignores errors.
  template <class Handle>
  void destroy(PjrtFunction function, Handle* handle) const noexcept {
    if (find(function) == nullptr) return;
    PjrtArguments<PjrtHandleFields<Handle>> arguments{.fields = {handle}};
    destroy(begin(function, arguments));
  }
  /// Waits for the event and destroys it. Throws the same errors as call().
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

/// Buffer on one device. Programs see its elements in row-major order. Thread-safe.
class PjrtBuffer {
 public:
  PjrtBuffer(const PjrtClient& client, PjrtBufferHandle* handle)
      : client_(client), handle_(handle) {}
  ~PjrtBuffer();
  PjrtBuffer& operator=(PjrtBuffer&&) = delete;

  PjrtBufferHandle* handle() const { return handle_; }
  /// Throws kInternal, naming `who` and both shapes and types, unless the buffer has this shape and
  /// type.
  void check(const Shape& shape, DType dtype, const char* who) const;
  /// Copies the elements to the host, and waits for the copy.
  void to_host(void* to, std::size_t bytes) const;

 private:
  const PjrtClient& client_;
  PjrtBufferHandle* handle_;
};

/// A program that was compiled for `num_replicas` devices. Thread-safe.
class PjrtExecutable {
 public:
  PjrtExecutable(const PjrtClient& client, PjrtLoadedExecutable* loaded, std::size_t num_replicas);
  ~PjrtExecutable();
  PjrtExecutable& operator=(PjrtExecutable&&) = delete;

  using Buffers = std::vector<std::shared_ptr<PjrtBuffer>>;
  /// Runs the program on all its devices and waits until all are done, because a plugin aborts the
  /// process if too many launches with collectives are pending. Takes
  /// `arguments`[replica][argument] and returns [replica][output]. Throws kInternal unless all
  /// replicas have the same number of arguments, because a missing launch would also abort the
  /// process. Donated arguments cannot be used afterwards.
  std::vector<Buffers> run(const std::vector<Buffers>& arguments) const;
  /// Returns bytes for PjrtClient::load() in another process with the same plugin. Throws
  /// kUnimplemented if the plugin does not support serialization.
  std::string serialize() const;

 private:
  const PjrtClient& client_;
  PjrtLoadedExecutable* loaded_;
  const std::size_t num_replicas_;
  PjrtExecutableHandle* executable_ = nullptr;
  std::size_t num_outputs_ = 0;
};

/// The client of this process, which lives as long as the process. Thread-safe.
class PjrtClient {
 public:
  /// Returns the client. Throws kUnavailable with XlaDevices::why_none if there is none.
  static PjrtClient& get();

  explicit PjrtClient(const std::string& path);
  PjrtClient& operator=(PjrtClient&&) = delete;

  const PjrtPlugin& plugin() const { return plugin_; }
  /// Returns the mutex that is held while a program runs. Without it, two concurrent programs with
  /// collectives would deadlock.
  Mutex& launching() const { return launching_; }
  int num_devices() const { return static_cast<int>(devices_.size()); }
  /// Returns the platform: "cpu", "tpu" or "cuda".
  std::string platform() const;
  /// Returns the xla.CompileOptionsProto for programs on these devices.
  std::string compile_options(const std::vector<int>& devices) const;

  /// Copies host memory to device `device`; the memory may change once upload() has returned.
  std::shared_ptr<PjrtBuffer> upload(const void* data, const Shape& shape, DType dtype,
                                     int device) const;
  /// Compiles StableHLO text into a program whose replica r runs on device devices[r]. Throws
  /// kInternal for missing or repeated devices, and kInvalidArgument with the compiler's message.
  std::unique_ptr<PjrtExecutable> compile(std::string_view text,
                                          const std::vector<int>& devices) const;
  /// Loads the bytes that serialize() returned for a program with the same number of replicas. The
  /// plugin does not verify the bytes: they must come from the same plugin, on a processor of the
  /// same kind.
  std::unique_ptr<PjrtExecutable> load(std::string_view bytes, std::size_t num_replicas) const;

 private:
  std::int64_t id_of(int device) const;

  const PjrtPlugin plugin_;
  PjrtClientHandle* client_ = nullptr;
  std::vector<PjrtDevice*> devices_;
  mutable Mutex launching_;
};

/// Returns the number that plugins use for an element type.
int pjrt_type(DType dtype);

/// Returns the xla.CompileOptionsProto for a program whose replica r runs on the device with id
/// ids[r]. `ids` must not be empty, because the plugin would then abort the process. If `on_cpu` is
/// set, NaN stays NaN in maxima.
std::string compile_options(const std::vector<std::int64_t>& ids, bool on_cpu);

}  // namespace internal

}  // namespace tutti
