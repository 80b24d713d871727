// Implements the checks of one operation in groups of any shape, and runs all cases.
// SPDX-License-Identifier: Apache-2.0
#include "testing/cross_device_ops/problem.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "tutti/core/executor.h"
#include "tutti/core/sync.h"
#include "tutti/testing/cross_device_ops/report.h"

namespace tutti::conformance {

namespace {

void run_one(const std::function<void(int)>& body, int i, Outcome& outcome) {
  outcome.begin = Clock::system().now();
  try {
    body(i);
  } catch (const Error& error) {
    outcome.error = error;
  } catch (const std::exception& error) {
    outcome.error = Error(ErrorCode::kInternal,
                          concat("expected a tutti::Error, got another exception: ", error.what()));
  }
  outcome.end = Clock::system().now();
}

}  // namespace

std::vector<Outcome> run_threads(int size, const TimeLimit& limit,
                                 const std::function<void(int)>& body) {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(size));
  std::atomic<int> num_running = size;
  Event all_ended;
  std::vector<std::unique_ptr<Thread>> threads;
  for (int i = 0; i < size; ++i) {
    threads.push_back(Executor::system().start(concat("conform-", i), [&, i] {
      run_one(body, i, outcomes[static_cast<std::size_t>(i)]);
      if (--num_running == 0) all_ended.set();
    }));
  }
  const auto has_ended_in = [&](Duration time) {
    return all_ended.wait_until(deadline_after(Clock::system().now(), time));
  };
  if (has_ended_in(limit.limit)) return outcomes;
  if (limit.rescue) limit.rescue();
  if (limit.rescue && has_ended_in(2 * limit.limit)) return outcomes;
  std::fprintf(stderr, "%s\n", limit.message.c_str());
  std::_Exit(1);
}

namespace {

constexpr Duration kCallLimit = std::chrono::seconds(20);
constexpr Duration kCallTimeout = std::chrono::seconds(60);
constexpr Duration kShortTimeout = std::chrono::milliseconds(150);
// This timeout exceeds kInTime, within which a rank must detect an error, so that a timeout is not
// mistaken for that error.
constexpr Duration kErrorTimeout = std::chrono::seconds(4);
constexpr Duration kInTime = std::chrono::seconds(3);
constexpr Duration kUntilAllWait = std::chrono::milliseconds(15);
constexpr const char* kReason = "the conformance kit ends this call";

std::string error_text(const Error& error) {
  return concat(to_string(error.code()), ": ", error.message());
}

double seconds_of(Duration duration) { return seconds_between(TimePoint(), TimePoint(duration)); }

/// Requirements on an error.
struct ExpectedError {
  std::vector<ErrorCode> codes;           // the error must have one of these codes
  std::vector<std::string> parts = {""};  // the message must contain one of these
  bool on_all = true;  // true: every caller must get the error; false: at least one
  Duration soonest = Duration::zero();  // minimum time from the first caller's start to the end
  Duration latest = kInTime;            // maximum time from each caller's start to its end
};

std::string wrong_error(const Outcome& outcome, const ExpectedError& expected, TimePoint first) {
  const Duration taken = outcome.end - outcome.begin, since_first = outcome.end - first;
  if (taken > expected.latest) return concat("returned late, after ", seconds_of(taken), " s");
  if (!outcome.error && !expected.on_all) return {};
  const std::string got = outcome.error ? error_text(*outcome.error) : "no error";
  const auto is_in_message = [&](const std::string& part) {
    return outcome.error->message().find(part) != std::string::npos;
  };
  if (!outcome.error || std::ranges::count(expected.codes, outcome.error->code()) == 0) {
    return concat("expected ", to_string(expected.codes.front()), ", got ", got);
  }
  if (std::ranges::none_of(expected.parts, is_in_message)) {
    return concat("expected '", expected.parts.front(), "' in the message, got ", got);
  }
  if (since_first >= expected.soonest) return {};
  return concat("gave up ", seconds_of(since_first),
                " s after the first call, before the deadline");
}

std::string wrong_errors(std::span<const Outcome> callers, const ExpectedError& expected) {
  const TimePoint first = std::ranges::min_element(callers, {}, &Outcome::begin)->begin;
  bool any = false;
  for (std::size_t r = 0; r < callers.size(); ++r) {
    const std::string wrong = wrong_error(callers[r], expected, first);
    if (!wrong.empty()) return concat("rank ", r, ": ", wrong);
    any = any || callers[r].error;
  }
  return any ? "" : "expected an error on at least one rank, got none";
}

/// Replicas under test: one object for all of them, or a communicator for each.
struct TestedGroup {
  TestedGroup(const Case& c, const Subject& subject, Duration timeout);

