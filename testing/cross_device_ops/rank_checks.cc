// Cases of ranks that have a communicator each: results.
// SPDX-License-Identifier: Apache-2.0
#include "testing/cross_device_ops/checks.h"

namespace tutti::conformance {
namespace {

constexpr Duration kLongTimeout = std::chrono::seconds(60);
constexpr Duration kShortTimeout = std::chrono::milliseconds(150);
// Longer than a rank may take to notice an error, so that running out of time is none of them.
constexpr Duration kErrorTimeout = std::chrono::seconds(4);

std::string call_and_check(const Case& c, Communicators& ranks, Subject& subject,
                           const Problem& problem) {
  const Outcomes outcomes = run_ranks(
      subject, c, c.world, [&](int rank) { call(*ranks[static_cast<std::size_t>(rank)], problem); },
      [&] { abort_all(ranks); });
  const std::string error = first_error(outcomes);
  return error.empty() ? problem.check(ranks[0]->determinism()) : error;
}

Result check_concurrent_ranks(const Case& c, Subject& subject) {
  constexpr int kGroups = 2, kCalls = 4;
  std::vector<Communicators> groups;
  std::vector<std::vector<std::unique_ptr<Problem>>> problems(kGroups);
  for (int g = 0; g < kGroups; ++g) {
    groups.push_back(subject.new_ranks(c.shape, c.world, kLongTimeout));
    for (int i = 0; i < kCalls; ++i) {
      const auto seed = c.seed + static_cast<std::uint64_t>(g * kCalls + i);
      problems[static_cast<std::size_t>(g)].push_back(
          std::make_unique<Problem>(with_seed(c, seed)));
    }
  }
  const Outcomes outcomes = run_ranks(
      subject, c, kGroups * c.world,
      [&](int thread) {
        const auto g = static_cast<std::size_t>(thread / c.world);
        for (const auto& problem : problems[g]) {
          call(*groups[g][static_cast<std::size_t>(thread % c.world)], *problem);
        }
      },
      [&] {
        for (const Communicators& ranks : groups) abort_all(ranks);
      });
  std::string wrong = first_error(outcomes);
  for (const auto& of_group : problems) {
    for (const auto& problem : of_group) {
      if (wrong.empty()) wrong = problem->check(groups[0][0]->determinism());
    }
  }
  return verdict_of(wrong.empty() ? wrong : "of two groups at once: " + wrong);
}

/// Every rank starts the same calls and waits for them in an order of its own; the last handle is
/// destroyed without a wait().
Result check_handles(const Case& c, Communicators& ranks, Subject& subject) {
  constexpr std::size_t kCalls = 5;
  std::vector<std::unique_ptr<Problem>> problems;
  for (std::size_t i = 0; i < kCalls; ++i) {
    Case next = with_seed(c, c.seed + i);
    next.in_place = c.in_place || c.collective == Collective::kAllReduce;
    next.count = c.count + 7 * i;
    problems.push_back(std::make_unique<Problem>(next));
  }
  const Outcomes outcomes = run_ranks(
      subject, c, c.world,
      [&](int rank) {
        Communicator& own = *ranks[static_cast<std::size_t>(rank)];
        std::vector<CollectiveHandle> handles;
        for (const auto& problem : problems) handles.push_back(start(own, *problem));
        // 2 and 3 have no divisor in common with 5: each step hits another handle.
        const std::size_t step = 2 + static_cast<std::size_t>(rank) % 2;
        for (std::size_t i = 1; i < kCalls; ++i) {
          CollectiveHandle& handle = handles[i * step % kCalls];
          const bool ended = handle.test();
          handle.wait();
          if (ended && !handle.test()) {
            fail(ErrorCode::kInternal, "a handle that had ended has not ended any more");
          }
        }
      },
      [&] { abort_all(ranks); });
  std::string wrong = first_error(outcomes);
  for (const auto& problem : problems) {
    if (wrong.empty()) wrong = problem->check(ranks[0]->determinism());
  }
  return verdict_of(wrong);
}

Result check_refused(const Case& c, Communicators& ranks, Subject& subject) {
  const Problem problem(c);
  const Outcomes outcomes = run_ranks(
      subject, c, c.world, [&](int rank) { call(*ranks[static_cast<std::size_t>(rank)], problem); },
      [&] { abort_all(ranks); });
  for (const auto& outcome : outcomes) {
    if (!outcome) return failed("expected INVALID_ARGUMENT, got no error");
    if (outcome->code() != ErrorCode::kInvalidArgument) {
      return failed(concat("expected INVALID_ARGUMENT, got ", outcome->what()));
    }
  }
  return verdict_of(problem.check_untouched());
}

/// Cases that end in errors have groups of their own.
Result check_errors(const Case& c, Subject& subject) {
  const bool runs_out = c.check == Check::kDeadline;
  Communicators ranks =
      subject.new_ranks(c.shape, c.world, runs_out ? kShortTimeout : kErrorTimeout);
  switch (c.check) {
    case Check::kMismatch:
      return check_mismatch(c, ranks, subject);
    case Check::kDeadline:
      return check_deadline(c, ranks, subject, kShortTimeout);
    case Check::kAbort:
      return check_abort(c, ranks, subject);
    default:
      return check_peer_gone(c, ranks, subject);
  }
}

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

Result check_ranks(const Case& c, Subject& subject) {
  Communicators* const ranks = subject.kept_ranks(c.shape, c.world);
  if (!ranks) return skipped(subject.why_not());
  if (c.check == Check::kRefused) return check_refused(c, *ranks, subject);
  const ReduceOp op = c.op == ReduceOp::kMean ? ReduceOp::kSum : c.op;
  if (!ranks->front()->supports(c.collective, op, c.dtype)) {
    return skipped(
        concat("does not support ", to_string(c.collective), " ", c.op, " of ", c.dtype));
  }
  switch (c.check) {
    case Check::kValues:
    case Check::kSpecialValues:
      return verdict_of(call_and_check(c, *ranks, subject, Problem(c)));
    case Check::kRepeated:
      return check_three_calls(c, {}, ranks->front()->determinism(), [&](const Problem& problem) {
        return call_and_check(c, *ranks, subject, problem);
      });
    case Check::kConcurrent:
      return check_concurrent_ranks(c, subject);
    case Check::kHandles:
      return check_handles(c, *ranks, subject);
    case Check::kSlices:
      return skipped("ranks have no slices");
    default:
      return check_errors(c, subject);
  }
}

}  // namespace tutti::conformance
