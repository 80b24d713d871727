// Driver, module and libraries, looked for one after the other with dlopen.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/gpu/load_backend.h"

#include <dlfcn.h>
#include <link.h>

#include <array>
#include <cstdlib>
#include <filesystem>

#include "core/list_text.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDriver = "libcuda.so.1";
constexpr const char* kModule = "libtutti_cuda.so";
constexpr std::size_t kReasonBytes = 1024;

std::string last_dl_error() {
  const char* const text = dlerror();
  return text ? text : "unknown reason";
}

/// Folder of the program or library that this code was linked into.
fs::path own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&last_dl_error), &info) == 0 || !info.dli_fname) return {};
  std::error_code error;
  return fs::weakly_canonical(info.dli_fname, error).parent_path();
}

fs::path program_folder() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error).parent_path();
}

/// The module's own answer.
void ask_module(void* module, LoadedBackend& loaded) {
  const auto open = reinterpret_cast<OpenBackend>(dlsym(module, "tutti_open_backend"));
  if (!open) {
    loaded.reason = concat(loaded.module,
                           " is no CUDA module of tutti: it has no symbol "
                           "tutti_open_backend; try without TUTTI_CUDA_MODULE");
    return;
  }
  std::array<char, kReasonBytes> reason{};
  loaded.backend = open(backend_build_id(), reason.data(), reason.size());
  if (!loaded.backend) loaded.reason = reason.data();
}

bool has_driver(std::string& reason) {
  if (dlopen(kDriver, RTLD_NOW | RTLD_LOCAL)) return true;
  reason = concat("no NVIDIA driver (", last_dl_error(), "); install it, or use cpu:0");
  return false;
}

/// The first candidate that is there. The last is a name alone, which only opening can look for.
std::string existing_module() {
  for (const std::string& candidate : module_candidates()) {
    std::error_code error;
    const bool is_there = candidate == kModule ? dlopen(kModule, RTLD_NOW | RTLD_LOCAL) != nullptr
                                               : fs::exists(candidate, error);
    if (is_there) return candidate;
  }
  return "";
}

/// The named module: simulated ones need no driver, so it is opened to see which it is.
LoadedBackend load_named(const std::string& path) {
  LoadedBackend loaded;
  loaded.module = path;
  void* const module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!module) {
    loaded.reason = concat("TUTTI_CUDA_MODULE does not open: ", last_dl_error());
    return loaded;
  }
  loaded.is_simulated = dlsym(module, "tutti_backend_is_simulated") != nullptr;
  const bool is_module = dlsym(module, "tutti_open_backend") != nullptr;
  if (is_module && !loaded.is_simulated && !has_driver(loaded.reason)) return loaded;
  ask_module(module, loaded);
  return loaded;
}

/// The module of this build.
LoadedBackend load_own() {
  LoadedBackend loaded;
  if (!std::string(TUTTI_WITHOUT_CUDA_MODULE).empty()) {
    loaded.reason = TUTTI_WITHOUT_CUDA_MODULE;
    return loaded;
  }
  if (!has_driver(loaded.reason)) return loaded;
  loaded.module = existing_module();
  if (loaded.module.empty()) {
    loaded.reason = concat("the CUDA module was not found (looked for ", join(module_candidates()),
                           "); set TUTTI_CUDA_MODULE to its path");
    return loaded;
  }
  void* const module = dlopen(loaded.module.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module) {
    ask_module(module, loaded);
    return loaded;
  }
  const std::string why = last_dl_error();
  return explain_failure(loaded.module, why, find_libraries(needed_libraries()));
}

}  // namespace

LoadedBackend explain_failure(const std::string& module, const std::string& why,
                              std::span<const FoundLibrary> libraries) {
  LoadedBackend loaded;
  loaded.module = module;
  for (const FoundLibrary& library : libraries) {
    if (library.path.empty()) loaded.missing.push_back(library.name);
  }
  const std::size_t count = loaded.missing.size();
  loaded.reason = count == 0 ? concat("the CUDA module does not open: ", why)
                             : concat("CUDA librar", count == 1 ? "y" : "ies",
                                      " missing: ", join(loaded.missing),
                                      "; install CUDA, cuDNN and NCCL, or add their folder to "
                                      "LD_LIBRARY_PATH");
  return loaded;
}

BackendRequest BackendRequest::from_environment() {
  BackendRequest request;
  if (const char* const module = std::getenv("TUTTI_CUDA_MODULE")) request.module = module;
  const char* const value = std::getenv("TUTTI_CUDA");
  const std::string mode = value ? value : "auto";
  if (mode == "off") {
    request.mode = CudaMode::kOff;
  } else if (mode == "require") {
    request.mode = CudaMode::kRequire;
  } else if (mode != "auto") {
    fail(ErrorCode::kInvalidArgument, "TUTTI_CUDA: expected off, auto or require, got '", mode,
         "'");
  }
  return request;
}

LoadedBackend load_backend(const BackendRequest& request) {
  if (request.mode == CudaMode::kOff) {
    LoadedBackend loaded;
    loaded.reason = "TUTTI_CUDA=off hides the GPUs; try without it";
    return loaded;
  }
  return request.module.empty() ? load_own() : load_named(request.module);
}

std::vector<FoundLibrary> find_libraries(std::span<const std::string> names) {
  std::vector<FoundLibrary> found;
  for (const std::string& name : names) {
    FoundLibrary library{name, ""};
    void* handle = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
    for (const std::string& folder : split_text(TUTTI_CUDA_LIBRARY_FOLDERS)) {
      if (!handle) handle = dlopen((fs::path(folder) / name).c_str(), RTLD_LAZY | RTLD_LOCAL);
    }
    link_map* map = nullptr;
    if (handle && dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map) library.path = map->l_name;
    // It stays open: some bring a C++ library of their own, whose memory is lost with its code.
    found.push_back(std::move(library));
  }
  return found;
}

std::vector<std::string> needed_libraries() { return split_text(TUTTI_CUDA_LIBRARIES); }

std::vector<std::string> module_candidates() {
  std::vector<std::string> paths;
  const auto add = [&](const fs::path& folder) {
    const std::string path = (folder / kModule).lexically_normal().string();
    for (const std::string& known : paths) {
      if (known == path) return;
    }
    paths.push_back(path);
  };
  for (const fs::path& folder : {program_folder(), own_folder()}) {
    if (folder.empty()) continue;
    add(folder);
    add(folder / "../lib");
    add(folder / ".." / TUTTI_INSTALL_LIBDIR);
  }
  paths.emplace_back(kModule);
  return paths;
}

}  // namespace tutti
