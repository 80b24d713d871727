// What tests ask the stand-in of NCCL, beside NCCL's own functions.
// SPDX-License-Identifier: Apache-2.0
//
// TUTTI_NCCL_LIBRARY names the library that has it. TUTTI_SIMULATED_NCCL, read at each call, is a
// list of what shall go wrong: "version:21700" (what ncclGetVersion says), "init_never:1" and
// "launch_never:1" (communicators stay in progress), "async_error:3" (the third launch of a rank
// since the notes were taken ends with ncclRemoteError), "peer_never:1" (launches succeed, but what
// they put into the streams waits for a peer until ncclCommAbort()), "async_later:40" (from the
// 40th question on since the notes were taken ncclCommGetAsyncError says ncclRemoteError). Misuse
// that hangs or corrupts with the real library is an error here: a GPU twice in a clique,
// mismatched counts, types or roots, calls outside a group that wait for the same thread, a stream
// of another GPU, host memory, use after abort, use while in progress.
#pragma once

#include <nccl.h>

extern "C" {
/// What was called since the last time, a line each; misuse begins with "!".
const char* tutti_simulated_nccl_notes();
}
