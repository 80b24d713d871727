// Table of the NCCL functions that tutti calls; loaded at run time or injected by a test.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nccl.h>

#include <string>

namespace tutti::internal {

/// Table of NCCL's functions. NCCL is not linked, so that programs also run where it is missing and
/// load its 200 MiB only when they use it.
struct NcclFunctions {
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  decltype(&ncclCommFinalize) comm_finalize = nullptr;
  decltype(&ncclCommDestroy) comm_destroy = nullptr;
  decltype(&ncclCommAbort) comm_abort = nullptr;
  decltype(&ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&ncclGetErrorString) get_error_string = nullptr;
  decltype(&ncclGetLastError) get_last_error = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclReduce) reduce = nullptr;
  decltype(&ncclBroadcast) broadcast = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclReduceScatter) reduce_scatter = nullptr;
};

/// Returns the functions of the library that TUTTI_NCCL_LIBRARY names, or else of libnccl.so.2.
/// Opens the library on the first call; after an error, the next call tries again. Throws
/// kUnavailable with the missing function or the version found, and the remedy. Thread-safe.
const NcclFunctions& nccl_functions();

/// Opens the library at `path` (or a name that the dynamic loader finds). It is never closed.
NcclFunctions open_nccl(const std::string& path);
/// Throws kUnavailable unless NCCL's version is at least 2.18, the first in which blocking = 0
/// works.
void require_nccl_version(const NcclFunctions& functions, const std::string& path);

}  // namespace tutti::internal
