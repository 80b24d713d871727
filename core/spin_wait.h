// Looking again for some microseconds before a thread goes to sleep: when it pays.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tutti {

/// Whether every thread of this process that is awake, and one that the user started unless that
/// sleeps, can have a core of its own. Any thread.
bool cores_to_spare();

/// Looking again was in vain when what was waited for took longer, or when other programs wanted
/// the core: then a thread sleeps at once for the next waits, for more of them each time. One per
/// place where threads wait, and of one thread at a time.
class SpinningHabit {
 public:
  bool worth_it();
  void learn(bool was_in_vain);

 private:
  int penalty_ = 0;
  int to_skip_ = 0;
};

/// Some tens of nanoseconds in which the other thread of the core may work.
void pause_briefly();

}  // namespace tutti
