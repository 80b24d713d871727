// Finding a PJRT plugin, checking its table, errors of its functions.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/xla/pjrt_plugin.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <vector>

#include "core/hash.h"

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

namespace internal {
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

}  // namespace internal
}  // namespace tutti
