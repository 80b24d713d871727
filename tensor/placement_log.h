// Which operation runs on which device: tf.debugging.set_log_device_placement.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "tutti/tensor/op.h"

namespace tutti {

/// Gets one line per operation; called by the thread that ran it, one at a time.
using PlacementSink = std::function<void(const std::string& line)>;

/// From now on each operation of each thread gives a line,
/// "MatMul: /job:localhost/replica:0/task:0/device:CPU:0", to `sink`; without one to the log.
/// false: no longer. Operations that a captured step repeats without the host are not seen again.
/// Threads: any, while no operation runs. tf.debugging.set_log_device_placement.
void set_log_device_placement(bool on, PlacementSink sink = {});

/// tf's name of an operation's type: "MatMul", "Conv2D", "Sum".
std::string_view tf_op_name(OpId op);

namespace internal {
bool placement_is_logged();
void log_placement(const OpCall& call, std::span<const Tensor> outputs);
}  // namespace internal

}  // namespace tutti
