// Runs one rank's schedule over messages.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "cross_device_ops/algorithms/rank_link.h"
#include "cross_device_ops/algorithms/schedule.h"
#include "cross_device_ops/collective_header.h"
#include "tutti/tensor/buffer.h"

namespace tutti::internal {

/// A schedule, and whether the left neighbour's first message of data carries its header.
struct CallPlan {
  Schedule schedule;
  bool left_greets_with_data = false;
};

/// One call of one rank. Every rank sends its header to its right neighbour, as the head of its
/// first message if that goes there, else as a message of its own before; the left neighbour's is
/// compared in the first kVerify step, and before this rank waits for any other message.
class MessageRun {
 public:
  MessageRun(const RankLink& link, const CallPlan& plan, const RankMemory& memory,
             const CollectiveHeader& header, TimePoint deadline);
  /// Throws kInvalidArgument with "collective mismatch (...", kDeadlineExceeded, kAborted,
  /// kUnavailable; then the messages under way are cancelled, and the others do not know yet.
  void run();
  /// After kDeadlineExceeded: the ranks whose messages have not come, increasing.
  std::vector<int> awaited() const;

 private:
  struct Received {
    std::size_t step = 0;
    BufferRef staging;  // of what is to be combined
    bool brings_header = false;
    std::unique_ptr<Work> work;
  };
  struct Sent {
    int peer = 0;
    ByteRange bytes;
    std::unique_ptr<Work> work;
  };

  void greet();
  void execute(const Step& step);
  Purpose purpose(bool with_header) const;
  void send(const Step& step);
  void receive(const Step& step);
  void wait_for_message(Received& received);
  void post_ahead();
  bool is_in_the_way(std::size_t step) const;
  void post(std::size_t step);
  void wait_for_readers(const ByteRange& range);
  void forget_ended_sends();
  void wait(Work& work);
  void verify();
  Work* header_work();
  void compare_headers();
  [[noreturn]] void fail_length(const Error& error);

  const RankLink& link_;
  const CallPlan& plan_;
  const std::vector<Step>& steps_;
  const RankMemory& memory_;
  const CollectiveHeader& header_;
  const TimePoint deadline_;
  const EncodedHeader own_header_;
  EncodedHeader left_header_{};
  bool header_is_due_;  // this rank's has not been sent
  bool left_is_due_;    // the left neighbour's first message has not been posted
  bool verified_ = false;
  std::unique_ptr<Work> header_work_;  // of a header that comes alone
  std::size_t current_ = 0;            // step
  std::size_t next_to_post_ = 0;
  std::deque<Received> received_;  // posted, in order
  std::vector<Sent> sent_;
};

}  // namespace tutti::internal
