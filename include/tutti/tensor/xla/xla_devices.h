// The devices that XLA computes on in this process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace tutti {

/// What XLA computes on here, for people and for strategies that choose.
struct XlaDevices {
  std::string platform;  // "cpu", "tpu"; empty: none
  int count = 0;         // xla:0 .. xla:count-1
  std::string plugin;    // path
  std::string version;   // of the plugin's table, "0.115"
  std::string why_none;  // one line: what is missing and what to do; empty when there are some
};

/// Opens the plugin and its devices at the first call, which takes a tenth of a second or, on TPUs,
/// seconds; they stay this process's as long as it lives.
const XlaDevices& xla_devices();

}  // namespace tutti