  int num_callers() const { return ops ? 1 : static_cast<int>(ranks.size()); }
  Communicator& rank(int r) const { return *ranks[static_cast<std::size_t>(r)]; }
  Determinism determinism() const { return ops ? ops->determinism() : rank(0).determinism(); }
  double max_relative_error() const {
    return ops ? ops->max_relative_error() : rank(0).max_relative_error();
  }
  bool supports(const Case& c) const;
  void make_call(int caller, const Problem& problem) const {
    ops ? call(*ops, problem.calls()) : call(rank(caller), problem.call(caller));
  }
  void abort() const;

  GroupShape shape;
  int world;
  std::vector<Device> devices;  // devices of the replicas; empty: CPUs
  std::unique_ptr<CrossDeviceOps> ops;
  std::vector<std::unique_ptr<Communicator>> ranks;
};

std::vector<Device> devices_of_replicas(const Subject& subject, int world) {
  const auto num_replicas = static_cast<std::size_t>(world);
  const std::size_t num_used = std::min(subject.devices.size(), num_replicas);
  std::vector<Device> devices;
  for (std::size_t r = 0; r < num_replicas; ++r) {
    devices.push_back(num_used == 0 ? Device{DeviceType::kCpu, static_cast<int>(r)}
                                    : subject.devices[r * num_used / num_replicas]);
  }
  return devices;
}

TestedGroup::TestedGroup(const Case& c, const Subject& subject, Duration timeout)
    : shape(c.shape), world(c.world), devices(devices_of_replicas(subject, c.world)) {
  const auto& factory = shape == GroupShape::kSpread ? subject.spread : subject.threads;
  const bool is_local = shape == GroupShape::kLocal;
  if (is_local ? !subject.local : !factory) {
    fail(ErrorCode::kUnimplemented, subject.name, " cannot create groups of kind '",
         to_string(shape), "'");
  }
  if (is_local) {
    ops = subject.local(devices);
    return;
  }
  const RankFactory make = factory(world, timeout);
  ranks.resize(static_cast<std::size_t>(world));
  const TimeLimit limit{kCallTimeout, concat("conformance: ", subject.name,
                                             ": the ranks did not connect within 60 s")};
  for (const Outcome& outcome :
       run_threads(world, limit, [&](int r) { ranks[static_cast<std::size_t>(r)] = make(r); })) {
    if (outcome.error) throw *outcome.error;
  }
}

bool TestedGroup::supports(const Case& c) const {
  const ReduceOp op = c.op == ReduceOp::kMean ? ReduceOp::kSum : c.op;
  if (!ops) return rank(0).supports(c.collective, op, c.dtype);
  const DeviceType device = devices.front().type;
  return !combines(c.collective) || ops->supports(op, c.dtype, device) ||
         (is_half(c.dtype) && ops->supports(op, DType::kFloat32, device));
}

void TestedGroup::abort() const {
  for (const auto& each : ranks) {
    if (each)
      each->abort(Error(ErrorCode::kAborted, "conformance: a rank did not return within 20 s"));
  }
}

// The checks. Each returns an error, or "".

/// One case and its group.
struct Run {
  const Case& c;
  const Subject& subject;
  TestedGroup& group;
  double& largest_error;
};

/// Runs `body` on one thread per rank, and aborts the groups if the threads take too long. A single
/// rank runs on the calling thread.
std::vector<Outcome> play(const Run& run, int size, std::span<const TestedGroup> groups,
                          const std::function<void(int)>& body) {
  if (size == 1) {
    std::vector<Outcome> alone(1);
    run_one(body, 0, alone[0]);
    return alone;
  }
  const std::string message = concat("conformance: ", run.subject.name,
                                     " hangs, even after it was aborted: --case ", run.c.id());
  const auto abort_all = [&] { std::ranges::for_each(groups, &TestedGroup::abort); };
  return run_threads(size, {kCallLimit, message, abort_all}, body);
}

/// Calls body(caller) for every caller of the group.
std::vector<Outcome> play(const Run& run, const std::function<void(int)>& body) {
  return play(run, run.group.num_callers(), {&run.group, 1}, body);
}

constexpr int kSlices = 4;

/// Calls the operation on slice `slice` of the buffers. All slices but the first begin at odd
/// indices.
void call_on_slice(const Run& run, const TestedGroup& group, int slice, const Problem& problem) {
  const auto start_of = [&](int s) {
    const std::size_t even = run.c.count / kSlices * static_cast<std::size_t>(s);
    return s == kSlices ? run.c.count : even | (s > 0);
  };
  std::vector<Call> calls = problem.calls();
  for (Call& each : calls) {
    for (ReplicaBuffer* const buffer : {&each.input, &each.output}) {
      buffer->data += start_of(slice) * size_of(run.c.dtype);
      buffer->count = start_of(slice + 1) - start_of(slice);
    }
  }
  call(*group.ops, calls);
}

/// Starts calls and waits for them in an order that depends on the rank. Destroys the first handle
/// without waiting for its call.
void start_calls(Communicator& communicator, std::span<const Problem> problems) {
  const int rank = communicator.rank();
  std::vector<CollectiveHandle> handles;
  for (const Problem& each : problems) handles.push_back(start(communicator, each.call(rank)));
  // Steps of 2 or 3 reach every handle but the first, because both numbers are coprime to 5.
  const std::size_t step = 2 + static_cast<std::size_t>(rank) % 2;
  for (std::size_t i = 1; i < 5; ++i) handles[i * step % 5].wait();
}

/// Makes one call per group and offset; groups run concurrently. The offset is added to the seed.
/// If the first and last offsets are equal, both calls must give bit-identical results, unless the
/// grade is kNone.
std::string check_calls(const Run& run, std::span<const TestedGroup> groups,
                        const std::vector<std::uint64_t>& offsets) {
  std::vector<Problem> problems;  // ordered by group
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (const std::uint64_t offset : offsets) {
      Case c = run.c;
      c.seed += 100 * g + offset;
      problems.emplace_back(c, run.group.devices);
    }
  }
  const int num_groups = static_cast<int>(groups.size());
  const int num_callers = run.c.check == Check::kSlices ? kSlices : run.group.num_callers();
  const auto outcomes = play(run, num_groups * num_callers, groups, [&](int thread) {
    const auto g = static_cast<std::size_t>(thread / num_callers);
    const int caller = thread % num_callers;
    const auto own = std::span(problems).subspan(g * offsets.size(), offsets.size());
    if (run.c.check == Check::kSlices) return call_on_slice(run, groups[g], caller, own[0]);
    if (run.c.check == Check::kHandles) return start_calls(groups[g].rank(caller), own);
    for (const Problem& problem : own) groups[g].make_call(caller, problem);
  });
  for (std::size_t r = 0; r < outcomes.size(); ++r) {
    if (outcomes[r].error) return concat("caller ", r, " threw ", error_text(*outcomes[r].error));
  }
  const Determinism grade = run.group.determinism();
  for (const Problem& problem : problems) {
    const std::string wrong =
        problem.check(grade, run.group.max_relative_error(), &run.largest_error);
    if (!wrong.empty()) return wrong;
  }
  const bool is_repeated = offsets.front() == offsets.back() && grade != Determinism::kNone;
  if (!is_repeated || problems.front().outputs() == problems.back().outputs()) return {};
  return concat("the same call gave different bits, but the grade is ", to_string(grade));
}

