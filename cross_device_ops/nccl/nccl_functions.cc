// Opens NCCL's library and finds its functions.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/nccl/nccl_functions.h"

#include <dlfcn.h>

#include <cstdlib>
#include <optional>

#include "tutti/core/error.h"
#include "tutti/core/sync.h"

namespace tutti::internal {
namespace {

constexpr int kLeastVersion = NCCL_VERSION(2, 18, 0);
constexpr const char* kRemedy =
    "install NCCL, set LD_LIBRARY_PATH or TUTTI_NCCL_LIBRARY=/path/to/libnccl.so.2, or use another "
    "operation such as canonical";

std::string text_of_version(int version) {
  return concat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

template <class Function>
void look_up(void* library, const std::string& path, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function) return;
  fail(ErrorCode::kUnavailable, "nccl: ", path, " has no ", name, "(); expected NCCL ",
       text_of_version(kLeastVersion), " or later; ", kRemedy);
}

}  // namespace

NcclFunctions open_nccl(const std::string& path) {
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* const reason = ::dlerror();
    fail(ErrorCode::kUnavailable, "nccl: cannot open ", path, " (",
         reason ? reason : "unknown reason", "); ", kRemedy);
  }
  NcclFunctions functions;
  look_up(library, path, "ncclGetVersion", functions.get_version);
  require_nccl_version(functions, path);
  look_up(library, path, "ncclGetUniqueId", functions.get_unique_id);
  look_up(library, path, "ncclCommInitRankConfig", functions.comm_init_rank_config);
  look_up(library, path, "ncclCommFinalize", functions.comm_finalize);
  look_up(library, path, "ncclCommDestroy", functions.comm_destroy);
  look_up(library, path, "ncclCommAbort", functions.comm_abort);
  look_up(library, path, "ncclCommGetAsyncError", functions.comm_get_async_error);
  look_up(library, path, "ncclGetErrorString", functions.get_error_string);
  look_up(library, path, "ncclGetLastError", functions.get_last_error);
  look_up(library, path, "ncclGroupStart", functions.group_start);
  look_up(library, path, "ncclGroupEnd", functions.group_end);
  look_up(library, path, "ncclAllReduce", functions.all_reduce);
  look_up(library, path, "ncclReduce", functions.reduce);
  look_up(library, path, "ncclBroadcast", functions.broadcast);
  look_up(library, path, "ncclAllGather", functions.all_gather);
  look_up(library, path, "ncclReduceScatter", functions.reduce_scatter);
  return functions;
}

void require_nccl_version(const NcclFunctions& functions, const std::string& path) {
  int version = 0;
  const ncclResult_t result = functions.get_version(&version);
  if (result == ncclSuccess && version >= kLeastVersion) return;
  fail(ErrorCode::kUnavailable, "nccl: ", path, " has an unsupported version; expected ",
       text_of_version(kLeastVersion), " or later, got ",
       result == ncclSuccess ? text_of_version(version) : std::string("none"), "; ", kRemedy);
}

const NcclFunctions& nccl_functions() {
  static Mutex mutex;
  static std::optional<NcclFunctions> functions;
  MutexLock lock(mutex);
  if (!functions) {
    const char* const path = std::getenv("TUTTI_NCCL_LIBRARY");
    functions = open_nccl(path && *path ? path : "libnccl.so.2");
  }
  return *functions;
}

}  // namespace tutti::internal
