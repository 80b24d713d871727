// Cases of ranks that must end in an error, on every rank and in time.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "testing/cross_device_ops/checks.h"

namespace tutti::conformance {
namespace {

constexpr Duration kInTime = std::chrono::seconds(3);
constexpr Duration kUntilAllWait = std::chrono::milliseconds(15);

Communicator& of(const Communicators& ranks, int rank) {
  return *ranks[static_cast<std::size_t>(rank)];
}

/// Ranks other than the last call; the last one does `last`.
Scene play(const Case& c, const Communicators& ranks, Subject& subject, const Problem& problem,
           const std::function<void()>& last) {
  Scene scene;
  scene.begins.resize(static_cast<std::size_t>(c.world));
  scene.seconds.resize(static_cast<std::size_t>(c.world));
  scene.outcomes = run_ranks(
      subject, c, c.world,
      [&](int rank) {
        if (rank == c.world - 1) return last();
        const TimePoint begin = Clock::system().now();
        scene.begins[static_cast<std::size_t>(rank)] = begin;
        double& seconds = scene.seconds[static_cast<std::size_t>(rank)];
        try {
          call(of(ranks, rank), problem);
        } catch (...) {
          seconds = seconds_between(begin, Clock::system().now());
          throw;
        }
        seconds = seconds_between(begin, Clock::system().now());
      },
      [&] { abort_all(ranks); });
  return scene;
}

/// Data flow alone lets some ranks of a rooted collective end although another one is missing.
bool may_end_alone(const Case& c) { return has_root(c.collective); }

/// Nothing, or which of the calling ranks did not end with one of `codes` within `limit`.
std::string wrong_ends(const Case& c, const Scene& scene, std::initializer_list<ErrorCode> codes,
                       Duration limit) {
  bool any = false;
  for (std::size_t r = 0; r + 1 < scene.outcomes.size(); ++r) {
    const std::optional<Error>& outcome = scene.outcomes[r];
    if (scene.seconds[r] > seconds_between(TimePoint(), TimePoint(limit))) {
      return concat("rank ", r, " came back after ", scene.seconds[r], " s; expected less than ",
                    seconds_between(TimePoint(), TimePoint(limit)));
    }
    if (!outcome && may_end_alone(c)) continue;
    if (!outcome)
      return concat("rank ", r, ": expected ", to_string(*codes.begin()), ", got no error");
    if (std::ranges::find(codes, outcome->code()) == codes.end()) {
      return concat("rank ", r, ": expected ", to_string(*codes.begin()), ", got ",
                    to_string(outcome->code()), ": ", outcome->message());
    }
    any = true;
  }
  return any ? "" : "no rank noticed";
}

/// After an error a communicator throws again, at once, and does not hang or go on.
std::string usable_after_error(const Case& c, const Communicators& ranks, Subject& subject,
                               const Outcomes& before) {
  const Problem problem(c);
  const Scene scene = play(c, ranks, subject, problem, [] {});
  for (std::size_t r = 0; r + 1 < before.size(); ++r) {
    if (!before[r]) continue;
    if (!scene.outcomes[r]) return concat("rank ", r, " can be used after its error");
    if (scene.seconds[r] > seconds_between(TimePoint(), TimePoint(kInTime))) {
      return concat("rank ", r, " waits again after its error");
    }
  }
  return {};
}

bool says(const Error& error, const std::string& text) {
  return error.message().find(text) != std::string::npos;
}

/// The last rank's other call.
void call_differently(const Case& c, Communicator& own, const Problem& problem) {
  const auto kind = static_cast<MismatchKind>(c.variant);
  const int rank = own.rank();
  const ReplicaBuffer in = problem.input(rank), out = problem.output(rank);
  const ConstElements input(in.data, in.count, in.dtype);
  const Elements output(out.data, out.count, out.dtype);
  const Shape other_shape{1, static_cast<std::int64_t>(c.count)};
  switch (kind) {
    case MismatchKind::kOperation:
      return own.broadcast(output, 0);
    case MismatchKind::kReduceOp:
      return own.all_reduce(ReduceOp::kMax, input, output);
    case MismatchKind::kDType:
      return own.all_reduce(c.op, ConstElements(in.data, in.count, DType::kInt32),
                            Elements(out.data, out.count, DType::kInt32));
    case MismatchKind::kCount:
      return own.all_reduce(c.op, ConstElements(in.data, in.count - 1, in.dtype),
                            Elements(out.data, out.count - 1, out.dtype));
    case MismatchKind::kShape:
      return own.all_reduce(c.op, input, output, {.shape = &other_shape});
    case MismatchKind::kRoot: {
      std::vector<std::byte> spare(in.num_bytes());
      return own.reduce(c.op, input, Elements(spare.data(), in.count, in.dtype), rank);
    }
    case MismatchKind::kName:
      return own.all_reduce(c.op, input, output, {.name = "bias"});
    case MismatchKind::kOrder:
      own.all_reduce(c.op, input, output, {.name = "second"});
      return own.all_reduce(c.op, input, output, {.name = "first"});
    case MismatchKind::kGroup:
      own.group({rank});
      return;
  }
}

/// What the other ranks call.
void call_as_planned(const Case& c, Communicator& own, const Problem& problem) {
  const Shape shape{static_cast<std::int64_t>(c.count), 1};
  switch (static_cast<MismatchKind>(c.variant)) {
    case MismatchKind::kShape:
      return call(own, problem, {.shape = &shape});
    case MismatchKind::kName:
      return call(own, problem, {.name = "kernel"});
    case MismatchKind::kOrder:
      call(own, problem, {.name = "first"});
      return call(own, problem, {.name = "second"});
    case MismatchKind::kGroup: {
      std::vector<int> all;
      for (int r = 0; r < c.world; ++r) all.push_back(r);
      own.group(all);
      return;
    }
    default:
      return call(own, problem);
  }
}

}  // namespace

Result check_mismatch(const Case& c, Communicators& ranks, Subject& subject) {
  Case base = c;
  base.variant = 0;
  const Problem problem(base);
  const TimePoint begin = Clock::system().now();
  const Outcomes outcomes = run_ranks(
      subject, c, c.world,
      [&](int rank) {
        if (rank == c.world - 1) {
          call_differently(c, of(ranks, rank), problem);
        } else {
          call_as_planned(c, of(ranks, rank), problem);
        }
      },
      [&] { abort_all(ranks); });
  const std::string_view kind = to_string(static_cast<MismatchKind>(c.variant));
  for (std::size_t r = 0; r < outcomes.size(); ++r) {
    if (!outcomes[r]) return failed(concat("rank ", r, " did not notice another ", kind));
    if (outcomes[r]->code() != ErrorCode::kInvalidArgument) {
      return failed(concat("rank ", r, ": expected INVALID_ARGUMENT for another ", kind, ", got ",
                           outcomes[r]->what()));
    }
    if (!says(*outcomes[r], concat("rank ", c.world - 1))) {
      return failed(concat("rank ", r, ": the message does not name rank ", c.world - 1,
                           ", which calls something else: ", outcomes[r]->message()));
    }
  }
  if (Clock::system().now() - begin > kInTime) return failed("the error came after more than 3 s");
  return passed();
}

std::string wrong_deadline(const Case& c, const Scene& scene, Duration timeout) {
  const double soonest = seconds_between(TimePoint(), TimePoint(timeout)) / 2;
  const auto names_missing_rank = [&](const Error& error) {
    for (std::size_t r = 0; r + 1 < scene.outcomes.size(); ++r) {
      if (scene.delay_of(r) > soonest && says(error, concat(r))) return true;
    }
    return says(error, concat(c.world - 1));
  };
  std::string wrong = wrong_ends(c, scene, {ErrorCode::kDeadlineExceeded}, timeout + kInTime);
  for (std::size_t r = 0; r + 1 < scene.outcomes.size() && wrong.empty(); ++r) {
    if (!scene.outcomes[r]) continue;
    const double seconds = scene.delay_of(r) + scene.seconds[r];
    if (seconds < soonest) {
      wrong = concat("rank ", r, " gave up ", seconds, " s after the first call, before its ",
                     "deadline");
    } else if (!names_missing_rank(*scene.outcomes[r])) {
      wrong = concat("rank ", r, ": the message does not name rank ", c.world - 1,
                     ", which is missing: ", scene.outcomes[r]->message());
    }
  }
  return wrong;
}

Result check_deadline(const Case& c, Communicators& ranks, Subject& subject, Duration timeout) {
  const Problem problem(c);
  const Scene scene = play(c, ranks, subject, problem, [] {});
  std::string wrong = wrong_deadline(c, scene, timeout);
  if (wrong.empty()) wrong = usable_after_error(c, ranks, subject, scene.outcomes);
  return verdict_of(wrong);
}

Result check_abort(const Case& c, Communicators& ranks, Subject& subject) {
  const Problem problem(c);
  const std::string reason = "the conformance kit ends this call";
  const Scene scene = play(c, ranks, subject, problem, [&] {
    Clock::system().sleep_for(kUntilAllWait);
    of(ranks, 0).abort(Error(ErrorCode::kAborted, reason));
  });
  std::string wrong = wrong_ends(c, scene, {ErrorCode::kAborted}, kInTime);
  for (std::size_t r = 0; r + 1 < scene.outcomes.size() && wrong.empty(); ++r) {
    if (scene.outcomes[r] && !says(*scene.outcomes[r], reason)) {
      wrong = concat("rank ", r, ": expected the reason '", reason, "', got ",
                     scene.outcomes[r]->message());
    }
  }
  if (wrong.empty()) wrong = usable_after_error(c, ranks, subject, scene.outcomes);
  return verdict_of(wrong);
}

Result check_peer_gone(const Case& c, Communicators& ranks, Subject& subject) {
  const Problem problem(c);
  const Scene scene = play(c, ranks, subject, problem, [&] {
    Clock::system().sleep_for(kUntilAllWait);
    ranks.back().reset();
  });
  return verdict_of(wrong_ends(c, scene, {ErrorCode::kUnavailable, ErrorCode::kAborted}, kInTime));
}

}  // namespace tutti::conformance
