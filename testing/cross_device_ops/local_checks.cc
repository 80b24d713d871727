// Cases of one object that has the buffers of all replicas.
// SPDX-License-Identifier: Apache-2.0
#include "testing/cross_device_ops/checks.h"

namespace tutti::conformance {
namespace {

bool is_supported(const CrossDeviceOps& ops, const Case& c, DeviceType device) {
  if (!combines(c.collective)) return true;
  const ReduceOp op = c.op == ReduceOp::kMean ? ReduceOp::kSum : c.op;
  if (ops.supports(op, c.dtype, device)) return true;
  return is_half(c.dtype) && ops.supports(op, DType::kFloat32, device);
}

std::string call_and_check(CrossDeviceOps& ops, const Problem& problem) {
  call(ops, problem);
  return problem.check(ops.determinism());
}

/// Objects of their own on threads of their own.
Result check_concurrent(const Case& c, Subject& subject) {
  constexpr int kGroups = 3, kCalls = 6;
  std::vector<std::unique_ptr<CrossDeviceOps>> groups;
  for (int g = 0; g < kGroups; ++g) groups.push_back(subject.new_local(c.world));
  std::vector<std::string> wrong(kGroups);
  const Outcomes outcomes = run_ranks(
      subject, c, kGroups,
      [&](int g) {
        const auto own = static_cast<std::size_t>(g);
        for (int i = 0; i < kCalls && wrong[own].empty(); ++i) {
          const auto seed = static_cast<std::uint64_t>(kGroups * i + g);
          wrong[own] = call_and_check(
              *groups[own], Problem(with_seed(c, c.seed + seed), subject.devices(c.world)));
        }
      },
      [] {});
  for (const std::string& message : wrong) {
    if (!message.empty()) return failed(concat("of several groups at once, one: ", message));
  }
  return verdict_of(first_error(outcomes));
}

Result check_slices(const Case& c, Subject& subject, CrossDeviceOps& ops) {
  if (!ops.sliceable()) return skipped("not sliceable");
  constexpr std::size_t kThreads = 4;
  Case in_place = c;
  in_place.in_place = true;
  const Problem problem(in_place, subject.devices(c.world));
  const Outcomes outcomes = run_ranks(
      subject, c, kThreads,
      [&](int thread) {
        // Ranges that begin at odd elements.
        const auto cut = [&](std::size_t t) {
          return t == kThreads ? c.count : t * (c.count / kThreads) | (t > 0);
        };
        const std::size_t first = cut(static_cast<std::size_t>(thread));
        std::vector<ReplicaBuffer> slices = problem.outputs();
        for (ReplicaBuffer& slice : slices) {
          slice.data += first * size_of(c.dtype);
          slice.count = cut(static_cast<std::size_t>(thread) + 1) - first;
        }
        ops.all_reduce_in_place(c.op, slices);
      },
      [] {});
  const std::string error = first_error(outcomes);
  return verdict_of(error.empty() ? problem.check(ops.determinism()) : error);
}

/// What `attempt` does with the problem is an error, before anything is written.
Result expect_refused(const Problem& problem, const std::function<void()>& attempt) {
  try {
    attempt();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInvalidArgument) return verdict_of(problem.check_untouched());
    return failed(concat("expected INVALID_ARGUMENT, got ", error.what()));
  }
  return failed("expected INVALID_ARGUMENT, got no error");
}

Result check_local_mismatch(const Case& c, Subject& subject, CrossDeviceOps& ops) {
  Case apart = c;
  apart.variant = 0;
  const Problem problem(apart, subject.devices(c.world));
  std::vector<ReplicaBuffer> inputs = problem.inputs();
  const auto kind = static_cast<MismatchKind>(c.variant);
  if (kind == MismatchKind::kCount) inputs.back().count -= 1;
  if (kind == MismatchKind::kDType) inputs.back().dtype = DType::kInt32;
  return expect_refused(problem, [&] {
    if (kind == MismatchKind::kRoot) {
      ops.reduce(c.op, inputs, problem.output(0), c.world);
    } else {
      ops.all_reduce(c.op, inputs, problem.outputs());
    }
  });
}

}  // namespace

void call(CrossDeviceOps& ops, const Problem& problem) {
  const Case& c = problem.of();
  const std::vector<ReplicaBuffer> inputs = problem.inputs(), outputs = problem.outputs();
  switch (c.collective) {
    case Collective::kAllReduce:
      if (c.in_place) return ops.all_reduce_in_place(c.op, outputs);
      return ops.all_reduce(c.op, inputs, outputs);
    case Collective::kReduce:
      return ops.reduce(c.op, inputs, outputs[static_cast<std::size_t>(c.variant)], c.variant);
    case Collective::kBroadcast:
      return ops.broadcast(outputs, c.variant);
    case Collective::kAllGather:
      return ops.all_gather(inputs, outputs);
    case Collective::kReduceScatter:
      return ops.reduce_scatter(c.op, inputs, outputs);
    case Collective::kAllToAll:
      if (!c.uneven) return ops.all_to_all(inputs, outputs);
      return ops.all_to_all(inputs, outputs, problem.layout().counts);
    case Collective::kBarrier:
      break;
  }
  fail(ErrorCode::kInvalidArgument, "one object has no barrier");
}

Result check_three_calls(const Case& c, const std::vector<Device>& devices, Determinism grade,
                         const std::function<std::string(const Problem&)>& call_and_check) {
  const Problem first(c, devices), other(with_seed(c, c.seed + 1), devices), again(c, devices);
  for (const Problem* problem : {&first, &other, &again}) {
    const std::string wrong = call_and_check(*problem);
    if (!wrong.empty()) return failed(concat("in one of three calls: ", wrong));
  }
  if (grade != Determinism::kNone && !first.has_outputs_of(again)) {
    return failed(concat("the same call gave other bits, but the grade is ", to_string(grade)));
  }
  return passed();
}

Result check_local(const Case& c, Subject& subject) {
  CrossDeviceOps* const ops = subject.kept_local(c.world);
  if (!ops) return skipped(subject.why_not());
  const std::vector<Device> devices = subject.devices(c.world);
  if (c.check == Check::kRefused) {
    const Problem problem(c, devices);
    return expect_refused(problem, [&] { call(*ops, problem); });
  }
  if (!is_supported(*ops, c, devices.front().type))
    return skipped(concat("does not support ", c.op, " of ", c.dtype));
  switch (c.check) {
    case Check::kValues:
    case Check::kSpecialValues:
      return verdict_of(call_and_check(*ops, Problem(c, devices)));
    case Check::kRepeated:
      return check_three_calls(c, devices, ops->determinism(), [&](const Problem& problem) {
        return call_and_check(*ops, problem);
      });
    case Check::kConcurrent:
      return check_concurrent(c, subject);
    case Check::kSlices:
      return check_slices(c, subject, *ops);
    case Check::kMismatch:
      return check_local_mismatch(c, subject, *ops);
    default:
      return skipped("one object waits for nobody");
  }
}

}  // namespace tutti::conformance
