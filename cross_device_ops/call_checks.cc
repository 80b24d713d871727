// Checks for collective calls: those that each member can make alone, and those that need all
// members' buffers.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/call_checks.h"

#include <functional>
#include <numeric>
#include <vector>

#include "core/names.h"
#include "cross_device_ops/reduce_to_all.h"

namespace tutti::internal {

void require_equal(std::string_view who, std::span<const Tensor> values) {
  for (std::size_t r = 1; r < values.size(); ++r) {
    require(values[r].shape() == values[0].shape() && values[r].dtype() == values[0].dtype(), who,
            ": the replicas' values differ in shape or type; expected, as on replica 0, ",
            values[0].dtype(), " ", values[0].shape(), ", got ", values[r].dtype(), " ",
            values[r].shape(), " from replica ", r,
            "; pass an axis to reduce uneven values, or call gather()");
  }
}

namespace {

bool overlap(const ConstElements& a, const ConstElements& b) {
  const std::less<const std::byte*> before;
  return a.count > 0 && b.count > 0 && before(a.data, b.data + b.num_bytes()) &&
         before(b.data, a.data + a.num_bytes());
}

std::size_t sum_of(std::span<const std::size_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

void check_buffer(const ConstElements& buffer, DType dtype) {
  require(buffer.dtype == dtype, "expected buffers of one type, ", dtype, ", got ", buffer.dtype);
  require(buffer.data != nullptr || buffer.count == 0, "expected memory for ", buffer.count,
          " elements, got a null pointer");
}

void check_root(int root, std::size_t size) {
  require(root >= 0 && static_cast<std::size_t>(root) < size, "expected a root from 0 to ",
          size - 1, ", got ", root);
}

void check_pair(const ConstElements& input, const ConstElements& output, std::size_t expected,
                bool in_place) {
  require(output.count == expected, "expected an output of ", expected, " elements, got ",
          output.count);
  require(in_place || !overlap(input, output),
          "input and output overlap; expected the same memory where the call can work in place, "
          "otherwise separate memory");
}

void check_input(const ConstElements& input, std::size_t expected, std::size_t size) {
  require(input.count == expected, "expected an input of ", expected,
          " elements, the sum of counts (without counts: a multiple of ", size, "), got ",
          input.count);
}

}  // namespace

void check_call(const CollectiveCall& call, std::size_t member, std::size_t size) {
  for (const ConstElements& input : call.inputs) check_buffer(input, call.dtype);
  for (const Elements& output : call.outputs) check_buffer(output, call.dtype);
  if (has_root(call.collective)) check_root(call.root, size);
  if (combines(call.collective)) {
    require(!call.inputs.empty(), "expected a buffer, got none");
    require_reduction(call.op, call.dtype);
  }
  for (const auto& counts : {call.counts, call.receive_counts}) {
    require(counts.empty() || counts.size() == size, "expected ", size,
            " counts, one per rank, got ", counts.size());
  }
  if (call.inputs.empty()) return;  // broadcast and barrier have no inputs
  const ConstElements& input = call.inputs.front();
  const Elements* output = call.outputs.data();
  const auto part = [&] {  // offset of this member's part in the longer buffer, in bytes
    return sum_of(call.counts.first(member)) * size_of(call.dtype);
  };
  switch (call.collective) {
    case Collective::kReduce:
      if (member != static_cast<std::size_t>(call.root)) return;
      [[fallthrough]];
    case Collective::kAllReduce:
      for (const ConstElements& each : call.inputs) {
        check_pair(each, *output, each.count, each.data == output->data);
        ++output;
      }
      return;
    case Collective::kAllGather:
      check_input(input, call.counts[member], size);
      return check_pair(input, *output, sum_of(call.counts), input.data == output->data + part());
    case Collective::kReduceScatter:
      check_input(input, sum_of(call.counts), size);
      return check_pair(input, *output, call.counts[member], output->data == input.data + part());
    case Collective::kAllToAll:
      check_input(input, sum_of(call.counts), size);
      return check_pair(input, *output, sum_of(call.receive_counts), false);
    case Collective::kBroadcast:
    case Collective::kBarrier:
      return;
  }
}

namespace {

ConstElements elements_of(const ReplicaBuffer& buffer) {
  return {buffer.data, buffer.count, buffer.dtype};
}

/// Calls check_call() for one member, passing only that member's buffers.
void check_member(const BufferCall& call, std::span<const ReplicaBuffer> inputs,
                  std::size_t member) {
  const std::size_t size = inputs.size();
  const ReplicaBuffer& to = call.outputs[call.outputs.size() == 1 ? 0 : member];
  const ConstElements input = elements_of(inputs[member]);
  const Elements output(to.data, to.count, to.dtype);
  CollectiveCall own{.collective = call.collective,
                     .op = call.op,
                     .dtype = inputs.front().dtype,
                     .root = call.root,
                     .inputs = {&input, 1},
                     .outputs = {&output, 1},
                     .counts = call.counts};
  std::vector<std::size_t> received;
  if (call.collective == Collective::kAllToAll) {
    own.counts = call.counts.subspan(member * size, size);
    for (std::size_t r = 0; r < size; ++r) received.push_back(call.counts[r * size + member]);
    own.receive_counts = received;
  }
  try {
    check_call(own, member, size);
  } catch (const Error& error) {
    throw error.with_context(concat("replica ", member));
  }
}

/// Returns the member whose input may share memory with this output; for a reduce, the root.
std::size_t member_of_output(const BufferCall& call, std::size_t output) {
  return call.collective == Collective::kReduce ? static_cast<std::size_t>(call.root) : output;
}

void check_together(const BufferCall& call, std::span<const ReplicaBuffer> inputs, bool in_place) {
  const std::span<const ReplicaBuffer> outputs = call.outputs;
  for (std::size_t o = 0; o < outputs.size(); ++o) {
    const ConstElements output = elements_of(outputs[o]);
    for (std::size_t other = 0; other < o; ++other) {
      require(!overlap(output, elements_of(outputs[other])),
              "outputs overlap in memory; expected separate memory, got overlapping outputs of ",
              "replicas ", other, " and ", o);
    }
    for (std::size_t i = 0; !in_place && i < inputs.size(); ++i) {
      require(i == member_of_output(call, o) || !overlap(elements_of(inputs[i]), output),
              "input and output overlap; expected separate or identical memory, got the input of ",
              "replica ", i, " and the output of replica ", o);
    }
  }
  for (const auto& buffers : {inputs, outputs}) {
    for (std::size_t r = 0; r < buffers.size(); ++r) {
      require(buffers[r].device.type == outputs[0].device.type,
              "expected all buffers on one type of device, got ", outputs[0].device, " and ",
              buffers[r].device, " (of replica ", r, "); call Tensor::to() first");
    }
  }
}

}  // namespace

void check_buffers(std::string_view who, const BufferCall& call, bool in_place) try {
  const std::span<const ReplicaBuffer> inputs = in_place ? call.outputs : call.inputs;
  const std::size_t size = inputs.size();
  const bool exchanges = call.collective == Collective::kAllToAll;
  require(size > 0, "expected a buffer, got none");
  require(call.collective == Collective::kReduce || call.outputs.size() == size,
          "expected an output for each of the ", size, " inputs, got ", call.outputs.size());
  require(!exchanges || call.counts.size() == size * size, "expected ", size * size, " counts for ",
          size, " replicas, or none, got ", call.counts.size());
  if (has_root(call.collective)) check_root(call.root, size);
  if (call.reduces()) require_reduction(call.op, inputs[0].dtype);
  for (std::size_t r = 0; r < size; ++r) {
    const bool may_differ = exchanges || call.collective == Collective::kAllGather;
    require(
        may_differ || (inputs[r].count == inputs[0].count && inputs[r].dtype == inputs[0].dtype),
        "the replicas' buffers differ; expected ", inputs[0].count, " x ", inputs[0].dtype,
        " as on replica 0, got ", inputs[r].count, " x ", inputs[r].dtype, " from replica ", r);
    check_member(call, inputs, r);
  }
  check_together(call, inputs, in_place);
} catch (const Error& error) {
  throw error.with_context(who);
}

}  // namespace tutti::internal