/// Returns a rank's call; the last rank's call differs from all others.
Call mismatched(const Run& run, const Problem& problem, int rank) {
  Call own = problem.call(rank);
  const auto kind = static_cast<MismatchKind>(run.c.variant);
  const auto count = static_cast<std::int64_t>(run.c.count);
  const bool is_last = rank == run.c.world - 1;
  if (kind == MismatchKind::kShape) own.shape = is_last ? Shape{1, count} : Shape{count, 1};
  if (kind == MismatchKind::kName) own.name = is_last ? "bias" : "kernel";
  if (!is_last) return own;
  if (kind == MismatchKind::kOperation) own.collective = Collective::kBroadcast;
  if (kind == MismatchKind::kReduceOp) own.op = ReduceOp::kMax;
  if (kind == MismatchKind::kDType) own.input.dtype = own.output.dtype = DType::kInt32;
  if (kind == MismatchKind::kCount) own.input.count = own.output.count = run.c.count - 1;
  if (kind == MismatchKind::kRoot) own.root = rank, own.output = own.input;
  return own;
}

/// Checks that all ranks receive kInvalidArgument naming the last rank. Returns the error, or "".
std::string check_mismatch(const Run& run) {
  Case base = run.c;
  base.variant = 0;
  const Problem problem(base);
  const auto outcomes =
      play(run, [&](int rank) { call(run.group.rank(rank), mismatched(run, problem, rank)); });
  return wrong_errors(outcomes, {.codes = {ErrorCode::kInvalidArgument},
                                 .parts = {concat("rank ", run.c.world - 1)}});
}

