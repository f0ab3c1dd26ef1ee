// Facts of an operator's schema that its simulated kernel needs, computed once.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <vector>

namespace simulator {

struct Signature {
  explicit Signature(const c10::OperatorHandle& op);

  std::string name;
  bool is_random = false;
  bool only_moves_data = false;  // may make or keep an infinity without any overflow
  bool takes_several_devices = false;
  std::vector<bool> is_out;      // per argument: the caller's tensor for a result, resized where it is empty
  std::vector<bool> is_written;  // per argument
  std::vector<bool> is_factor;   // per argument: multiplied by the cube unit, not one at a time
  std::vector<int> same_as;      // per result: the argument that it is, or -1
};

}  // namespace simulator
