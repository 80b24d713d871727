// Several buffers of a call as one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>

#include "tutti/cross_device_ops/collective.h"
#include "tutti/tensor/buffer.h"

namespace tutti::internal {

/// Carries out an all_reduce of several buffers as one of a buffer that holds them one after the
/// other, by run(flat): for engines that pay for each message or call.
template <class Run>
void run_packed(const CollectiveCall& call, const Run& run) {
  const BufferRef packed = BufferRef::allocate(call.count * size_of(call.dtype));
  std::byte* place = packed->data();
  for (const ConstElements& input : call.inputs) {
    if (input.count > 0) std::memcpy(place, input.data, input.num_bytes());
    place += input.num_bytes();
  }
  const Elements all(packed->data(), call.count, call.dtype);
  const ConstElements all_input = all;
  CollectiveCall flat = call;
  flat.inputs = {&all_input, 1};
  flat.outputs = {&all, 1};
  run(flat);
  place = packed->data();
  for (const Elements& output : call.outputs) {
    if (output.count > 0) std::memcpy(output.data, place, output.num_bytes());
    place += output.num_bytes();
  }
}

}  // namespace tutti::internal