/// Checks that a call fails if the last rank does not join it, aborts it, or destroys its
/// communicator.
std::string check_without_last(const Run& run) {
  const Problem problem(run.c);
  const int last = run.c.world - 1;
  const bool on_all = !has_root(run.c.collective);  // with a root, some ranks may complete
  auto outcomes = play(run, [&](int rank) {
    if (rank < last) return run.group.make_call(rank, problem);
    if (run.c.check == Check::kDeadline) return;
    Clock::system().sleep_for(kUntilAllWait);
    if (run.c.check == Check::kPeerGone) return run.group.ranks.back().reset();
    run.group.rank(0).abort(Error(ErrorCode::kAborted, kReason));
  });
  outcomes.pop_back();
  if (run.c.check == Check::kPeerGone) {
    return wrong_errors(
        outcomes, {.codes = {ErrorCode::kUnavailable, ErrorCode::kAborted}, .on_all = on_all});
  }
  std::string wrong =
      run.c.check == Check::kDeadline
          ? wrong_deadline(outcomes, kShortTimeout, on_all)
          : wrong_errors(outcomes,
                         {.codes = {ErrorCode::kAborted}, .parts = {kReason}, .on_all = on_all});
  if (!wrong.empty()) return wrong;
  // A failed communicator must throw again in the next call, without waiting.
  const auto again = play(run, [&](int rank) {
    if (rank < last) run.group.make_call(rank, problem);
  });
  for (std::size_t r = 0; r < outcomes.size(); ++r) {
    if (!outcomes[r].error) continue;
    if (!again[r].error) return concat("rank ", r, ": a call after a failed call did not fail");
    const bool is_late = again[r].end - again[r].begin > kInTime;
    if (is_late)
      return concat("rank ", r, ": a call after a failed call waited instead of failing at once");
  }
  return {};
}

