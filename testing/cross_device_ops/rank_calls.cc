// The calls of one rank.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/testing/cross_device_ops/checks.h"

namespace tutti::conformance {
namespace {

/// What a rank gives to its communicator.
struct Arguments {
  ConstElements input;
  Elements output;
  std::vector<std::size_t> counts;  // empty: even parts
  std::vector<std::size_t> receive_counts;

  Arguments(const Problem& problem, int rank) {
    const ReplicaBuffer in = problem.input(rank), out = problem.output(rank);
    input = {in.data, in.count, in.dtype};
    output = {out.data, out.count, out.dtype};
    const Case& c = problem.of();
    if (!c.uneven) return;
    const std::vector<std::size_t>& all = problem.layout().counts;
    const auto world = static_cast<std::size_t>(c.world), own = static_cast<std::size_t>(rank);
    if (c.collective != Collective::kAllToAll) {
      counts = all;
      return;
    }
    for (std::size_t peer = 0; peer < world; ++peer) {
      counts.push_back(all[own * world + peer]);
      receive_counts.push_back(all[peer * world + own]);
    }
  }
};

}  // namespace

void call(Communicator& communicator, const Problem& problem, CallOptions options) {
  const Case& c = problem.of();
  const Arguments own(problem, communicator.rank());
  switch (c.collective) {
    case Collective::kAllReduce:
      if (c.in_place) return communicator.all_reduce(c.op, own.output, options);
      return communicator.all_reduce(c.op, own.input, own.output, options);
    case Collective::kReduce:
      return communicator.reduce(c.op, own.input, own.output, c.variant, options);
    case Collective::kBroadcast:
      return communicator.broadcast(own.output, c.variant, options);
    case Collective::kAllGather:
      return communicator.all_gather(own.input, own.output, own.counts, options);
    case Collective::kReduceScatter:
      return communicator.reduce_scatter(c.op, own.input, own.output, own.counts, options);
    case Collective::kAllToAll:
      return communicator.all_to_all(own.input, own.output, own.counts, own.receive_counts,
                                     options);
    case Collective::kBarrier:
      return communicator.barrier(options);
  }
}

CollectiveHandle start(Communicator& communicator, const Problem& problem) {
  const Case& c = problem.of();
  const Arguments own(problem, communicator.rank());
  switch (c.collective) {
    case Collective::kReduce:
      return communicator.start_reduce(c.op, own.input, own.output, c.variant);
    case Collective::kBroadcast:
      return communicator.start_broadcast(own.output, c.variant);
    case Collective::kAllGather:
      return communicator.start_all_gather(own.input, own.output, own.counts);
    case Collective::kReduceScatter:
      return communicator.start_reduce_scatter(c.op, own.input, own.output, own.counts);
    case Collective::kAllToAll:
      return communicator.start_all_to_all(own.input, own.output, own.counts, own.receive_counts);
    case Collective::kAllReduce:
      return communicator.start_all_reduce(c.op, own.output);
    case Collective::kBarrier:
      break;
  }
  fail(ErrorCode::kInvalidArgument, "a barrier cannot be started");
}

void abort_all(const Communicators& communicators) {
  for (const auto& communicator : communicators) {
    if (communicator) {
      communicator->abort(Error(ErrorCode::kAborted, "conformance: a rank did not come back"));
    }
  }
}

}  // namespace tutti::conformance
