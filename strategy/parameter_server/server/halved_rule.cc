// Two halves of an update at once.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/server/halved_rule.h"

#include <exception>
#include <vector>

#include "tutti/core/executor.h"

namespace tutti::internal {
namespace {

/// Elements `first` to `first + count` of the run; `slots` holds their places.
UpdateArgs part_of(const UpdateArgs& args, std::size_t first, std::size_t count,
                   std::vector<void*>& slots) {
  const std::size_t offset = first * size_of(args.dtype);
  for (void* const slot : args.slots_data) slots.push_back(static_cast<std::byte*>(slot) + offset);
  return {args.dtype,
          count,
          static_cast<std::byte*>(args.weights_data) + offset,
          slots,
          static_cast<const std::byte*>(args.gradient_data) + offset,
          args.scalars};
}

}  // namespace

void HalvedRule::apply(const UpdateArgs& args) const {
  constexpr std::size_t kLineOfElements = 64;
  const bool is_long = args.count * size_of(args.dtype) >= kWorthSplitting;
  if (!is_long || num_hardware_threads() < 2) return rule_.apply(args);
  const std::size_t half = args.count / 2 / kLineOfElements * kLineOfElements;
  std::vector<void*> first_slots, second_slots;
  const UpdateArgs first = part_of(args, 0, half, first_slots);
  const UpdateArgs second = part_of(args, half, args.count - half, second_slots);
  std::exception_ptr problem;
  {
    const auto helper = Executor::system().start("ps-update", [&] {
      try {
        rule_.apply(second);
      } catch (...) {
        problem = std::current_exception();
      }
    });
    rule_.apply(first);  // whatever it throws, the helper is waited for
  }
  if (problem) std::rethrow_exception(problem);
}

}  // namespace tutti::internal