std::string check(const Run& run) {
  if (!run.group.supports(run.c)) {
    fail(ErrorCode::kUnimplemented, run.subject.name, " does not support ",
         to_string(run.c.collective), " ", run.c.op, " of ", run.c.dtype);
  }
  std::vector<TestedGroup> groups;
  switch (run.c.check) {
    case Check::kSlices:
      if (!run.group.ops->sliceable())
        fail(ErrorCode::kUnimplemented, run.subject.name, " is not sliceable");
      [[fallthrough]];
    case Check::kValues:
    case Check::kSpecialValues:
      return check_calls(run, {&run.group, 1}, {0});
    case Check::kRepeated:
      return check_calls(run, {&run.group, 1}, {0, 1, 0});
    case Check::kHandles:
      return check_calls(run, {&run.group, 1}, {0, 1, 2, 3, 4});
    case Check::kConcurrent:
      for (int g = 0; g < 3; ++g) groups.emplace_back(run.c, run.subject, kCallTimeout);
      return check_calls(run, groups, {0, 1, 2, 3});
    case Check::kMismatch:
      return check_mismatch(run);
    case Check::kDeadline:
    case Check::kAbort:
    case Check::kPeerGone:
      return check_without_last(run);
  }
  fail(ErrorCode::kInternal, "conformance: expected a known check, got ",
       static_cast<int>(run.c.check));
}

/// Returns true if the case leaves its group unusable and therefore needs its own group.
bool breaks_group(const Case& c) {
  return c.check == Check::kMismatch || c.check == Check::kDeadline || c.check == Check::kAbort ||
         c.check == Check::kPeerGone;
}

Duration timeout_of(const Case& c) {
  if (c.check == Check::kDeadline) return kShortTimeout;
  return breaks_group(c) ? kErrorTimeout : kCallTimeout;
}

/// Runs the case in the group `kept` if that group suits the case, or else in a new group. A case
/// that fails in `kept` is rerun in a new group.
Result run_case(const Case& c, const Subject& subject, std::optional<TestedGroup>& kept) {
  const bool fits = kept && kept->shape == c.shape && kept->world == c.world && !breaks_group(c);
  if (!fits) kept.reset();
  std::string wrong;
  double largest_error = 0.0;
  try {
    if (!fits) kept.emplace(c, subject, timeout_of(c));
    wrong = check({c, subject, *kept, largest_error});
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kUnimplemented) return {c, Verdict::kSkipped, error.message()};
    wrong = concat("an exception was thrown: ", error.what());
  } catch (const std::exception& error) {
    wrong = concat("an exception was thrown: ", error.what());
  }
  if (!wrong.empty() || breaks_group(c)) kept.reset();
  if (wrong.empty()) return {c, Verdict::kPassed, "", largest_error};
  if (!fits) return {c, Verdict::kFailed, wrong};
  const Result again = run_case(c, subject, kept);
  if (again.verdict == Verdict::kFailed) return again;
  return {c, Verdict::kFailed,
          wrong + " (only after earlier calls: the case passes in a new group)"};
}

}  // namespace

std::string wrong_deadline(std::span<const Outcome> callers, Duration timeout, bool on_all) {
  ExpectedError expected{.codes = {ErrorCode::kDeadlineExceeded},
                         .parts = {concat(callers.size())},
                         .on_all = on_all,
                         .soonest = timeout / 2,
                         .latest = timeout + kInTime};
  const TimePoint first = std::ranges::min_element(callers, {}, &Outcome::begin)->begin;
  for (std::size_t r = 0; r < callers.size(); ++r) {
    if (callers[r].begin - first > expected.soonest) expected.parts.push_back(concat(r));
  }
  return wrong_errors(callers, expected);
}

Report run_cases(const std::vector<Case>& cases, const Subject& subject,
                 const RunOptions& options) {
  Report report;
  report.name = subject.name;
  if (!cases.empty()) report.seed = cases.front().seed;
  const TimePoint begin = Clock::system().now();
  const TimePoint end = deadline_after(begin, options.budget);
  std::size_t num_failures = 0;
  std::optional<TestedGroup> kept;
  for (const Case& c : cases) {
    if (num_failures >= options.max_failures || Clock::system().now() >= end) {
      report.results.push_back({c, Verdict::kNotRun});
      continue;
    }
    if (options.before_case) options.before_case(c);
    report.results.push_back(run_case(c, subject, kept));
    num_failures += report.results.back().verdict == Verdict::kFailed;
  }
  report.seconds = seconds_between(begin, Clock::system().now());
  return report;
}

Report run(const Plan& plan, const Subject& subject, const RunOptions& options) {
  return run_cases(cases(plan), subject, options);
}

}  // namespace tutti::conformance
