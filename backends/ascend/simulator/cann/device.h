// The calling thread's device, and each device's sticky overflow flag.
#pragma once

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace simulator {
int current_device();  // -1 before a device is set
int device_or_first();
}  // namespace simulator

// C functions, since the operators' library looks them up by name.
EXPORTED bool simulator_saturates();         // whether overflow gives the largest number instead of infinity
EXPORTED bool simulator_first_generation();  // Ascend910A and its siblings
EXPORTED void simulator_raise_overflow();    // of the calling thread's device, as the next two
EXPORTED bool simulator_overflowed();
EXPORTED void simulator_clear_overflow();
